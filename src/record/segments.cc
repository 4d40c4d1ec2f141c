// SPDX-License-Identifier: Apache-2.0
#include "record/segments.h"

#include <algorithm>

#include "base/assert.h"

namespace cistern {
namespace {

// Hands out the destinations in order, across their borders.
class Scatter {
 public:
  explicit Scatter(std::span<const std::span<std::byte>> pieces) : pieces_(pieces) {}

  // Copies n bytes to what comes next and continues the CRC.
  std::uint32_t Copy(const CopyKernels& kernels, const std::byte* from, std::uint64_t n, std::uint32_t crc) {
    while (n > 0) {
      const std::span<std::byte> piece = pieces_.front().subspan(used_);
      const std::uint64_t step = std::min<std::uint64_t>(n, piece.size());
      crc = kernels.copy_stream(piece.data(), from, step, crc);
      from += step;
      n -= step;
      used_ += step;
      if (used_ == pieces_.front().size()) {
        pieces_ = pieces_.subspan(1);
        used_ = 0;
      }
    }
    return crc;
  }

 private:
  std::span<const std::span<std::byte>> pieces_;
  std::size_t used_ = 0;
};

}  // namespace

bool InPart(const SealView& seal, const PartRange& range) {
  if (range.part >= seal.part_count()) return false;
  const std::uint64_t bytes = seal.part_bytes(range.part);
  return range.offset <= bytes && range.bytes <= bytes - range.offset;
}

SegmentSpan SegmentsOf(const SealView& seal, const PartRange& range) {
  CISTERN_ASSERT(InPart(seal, range));
  const std::uint32_t base = seal.part(range.part).first_segment;
  const auto first = static_cast<std::uint32_t>(range.offset / kSegmentBytes);
  if (range.bytes == 0) return {base + first, 0};
  const auto last = static_cast<std::uint32_t>((range.offset + range.bytes - 1) / kSegmentBytes);
  return {base + first, last - first + 1};
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

RecordFault VerifySegmentsAndCopy(const CopyKernels& kernels, const std::byte* body, const SealView& seal,
                                  const PartRange& range, std::span<const std::span<std::byte>> pieces) {
  std::uint64_t room = 0;
  for (const auto piece : pieces) room += piece.size();
  CISTERN_ASSERT(room == range.bytes);
  const SegmentSpan segments = SegmentsOf(seal, range);
  const SealView::PartPlace part = seal.part(range.part);
  const std::byte* const bytes = body + part.offset;
  const std::uint64_t end = range.offset + range.bytes;
  Scatter scatter(pieces);
  for (std::uint32_t i = segments.first; i < segments.first + segments.count; ++i) {
    const std::uint64_t from = std::uint64_t{i - part.first_segment} * kSegmentBytes;
    const std::uint64_t to = std::min<std::uint64_t>(from + kSegmentBytes, part.bytes);
    // A segment that is wanted in part is summed before and behind what is copied: still one load a byte.
    const std::uint64_t copy_from = std::max(from, range.offset);
    const std::uint64_t copy_to = std::min(to, end);
    std::uint32_t crc = kernels.crc(bytes + from, copy_from - from, 0);
    crc = scatter.Copy(kernels, bytes + copy_from, copy_to - copy_from, crc);
    crc = kernels.crc(bytes + copy_to, to - copy_to, crc);
    if (crc != seal.segment_crc(i)) return RecordFault::kBody;
  }
  return RecordFault::kNone;
}

RecordFault VerifyBody(const CopyKernels& kernels, const std::byte* body, const SealView& seal) {
  std::uint32_t segment = 0;
  for (std::uint32_t i = 0; i < seal.part_count(); ++i) {
    for (std::uint64_t left = seal.part_bytes(i); left > 0; ++segment) {
      const std::uint64_t bytes = std::min<std::uint64_t>(left, kSegmentBytes);
      if (kernels.crc(body, bytes, 0) != seal.segment_crc(segment)) return RecordFault::kBody;
      body += bytes;
      left -= bytes;
    }
  }
  return RecordFault::kNone;
}

void CopyPartAndSum(const CopyKernels& kernels, std::byte* body, std::span<const std::byte> part,
                    std::span<std::uint32_t> crcs) {
  CISTERN_ASSERT(crcs.size() == SegmentsOfPart(part.size()));
  for (std::uint32_t& crc : crcs) {
    const std::size_t bytes = std::min<std::size_t>(part.size(), kSegmentBytes);
    crc = kernels.copy_stream(body, part.data(), bytes, 0);
    body += bytes;
    part = part.subspan(bytes);
  }
}

}  // namespace cistern
