// SPDX-License-Identifier: Apache-2.0
#include "base/mapping.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/format.h"
#include "base/huge_pages.h"

namespace cistern {
namespace {

// Reserves addresses that begin at a huge page where at least one fits, and maps the file over them: the
// system gives huge pages only to what lies in memory as it lies in the file.
void* MapAligned(std::uint64_t bytes, int protection, int flags, int fd, off_t offset) {
  if (bytes < kHugePageBytes) return ::mmap(nullptr, bytes, protection, flags, fd, offset);
  const std::uint64_t reserved = bytes + kHugePageBytes;
  void* all = ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) return all;
  const auto first = reinterpret_cast<std::uintptr_t>(all);
  const std::uintptr_t at = (first + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  void* mapped = ::mmap(reinterpret_cast<void*>(at), bytes, protection, flags | MAP_FIXED, fd, offset);
  if (mapped == MAP_FAILED) {
    const int why = errno;
    ::munmap(all, reserved);
    errno = why;
    return MAP_FAILED;
  }
  const std::uintptr_t page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::uintptr_t end = (at + bytes + page - 1) / page * page;
  if (at > first) ::munmap(all, at - first);
  if (first + reserved > end) ::munmap(reinterpret_cast<void*>(end), first + reserved - end);
  return mapped;
}

}  // namespace

Mapping::~Mapping() {
  if (valid()) ::munmap(bytes_.data(), bytes_.size());
}

Result<Mapping> Mapping::Map(int fd, const std::string& path, std::uint64_t offset, std::uint64_t size_bytes,
                             Access access, Pages pages) {
  int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  int flags = MAP_SHARED | (pages == Pages::kAtOnce ? MAP_POPULATE : 0);
  void* at = MapAligned(size_bytes, protection, flags, fd, static_cast<off_t>(offset));
  if (at == MAP_FAILED) {
    return Error(Code::kIoError,
                 Text("map ", size_bytes, " bytes of ", path, " at ", Hex(offset), ": ", ErrnoText(errno)));
  }
  return Mapping(std::span(static_cast<std::byte*>(at), size_bytes));
}

Result<Mapping> Mapping::MapWhole(int fd, const std::string& path, Access access, Pages pages) {
  struct stat info;
  if (::fstat(fd, &info) != 0) return Error(Code::kIoError, Text("size of ", path, ": ", ErrnoText(errno)));
  if (info.st_size <= 0) return Error(Code::kIoError, Text("map ", path, ": it is empty"));
  return Map(fd, path, 0, static_cast<std::uint64_t>(info.st_size), access, pages);
}

}  // namespace cistern
