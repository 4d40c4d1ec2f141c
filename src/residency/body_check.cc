// SPDX-License-Identifier: Apache-2.0
#include "residency/body_check.h"

#include <algorithm>

namespace cistern {

void BodyCheck::Move(Words& words) {
  for (std::uint32_t p = 0; p < seal_.part_count(); ++p) {
    const SealView::PartPlace part = seal_.part(p);
    std::uint32_t segment = part.first_segment;
    for (std::uint64_t at = 0; at < part.bytes; at += kSegmentBytes, ++segment) {
      if (segment < segments_.first || segment >= segments_.end()) continue;
      const std::size_t bytes = std::min<std::uint64_t>(kSegmentBytes, part.bytes - at);
      if (words.Checksum(body_ + part.offset + at, bytes, 0) != seal_.segment_crc(segment)) return;
    }
  }
  sound_ = true;
}

}  // namespace cistern
