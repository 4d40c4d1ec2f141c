// SPDX-License-Identifier: Apache-2.0
#include "io/system_loop.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "base/format.h"

namespace cistern {

Status SystemLoop::Rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return Status();
  return Status(Code::kIoError, Text("rename ", from, " to ", to, ": ", ErrnoText(errno)));
}

Status SystemLoop::Remove(const std::string& path) {
  if (::unlink(path.c_str()) == 0) return Status();
  return Status(Code::kIoError, Text("remove ", path, ": ", ErrnoText(errno)));
}

Result<int> SystemLoop::OpenFd(const std::string& path, OpenMode mode) {
  Result<Fd> fd = OpenFile(path, mode);
  if (!fd) return Error(std::move(fd.error()));
  return fd->Release();
}

void SystemLoop::CloseFd(int fd) { Fd closes(fd); }

Result<std::uint64_t> SystemLoop::SizeOf(int fd, const std::string& path) { return FileSize(fd, path); }

Status SystemLoop::PreallocateFd(int fd, const std::string& path, std::uint64_t size_bytes) {
  return cistern::Preallocate(fd, path, size_bytes);
}

Result<std::unique_ptr<Loop>> MakeLoop(const Clock& clock, const LoopOptions& options) {
  Status valid = options.Validate();
  if (!valid.ok()) return Error(std::move(valid));
  switch (options.kind) {
    case LoopKind::kUring: return MakeUringLoop(clock, options);
    case LoopKind::kEpoll: return MakeEpollLoop(clock, options);
    case LoopKind::kProbe: break;
  }
  return ProbeUring().ok() ? MakeUringLoop(clock, options) : MakeEpollLoop(clock, options);
}

}  // namespace cistern
