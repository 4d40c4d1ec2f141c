// SPDX-License-Identifier: Apache-2.0
// How many lines a site of the source may log: some at once, then one a second. The rest is counted, and the
// site's next line says how many.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <source_location>
#include <unordered_map>

#include "base/clock.h"

namespace cistern {

class LogLimiter final {
 public:
  // A loop that says a few things of one kind says them all.
  static constexpr std::uint32_t kAtOnce = 32;

  // How many lines of this site were left out since its last one; none: leave this one out too. From any
  // thread.
  std::optional<std::uint64_t> Admit(const std::source_location& site, Instant now);

 private:
  struct Site {
    Instant last;
    std::uint32_t room = kAtOnce;
    std::uint64_t left_out = 0;
  };

  std::mutex mutex_;
  std::unordered_map<std::uint64_t, Site> sites_;  // as many as the source has
};

}  // namespace cistern
