// SPDX-License-Identifier: Apache-2.0
#include "base/mapping.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/fd.h"
#include "base/format.h"

namespace cistern {

Mapping::~Mapping() {
  if (valid()) ::munmap(bytes_.data(), bytes_.size());
}

Result<Mapping> Mapping::Map(int fd, const std::string& path, std::uint64_t offset, std::uint64_t size_bytes,
                             Access access, Pages pages) {
  int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  int flags = MAP_SHARED | (pages == Pages::kAtOnce ? MAP_POPULATE : 0);
  void* at = ::mmap(nullptr, size_bytes, protection, flags, fd, static_cast<off_t>(offset));
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
