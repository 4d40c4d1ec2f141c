// SPDX-License-Identifier: Apache-2.0
// Nodes with real stores under random puts, reads of each other, drops that each sees and applies in its own
// time, evictions, times to live, cut ways, broken connections, slow and lying members. What is read is
// exact, and what a drop covers that every node has applied is read by nobody.
#include <algorithm>
#include <map>
#include <set>

#include "mesh/test_mesh.h"

namespace cistern::mesh {
namespace {

class ReadingStormTest : public MeshTest, public ::testing::WithParamInterface<int> {
 protected:
  static constexpr std::uint64_t kBlocks = 96;  // a tree: the parent of n is n / 2
  static constexpr std::size_t kNodes = 3;

  struct DropOf {
    CellDrop drop;
    std::set<std::uint64_t> blocks;
    std::uint64_t issued = 0;  // as puts are counted
    std::size_t applied = 0;   // nodes
  };

  static std::vector<std::uint64_t> PathTo(std::uint64_t n) {
    std::vector<std::uint64_t> path;
    for (; n > 0; n /= 2) path.push_back(n);
    std::ranges::reverse(path);
    return path;
  }
  std::int64_t Random(std::int64_t below) {
    return static_cast<std::int64_t>(random_.Below(static_cast<std::uint64_t>(below)));
  }

  // The path down to a block, as an engine writes what it has computed.
  Task<void> PutPath(Executor&, std::size_t i, std::uint64_t last) {
    const catalog::Caller caller{1, {std::byte{1}}};
    std::vector<store::PartWrite> parts;
    std::vector<std::vector<std::byte>> bodies;
    const std::vector<std::uint64_t> path = PathTo(last);
    bodies.reserve(path.size());
    const std::uint32_t ttl_s = random_.Chance(0.1) ? 1 : 0;
    for (const std::uint64_t n : path) {
      bodies.push_back(store::Body(n, BytesOf(n)));
      store::PartWrite& part = parts.emplace_back();
      part.key = store::Key(n);
      if (n > 1) part.parent = store::Key(n / 2);
      part.put_id = {77, ++put_count_};
      part.from = bodies.back();
      if (n == last) part.ttl_s = ttl_s;
    }
    (void)co_await node(i).store->Write(caller, slot, std::move(parts), After(100'000));
  }
  Task<void> FindAndRead(Executor&, std::size_t i, std::uint64_t last, std::int64_t us) {
    std::vector<BlockKey> chain;
    std::size_t local = 0;
    bool here = true;
    for (const std::uint64_t n : PathTo(last)) {
      chain.push_back(store::Key(n));
      here = here && Here(i, n);
      local += here ? 1 : 0;
    }
    const Instant deadline = After(us);
    const PeerMatch match = co_await node(i).finder->Find(slot, chain, local, deadline);
    late_ += clock.Now().UsSince(deadline) > 0 ? 1 : 0;
    if (match.run == nullptr) co_return;
    const auto read =
        co_await node(i).reader->Read(match.run, match.run->first, match.run->count, 0, deadline);
    late_ += clock.Now().UsSince(deadline) > 0 ? 1 : 0;
    taken_ += read.value_or(0);
    if (!read && read.error().code() == Code::kMiss) ++refused_;
  }
  // A node sees the cell's drops one after the other, and applies each a while after it has seen it.
  Task<void> FollowDrops(Executor&, std::size_t i) {
    for (std::size_t next = 0;; ++next) {
      while (next >= issued_.size()) co_await drop_issued_.Wait();
      co_await Pass(Random(6'000));
      DropOf& drop = issued_[next];
      node(i).rule.list.Add(static_cast<std::int64_t>(next + 1), drop.drop);
      (void)co_await node(i).store->Drop(slot, drop.drop.keys);
      co_await Pass(Random(3'000));
      node(i).rule.applied = static_cast<std::int64_t>(next + 1);
      ++drop.applied;
    }
  }
  void IssueDrop(std::uint64_t top) {
    DropOf drop{.drop = {.what = CellDrop::What::kKeys,
                         .name = *node(0).names->NameAt(slot),
                         .keys = {store::Key(top)}},
                .issued = put_count_};
    for (std::uint64_t n = top; n < kBlocks; ++n) {
      const std::vector<std::uint64_t> path = PathTo(n);
      if (std::ranges::find(path, top) != path.end()) drop.blocks.insert(n);
    }
    issued_.push_back(std::move(drop));
    drop_issued_.Pulse();
  }
  void Check() {
    for (std::size_t i = 0; i < kNodes; ++i) {
      for (std::uint64_t n = 1; n < kBlocks; ++n) {
        const auto body = node(i).ReadBody(slot, store::Key(n));
        if (!body) continue;
        ++checked_;
        ASSERT_EQ(*body, store::Body(n, BytesOf(n))) << "node " << i << " block " << n;
        const std::uint64_t put = node(i).last_put_id.low;
        for (const DropOf& drop : issued_) {
          if (drop.applied < kNodes || !drop.blocks.contains(n)) continue;
          ASSERT_GT(put, drop.issued) << "node " << i << " block " << n << ": a drop came undone";
        }
      }
    }
  }
  static std::size_t BytesOf(std::uint64_t n) { return n % 7 == 0 ? 150'000 : 3'000 + n; }

  cistern::Random random_{static_cast<std::uint64_t>(GetParam())};
  std::deque<DropOf> issued_;
  Event drop_issued_;
  std::uint64_t put_count_ = 0, taken_ = 0, refused_ = 0, checked_ = 0, late_ = 0;
};

TEST_P(ReadingStormTest, WhatIsReadIsExactAndWhatIsDroppedStaysGone) {
  TestNodeOptions options;
  options.store.max_blocks = 60;
  // Every second time bodies are read from the others' memory, which refuses some and is silent to others.
  net::SimulatedFabric::Members members;
  const bool fetched = GetParam() % 2 == 0;
  if (fetched) options.fabric = &members;
  NamespaceSpec spec = Blocks();
  spec.block_tokens = 256;
  StartNodes(kNodes, spec, options);
  TaskGroup calls(executor()), follows(executor());
  for (std::size_t i = 0; i < kNodes; ++i) {
    if (fetched) node(i).fabric->faults = {.read_us = 2'000, .refused = 0.005, .silent = 0.001};
    follows.Spawn(FollowDrops(executor(), i));
    node(i).before_find = [this](Executor&) { return Pass(random_.Chance(0.3) ? Random(20'000) : 0); };
    node(i).lie = [this](net::RailSource::Answer& answer) {
      if (!random_.Chance(0.01)) return;
      answer.head[static_cast<std::size_t>(Random(static_cast<std::int64_t>(answer.head.size())))] ^=
          std::byte{4};
    };
  }
  const char* const hosts[] = {"a", "b", "c"};
  for (int step = 0; step < 1'500 && !HasFatalFailure(); ++step) {
    const auto i = static_cast<std::size_t>(Random(kNodes));
    const auto n = static_cast<std::uint64_t>(1 + Random(kBlocks - 1));
    const std::int64_t what = Random(100);
    if (what < 20) {
      calls.Spawn(PutPath(executor(), i, n));
    } else if (what < 80) {
      calls.Spawn(FindAndRead(executor(), i, n, 500 + Random(60'000)));
    } else if (what < 88) {
      IssueDrop(n);
    } else if (what < 90) {
      const char *one = hosts[Random(kNodes)], *other = hosts[Random(kNodes)];
      network.Cut(one, other);
    } else if (what < 94) {
      for (const char* one : hosts) {
        for (const char* other : hosts) network.Heal(one, other);
      }
    } else if (what < 95) {
      network.Reset(hosts[Random(kNodes)], hosts[Random(kNodes)]);
    }
    RunFor(Random(1'500));
    if (step % 25 == 0) Check();
  }
  for (const char* one : hosts) {
    for (const char* other : hosts) network.Heal(one, other);
  }
  loop->BlockOn(calls.Close());
  RunFor(200'000);
  Check();
  for (const DropOf& drop : issued_) EXPECT_EQ(drop.applied, kNodes);
  for (auto& each : nodes) {
    EXPECT_EQ(each->reader->landing_bytes(), 0u);
    EXPECT_EQ(each->reader->transfers(), 0u);
    EXPECT_LE(each->store->TakeLongestStep(), kStepTouches);
  }
  std::uint64_t over_fabric = 0;
  for (auto& each : nodes) over_fabric += each->fabric ? each->fabric->landed : 0;
  EXPECT_EQ(over_fabric > 100, fetched);
  EXPECT_EQ(late_, 0u);
  EXPECT_GT(taken_, 100u);
  EXPECT_GT(checked_, 1'000u);
  follows.Drop();
  RecordProperty("taken", static_cast<int>(taken_));
  RecordProperty("over_fabric", static_cast<int>(over_fabric));
  while (!nodes.empty()) nodes.pop_back();
}

INSTANTIATE_TEST_SUITE_P(Seeds, ReadingStormTest, ::testing::Range(1, 5));

}  // namespace
}  // namespace cistern::mesh
