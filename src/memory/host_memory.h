// SPDX-License-Identifier: Apache-2.0
// How much memory this process may count on: the host's, or its cgroup's where that is less.
#pragma once

#include <cstdint>

#include "cistern/status.h"

namespace cistern::memory {

struct HostMemory {
  std::uint64_t limit_bytes = 0;      // all of it
  std::uint64_t available_bytes = 0;  // free without pushing other memory out
};

Result<HostMemory> ReadHostMemory();

}  // namespace cistern::memory
