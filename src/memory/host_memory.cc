// SPDX-License-Identifier: Apache-2.0
#include "memory/host_memory.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include "io/files.h"

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

// How a version of cgroups writes what this asks.
struct CgroupFiles {
  std::string_view directory;  // where the kernel's files are mounted
  std::string_view limit, used;
  std::string_view inactive_file;  // in memory.stat, of the group and all below it
};
constexpr CgroupFiles kVersion1 = {"/sys/fs/cgroup/memory", "/memory.limit_in_bytes",
                                   "/memory.usage_in_bytes", "total_inactive_file "};
constexpr CgroupFiles kVersion2 = {"/sys/fs/cgroup", "/memory.max", "/memory.current", "inactive_file "};

// Reclaimable page cache counts as used in a cgroup; without it a warm file system would look like no room.
std::uint64_t InactiveFile(const std::string& directory, std::string_view name) {
  std::ifstream file(directory + "/memory.stat");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name)) return Number(std::string_view(line).substr(name.size())).value_or(0);
  }
  return 0;
}

// A cgroup and all above it.
void LowerToCgroups(const std::string& root, const CgroupFiles& files, std::string path, HostMemory* memory) {
  for (;;) {
    const std::string directory = root + std::string(files.directory) + (path == "/" ? "" : path);
    const std::optional<std::uint64_t> limit = NumberIn(directory + std::string(files.limit));
    if (limit) {
      const std::uint64_t used = NumberIn(directory + std::string(files.used)).value_or(0);
      const std::uint64_t reclaimable = std::min(used, InactiveFile(directory, files.inactive_file));
      const std::uint64_t left = *limit > used - reclaimable ? *limit - (used - reclaimable) : 0;
      if (*limit < memory->limit_bytes) {
        memory->limit_bytes = *limit;
        memory->cgroup = directory.substr(root.size());
      }
      memory->available_bytes = std::min(memory->available_bytes, left);
    }
    if (path.empty() || path == "/") return;
    path.resize(path.rfind('/'));
  }
}

// The process's cgroups: of version 2 there is one, "0::PATH"; of version 1 that of the memory controller,
// "NUMBER:CONTROLLERS:PATH". A host may have both.
void LowerToCgroups(const std::string& root, const std::string& process, HostMemory* memory) {
  std::ifstream file(root + "/proc/" + process + "/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (line.starts_with("0::")) LowerToCgroups(root, kVersion2, path, memory);
    if (controllers.find(",memory,") != std::string::npos) LowerToCgroups(root, kVersion1, path, memory);
  }
}

}  // namespace

Result<HostMemory> ReadHostMemory(const std::string& root, const std::string& process) {
  HostMemory memory;
  std::ifstream file(root + "/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    std::string_view text(line);
    for (auto [name, value] : {std::pair(std::string_view("MemTotal:"), &memory.limit_bytes),
                               std::pair(std::string_view("MemAvailable:"), &memory.available_bytes)}) {
      if (text.starts_with(name)) *value = Number(text.substr(name.size())).value_or(0) * 1024;
    }
  }
  if (memory.limit_bytes == 0) return Error(Code::kIoError, "/proc/meminfo: says no MemTotal");
  LowerToCgroups(root, process, &memory);
  return memory;
}

std::uint64_t FileSystemBytes(const std::string& path) {
  struct statvfs fs;
  if (::statvfs(io::NearestPlace(path).c_str(), &fs) != 0) return 0;
  return std::uint64_t{fs.f_blocks} * fs.f_frsize;
}

}  // namespace cistern::memory
