// SPDX-License-Identifier: Apache-2.0
// Hosts for nodes of one cell on this one: each a network namespace with an address of its own on a bridge,
// and a tmpfs of its own. All of them lie in namespaces of this process alone and go with it, however it
// ends.
#pragma once

#include <cstdint>
#include <string>

#include "cistern/status.h"
#include "local_cell.h"

namespace cistern {

class PrivateHosts final {
 public:
  // Where etcd stands.
  static constexpr const char* kOwnAddress = "10.77.0.254";

  // Moves this process, which has one thread, into namespaces with a bridge and no way out. kDenied: it is
  // not root, or may not; kMiss: there is no `ip` to make them with. Nothing has changed then.
  static Status Enter();
  // The `number`-th host, from 1 on, with `bytes` of tmpfs at `directory`, which it makes.
  static Result<LocalCell::Place> Make(std::uint64_t number, const std::string& directory,
                                       std::uint64_t bytes);
  // Lets go of the tmpfs, so that the directory can be removed.
  static void Leave(const std::string& directory);
  // What a host sends and what it receives, each at most so much a second, by token buckets.
  static Status Limit(std::uint64_t number, std::uint64_t bits_a_second);
  // A host's link, in both directions.
  static Status SetLink(std::uint64_t number, bool up);
  // What `from` sends to `to`, kEtcd for where etcd stands, arrives (no more); the other direction is as it
  // was.
  static constexpr std::uint64_t kEtcd = 254;
  static Status SetWay(std::uint64_t from, std::uint64_t to, bool open);
};

}  // namespace cistern
