// SPDX-License-Identifier: Apache-2.0
// A process beside this one, that goes with it.
#pragma once

#include <sys/types.h>

#include <functional>
#include <utility>

#include "cistern/status.h"

namespace cistern {

// Killed with the object, and where the thread that started it ends.
class Child final {
 public:
  Child() = default;  // none
  // Runs `run` in a process of its own, which ends where that returns. kIoError where none can be started.
  static Result<Child> Start(const std::function<void()>& run);
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, 0)) {}
  Child& operator=(Child&& other) noexcept {
    std::swap(pid_, other.pid_);
    return *this;
  }
  ~Child();

  // Without waiting for its end, which the destructor does.
  void Kill() const;

 private:
  pid_t pid_ = 0;
};

}  // namespace cistern
