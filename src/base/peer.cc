// SPDX-License-Identifier: Apache-2.0
#include "base/peer.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/format.h"

namespace cistern {
namespace {

// SO_PEERPIDFD, since Linux 6.5; Debian 12's headers are older.
constexpr int kPeerPidfd = 77;

}  // namespace

Result<Peer> PeerOf(int socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
    return Error(Code::kIoError, Text("no peer credentials: ", ErrnoText(errno)));
  return Peer{.uid = credentials.uid, .pid = credentials.pid};
}

Fd PeerProcess(int socket, const Peer& peer) {
  int pidfd = -1;
  socklen_t size = sizeof(pidfd);
  // Of the very process that connected, where the kernel has it; a pid may have been given to another since.
  if (::getsockopt(socket, SOL_SOCKET, kPeerPidfd, &pidfd, &size) == 0) return Fd(pidfd);
  return Fd(peer.pid > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)) : -1);
}

}  // namespace cistern
