// SPDX-License-Identifier: Apache-2.0
// A bound on bytes a second, as turns in the order of asking: who has bytes to move is told when to begin.
// What nobody used is kept for a moment, so that a bound does not slow what is below it. Time comes in as a
// value. Of any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>

#include "base/clock.h"
#include "base/metrics.h"

namespace cistern::net {

class Bandwidth final {
 public:
  static constexpr std::int64_t kKeptNs = 10'000'000;

  // 0: without a bound.
  explicit Bandwidth(std::uint64_t bytes_a_second)
      : ns_a_byte_(bytes_a_second == 0 ? 0 : 1e9 / static_cast<double>(bytes_a_second)) {}
  Bandwidth(const Bandwidth&) = delete;
  Bandwidth& operator=(const Bandwidth&) = delete;

  bool bounded() const { return ns_a_byte_ > 0; }
  // Infinity without a bound.
  double bytes_per_us() const { return 1e3 / ns_a_byte_; }
  // When bytes that are asked for now begin: not before now.
  Instant BeginAt(Instant now) const {
    if (!bounded()) return now;
    const std::lock_guard lock(mutex_);
    return std::max(now, free_at_);
  }
  // The same, and takes the turn. However many they are, they go at once when it comes: who asks next waits.
  Instant Take(std::uint64_t bytes, Instant now) {
    if (!bounded()) return now;
    const std::lock_guard lock(mutex_);
    const Instant begin = std::max(now, free_at_);
    free_at_ = std::max(free_at_, now.PlusNs(-kKeptNs))
                   .PlusNs(static_cast<std::int64_t>(ns_a_byte_ * static_cast<double>(bytes)));
    if (begin > now) waits_.Add();
    return begin;
  }
  // Turns that did not begin at once.
  const Counter& waits() const { return waits_; }

 private:
  const double ns_a_byte_;
  mutable std::mutex mutex_;
  Instant free_at_;
  Counter waits_;
};

}  // namespace cistern::net
