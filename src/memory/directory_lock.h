// SPDX-License-Identifier: Apache-2.0
// The lock of a directory that one node at a time writes to (R8): a flock on its file `lock`, which says who
// holds it. It is free only when the last descriptor of the holder is closed, which the kernel's unfinished
// I/O of a killed node delays.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "cistern/status.h"
#include "io/files.h"

namespace cistern {

// Takes it and writes this process's name into the file. kBusy with the holder's pid when a living process
// holds it, at once; kBusy after `wait_us` when none does and it is not free yet.
Result<Fd> LockDirectory(const std::string& directory, std::int64_t wait_us, const Clock& clock);

}  // namespace cistern
