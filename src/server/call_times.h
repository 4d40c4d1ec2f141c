// SPDX-License-Identifier: Apache-2.0
// How long calls took at the node, by operation: from when it took them from their ring to their answer.
// Those that it answers in the step that takes them (acquires of what is in memory) are not timed: two looks
// at the clock would be a part of what they cost.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/metrics.h"
#include "wire/protocol.h"

namespace cistern::server {

class CallTimes final {
 public:
  void Record(wire::Op op, std::int64_t ns) {
    const auto at = static_cast<std::size_t>(op);
    if (at < times_.size() && ns >= 0) times_[at].Record(static_cast<std::uint64_t>(ns));
  }
  const Histogram& of(wire::Op op) const { return times_[static_cast<std::size_t>(op)]; }

 private:
  std::array<Histogram, wire::kLastOp + 1> times_;
};

}  // namespace cistern::server
