// SPDX-License-Identifier: Apache-2.0
#include "server/peer_credentials.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "base/format.h"

namespace cistern::server {
namespace {

bool HungUp(int socket) {
  pollfd poll_for{.fd = socket, .events = POLLRDHUP, .revents = 0};
  return poll(&poll_for, 1, 0) > 0 && (poll_for.revents & (POLLHUP | POLLRDHUP)) != 0;
}

bool Contains(const std::vector<std::uint32_t>& ids, std::uint32_t id) {
  return std::ranges::find(ids, id) != ids.end();
}

}  // namespace

Status CheckCredentials(int socket, const Peer& peer, const PeerRules& rules) {
  if (rules.anyone) return Status();
  if (peer.uid_known && (peer.uid == geteuid() || Contains(rules.users, peer.uid))) return Status();
  if (!rules.groups.empty()) {
    for (std::uint32_t group : PeerGroups(socket)) {
      if (Contains(rules.groups, group)) return Status();
    }
  }
  const std::string who = peer.uid_known
                              ? Text("user ", peer.uid)
                              : std::string("a user that the node's user namespace has no number for");
  return Status(
      Code::kDenied,
      Text("the node runs as user ", geteuid(), " and serves that user",
           rules.own_user_only() ? " only" : " and those of its setting clients", ", this client is ", who,
           ": name it in the node's setting clients, as in clients = [\"user:",
           peer.uid_known ? Text(peer.uid) : std::string("UID"), "\"], or run both as one user"));
}

Result<Fd> ProcessOf(int socket, const Peer& peer) {
  Fd process = PeerProcess(socket, peer);
  // EINVAL is what kernels before 6.16 say of a process that has been waited for.
  const bool gone = !process.valid() && (errno == ESRCH || errno == EINVAL);
  if (gone || HungUp(socket))
    return Error(Code::kGone, Text("process ", peer.pid, " went away while it connected"));
  return process;
}

bool IsLocked(int session_memory) {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return fcntl(session_memory, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

}  // namespace cistern::server
