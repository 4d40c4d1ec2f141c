// SPDX-License-Identifier: Apache-2.0
// A restart: from the predecessor's SIGKILL to a checked read of the deepest block by a client that connected
// after it. Of a reboot, from the start: the memory is gone, and what the machine does in between is not the
// node's.
#pragma once

#include <string>

#include "bench.h"
#include "daemon.h"
#include "fill.h"

namespace cistern {

// The median of five, between the shortest and the longest.
Status RestartRow(BenchOptions& options, Daemon& daemon, const FilledBlocks& blocks, const std::string& name,
                  bool reboot = false);

}  // namespace cistern
