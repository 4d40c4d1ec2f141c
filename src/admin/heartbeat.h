// SPDX-License-Identifier: Apache-2.0
// Whether a thread turns still: it beats now and then, and others look.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "base/format.h"
#include "cistern/status.h"

namespace cistern::admin {

class Heartbeat final {
 public:
  // The core beats every 50 ms; a host that is busy may keep it off its processors for a while.
  static constexpr std::int64_t kLimitUs = 2'000'000;

  void Beat(Instant now) { beat_ns_.store(now.ns, std::memory_order_relaxed); }

  // kTooLate with how long it has stood still, once that is longer than the limit. Before the first beat all
  // is well.
  Status Check(Instant now) const {
    const std::int64_t beat_ns = beat_ns_.load(std::memory_order_relaxed);
    const std::int64_t us = now.UsSince(Instant{beat_ns});
    if (beat_ns == 0 || us <= kLimitUs) return Status();
    return Status(Code::kTooLate, Text("the core thread has not turned for ", us / 1000, " ms, the limit is ",
                                       kLimitUs / 1000, " ms"));
  }

 private:
  std::atomic<std::int64_t> beat_ns_{0};
};

}  // namespace cistern::admin
