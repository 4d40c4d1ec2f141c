// SPDX-License-Identifier: Apache-2.0
// The cell of a chaos: an etcd and nodes that can be killed, stopped and cut off. Where root runs it each
// node has a network namespace and a tmpfs of its own, and the last of them a slower link; else all are on
// loopback, where no link can be cut.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "chaos_client.h"
#include "etcd/test_etcd.h"

namespace cistern::chaos {

// How long anything of it may take.
inline constexpr std::int64_t kWatchdogUs = 300'000'000;

class ChaosCell final {
 public:
  struct Options {
    std::size_t nodes = 3;
    std::uint64_t flash_bytes = 0;  // below each node's memory
    std::string other;              // a cisternd of another release: see StartNode
  };
  // Before any thread is made.
  explicit ChaosCell(const Options& options) : options_(options), nodes_(options.nodes) {}
  ~ChaosCell();
  ChaosCell(const ChaosCell&) = delete;
  ChaosCell& operator=(const ChaosCell&) = delete;

  Status Start();
  // Until each node has joined and reaches the others: for as long as the watchdog.
  Status AwaitAll();
  std::deque<ChaosNode>& nodes() { return nodes_; }
  // Whether nodes of both releases are in it.
  bool IsMixed() const {
    const auto others = std::ranges::count_if(nodes_, [](const ChaosNode& node) { return node.is_other; });
    return others > 0 && std::cmp_less(others, nodes_.size());
  }
  // Whether links can be cut; why not.
  const Status& apart() const { return apart_; }

  void KillNode(std::size_t node);
  // Where there is another release, of the one that it was not before.
  Status StartNode(std::size_t node);
  void KillEtcd() { etcd_->Kill(); }
  Status StartEtcd() { return etcd_->Start(); }
  // While a node's client is promised nothing, because the node or a link of it stands still: nested.
  void Stop(std::size_t node);
  void GoOn(std::size_t node);
  Status SetLink(std::size_t node, bool up);
  // What one sends to another, or to etcd where that is none.
  Status SetWay(std::size_t from, std::optional<std::size_t> to, bool open);

 private:
  Status MakeFlash();
  Status MakeHosts();
  std::vector<std::string> FlagsOf(std::size_t node) const;
  Status AddNode(std::size_t node);

  const Options options_;
  std::string directory_;
  std::string flash_;  // empty: nodes have memory alone
  Status apart_;
  std::optional<etcd::TestEtcd> etcd_;
  std::string endpoint_;
  struct Host {
    std::string address = "127.0.0.1", directory;
    std::vector<std::string> prefix;
  };
  std::vector<Host> hosts_;
  std::deque<ChaosNode> nodes_;
};

}  // namespace cistern::chaos
