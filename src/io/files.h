// SPDX-License-Identifier: Apache-2.0
// Descriptors and mappings that close themselves, and the few system calls of start-up around them. Every
// error names the path, the value and the system's reason. These calls block: the core makes them at start
// and end, and file I/O in between goes through a Loop.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "cistern/status.h"

namespace cistern {

// "No space left on device (ENOSPC)".
std::string ErrnoText(int error);

// Owns a descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.Release()) {}
  Fd& operator=(Fd&& other) noexcept {
    Fd old(std::exchange(fd_, other.Release()));
    return *this;
  }
  ~Fd() { Close(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Close();

 private:
  int fd_ = -1;
};

enum class OpenMode : std::uint8_t {
  kRead,       // must exist; a descriptor that cannot be made writable (R12)
  kReadWrite,  // must exist
  kCreate,     // read and write, made with 0600 if it is missing
  kCreateNew,  // read and write, must not exist
};

Result<Fd> OpenFile(const std::string& path, OpenMode mode);
Result<std::uint64_t> FileSize(int fd, const std::string& path);
// Makes [0, size_bytes) of the file real, so that writing there cannot fail for want of room. No room is
// kBusy and names the size wanted and what the file system has left.
Status Preallocate(int fd, const std::string& path, std::uint64_t size_bytes);
// Takes the exclusive flock of an open file; kBusy when another open file description holds it.
Status TryLock(int fd, const std::string& path);
// Waits for it as long as it takes: only for a thread that may block.
Status WaitLock(int fd, const std::string& path);
// Gives the flock of an open file back at once, whoever else holds a reference to the open file.
void Unlock(int fd);

// Anonymous shared memory, whole and real, sealed against shrinking, growing and further seals, so that no
// process that gets the descriptor can pull it away (R13).
Result<Fd> MakeMemfd(const std::string& name, std::uint64_t size_bytes);
// Kernel counter to wake a poller: non-blocking, starts at 0.
Result<Fd> MakeEventFd();
// Adds one to an eventfd. A full counter wakes just as well, so it cannot fail.
void SignalEventFd(int fd);
// Sets an eventfd back to zero; whether it was above.
bool DrainEventFd(int fd);

enum class Access : std::uint8_t { kRead, kReadWrite };

// Owns a shared mapping of a file.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  Mapping& operator=(Mapping&& other) noexcept {
    Mapping old(std::move(*this));
    bytes_ = std::exchange(other.bytes_, {});
    return *this;
  }
  ~Mapping();

  // Maps size_bytes from offset (a multiple of the page size). `path` only names it in errors. The
  // descriptor may be closed afterwards.
  static Result<Mapping> Map(int fd, const std::string& path, std::uint64_t offset, std::uint64_t size_bytes,
                             Access access);

  std::byte* data() const { return bytes_.data(); }
  std::size_t size() const { return bytes_.size(); }
  // Writable only when mapped so: writing through a kRead mapping is a fault.
  std::span<std::byte> bytes() const { return bytes_; }
  bool valid() const { return !bytes_.empty(); }

 private:
  explicit Mapping(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes_;
};

}  // namespace cistern
