// SPDX-License-Identifier: Apache-2.0
// Where a node and the clients of its host meet when nobody says where.
#pragma once

#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <string>

#include "base/format.h"
#include "cistern/status.h"

namespace cistern::wire {

// A socket address holds no longer path.
inline constexpr std::size_t kMaxSocketPathBytes = sizeof(sockaddr_un::sun_path) - 1;

// /run/user/UID/cistern.sock, or /tmp/cistern-UID.sock where there is no such directory.
inline std::string DefaultSocketPath() {
  std::string directory = Text("/run/user/", getuid());
  struct stat found;
  if (stat(directory.c_str(), &found) == 0 && S_ISDIR(found.st_mode)) return Text(directory, "/cistern.sock");
  return Text("/tmp/cistern-", getuid(), ".sock");
}

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
