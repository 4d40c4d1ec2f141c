// SPDX-License-Identifier: Apache-2.0
// A cell in one process, for tests: members with model stores on a simulated network and a simulated etcd.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/task_group.h"
#include "etcd/simulated.h"
#include "io/simulated_loop.h"
#include "mesh/member.h"
#include "mesh/rule_admission.h"
#include "mesh/test_store.h"
#include "net/simulated_network.h"

namespace cistern::mesh {

inline BlockKey KeyOf(std::uint64_t number) {
  std::array<std::byte, 16> bytes{};
  StoreAt(bytes.data(), 0, number);
  return *BlockKey::FromBytes(bytes);
}
inline SharedNamespace NamespaceOf(std::uint8_t number) {
  SharedNamespace name{.tenant = "default"};
  name.list_hash.fill(static_cast<std::byte>(number));
  return name;
}
inline CellDrop DropOfKeys(const SharedNamespace& name, std::vector<BlockKey> keys) {
  return {.what = CellDrop::What::kKeys, .name = name, .keys = std::move(keys)};
}
inline CellDrop EndOf(const SharedNamespace& name, std::uint64_t conversation) {
  return {.what = CellDrop::What::kConversation, .name = name, .conversation = conversation};
}
// Of a record of this chain that was answered with that.
inline Verdict Judge(const CellRule& rule, const Answered& answered, const SharedNamespace& name,
                     const std::vector<BlockKey>& chain) {
  ChainCheck check(rule.drops(), name, chain, answered.a);
  RuleAdmission admission(rule, name, check, {answered, {}}, {});
  for (std::uint32_t touches = 1; admission.Look(&touches) == RuleAdmission::Answer::kMore; touches = 1) {
  }
  return admission.verdict();
}

// A node: its process may be killed and started again, with what its medium kept.
struct TestNode {
  std::string id, host, address;  // none: where it listens
  std::uint8_t boot = 1;
  ModelMedium medium;
  std::vector<net::CellKey> cell_keys;
  std::unique_ptr<etcd::Etcd> client;
  std::unique_ptr<net::Network> network;
  std::unique_ptr<ModelStore> store;
  std::unique_ptr<Member> member;    // null: not running
  std::unique_ptr<TaskGroup> calls;  // of the test, which end with the process
};

class TestCell {
 public:
  explicit TestCell(std::uint64_t seed) : random_(seed) {}
  ~TestCell() {
    for (auto& node : nodes) Kill(*node);
  }
  Executor& executor() { return loop->executor(); }

  TestNode& Add(std::string id, std::string host = "") {
    nodes.push_back(std::make_unique<TestNode>());
    TestNode& node = *nodes.back();
    node.host = host.empty() ? id : std::move(host);
    node.id = std::move(id);
    return node;
  }
  void Start(TestNode& node) {
    node.calls = std::make_unique<TaskGroup>(executor());
    node.client = etcd.Client(node.host);
    node.network = network.Host(node.host);
    node.store = std::make_unique<ModelStore>(executor(), node.medium, random_.Next(), faults);
    MemberOptions options;
    options.id = node.id;
    options.listen = node.host + ":0";
    options.address = node.address;
    options.boot_id.fill(static_cast<std::byte>(node.boot));
    options.process_number = random_.Next() | 1;
    options.cell_keys = node.cell_keys;
    options.etcd_is_ours = true;
    options.boot = boot;
    auto started = Member::Start(*node.client, *node.network, *node.store, std::move(options));
    CISTERN_ASSERT(started.has_value());
    node.member = std::move(*started);
  }
  void Kill(TestNode& node) {
    if (node.calls) node.calls->Drop();
    node.calls.reset();
    node.member.reset();
    network.Stop(node.host);
    node.store.reset();
    node.client.reset();
    node.network.reset();
  }
  Task<void> Pass(std::int64_t us) { (void)co_await SleepUntil(executor().Now().PlusUs(us)); }
  void RunFor(std::int64_t us) { loop->BlockOn(Pass(us)); }
  // Until it holds; false: it does not within the time.
  template <class Holds>
  bool RunUntil(std::int64_t us, Holds&& holds) {
    const Instant until = clock.Now().PlusUs(us);
    while (!holds()) {
      if (clock.Now() >= until) return false;
      RunFor(1'000);
    }
    return true;
  }
  bool AllJoined() const {
    return std::ranges::all_of(nodes,
                               [](const auto& node) { return !node->member || node->member->joined(); });
  }
  Result<DropReceipt> Drop(TestNode& node, CellDrop drop, DropWait wait = DropWait::kApplied,
                           std::int64_t us = 5'000'000) {
    return loop->BlockOn(node.member->Drop(std::move(drop), wait, clock.Now().PlusUs(us)));
  }

 protected:
  Random random_;

 public:
  ModelStore::Faults faults;
  const Clock* boot = nullptr;  // of members that start
  SimulatedClock clock;
  io::SimulatedDisk disk{1};
  std::unique_ptr<io::Loop> loop = std::move(*io::SimulatedLoop::Make(clock, disk, 1));
  net::SimulatedNetwork network{loop->executor(), random_.Next()};
  etcd::SimulatedEtcd etcd{loop->executor(), random_.Next()};
  std::vector<std::unique_ptr<TestNode>> nodes;
};

}  // namespace cistern::mesh
