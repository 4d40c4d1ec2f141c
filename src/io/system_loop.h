// SPDX-License-Identifier: Apache-2.0
// The part of a loop that is the same for every body on a real system: opening, renaming, removing.
#pragma once

#include <vector>

#include "io/loop.h"

namespace cistern::io {

// File operations that wait in the kernel at a time, each of which takes a thread (ours or io_uring's): those
// at several devices that hang, and then some for what another device would do.
inline constexpr unsigned kMaxWaitingIo = 256;

class SystemLoop : public Loop {
 public:
  Status Rename(const std::string& from, const std::string& to) final;
  Status Remove(const std::string& path) final;
  Status HoldLock(int fd) final { return Hold(fd, false); }

 protected:
  using Loop::Loop;
  Result<int> OpenFd(const std::string& path, OpenMode mode) final;
  void CloseFd(int fd) final;
  Result<std::uint64_t> SizeOf(int fd, const std::string& path) final;
  Status PreallocateFd(int fd, const std::string& path, std::uint64_t size_bytes) final;
  bool IsNamed(int fd) final;
  Result<DirectLimits> DirectOf(int fd, const std::string& path) final;
  Status LockFd(int fd, const std::string& path) final;

  // A reference to this open file that the kernel gives up after the last operation; kBusy past kMaxLocks.
  // One that is `ours` goes with LetGo at the latest, any other with the loop.
  virtual Status Hold(int fd, bool ours) = 0;
  virtual void LetGo(int fd) = 0;

 private:
  std::vector<int> locked_;  // by LockFd, open
};

Result<std::unique_ptr<Loop>> MakeUringLoop(const Clock& clock, const LoopOptions& options);
Result<std::unique_ptr<Loop>> MakeEpollLoop(const Clock& clock, const LoopOptions& options);

}  // namespace cistern::io
