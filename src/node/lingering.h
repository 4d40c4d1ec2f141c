// SPDX-License-Identifier: Apache-2.0
// When a node that nobody uses any more has been alone for long enough to end.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace cistern::node {

class Lingering final {
 public:
  explicit Lingering(Instant started_at) : alone_since_(started_at) {}

  // To be told again and again. Whether the last client left, or the node started, `linger_us` ago, which may
  // change at any time; with 0, never.
  bool IsOver(Instant now, bool alone, std::uint64_t linger_us) {
    if (!alone) alone_since_ = now;
    return alone && linger_us > 0 && now.UsSince(alone_since_) >= static_cast<std::int64_t>(linger_us);
  }

 private:
  Instant alone_since_;
};

}  // namespace cistern::node
