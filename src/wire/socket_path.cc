// SPDX-License-Identifier: Apache-2.0
#include "wire/socket_path.h"

#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/fd.h"
#include "base/peer.h"

namespace cistern::wire {
namespace {

constexpr const char* kName = "/cistern.sock";

bool IsThisUsersAlone(const std::string& directory) {
  struct stat found;
  return stat(directory.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == geteuid() &&
         (found.st_mode & 022) == 0 && access(directory.c_str(), W_OK) == 0;
}

bool ThisUserListens(const std::string& path) {
  const Fd probe(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  if (!probe.valid() || path.size() > kMaxSocketPathBytes) return false;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return errno == EAGAIN;  // more connect at once than its queue holds
  const Result<Peer> peer = PeerOf(probe.get());
  return peer && peer->uid_known && peer->uid == geteuid();
}

}  // namespace

std::string SocketPathIn(std::span<const std::string> directories) {
  std::vector<std::string> paths;
  for (const std::string& directory : directories) {
    if (IsThisUsersAlone(directory)) paths.push_back(directory + kName);
  }
  if (paths.empty()) return directories.back() + kName;
  if (paths.size() == 1) return paths.front();
  const auto met = std::ranges::find_if(paths, ThisUserListens);
  return met == paths.end() ? paths.front() : *met;
}

std::string DefaultSocketPath() {
  if (const std::string run = "/run"; IsThisUsersAlone(run)) return run + kName;
  return SocketPathIn(std::array{Text("/run/user/", geteuid()), OwnSocketDirectory()});
}

}  // namespace cistern::wire
