// SPDX-License-Identifier: Apache-2.0
// A descriptor that closes itself, and the system's reasons in words.
#pragma once

#include <string>
#include <utility>

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

}  // namespace cistern
