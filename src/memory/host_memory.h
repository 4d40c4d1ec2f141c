// SPDX-License-Identifier: Apache-2.0
// How much memory this process may count on: the host's, or its cgroup's where that is less.
#pragma once

#include <cstdint>
#include <string>

#include "cistern/status.h"

namespace cistern::memory {

struct HostMemory {
  std::uint64_t limit_bytes = 0;      // all of it
  std::uint64_t available_bytes = 0;  // free without pushing other memory out
};

// Cgroups of version 1 and 2. `root` stands before the paths of the kernel's files: tests have their own.
Result<HostMemory> ReadHostMemory(const std::string& root = "");

// Size of the file system that the directory lies in, or would if it were made; 0 where it has no size.
std::uint64_t FileSystemBytes(std::string path);

}  // namespace cistern::memory
