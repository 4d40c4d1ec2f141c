// SPDX-License-Identifier: Apache-2.0
// A record is a block's one form in memory, on flash, on the wire and in an object:
//
//   body (the parts of one group, in order) | zeros up to the alignment | trailer: stamp, seal | zeros
//
// The seal says what the block is and is made once; the stamp says where it lies and how long, and is
// rewritten with each placement. Layout and reasons: docs/formats/record.md.
//
// Checking reads only inside the span that it is given, whatever the bytes say, and allocates nothing. It
// must be given a private copy: bytes that another process can change between check and use prove nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <span>
#include <string_view>

#include "base/limits.h"
#include "cistern/key.h"

namespace cistern::record {

inline constexpr std::uint16_t kRecordVersion = 1;
inline constexpr std::uint32_t kSegmentBytes = 64 * 1024;
inline constexpr std::uint32_t kMaxParts = 256;
inline constexpr std::uint32_t kStampBytes = 64;
inline constexpr std::uint32_t kSealFixedBytes = 120;

// What goes into a seal. The spans are borrowed for the call.
struct Seal {
  std::uint64_t incarnation = 0;  // of the namespace
  std::uint16_t group = 0;
  BlockKey key;
  BlockKey parent;  // none() for the first block of a chain
  PutId put_id;
  std::span<const std::uint32_t> part_bytes;    // 1 to kMaxParts, each at least 1; their sum is the body
  std::span<const std::uint32_t> segment_crcs;  // one a segment, in the order of the body
};
// The sum of its parts.
inline std::uint64_t BodyBytesOf(const Seal& seal) {
  std::uint64_t bytes = 0;
  for (const std::uint32_t part : seal.part_bytes) bytes += part;
  return bytes;
}

struct Stamp {
  std::uint32_t region = 0;
  std::uint64_t region_epoch = 0;
  std::uint64_t sequence = 0;
  std::uint64_t born = 0;
  std::uint32_t expiry = 0;  // seconds since 1970, 0: none
  std::uint64_t conversation = 0;
  std::uint32_t unit = 0;  // on flash, where it begins in its region, in units; 0: not said
  friend bool operator==(const Stamp&, const Stamp&) = default;
};

// Why bytes are no seal or stamp; kNone: they are.
enum class RecordFault : std::uint8_t {
  kNone = 0,
  kShort,    // the span ends before the seal does
  kMagic,    // nothing was ever written here, or something else
  kVersion,  // a seal of another format version
  kShape,    // lengths and counts that no seal has
  kCrc,      // seal or stamp was changed or torn
};
std::string_view FaultText(RecordFault fault);

// Segments are a part's: the last one of each part may be short, the next part begins a new one.
constexpr std::uint32_t SegmentsOfPart(std::uint64_t part_bytes) {
  return static_cast<std::uint32_t>((part_bytes + kSegmentBytes - 1) / kSegmentBytes);
}
std::uint32_t SegmentCount(std::span<const std::uint32_t> part_bytes);

// The seal's bytes, the trailer's (stamp and seal without padding), and the whole record's as stored:
// body and trailer each rounded up to `alignment` (a power of two).
constexpr std::uint32_t SealBytes(std::uint32_t segments, std::uint32_t parts) {
  return kSealFixedBytes + 4 * segments + (parts > 1 ? 4 * parts : 0);
}
constexpr std::uint32_t TrailerBytes(std::uint32_t segments, std::uint32_t parts) {
  return kStampBytes + SealBytes(segments, parts);
}
constexpr std::uint64_t TrailerOffset(std::uint64_t body_bytes, std::uint32_t alignment) {
  return (body_bytes + alignment - 1) / alignment * alignment;
}
constexpr std::uint64_t RecordBytes(std::uint64_t body_bytes, std::uint32_t segments, std::uint32_t parts,
                                    std::uint32_t alignment) {
  return TrailerOffset(body_bytes, alignment) + TrailerOffset(TrailerBytes(segments, parts), alignment);
}
// For one part.
constexpr std::uint64_t RecordBytes(std::uint64_t body_bytes, std::uint32_t alignment) {
  return RecordBytes(body_bytes, SegmentsOfPart(body_bytes), 1, alignment);
}
// No trailer is larger: a reader's buffer of this size holds any.
inline constexpr std::uint32_t kMaxTrailerBytes =
    TrailerBytes(SegmentsOfPart(kMaxBodyBytes) + kMaxParts, kMaxParts);
// The most that the trailer of one part of `body_bytes` or of several parts with that sum takes; what a
// reader copies out who knows the length and not the parts.
constexpr std::uint32_t TrailerBoundBytes(std::uint64_t body_bytes, std::uint32_t parts) {
  return TrailerBytes(SegmentsOfPart(body_bytes) + (parts > 1 ? parts - 1 : 0), parts);
}

// Whether lengths and counts are those of a seal: kInvalid names the field.
Status CheckShape(const Seal& seal);

// Writes stamp and seal to the start of `trailer` and zeros to its end; returns the seal's CRC. The seal
// passes CheckShape and the trailer holds it (asserted).
std::uint32_t EncodeTrailer(const Seal& seal, const Stamp& stamp, std::span<std::byte> trailer);
// Rewrites the stamp alone; `seal_crc` is that of the seal behind it.
void EncodeStamp(const Stamp& stamp, std::uint32_t seal_crc, std::span<std::byte, kStampBytes> out);

// A checked seal, read in place: it borrows the trailer's bytes, which outlive it.
class SealView {
 public:
  std::uint64_t incarnation() const;
  std::uint16_t group() const;
  BlockKey key() const;
  BlockKey parent() const;
  // Compares without making a copy.
  bool HasKey(const BlockKey& key) const;
  PutId put_id() const;
  std::uint64_t body_bytes() const { return body_bytes_; }
  std::uint32_t part_count() const { return part_count_; }
  std::uint32_t segment_count() const { return segment_count_; }
  std::uint32_t crc() const;
  std::uint32_t bytes() const { return SealBytes(segment_count_, part_count_); }

  // part < part_count(). Where a part begins in the body takes a walk over the parts before it.
  std::uint32_t part_bytes(std::uint32_t part) const;
  struct PartPlace {
    std::uint64_t offset;  // in the body
    std::uint32_t bytes;
    std::uint32_t first_segment;  // its segments follow each other
  };
  PartPlace part(std::uint32_t part) const;
  // segment < segment_count()
  std::uint32_t segment_crc(std::uint32_t segment) const;

 private:
  friend std::expected<SealView, RecordFault> CheckSeal(std::span<const std::byte> trailer);
  const std::byte* seal_ = nullptr;
  std::uint64_t body_bytes_ = 0;
  std::uint32_t part_count_ = 0;
  std::uint32_t segment_count_ = 0;
};

// Checks the seal of a trailer (which begins with the stamp): magic, version, shape, CRC.
std::expected<SealView, RecordFault> CheckSeal(std::span<const std::byte> trailer);
// Checks the stamp of the same trailer against that seal.
std::expected<Stamp, RecordFault> CheckStamp(std::span<const std::byte> trailer, const SealView& seal);

// Whether a record may still be handed out: expiry 0 is none, and the second it names is the first too late.
constexpr bool Expired(const Stamp& stamp, std::uint64_t now_unix_s) {
  return stamp.expiry != 0 && now_unix_s >= stamp.expiry;
}

}  // namespace cistern::record
