// SPDX-License-Identifier: Apache-2.0
// The part of a loop that is the same for every body on a real system: opening, renaming, removing.
#pragma once

#include "io/loop.h"

namespace cistern {

class SystemLoop : public Loop {
 public:
  Status Rename(const std::string& from, const std::string& to) final;
  Status Remove(const std::string& path) final;

 protected:
  using Loop::Loop;
  Result<int> OpenFd(const std::string& path, OpenMode mode) final;
  void CloseFd(int fd) final;
  Result<std::uint64_t> SizeOf(int fd, const std::string& path) final;
  Status PreallocateFd(int fd, const std::string& path, std::uint64_t size_bytes) final;
};

Result<std::unique_ptr<Loop>> MakeUringLoop(const Clock& clock, const LoopOptions& options);
Result<std::unique_ptr<Loop>> MakeEpollLoop(const Clock& clock, const LoopOptions& options);

}  // namespace cistern
