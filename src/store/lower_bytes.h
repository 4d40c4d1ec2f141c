// SPDX-License-Identifier: Apache-2.0
// Bytes on their way from a lower tier: room for them that a device can read into, and whether a body is what
// its seal says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

#include "base/assert.h"
#include "memory/movers.h"
#include "record/seal.h"
#include "record/segments.h"

namespace cistern {

// Private memory aligned for any transfer.
class AlignedBytes final {
 public:
  static constexpr std::size_t kAlignment = 4096;

  explicit AlignedBytes(std::size_t bytes)
      : bytes_(static_cast<std::byte*>(
            std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment))),
        size_(bytes) {
    CISTERN_ASSERT(bytes_ != nullptr);
  }
  std::span<std::byte> span() const { return {bytes_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  std::unique_ptr<std::byte, Free> bytes_;
  std::size_t size_;
};

// Whether a body, or some segments of it, that nobody else changes has the checksums of its seal, found out
// by a mover. The seal borrows bytes that stay until the await is over.
class BodyCheck final : public AwaitedJob {
 public:
  BodyCheck(Movers& movers, const std::byte* body, const SealView& seal)
      : BodyCheck(movers, body, seal, {0, seal.segment_count()}) {}
  BodyCheck(Movers& movers, const std::byte* body, const SealView& seal, SegmentSpan segments)
      : AwaitedJob(movers), body_(body), seal_(seal), segments_(segments) {}
  void Move(Words& words) override;
  bool sound() const { return sound_; }

 private:
  const std::byte* body_;
  const SealView& seal_;
  const SegmentSpan segments_;
  bool sound_ = false;
};

}  // namespace cistern
