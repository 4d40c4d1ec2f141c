// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include <time.h>

namespace cistern {

namespace {
Instant NowOf(clockid_t clock) {
  timespec t;
  ::clock_gettime(clock, &t);
  return {t.tv_sec * std::int64_t{1'000'000'000} + t.tv_nsec};
}
}  // namespace

Instant SystemClock::Now() const { return NowOf(CLOCK_MONOTONIC); }
Instant BootClock::Now() const { return NowOf(CLOCK_BOOTTIME); }

WallTime SystemClock::Wall() const {
  timespec t;
  ::clock_gettime(CLOCK_REALTIME, &t);
  return {static_cast<std::uint32_t>(t.tv_sec)};
}

}  // namespace cistern
