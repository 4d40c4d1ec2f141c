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

  // Where a node stands.
  struct Place {
    std::string address = "127.0.0.1";
    std::vector<std::string> prefix;  // as Daemon::Start's
    std::string parent_dir;           // empty: the cell's
  };

  // An etcd, at `etcd_address` if that is not loopback, and no node. `sealed`: what the nodes say to each
  // other is TLS. `parent_dir`: where all of it lies. Each wait of this class ends after a minute with
  // kTooLate.
  static Result<std::unique_ptr<LocalCell>> Start(std::string daemon, const std::string& parent_dir,
                                                  bool sealed = false, const std::string& etcd_address = {});
  ~LocalCell();
  LocalCell(const LocalCell&) = delete;
  LocalCell& operator=(const LocalCell&) = delete;

  // Starts one more node, of `flags` besides those of the cell.
  Status Add(const std::vector<std::string>& flags, const Place& place);
  Status Add(const std::vector<std::string>& flags) { return Add(flags, Place()); }
  // Waits until each node has its memory, has joined and is connected to every other one.
  Status ComeTogether();
  // Starts a node again that was killed, with what its memory had.
  Status Restart(std::size_t node);

  Node& operator[](std::size_t node) { return nodes_[node]; }
  std::size_t size() const { return nodes_.size(); }
  const std::string& directory() const { return directory_; }

 private:
  LocalCell(std::string daemon, std::string directory, const std::string& etcd_address);

  const std::string daemon_, directory_;
  std::string key_;  // empty: clear
  etcd::TestEtcd etcd_;
  std::string endpoint_;
  std::deque<Node> nodes_;
};

// Whether there is an etcd to start; where not, a row of that name says so.
bool HasEtcd(BenchOptions& options, const std::string& name);

// Waits, for a minute at most, until the node's match finds all of the chain, here or at its peers.
Status AwaitFound(Store& store, const Namespace& ns, std::span<const BlockKey> chain);

}  // namespace cistern
