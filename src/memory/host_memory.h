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
  std::string cgroup;                 // the directory of the cgroup whose limit that is; empty: the host's
};

// Cgroups of version 1 and 2. `root` stands before the paths of the kernel's files: tests have their own.
// `process` is its name in /proc: another one's number, for who asks on its behalf.
Result<HostMemory> ReadHostMemory(const std::string& root = "", const std::string& process = "self");

// Size of the file system that the directory lies in, or would if it were made; 0 where it has no size.
std::uint64_t FileSystemBytes(const std::string& path);

}  // namespace cistern::memory
