// SPDX-License-Identifier: Apache-2.0
// Ranged reads of a record's body. The segment is the unit of checking: a read of any range of a part checks
// every segment that it touches whole and stores only the bytes that were asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "record/seal.h"
#include "record/verified_copy.h"

namespace cistern {

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

// Whether the range lies in the part. Every call below asserts it.
bool InPart(const SealView& seal, const PartRange& range);
// The segments that the range touches; none for an empty range.
SegmentSpan SegmentsOf(const SealView& seal, const PartRange& range);

// Where segments lie in a body of these parts, one behind the other; nothing of it where it has not so many.
BodySpan BytesOf(std::span<const std::uint32_t> part_bytes, const SegmentSpan& segments);

// Copies the range to `pieces`, in order (their sizes sum up to range.bytes, asserted), and checks every
// segment it touches. Each byte of these segments is loaded once. kBody: a segment differs and what was
// stored is to be discarded; else kNone. Streaming stores, no fence: see verified_copy.h.
// `body` is where the record begins; it may change during the call, `seal` may not.
RecordFault VerifySegmentsAndCopy(const CopyKernels& kernels, const std::byte* body, const SealView& seal,
                                  const PartRange& range, std::span<const std::span<std::byte>> pieces);

// Checks all segments of a body without copying: kNone or kBody.
RecordFault VerifyBody(const CopyKernels& kernels, const std::byte* body, const SealView& seal);

// Copies a part into a body and gives the CRC of each of its segments: the writer's side. `crcs` holds
// SegmentsOfPart(part.size()). Streaming stores, no fence.
void CopyPartAndSum(const CopyKernels& kernels, std::byte* body, std::span<const std::byte> part,
                    std::span<std::uint32_t> crcs);

}  // namespace cistern
