// SPDX-License-Identifier: Apache-2.0
#include "base/peer.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "base/format.h"

namespace cistern {
namespace {

// SO_PEERPIDFD, since Linux 6.5; Debian 12's headers are older.
constexpr int kPeerPidfd = 77;
// What an id is called that the reader's user namespace has no number for (/proc/sys/kernel/overflowuid).
constexpr std::uint32_t kOverflowId = 65534;

// Whether all ids have a number in this process's user namespace: `map` is its uid_map or gid_map.
bool MapsAll(const char* map) {
  std::uint64_t inside = 1, outside = 0, count = 0;
  return static_cast<bool>(std::ifstream(map) >> inside >> outside >> count) && inside == 0 &&
         count >= UINT32_MAX;
}

}  // namespace

Result<Peer> PeerOf(int socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
    return Error(Code::kIoError, Text("no peer credentials: ", ErrnoText(errno)));
  return Peer{.uid = credentials.uid,
              .pid = credentials.pid,
              .uid_known = credentials.uid != kOverflowId || MapsAll("/proc/self/uid_map")};
}

std::vector<std::uint32_t> PeerGroups(int socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return {};
  std::vector<std::uint32_t> groups(32);
  for (;;) {
    size = static_cast<socklen_t>(groups.size() * sizeof(groups[0]));
    const int got = ::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size);
    if (got != 0 && (errno != ERANGE || size <= groups.size() * sizeof(groups[0]))) size = 0;
    groups.resize(size / sizeof(groups[0]));
    if (got == 0 || size == 0) break;
  }
  groups.push_back(credentials.gid);
  if (!MapsAll("/proc/self/gid_map")) std::erase(groups, kOverflowId);
  return groups;
}

Fd PeerProcess(int socket, const Peer& peer) {
  int pidfd = -1;
  socklen_t size = sizeof(pidfd);
  // Of the very process that connected, where the kernel has it; a pid may have been given to another since.
  if (::getsockopt(socket, SOL_SOCKET, kPeerPidfd, &pidfd, &size) == 0) return Fd(pidfd);
  if (peer.pid <= 0) return Fd();
  return Fd(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
}

}  // namespace cistern
