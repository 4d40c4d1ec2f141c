// SPDX-License-Identifier: Apache-2.0
// Directories of a run's own, gone with it however it ends: an interrupt must not leave gigabytes in memory.
#pragma once

#include <functional>

#include "bench.h"

namespace cistern {

// Runs `run` in a process of its own, which finds in options.memory_dir and flash_dir (where there is one)
// the paths of new directories below them. They are removed when it ends. Its exit code; where a signal ended
// it, the same ends this process. Fails where no directory can be made. No thread may be running.
Result<int> InScratch(BenchOptions& options, const std::function<int()>& run);

}  // namespace cistern
