// SPDX-License-Identifier: Apache-2.0
// Who is at the other end of a unix socket, as the kernel says it (R12, R15).
#pragma once

#include <cstdint>

#include "cistern/status.h"
#include "io/files.h"

namespace cistern::server {

struct Peer {
  std::uint32_t uid = 0;
  std::int32_t pid = 0;  // in this process's namespace; 0: not visible from here
};

Result<Peer> CredentialsOf(int socket);

// kDenied unless the peer runs as the same user as this process.
Status CheckCredentials(const Peer& peer);

// A pidfd of the process that connected: readable when it has died, whoever else still holds its socket.
// kDenied where the kernel cannot give one.
Result<Fd> ProcessOf(int socket, const Peer& peer);

}  // namespace cistern::server
