// SPDX-License-Identifier: Apache-2.0
// What one step of the core may touch and copy (R16). A loop of the core counts what it touches, asks Spent()
// and yields; ids of records and puts may be reused across a yield.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/executor.h"
#include "base/limits.h"

namespace cistern {

// Copied in the time of a touch, nearly: what a step did is told in one measure (Executor::work).
inline constexpr std::uint64_t kBytesPerTouch = 256;

class StepBudget final {
 public:
  explicit StepBudget(Executor& executor) : executor_(executor) {}
  StepBudget(const StepBudget&) = delete;
  StepBudget& operator=(const StepBudget&) = delete;

  void Count(std::uint32_t touches = 1) {
    Begin();
    touches_ += touches;
    executor_.AddWork(touches);
    longest_ = std::max(longest_, touches_);
  }
  // Whether whoever loops yields now. More than the usual is for what cannot yield and has the step for
  // itself.
  bool Spent(std::uint32_t touches = kSpentTouches) {
    Begin();
    return touches_ >= touches;
  }
  // Whether the step has copied so much that `bytes` more have to wait for the next.
  bool CopySpent(std::uint64_t bytes) {
    Begin();
    return copied_ > 0 && copied_ + bytes > kStepBytes;
  }
  void CountCopy(std::uint64_t bytes) {
    Begin();
    copied_ += bytes;
    executor_.AddWork(bytes / kBytesPerTouch);
  }
  Executor& executor() const { return executor_; }
  std::uint64_t step() const { return executor_.steps(); }
  // The most touches of a step since the last call; asserted in simulation.
  std::uint32_t TakeLongest() { return std::exchange(longest_, 0); }

 private:
  void Begin() {
    if (step_ == executor_.steps()) return;
    step_ = executor_.steps();
    touches_ = 0;
    copied_ = 0;
  }

  Executor& executor_;
  std::uint64_t step_ = 0;
  std::uint32_t touches_ = 0;
  std::uint32_t longest_ = 0;
  std::uint64_t copied_ = 0;
};

}  // namespace cistern
