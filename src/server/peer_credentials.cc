// SPDX-License-Identifier: Apache-2.0
#include "server/peer_credentials.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "base/format.h"

namespace cistern::server {
namespace {

// SO_PEERPIDFD, since Linux 6.5; Debian 12's headers are older.
constexpr int kPeerPidfd = 77;

bool HungUp(int socket) {
  pollfd poll_for{.fd = socket, .events = POLLRDHUP, .revents = 0};
  return poll(&poll_for, 1, 0) > 0 && (poll_for.revents & (POLLHUP | POLLRDHUP)) != 0;
}

}  // namespace

Result<Peer> CredentialsOf(int socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
    return Error(Code::kIoError, Text("no peer credentials: ", ErrnoText(errno)));
  return Peer{.uid = credentials.uid, .pid = credentials.pid};
}

Status CheckCredentials(const Peer& peer) {
  if (peer.uid == geteuid()) return Status();
  return Status(Code::kDenied,
                Text("the node runs as user ", geteuid(), " and serves that user only, this client is user ",
                     peer.uid, ": run both as one user, or a node for this one"));
}

Result<Fd> ProcessOf(int socket, const Peer& peer) {
  int pidfd = -1;
  socklen_t size = sizeof(pidfd);
  // Of the very process that connected, where the kernel has it; a pid may have been given to another since.
  if (getsockopt(socket, SOL_SOCKET, kPeerPidfd, &pidfd, &size) == 0) return Fd(pidfd);
  if (peer.pid > 0) pidfd = static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0));
  Fd process(pidfd);
  if (!process.valid())
    return Error(Code::kDenied,
                 Text("the node cannot watch the client's process ", peer.pid, " (",
                      peer.pid > 0 ? ErrnoText(errno) : std::string("it is in another pid namespace"),
                      "): share the node's pid namespace"));
  if (HungUp(socket)) return Error(Code::kGone, Text("process ", peer.pid, " went away while it connected"));
  return process;
}

}  // namespace cistern::server
