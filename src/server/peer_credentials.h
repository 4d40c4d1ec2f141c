// SPDX-License-Identifier: Apache-2.0
// Whether who connected may come in, and what tells of its end (R12, R15).
#pragma once

#include <cstdint>
#include <vector>

#include "base/fd.h"
#include "base/peer.h"
#include "cistern/status.h"

namespace cistern::server {

// Who may come in beside the processes of the node's own user. Numbers of this process's user namespace.
struct PeerRules {
  bool anyone = false;  // who reaches the socket: its file and its directory decide
  std::vector<std::uint32_t> users, groups;

  bool own_user_only() const { return !anyone && users.empty() && groups.empty(); }
};

// kDenied unless the peer runs as the user of this process, or is let in by the rules.
Status CheckCredentials(int socket, const Peer& peer, const PeerRules& rules);

// A pidfd of the process that connected: readable when it has died, whoever else still holds its socket. Not
// valid where the kernel cannot give one (before 6.5 of a process in another pid namespace): then its hang-up
// and its lock tell. kGone: it has died already.
Result<Fd> ProcessOf(int socket, const Peer& peer);

// Whether a process has locked a session's memory, as a client does for as long as it lives: a record lock is
// the process's, a forked child has none of it.
bool IsLocked(int session_memory);

}  // namespace cistern::server
