// SPDX-License-Identifier: Apache-2.0
// Where a node and the clients of its host meet when nobody says where.
#pragma once

#include <sys/un.h>
#include <unistd.h>

#include <span>
#include <string>

#include "base/format.h"
#include "cistern/status.h"

namespace cistern::wire {

// A socket address holds no longer path.
inline constexpr std::size_t kMaxSocketPathBytes = sizeof(sockaddr_un::sun_path) - 1;

// Where the node makes the directory of its socket itself, because the host has none for this user.
inline std::string OwnSocketDirectory() { return Text("/tmp/cistern-", geteuid()); }

// Where this user's node and clients meet: cistern.sock in a directory of the host in which this user alone
// may put things. Root has /run. Others have /run/user/UID, which is there while they are logged in, and
// OwnSocketDirectory(): they meet at the one where a node of this user listens already, else at the first
// that is there. Other users can put no socket of theirs there.
std::string DefaultSocketPath();
// The same, of these directories instead, the best one first. The last is taken where none is this user's
// alone.
std::string SocketPathIn(std::span<const std::string> directories);

// kInvalid: longer than a socket's path may be, or empty.
inline Status CheckSocketPath(const std::string& path) {
  if (path.empty()) return Status(Code::kInvalid, "the socket's path is empty");
  if (path.size() > kMaxSocketPathBytes)
    return Status(Code::kInvalid,
                  Text("socket path ", path, " has ", path.size(), " bytes, a socket's path has at most ",
                       kMaxSocketPathBytes, ": choose a shorter one, for example ", DefaultSocketPath()));
  if (path.find('\0') != std::string::npos)
    return Status(Code::kInvalid, "the socket's path has a zero byte in it");
  return Status();
}

}  // namespace cistern::wire
