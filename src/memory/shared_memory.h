// SPDX-License-Identifier: Apache-2.0
// Memory that the node makes and a client maps too: a session's rings and its staging (R13). Making and
// freeing a page costs as much as copying it, so movers do both, a piece a job.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/task.h"
#include "cistern/status.h"
#include "io/files.h"
#include "memory/movers.h"

namespace cistern::memory {

struct SharedMemory {
  Fd fd;            // to be passed to the client, and closed then
  Mapping mapping;  // the node's own
};

// Zeros, all of it real and mapped with `access`, sealed against shrinking, growing and further seals. The
// movers are borrowed. kBusy: the host has no room.
Task<Result<SharedMemory>> MakeSharedMemory(Executor& executor, Movers& movers, std::string name,
                                            std::uint64_t bytes, Access access);

// Unmaps it; nothing of the node's uses it any more. The movers are borrowed until their jobs are done.
// kTaken: whoever else still maps it loses the pages, too, and finds zeros; no descriptor is needed for that.
enum class PagesAtEnd : std::uint8_t { kTaken, kLeft };
// Told on the core of each piece of kTaken once its pages are free.
using PagesFreed = std::move_only_function<void(std::uint64_t bytes)>;
void FreeSharedMemory(Movers& movers, SharedMemory memory, PagesAtEnd pages, PagesFreed freed = {});

}  // namespace cistern::memory
