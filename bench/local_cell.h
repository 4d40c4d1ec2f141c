// SPDX-License-Identifier: Apache-2.0
// A cell on this host: an etcd and nodes with a directory and ports of their own each, all gone with the
// object.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench.h"
#include "cistern/cistern.h"
#include "daemon.h"
#include "etcd/test_etcd.h"

namespace cistern {

class LocalCell final {
 public:
  struct Node {
    Daemon daemon;
    Store store;  // connected since the node's last start
  };

  // An etcd and no node. `sealed`: what the nodes say to each other is TLS. `parent_dir`: where all of it
  // lies. Each wait of this class ends after a minute with kTooLate.
  static Result<std::unique_ptr<LocalCell>> Start(std::string daemon, const std::string& parent_dir,
                                                  bool sealed = false);
  ~LocalCell();
  LocalCell(const LocalCell&) = delete;
  LocalCell& operator=(const LocalCell&) = delete;

  // Starts one more node, of `flags` besides those of the cell.
  Status Add(const std::vector<std::string>& flags);
  // Waits until each node has joined and is connected to every other one.
  Status ComeTogether();
  // Starts a node again that was killed, with what its memory had.
  Status Restart(std::size_t node);

  Node& operator[](std::size_t node) { return nodes_[node]; }
  std::size_t size() const { return nodes_.size(); }

 private:
  LocalCell(std::string daemon, std::string directory)
      : daemon_(std::move(daemon)), directory_(std::move(directory)) {}

  const std::string daemon_, directory_;
  std::string key_;  // empty: clear
  etcd::TestEtcd etcd_;
  std::deque<Node> nodes_;
};

// Whether there is an etcd to start; where not, a row of that name says so.
bool HasEtcd(BenchOptions& options, const std::string& name);

// Waits, for a minute at most, until the node's match finds all of the chain, here or at its peers.
Status AwaitFound(Store& store, const Namespace& ns, std::span<const BlockKey> chain);

}  // namespace cistern
