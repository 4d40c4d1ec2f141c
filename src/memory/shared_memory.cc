// SPDX-License-Identifier: Apache-2.0
#include "memory/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/format.h"

namespace cistern::memory {
namespace {

constexpr std::uint64_t kPieceBytes = 256u << 10;
// Since Linux 5.14; the absence of both costs a page fault at first touch.
constexpr int kPopulateRead = 22;
constexpr int kPopulateWrite = 23;

Status NoRoom(const std::string& name, std::uint64_t bytes) {
  bool full = errno == ENOSPC || errno == ENOMEM || errno == EMFILE || errno == ENFILE;
  return Status(full ? Code::kBusy : Code::kIoError, Text(name, " of ", bytes, " bytes: ", ErrnoText(errno)));
}

}  // namespace

Task<Result<SharedMemory>> MakeSharedMemory([[maybe_unused]] Executor& executor, std::string name,
                                            std::uint64_t bytes, Access access) {
  SharedMemory memory;
  memory.fd = Fd(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.fd.valid()) co_return Error(NoRoom(name, bytes));
  if (ftruncate(memory.fd.get(), static_cast<off_t>(bytes)) != 0) co_return Error(NoRoom(name, bytes));
  for (std::uint64_t at = 0; at < bytes; at += kPieceBytes) {
    std::uint64_t step = std::min(kPieceBytes, bytes - at);
    while (fallocate(memory.fd.get(), 0, static_cast<off_t>(at), static_cast<off_t>(step)) != 0) {
      if (errno != EINTR) co_return Error(NoRoom(name, bytes));
    }
    co_await Yield();
  }
  if (fcntl(memory.fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    co_return Error(NoRoom(name, bytes));
  Result<Mapping> mapping = Mapping::Map(memory.fd.get(), name, 0, bytes, access);
  if (!mapping) co_return Error(std::move(mapping.error()));
  memory.mapping = std::move(*mapping);
  const int populate = access == Access::kRead ? kPopulateRead : kPopulateWrite;
  for (std::uint64_t at = 0; at < bytes; at += kPieceBytes) {
    if (madvise(memory.mapping.data() + at, std::min(kPieceBytes, bytes - at), populate) != 0) break;
    co_await Yield();
  }
  co_return std::move(memory);
}

}  // namespace cistern::memory
