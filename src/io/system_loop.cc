// SPDX-License-Identifier: Apache-2.0
#include "io/system_loop.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>

#include "base/format.h"

namespace cistern::io {

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

void SystemLoop::CloseFd(int fd) {
  Fd closes(fd);
  if (std::erase(locked_, fd) == 0) return;
  // Now, because the kernel may give up the reference of LetGo a little later.
  Unlock(fd);
  LetGo(fd);
}

Result<DirectLimits> SystemLoop::DirectOf(int fd, const std::string& path) {
  return DirectLimitsOf(fd, path);
}

Status SystemLoop::LockFd(int fd, const std::string& path) {
  if (std::ranges::find(locked_, fd) != locked_.end()) return Status();
  Status status = TryLock(fd, path);
  if (!status.ok()) return status;
  status = Hold(fd, true);
  if (status.ok()) {
    locked_.push_back(fd);
  } else {
    Unlock(fd);
  }
  return status;
}

bool SystemLoop::IsNamed(int fd) { return io::IsNamed(fd); }

Result<std::uint64_t> SystemLoop::SizeOf(int fd, const std::string& path) { return FileSize(fd, path); }

Status SystemLoop::PreallocateFd(int fd, const std::string& path, std::uint64_t size_bytes) {
  return io::Preallocate(fd, path, size_bytes);
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

}  // namespace cistern::io
