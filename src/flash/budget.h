// SPDX-License-Identifier: Apache-2.0
// The endurance budget: how many bytes a day may be written to flash, as a bucket that fills evenly and holds
// an hour's worth, full at the start. Time comes in as a value.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace cistern::flash {

class Budget {
 public:
  // 0: without a limit.
  Budget(std::uint64_t bytes_a_day, Instant now)
      : a_day_(static_cast<double>(bytes_a_day)), level_(a_day_ / 24), at_(now) {}

  // More than the bucket ever holds is let through when it is full, and leaves a debt.
  bool Allows(std::uint64_t bytes, Instant now) const {
    return a_day_ == 0 || LevelAt(now) >= std::min(static_cast<double>(bytes), a_day_ / 24);
  }
  // What may be written now; UINT64_MAX without a limit.
  std::uint64_t Left(Instant now) const {
    return a_day_ == 0 ? UINT64_MAX : static_cast<std::uint64_t>(std::max(0.0, LevelAt(now)));
  }
  // Of an hour that may be saved up, the share that is; 0 without a limit.
  double HoursSaved(Instant now) const {
    return a_day_ == 0 ? 0 : std::max(0.0, LevelAt(now) / (a_day_ / 24));
  }
  std::uint64_t bytes_a_day() const { return static_cast<std::uint64_t>(a_day_); }
  void Spend(std::uint64_t bytes, Instant now) {
    level_ = LevelAt(now) - static_cast<double>(bytes);
    at_ = now;
  }

 private:
  double LevelAt(Instant now) const {
    constexpr double kDayNs = 86'400e9;
    return std::min(a_day_ / 24, level_ + static_cast<double>(now.NsSince(at_)) * a_day_ / kDayNs);
  }
  double a_day_;
  double level_;
  Instant at_;
};

}  // namespace cistern::flash
