// SPDX-License-Identifier: Apache-2.0
// Whether who connected may come in, and what tells of its end (R12, R15).
#pragma once

#include "base/fd.h"
#include "base/peer.h"
#include "cistern/status.h"

namespace cistern::server {

// kDenied unless the peer runs as the same user as this process.
Status CheckCredentials(const Peer& peer);

// A pidfd of the process that connected: readable when it has died, whoever else still holds its socket.
// kDenied where the kernel cannot give one.
Result<Fd> ProcessOf(int socket, const Peer& peer);

}  // namespace cistern::server
