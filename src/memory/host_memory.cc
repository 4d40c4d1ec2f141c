// SPDX-License-Identifier: Apache-2.0
#include "memory/host_memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

namespace cistern::memory {
namespace {

std::optional<std::uint64_t> Number(std::string_view text) {
  std::uint64_t value = 0;
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end.ec != std::errc()) return std::nullopt;
  return value;
}

// The number that a file begins with; none where there is no such file or it says "max".
std::optional<std::uint64_t> NumberIn(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return Number(line);
}

// Reclaimable page cache counts as used in a cgroup; without it a warm file system would look like no room.
std::uint64_t InactiveFile(const std::string& directory) {
  std::ifstream file(directory + "/memory.stat");
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kName = "inactive_file ";
    if (line.starts_with(kName)) return Number(std::string_view(line).substr(kName.size())).value_or(0);
  }
  return 0;
}

// The process's cgroup and all above it (v2).
void LowerToCgroups(HostMemory* memory) {
  std::ifstream file("/proc/self/cgroup");
  std::string path;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::")) path = line.substr(3);
  }
  for (;;) {
    const std::string directory = "/sys/fs/cgroup" + (path == "/" ? "" : path);
    const std::optional<std::uint64_t> limit = NumberIn(directory + "/memory.max");
    if (limit) {
      const std::uint64_t used = NumberIn(directory + "/memory.current").value_or(0);
      const std::uint64_t reclaimable = std::min(used, InactiveFile(directory));
      const std::uint64_t left = *limit > used - reclaimable ? *limit - (used - reclaimable) : 0;
      memory->limit_bytes = std::min(memory->limit_bytes, *limit);
      memory->available_bytes = std::min(memory->available_bytes, left);
    }
    if (path.empty() || path == "/") return;
    path.resize(path.rfind('/'));
  }
}

}  // namespace

Result<HostMemory> ReadHostMemory() {
  HostMemory memory;
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    std::string_view text(line);
    for (auto [name, value] : {std::pair(std::string_view("MemTotal:"), &memory.limit_bytes),
                               std::pair(std::string_view("MemAvailable:"), &memory.available_bytes)}) {
      if (text.starts_with(name)) *value = Number(text.substr(name.size())).value_or(0) * 1024;
    }
  }
  if (memory.limit_bytes == 0) return Error(Code::kIoError, "/proc/meminfo: says no MemTotal");
  LowerToCgroups(&memory);
  return memory;
}

}  // namespace cistern::memory
