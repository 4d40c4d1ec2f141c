// SPDX-License-Identifier: Apache-2.0
#include "record/segments.h"

#include <algorithm>

namespace cistern::record {

bool InPart(const SealView& seal, const PartRange& range) {
  if (range.part >= seal.part_count()) return false;
  const std::uint64_t bytes = seal.part_bytes(range.part);
  return range.offset <= bytes && range.bytes <= bytes - range.offset;
}

Segments::Segments(const SealView& seal, const SegmentSpan& span) : seal_(&seal), span_(span) {
  CISTERN_ASSERT(std::uint64_t{span.first} + span.count <= seal.segment_count());
  if (span.count == 0) return;
  place_ = {0, seal.part_bytes(0), 0};
  for (;;) {
    const std::uint32_t next = place_.first_segment + SegmentsOfPart(place_.bytes);
    if (span.first < next) return;
    place_ = {place_.offset + place_.bytes, seal.part_bytes(++part_), next};
  }
}

Segments::Segments(const SealView& seal, const PartRange& range) : seal_(&seal), part_(range.part) {
  CISTERN_ASSERT(InPart(seal, range));
  place_ = seal.part(range.part);
  const auto first = static_cast<std::uint32_t>(range.offset / kSegmentBytes);
  span_.first = place_.first_segment + first;
  if (range.bytes == 0) return;
  const auto last = static_cast<std::uint32_t>((range.offset + range.bytes - 1) / kSegmentBytes);
  span_.count = last - first + 1;
}

bool CrcsMatch(const SealView& seal, std::uint32_t first, std::span<const std::uint32_t> crcs) {
  for (std::uint32_t i = 0; i < crcs.size(); ++i) {
    if (crcs[i] != seal.segment_crc(first + i)) return false;
  }
  return true;
}

BodySpan BytesOf(std::span<const std::uint32_t> part_bytes, const SegmentSpan& segments) {
  std::uint64_t from = 0, to = 0, part_at = 0, before = 0;
  for (const std::uint32_t bytes : part_bytes) {
    const std::uint64_t here = SegmentsOfPart(bytes);
    // Where in this part, if anywhere, a border between segments lies.
    const auto border = [&](std::uint64_t segment) {
      return part_at + std::min<std::uint64_t>((segment - before) * kSegmentBytes, bytes);
    };
    if (segments.first >= before && segments.first < before + here) from = border(segments.first);
    if (segments.end() > before && segments.end() <= before + here) to = border(segments.end());
    before += here;
    part_at += bytes;
  }
  if (segments.count == 0 || std::uint64_t{segments.first} + segments.count > before) return {};
  return {from, to - from};
}

}  // namespace cistern::record
