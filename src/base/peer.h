// SPDX-License-Identifier: Apache-2.0
// Who is at the other end of a unix socket, as the kernel says it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/fd.h"
#include "cistern/status.h"

namespace cistern {

struct Peer {
  std::uint32_t uid = 0;
  std::int32_t pid = 0;  // 0: in a pid namespace that this process does not see
  // False: the user has no number in this process's user namespace, and `uid` stands for all such users.
  bool uid_known = true;
};

// Of who connected, or of who listened when this end connected. kIoError.
Result<Peer> PeerOf(int socket);
// The groups of who connected, its own and the supplementary ones, without those that have no number in this
// process's user namespace.
std::vector<std::uint32_t> PeerGroups(int socket);
// A pidfd of its process, which is readable once that has ended, whatever its forked children still have
// open. Not valid where the kernel gives none; errno says why, ESRCH: the process is gone.
Fd PeerProcess(int socket, const Peer& peer);

}  // namespace cistern
