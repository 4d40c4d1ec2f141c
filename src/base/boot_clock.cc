// SPDX-License-Identifier: Apache-2.0
#include "base/boot_clock.h"

#include <time.h>

namespace cistern {

Instant BootClock::Now() const {
  timespec t;
  ::clock_gettime(CLOCK_BOOTTIME, &t);
  return {t.tv_sec * std::int64_t{1'000'000'000} + t.tv_nsec};
}

}  // namespace cistern
