// SPDX-License-Identifier: Apache-2.0
#include "residency/body_check.h"

namespace cistern::residency {

void BodyCheck::Move(arena::Words& words) {
  sound_ = record::SegmentsSound(
      seal_, record::Segments(seal_, segments_),
      [&](std::uint64_t offset, std::uint64_t bytes) { return words.Checksum(body_ + offset, bytes, 0); });
}

}  // namespace cistern::residency
