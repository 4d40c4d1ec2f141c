// SPDX-License-Identifier: Apache-2.0
#include "server/peer_credentials.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "base/format.h"

namespace cistern::server {
namespace {

bool HungUp(int socket) {
  pollfd poll_for{.fd = socket, .events = POLLRDHUP, .revents = 0};
  return poll(&poll_for, 1, 0) > 0 && (poll_for.revents & (POLLHUP | POLLRDHUP)) != 0;
}

}  // namespace

Status CheckCredentials(const Peer& peer) {
  if (peer.uid == geteuid()) return Status();
  return Status(Code::kDenied,
                Text("the node runs as user ", geteuid(), " and serves that user only, this client is user ",
                     peer.uid, ": run both as one user, or a node for this one"));
}

Result<Fd> ProcessOf(int socket, const Peer& peer) {
  Fd process = PeerProcess(socket, peer);
  if (!process.valid())
    return Error(Code::kDenied,
                 Text("the node cannot watch the client's process ", peer.pid, " (",
                      peer.pid > 0 ? ErrnoText(errno) : std::string("it is in another pid namespace"),
                      "): share the node's pid namespace"));
  if (HungUp(socket)) return Error(Code::kGone, Text("process ", peer.pid, " went away while it connected"));
  return process;
}

}  // namespace cistern::server
