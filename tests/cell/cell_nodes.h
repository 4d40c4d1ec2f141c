// SPDX-License-Identifier: Apache-2.0
// A cell of real processes on loopback, for tests: nodes with a directory of their own each, and a real etcd.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <fstream>

#include "../real_node.h"
#include "base/test_directory.h"
#include "daemon.h"
#include "etcd/test_etcd.h"
#include "free_ports.h"

namespace cistern {

inline constexpr std::int64_t kSecond = 1'000'000;
inline constexpr std::size_t kBytes = 5000;

// Every fourth block of a chain is a sample.
inline Namespace AttachBlocks(Store& store, const std::string& name = "test", NamespaceSpec spec = {}) {
  spec.fields = {{"name", name}};
  spec.block_tokens = 64;
  spec.groups = {{.name = "all"}};
  Result<Namespace> ns = store.Attach(spec, 60 * kSecond);
  CISTERN_ASSERT(ns.has_value());
  return *ns;
}

// A node of the cell, and a client of it.
struct CellNode {
  std::optional<Daemon> daemon;
  std::optional<Store> store;
  std::optional<Namespace> ns;
};

class CellNodes : public testing::Test {
 protected:
  void SetUp() override {
    if (!etcd::TestEtcd::Installed()) GTEST_SKIP() << "Debian's etcd-server is not installed";
    ASSERT_TRUE(etcd_.Start().ok()) << etcd_.log();
    WriteKey("key", 'a');
  }

  std::string WriteKey(const std::string& name, char digit) {
    const std::string path = directory_.path() + "/" + name;
    std::ofstream(path) << std::string(64, digit) << "\n";
    ::chmod(path.c_str(), 0600);
    return path;
  }
  // A port may be taken between its choice and its use.
  void Start(const std::string& id, const std::vector<std::string>& besides = {}) {
    CellNode& node = nodes_.emplace_back();
    std::string why;
    for (int attempt = 0; attempt < 5 && !node.daemon; ++attempt) {
      std::vector<std::string> flags = {"--member", id, "--log-level", "error"};
      if (std::ranges::find(besides, "--cell-certificate") == besides.end())
        flags.insert(flags.end(), {"--cell-key", directory_.path() + "/key"});
      flags.insert(flags.end(), besides.begin(), besides.end());
      const auto unless_said = [&](const std::string& flag, const std::string& value) {
        if (std::ranges::find(besides, flag) == besides.end()) flags.insert(flags.end(), {flag, value});
      };
      unless_said("--cell", etcd_.endpoint());
      unless_said("--cell-address", Text("127.0.0.1:", FreePorts()));
      unless_said("--memory", "64MiB");
      // They differ, as on hosts with more and fewer processors.
      unless_said("--cell-rail-threads", Text(1 + nodes_.size() % 3));
      Result<Daemon> daemon = Daemon::Start(DaemonBeside(), directory_.path(), std::move(flags));
      if (daemon) {
        node.daemon.emplace(std::move(*daemon));
      } else {
        why = daemon.error().ToString();
      }
    }
    ASSERT_TRUE(node.daemon) << why;
    Connect(node);
    // Where joining takes long, clients come in before, and what they attached it then discards.
    Until([&] { return Joined(node); });
    node.ns = AttachBlocks(*node.store);
  }
  void Connect(CellNode& node) {
    Result<Store> store = node.daemon->Connect();
    ASSERT_TRUE(store.has_value()) << store.error().ToString();
    node.store.emplace(std::move(*store));
    node.ns = AttachBlocks(*node.store);
  }
  void StartThree() {
    for (const char* id : {"a", "b", "c"}) Start(id);
    ComeTogether();
  }
  std::string Says(CellNode& node) { return node.store->StatusJson(60 * kSecond).value_or(""); }
  bool Joined(CellNode& node) { return Says(node).find("\"joined\":true") != std::string::npos; }
  // Each has joined and has an answer of all others, which comes behind what they say of their room; nobody
  // is a newcomer any more, who would be given what is put next.
  void ComeTogether() {
    const std::string all = Text("\"reachable\":", nodes_.size() - 1, ",");
    for (CellNode& node : nodes_) {
      Until([&] { return Joined(node) && Says(node).find(all) != std::string::npos; });
      const Namespace ns = AttachBlocks(*node.store);
      const BlockKey nobodys[] = {KeyOf(1ull << 40)};
      Until([&] {
        const Result<std::string> said = node.store->CellExplanationJson(ns, nobodys);
        return said && said->find("\"unknown\"") != std::string::npos;
      });
    }
    for (CellNode& node : nodes_) Until([&] { return StatusNumber(*node.store, "newcomers") == 0; });
  }
  std::string HistoryOf(CellNode& node) {
    const std::string says = Says(node);
    const std::size_t at = says.find("\"history\":");
    return at == std::string::npos ? "" : says.substr(at, 30);
  }
  void Put(CellNode& node, std::uint64_t number, std::optional<std::uint64_t> parent = std::nullopt,
           std::size_t bytes = kBytes) {
    const Status put = PutBlock(*node.store, *node.ns, number, parent, bytes);
    ASSERT_TRUE(put.ok()) << put.ToString();
  }
  // Any other answer than that it is here or that it is not fails the test: nothing is known of it then.
  bool Has(CellNode& node, std::uint64_t number) {
    const auto body = node.store->Get(*node.ns, KeyOf(number), {.deadline_us = 60 * kSecond});
    EXPECT_TRUE(body.has_value() || body.error().code() == Code::kMiss) << body.error().ToString();
    return body.has_value();
  }
  Result<std::uint64_t> Drop(CellNode& node, std::uint64_t number, std::int64_t us = 60 * kSecond) {
    const BlockKey key = KeyOf(number);
    return node.store->Drop(*node.ns, std::span(&key, 1), us).Wait();
  }

  void PutChain(CellNode& node, std::uint64_t first, std::uint64_t last, std::size_t bytes = kBytes) {
    for (std::uint64_t n = first; n <= last; ++n)
      Put(node, n, n == first ? std::nullopt : std::optional(n - 1), bytes);
  }
  static std::vector<BlockKey> Chain(std::uint64_t first, std::uint64_t last) {
    std::vector<BlockKey> chain;
    for (std::uint64_t n = first; n <= last; ++n) chain.push_back(KeyOf(n));
    return chain;
  }
  MatchResult Match(CellNode& node, std::uint64_t first, std::uint64_t last) {
    Result<MatchResult> match = node.store->Match(*node.ns, Chain(first, last)).Wait();
    EXPECT_TRUE(match.has_value()) << match.error().ToString();
    return match ? std::move(*match) : MatchResult();
  }
  // All of the chain, at a peer, and none of it here.
  bool AtPeer(CellNode& node, std::uint64_t first, std::uint64_t last) {
    const MatchResult match = Match(node, first, last);
    return match.runs.size() == 1 && match.runs[0].where == Where::kPeer && match.blocks == last - first + 1;
  }
  // A read of blocks [first, last], all of them asked for at once.
  class Reading {
   public:
    Reading(CellNode& node, std::uint64_t first, std::uint64_t last, std::size_t bytes = kBytes,
            const ReadOptions& options = {.deadline_us = 60 * kSecond})
        : first_(first), bodies_(last - first + 1, std::vector<std::byte>(bytes)) {
      std::vector<ReadRange> ranges(bodies_.size());
      std::vector<BlockRead> reads(bodies_.size());
      for (std::size_t i = 0; i < reads.size(); ++i) {
        ranges[i] = {.bytes = bytes, .to = bodies_[i].data()};
        reads[i] = {.key = KeyOf(first + i), .ranges = std::span(&ranges[i], 1)};
      }
      ticket_.emplace(node.store->Read(*node.ns, reads, options));
    }
    // The outcomes; the bodies of those that are ok were compared.
    std::vector<Code> End() {
      Result<ReadResult> read = ticket_->Wait();
      EXPECT_TRUE(read.has_value()) << read.error().ToString();
      if (!read) return {};
      for (std::size_t i = 0; i < bodies_.size(); ++i) {
        EXPECT_TRUE(read->outcomes[i] != Code::kOk || bodies_[i] == BodyOf(first_ + i, bodies_[i].size()))
            << first_ + i;
      }
      return read->outcomes;
    }

   private:
    const std::uint64_t first_;
    std::vector<std::vector<std::byte>> bodies_;
    std::optional<Ticket<ReadResult>> ticket_;
  };
  static std::vector<Code> AllOk(std::size_t count) { return std::vector<Code>(count, Code::kOk); }

  const TestDirectory directory_;
  etcd::TestEtcd etcd_;
  std::deque<CellNode> nodes_;
};

}  // namespace cistern
