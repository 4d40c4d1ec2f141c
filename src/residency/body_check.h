// SPDX-License-Identifier: Apache-2.0
// Check of a body against its seal: of bytes read from the lower tier, and of a resident record.
#pragma once

#include <cstddef>

#include "memory/movers.h"
#include "record/seal.h"
#include "record/segments.h"

namespace cistern::residency {

// True if a body, or some segments of it, has the checksums of its seal; a mover computes them. The bytes do
// not change meanwhile. The seal borrows bytes that stay until the await is over.
class BodyCheck final : public memory::AwaitedJob {
 public:
  BodyCheck(memory::Movers& movers, const std::byte* body, const record::SealView& seal)
      : BodyCheck(movers, body, seal, {0, seal.segment_count()}) {}
  BodyCheck(memory::Movers& movers, const std::byte* body, const record::SealView& seal,
            record::SegmentSpan segments)
      : memory::AwaitedJob(movers), body_(body), seal_(seal), segments_(segments) {}
  void Move(arena::Words& words) override;
  bool sound() const { return sound_; }

 private:
  const std::byte* body_;
  const record::SealView& seal_;
  const record::SegmentSpan segments_;
  bool sound_ = false;
};

}  // namespace cistern::residency
