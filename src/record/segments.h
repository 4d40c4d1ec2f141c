// SPDX-License-Identifier: Apache-2.0
// Walks over the segments of a record's body, and ranged reads of it. The segment is the unit of checking: a
// read of any range of a part checks every segment that it touches whole and stores only the bytes that were
// asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

#include "base/assert.h"
#include "record/seal.h"

namespace cistern::record {

// Bytes [offset, offset + bytes) of a part.
struct PartRange {
  std::uint32_t part = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// Segments of the record, counted over all parts.
struct SegmentSpan {
  std::uint32_t first = 0;
  std::uint32_t count = 0;

  std::uint32_t end() const { return first + count; }
  bool operator==(const SegmentSpan&) const = default;
};

// Bytes [offset, offset + bytes) of a body.
struct BodySpan {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  bool operator==(const BodySpan&) const = default;
};

// Whether the range lies in the part.
bool InPart(const SealView& seal, const PartRange& range);

// A segment and the bytes of the body that it is.
struct Segment {
  std::uint32_t number = 0;  // of the record
  std::uint32_t part = 0;
  std::uint64_t offset = 0;  // in the body
  std::uint64_t bytes = 0;
  bool operator==(const Segment&) const = default;
};

// The one walk over the segments of a sealed body: for (const Segment& segment : Segments(seal, span)). It
// borrows the seal.
class Segments final {
 public:
  class Iterator {
   public:
    Iterator(const SealView& seal, std::uint32_t part, const SealView::PartPlace& place,
             const SegmentSpan& span)
        : seal_(&seal), place_(place), part_(part), at_(span.first), end_(span.end()) {}
    Segment operator*() const {
      const std::uint64_t in_part = std::uint64_t{at_ - place_.first_segment} * kSegmentBytes;
      const std::uint64_t left = place_.bytes - in_part;
      return {at_, part_, place_.offset + in_part, left < kSegmentBytes ? left : kSegmentBytes};
    }
    Iterator& operator++() {
      if (++at_ < end_ && at_ == place_.first_segment + SegmentsOfPart(place_.bytes)) {
        place_ = {place_.offset + place_.bytes, seal_->part_bytes(++part_), at_};
      }
      return *this;
    }
    bool operator==(std::default_sentinel_t) const { return at_ == end_; }

   private:
    const SealView* seal_;
    SealView::PartPlace place_;
    std::uint32_t part_, at_, end_;
  };

  // All of them.
  explicit Segments(const SealView& seal) : Segments(seal, SegmentSpan{0, seal.segment_count()}) {}
  // Those of the span, which lies in the body (asserted).
  Segments(const SealView& seal, const SegmentSpan& span);
  // Those that the range touches, none for an empty one. It is InPart (asserted).
  Segments(const SealView& seal, const PartRange& range);

  Iterator begin() const { return Iterator(*seal_, part_, place_, span_); }
  std::default_sentinel_t end() const { return {}; }
  const SegmentSpan& span() const { return span_; }
  // The part in which the first one lies.
  const SealView::PartPlace& first_part() const { return place_; }

 private:
  const SealView* seal_;
  SegmentSpan span_;
  std::uint32_t part_ = 0;
  SealView::PartPlace place_{};
};

// Where segments lie in a body of these parts, one behind the other; nothing of it where it has not so many.
BodySpan BytesOf(std::span<const std::uint32_t> part_bytes, const SegmentSpan& segments);

// Whether segments `first` and on have these CRCs.
bool CrcsMatch(const SealView& seal, std::uint32_t first, std::span<const std::uint32_t> crcs);

// Whether each of the segments has the CRC that its seal says. `checksum(offset, bytes)` gives that of bytes
// of the body.
template <class Checksum>
bool SegmentsSound(const SealView& seal, const Segments& segments, Checksum&& checksum) {
  for (const Segment& segment : segments) {
    if (checksum(segment.offset, segment.bytes) != seal.segment_crc(segment.number)) return false;
  }
  return true;
}

// The destinations of a range, used up in order, across their borders.
class Pieces final {
 public:
  explicit Pieces(std::span<const std::span<std::byte>> pieces) : pieces_(pieces) {}

  // Copies to what comes next and continues the CRC; `behind` more bytes of the source follow.
  template <class Memory>
  std::uint32_t Copy(Memory& memory, const std::byte* from, std::uint64_t bytes, std::uint32_t crc,
                     std::uint64_t behind) {
    while (bytes > 0) {
      CISTERN_ASSERT(!pieces_.empty());
      const std::span<std::byte> room = pieces_.front().subspan(used_);
      const std::size_t step = bytes < room.size() ? bytes : room.size();
      if (step > 0) crc = memory.CopyOut(room.data(), from, step, crc, bytes - step + behind);
      from += step;
      bytes -= step;
      used_ += step;
      if (step < room.size()) return crc;
      pieces_ = pieces_.subspan(1);
      used_ = 0;
    }
    return crc;
  }

 private:
  std::span<const std::span<std::byte>> pieces_;
  std::size_t used_ = 0;
};

// Copies the range, which is InPart (asserted), to `pieces`, whose sizes sum up to range.bytes, and checks
// every segment that it touches; each byte of these is loaded once, through Checksum and CopyOut of `memory`,
// which are those of Words (arena/words.h). False: a segment differs, and what was stored is to be discarded.
// Streaming stores, no fence. `body` is where the record begins; it may change during the call, `seal` may
// not. Only a test that proves the check leaves it out.
template <bool kCheck = true, class Memory>
bool CopySegments(Memory& memory, const std::byte* body, const SealView& seal, const PartRange& range,
                  std::span<const std::span<std::byte>> to) {
  const Segments segments(seal, range);
  const std::uint64_t begin = segments.first_part().offset + range.offset, end = begin + range.bytes;
  Pieces pieces(to);
  for (const Segment& segment : segments) {
    // A segment that is wanted in part is summed before and behind what is copied.
    const std::uint64_t segment_end = segment.offset + segment.bytes;
    const std::uint64_t copy_from = segment.offset > begin ? segment.offset : begin;
    const std::uint64_t copy_to = segment_end < end ? segment_end : end;
    std::uint32_t crc = 0;
    if (copy_from > segment.offset) {
      crc = memory.Checksum(body + segment.offset, copy_from - segment.offset, crc);
    }
    crc = pieces.Copy(memory, body + copy_from, copy_to - copy_from, crc, end - copy_to);
    if (segment_end > copy_to) crc = memory.Checksum(body + copy_to, segment_end - copy_to, crc);
    if (kCheck && crc != seal.segment_crc(segment.number)) return false;
  }
  return true;
}

}  // namespace cistern::record
