// SPDX-License-Identifier: Apache-2.0
#include "record/seal.h"

#include <cstring>

#include "base/assert.h"
#include "base/codec.h"
#include "base/format.h"
#include "record/crc_field.h"

namespace cistern::record {
namespace {

constexpr std::uint32_t kStampMagic = 0x4d545343;  // "CSTM"
constexpr std::uint32_t kSealMagic = 0x4c455343;   // "CSEL"

// Both CRCs stand right behind their magic and cover everything after themselves.
constexpr std::size_t kCrcAt = 4;
constexpr std::size_t kCrcCovers = 8;

namespace stamp_at {
constexpr std::size_t kRegionEpoch = 8, kSequence = 16, kBorn = 24, kConversation = 32, kRegion = 40,
                      kExpiry = 44, kUnit = 48, kZeros = 52;
}
namespace seal_at {
constexpr std::size_t kVersion = 8, kGroup = 10, kPartCount = 12, kKeyLength = 14, kParentLength = 15,
                      kIncarnation = 16, kBodyBytes = 24, kPutHigh = 32, kPutLow = 40, kSegmentCount = 48,
                      kSegmentSize = 52, kKey = 56, kParent = 88, kArrays = 120;
static_assert(kArrays == kSealFixedBytes);
}  // namespace seal_at

std::uint32_t StampCrc(const std::byte* stamp, std::uint32_t seal_crc) {
  return Crc32c(&seal_crc, sizeof(seal_crc), CrcOver({stamp, kStampBytes}, kCrcCovers));
}

// Whether part lengths, segment count and body agree. All of them lie within the seal's bytes.
bool PartsAgree(const std::byte* seal, std::uint32_t parts, std::uint32_t segments, std::uint64_t body) {
  if (parts == 1) return segments == SegmentsOfPart(body);
  std::uint64_t bytes = 0, count = 0;
  for (std::uint32_t i = 0; i < parts; ++i) {
    const auto part = LoadAt<std::uint32_t>(seal, seal_at::kArrays + 4 * i);
    if (part == 0) return false;
    bytes += part;
    count += SegmentsOfPart(part);
  }
  return bytes == body && count == segments;
}

}  // namespace

std::string_view FaultText(RecordFault fault) {
  switch (fault) {
    case RecordFault::kNone: return "sound";
    case RecordFault::kShort: return "cut short";
    case RecordFault::kMagic: return "no record";
    case RecordFault::kVersion: return "another format version";
    case RecordFault::kShape: return "impossible lengths";
    case RecordFault::kCrc: return "seal or stamp damaged";
  }
  return "unknown";
}

std::uint32_t SegmentCount(std::span<const std::uint32_t> part_bytes) {
  std::uint32_t count = 0;
  for (const std::uint32_t bytes : part_bytes) count += SegmentsOfPart(bytes);
  return count;
}

Status CheckShape(const Seal& seal) {
  if (seal.part_bytes.empty() || seal.part_bytes.size() > kMaxParts) {
    return Status(Code::kInvalid,
                  Text("block: has ", seal.part_bytes.size(), " parts and a block has 1 to ", kMaxParts));
  }
  std::uint64_t body = 0;
  for (std::size_t i = 0; i < seal.part_bytes.size(); ++i) {
    if (seal.part_bytes[i] == 0) return Status(Code::kInvalid, Text("part ", i, ": is empty"));
    body += seal.part_bytes[i];
  }
  if (body > kMaxBodyBytes) {
    return Status(Code::kInvalid, Text("block: has ", body, " bytes and the limit is ", kMaxBodyBytes));
  }
  if (seal.segment_crcs.size() != SegmentCount(seal.part_bytes)) {
    return Status(Code::kInvalid, Text("block: has ", SegmentCount(seal.part_bytes), " segments and ",
                                       seal.segment_crcs.size(), " checksums"));
  }
  for (const BlockKey* key : {&seal.key, &seal.parent}) {
    const char* what = key == &seal.key ? "key" : "parent key";
    if (key->length > BlockKey::kMaxBytes || (key->none() && key == &seal.key)) {
      return Status(Code::kInvalid, Text(what, ": has ", key->length, " bytes and a key has 1 to 32"));
    }
    if (!IsKeyOrNone(*key)) return Status(Code::kInvalid, Text(what, ": has bytes behind its end"));
  }
  return Status();
}

std::uint32_t EncodeTrailer(const Seal& seal, const Stamp& stamp, std::span<std::byte> trailer) {
  CISTERN_ASSERT(CheckShape(seal).ok());
  const auto parts = static_cast<std::uint32_t>(seal.part_bytes.size());
  const auto segments = static_cast<std::uint32_t>(seal.segment_crcs.size());
  CISTERN_ASSERT(trailer.size() >= TrailerBytes(segments, parts));
  std::memset(trailer.data(), 0, trailer.size());

  std::byte* out = trailer.data() + kStampBytes;
  std::uint64_t body = 0;
  for (const std::uint32_t bytes : seal.part_bytes) body += bytes;
  StoreAt(out, 0, kSealMagic);
  StoreAt(out, seal_at::kVersion, kRecordVersion);
  StoreAt(out, seal_at::kGroup, seal.group);
  StoreAt(out, seal_at::kPartCount, static_cast<std::uint16_t>(parts));
  StoreKeyAt(out, seal_at::kKey, seal_at::kKeyLength, seal.key);
  StoreKeyAt(out, seal_at::kParent, seal_at::kParentLength, seal.parent);
  StoreAt(out, seal_at::kIncarnation, seal.incarnation);
  StoreAt(out, seal_at::kBodyBytes, body);
  StoreAt(out, seal_at::kPutHigh, seal.put_id.high);
  StoreAt(out, seal_at::kPutLow, seal.put_id.low);
  StoreAt(out, seal_at::kSegmentCount, segments);
  StoreAt(out, seal_at::kSegmentSize, kSegmentBytes);
  std::size_t at = seal_at::kArrays;
  if (parts > 1) {
    std::memcpy(out + at, seal.part_bytes.data(), 4 * parts);
    at += 4 * parts;
  }
  std::memcpy(out + at, seal.segment_crcs.data(), 4 * segments);

  const std::uint32_t crc = StoreCrcAt({out, SealBytes(segments, parts)}, kCrcAt, kCrcCovers);
  EncodeStamp(stamp, crc, trailer.first<kStampBytes>());
  return crc;
}

void EncodeStamp(const Stamp& stamp, std::uint32_t seal_crc, std::span<std::byte, kStampBytes> out) {
  std::byte* to = out.data();
  std::memset(to, 0, kStampBytes);
  StoreAt(to, 0, kStampMagic);
  StoreAt(to, stamp_at::kRegionEpoch, stamp.region_epoch);
  StoreAt(to, stamp_at::kSequence, stamp.sequence);
  StoreAt(to, stamp_at::kBorn, stamp.born);
  StoreAt(to, stamp_at::kConversation, stamp.conversation);
  StoreAt(to, stamp_at::kRegion, stamp.region);
  StoreAt(to, stamp_at::kExpiry, stamp.expiry);
  StoreAt(to, stamp_at::kUnit, stamp.unit);
  StoreAt(to, kCrcAt, StampCrc(to, seal_crc));
}

std::expected<SealView, RecordFault> CheckSeal(std::span<const std::byte> trailer) {
  if (trailer.size() < kStampBytes + kSealFixedBytes) return std::unexpected(RecordFault::kShort);
  const std::byte* seal = trailer.data() + kStampBytes;
  if (LoadAt<std::uint32_t>(seal, 0) != kSealMagic) return std::unexpected(RecordFault::kMagic);
  if (LoadAt<std::uint16_t>(seal, seal_at::kVersion) != kRecordVersion) {
    return std::unexpected(RecordFault::kVersion);
  }
  const auto body = LoadAt<std::uint64_t>(seal, seal_at::kBodyBytes);
  const std::uint32_t parts = LoadAt<std::uint16_t>(seal, seal_at::kPartCount);
  const auto segments = LoadAt<std::uint32_t>(seal, seal_at::kSegmentCount);
  // Bounds first: they make every later sum and offset small.
  if (body == 0 || body > kMaxBodyBytes || parts == 0 || parts > kMaxParts ||
      segments > SegmentsOfPart(kMaxBodyBytes) + kMaxParts ||
      LoadAt<std::uint32_t>(seal, seal_at::kSegmentSize) != kSegmentBytes) {
    return std::unexpected(RecordFault::kShape);
  }
  const std::uint32_t bytes = SealBytes(segments, parts);
  if (trailer.size() - kStampBytes < bytes) return std::unexpected(RecordFault::kShort);
  if (!CrcHoldsAt({seal, bytes}, kCrcAt, kCrcCovers)) return std::unexpected(RecordFault::kCrc);
  // A CRC proves that nothing changed by accident, not that a sane hand wrote it.
  const BlockKey key = LoadKeyAt(seal, seal_at::kKey, seal_at::kKeyLength);
  const BlockKey parent = LoadKeyAt(seal, seal_at::kParent, seal_at::kParentLength);
  if (key.none() || !IsKeyOrNone(key) || !IsKeyOrNone(parent) || !PartsAgree(seal, parts, segments, body)) {
    return std::unexpected(RecordFault::kShape);
  }
  SealView view;
  view.seal_ = seal;
  view.body_bytes_ = body;
  view.part_count_ = parts;
  view.segment_count_ = segments;
  return view;
}

std::expected<Stamp, RecordFault> CheckStamp(std::span<const std::byte> trailer, const SealView& seal) {
  if (trailer.size() < kStampBytes) return std::unexpected(RecordFault::kShort);
  const std::byte* from = trailer.data();
  if (LoadAt<std::uint32_t>(from, 0) != kStampMagic) return std::unexpected(RecordFault::kMagic);
  if (LoadAt<std::uint32_t>(from, kCrcAt) != StampCrc(from, seal.crc())) {
    return std::unexpected(RecordFault::kCrc);
  }
  for (std::size_t i = stamp_at::kZeros; i < kStampBytes; ++i) {
    if (from[i] != std::byte{0}) return std::unexpected(RecordFault::kShape);
  }
  Stamp stamp;
  stamp.region_epoch = LoadAt<std::uint64_t>(from, stamp_at::kRegionEpoch);
  stamp.sequence = LoadAt<std::uint64_t>(from, stamp_at::kSequence);
  stamp.born = LoadAt<std::uint64_t>(from, stamp_at::kBorn);
  stamp.conversation = LoadAt<std::uint64_t>(from, stamp_at::kConversation);
  stamp.region = LoadAt<std::uint32_t>(from, stamp_at::kRegion);
  stamp.expiry = LoadAt<std::uint32_t>(from, stamp_at::kExpiry);
  stamp.unit = LoadAt<std::uint32_t>(from, stamp_at::kUnit);
  return stamp;
}

std::uint64_t SealView::incarnation() const { return LoadAt<std::uint64_t>(seal_, seal_at::kIncarnation); }
std::uint16_t SealView::group() const { return LoadAt<std::uint16_t>(seal_, seal_at::kGroup); }
BlockKey SealView::key() const { return LoadKeyAt(seal_, seal_at::kKey, seal_at::kKeyLength); }
BlockKey SealView::parent() const { return LoadKeyAt(seal_, seal_at::kParent, seal_at::kParentLength); }
std::uint32_t SealView::crc() const { return LoadAt<std::uint32_t>(seal_, kCrcAt); }

bool SealView::HasKey(const BlockKey& key) const {
  return LoadAt<std::uint8_t>(seal_, seal_at::kKeyLength) == key.length &&
         std::memcmp(seal_ + seal_at::kKey, key.bytes.data(), BlockKey::kMaxBytes) == 0;
}

PutId SealView::put_id() const {
  return {LoadAt<std::uint64_t>(seal_, seal_at::kPutHigh), LoadAt<std::uint64_t>(seal_, seal_at::kPutLow)};
}

std::uint32_t SealView::part_bytes(std::uint32_t part) const {
  CISTERN_ASSERT(part < part_count_);
  if (part_count_ == 1) return static_cast<std::uint32_t>(body_bytes_);
  return LoadAt<std::uint32_t>(seal_, seal_at::kArrays + 4 * part);
}

SealView::PartPlace SealView::part(std::uint32_t part) const {
  PartPlace place{0, part_bytes(part), 0};
  for (std::uint32_t i = 0; i < part; ++i) {
    place.offset += part_bytes(i);
    place.first_segment += SegmentsOfPart(part_bytes(i));
  }
  return place;
}

std::uint32_t SealView::segment_crc(std::uint32_t segment) const {
  CISTERN_ASSERT(segment < segment_count_);
  const std::size_t parts = part_count_ > 1 ? 4 * part_count_ : 0;
  return LoadAt<std::uint32_t>(seal_, seal_at::kArrays + parts + 4 * segment);
}

}  // namespace cistern::record
