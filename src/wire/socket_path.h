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

// Where the node makes the directory of its socket itself, because the host has none for this user.
inline std::string OwnSocketDirectory() { return Text("/tmp/cistern-", geteuid()); }

// cistern.sock in the first directory of the host in which this user alone may put things: /run, which is
// root's, then /run/user/UID; where there is none, in OwnSocketDirectory(). Other users can put no socket of
// theirs there.
inline std::string DefaultSocketPath() {
  for (const std::string& directory : {std::string("/run"), Text("/run/user/", geteuid())}) {
    struct stat found;
    if (stat(directory.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == geteuid() &&
        (found.st_mode & 022) == 0 && access(directory.c_str(), W_OK) == 0)
      return Text(directory, "/cistern.sock");
  }
  return Text(OwnSocketDirectory(), "/cistern.sock");
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
