// SPDX-License-Identifier: Apache-2.0
// Memory that the node makes and a client maps too: a session's rings and its staging (R13).
#pragma once

#include <cstdint>
#include <string>

#include "base/task.h"
#include "cistern/status.h"
#include "io/files.h"

namespace cistern::memory {

struct SharedMemory {
  Fd fd;            // to be passed to the client
  Mapping mapping;  // the node's own
};

// Zeros, all of it real and mapped with `access`, sealed against shrinking, growing and further seals. Made
// in steps with other work between them, because making a page costs as much as copying it. kBusy: the host
// has no room.
Task<Result<SharedMemory>> MakeSharedMemory(Executor& executor, std::string name, std::uint64_t bytes,
                                            Access access);

}  // namespace cistern::memory
