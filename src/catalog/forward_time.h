// SPDX-License-Identifier: Apache-2.0
// The time by which blocks expire (R10): it never goes back, and it never stands still. Between readings of
// the wall clock it goes on at the pace of the boot clock, so a wall clock that was set back, or was ahead
// once, and a host that sleeps hold nothing up: a block lives as long as was said when it was put.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace cistern::catalog {

class ForwardTime final {
 public:
  // Seconds now: at least `least_s`, and what it was plus what has passed since.
  std::uint64_t Seconds(Instant now, std::uint64_t least_s) {
    constexpr std::uint64_t kSecondNs = 1'000'000'000;
    if (read_ < now) {
      if (time_ns_ > 0) time_ns_ += static_cast<std::uint64_t>(now.NsSince(read_));
      read_ = now;
    }
    time_ns_ = std::max(time_ns_, least_s * kSecondNs);
    return time_ns_ / kSecondNs;
  }

 private:
  Instant read_;
  std::uint64_t time_ns_ = 0;  // Unix time; 0: nobody has asked yet
};

}  // namespace cistern::catalog
