// SPDX-License-Identifier: Apache-2.0
// A stack of its own for something that is to be stopped between any two words and go on later. All fibers
// of a process run on one thread, one at a time.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>

namespace cistern::storm {

class Fiber {
 public:
  static constexpr std::size_t kStackBytes = 512 * 1024;

  // Starts with the first Resume.
  explicit Fiber(std::function<void()> body);
  // It has ended, or never began.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // From outside of any fiber: runs it until it suspends or ends.
  void Resume();
  // From inside of it: back to who resumed it.
  void Suspend();
  bool ended() const { return ended_; }

 private:
  static void Enter(unsigned low, unsigned high);
  void Main();

  std::function<void()> body_;
  ucontext_t inside_{}, outside_{};
  std::byte* stack_ = nullptr;
  bool began_ = false, ended_ = false;
  // For AddressSanitizer, which keeps books on stacks.
  void* fake_inside_ = nullptr;
  void* fake_outside_ = nullptr;
  const void* outside_bottom_ = nullptr;
  std::size_t outside_bytes_ = 0;
};

}  // namespace cistern::storm
