// SPDX-License-Identifier: Apache-2.0
// What tests do with files beside what the node does: they wait for a lock, and take an eventfd's signals.
#pragma once

#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace cistern::io {

// The flock of an open file, as long as it takes.
inline bool WaitLock(int fd) {
  int result;
  do {
    result = ::flock(fd, LOCK_EX);
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

// Sets an eventfd back to zero; whether it was above.
inline bool DrainEventFd(int fd) {
  std::uint64_t count = 0;
  ssize_t n;
  do {
    n = ::read(fd, &count, sizeof(count));
  } while (n < 0 && errno == EINTR);
  return n == sizeof(count);
}

}  // namespace cistern::io
