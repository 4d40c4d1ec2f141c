// SPDX-License-Identifier: Apache-2.0
// The lock of a directory that one node at a time writes to (R8): a flock on its file `lock`, which says who
// holds it. It is free only when the last descriptor of the holder is closed, which the kernel's unfinished
// I/O of a killed node delays.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/clock.h"
#include "cistern/status.h"
#include "io/files.h"

namespace cistern::memory {

// The lock, held. Its end gives it back at once, though a ring that held it too is still on its way out in
// the kernel: every loop that did I/O into the directory has ended by then, and so has its I/O.
class DirectoryLock {
 public:
  DirectoryLock() = default;
  DirectoryLock(DirectoryLock&&) noexcept = default;
  DirectoryLock& operator=(DirectoryLock&& other) noexcept {
    DirectoryLock old(std::move(*this));
    fd_ = std::move(other.fd_);
    return *this;
  }
  ~DirectoryLock() {
    if (fd_.valid()) io::Unlock(fd_.get());
  }

  int fd() const { return fd_.get(); }

 private:
  friend Result<DirectoryLock> LockDirectory(const std::string&, std::int64_t, const Clock&);
  explicit DirectoryLock(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

// Takes it and writes this process's name into the file. kBusy with the holder's pid when a living process
// holds it, at once; kBusy after `wait_us` when none does and it is not free yet.
Result<DirectoryLock> LockDirectory(const std::string& directory, std::int64_t wait_us, const Clock& clock);

}  // namespace cistern::memory
