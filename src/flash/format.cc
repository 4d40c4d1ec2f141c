// SPDX-License-Identifier: Apache-2.0
#include "flash/format.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "base/codec.h"
#include "flash/address.h"
#include "record/crc_field.h"
#include "record/seal.h"

namespace cistern::flash {
namespace {

constexpr std::uint64_t kSuperMagic = 0x314c464e52545343;  // "CSTRNFL1"
constexpr std::uint32_t kHeaderMagic = 0x4e474552;         // "REGN"
constexpr std::uint32_t kLocatorMagic = 0x424c4254;        // "TBLB"
constexpr std::uint32_t kBatchMagic = 0x48435442;          // "BTCH"
constexpr std::uint32_t kPageMagic = 0x45474150;           // "PAGE"

// Of all but the superblock: magic, then the CRC of all that follows.
constexpr std::size_t kCrcAt = 4;
constexpr std::size_t kCovers = 8;

namespace super_at {
constexpr std::size_t kVersion = 8, kCrc = 12, kCovered = 16, kDevice = 16, kJournal = 24, kRegionBytes = 32,
                      kUnit = 40, kRegions = 44, kMarkState = 48, kMarkBytes = 56, kEnd = 64;
}
namespace header_at {
constexpr std::size_t kDevice = 8, kEpoch = 16, kFirst = 24, kRegion = 32, kEnd = 64;
}
namespace locator_at {
constexpr std::size_t kEpoch = 8, kLeast = 16, kTable = 24, kEntries = 28, kScanned = 32, kEnd = 64;
}
namespace entry_at {
constexpr std::size_t kKey = 0, kParent = 32, kIncarnation = 64, kBorn = 72, kSequence = 80,
                      kConversation = 88, kExpiry = 96, kBody = 100, kRecord = 104, kUnit = 108, kGroup = 112,
                      kParts = 114, kKeyLength = 116, kParentLength = 117, kZeros = 118;
}
namespace batch_at {
constexpr std::size_t kEpoch = 8, kUnit = 16, kEntries = 20, kUnits = 24;
}
namespace page_at {
constexpr std::size_t kEpoch = 8, kPage = 16, kEntries = 20;
}

// Magic and CRC, last: they stand before what they cover.
void Finish(std::span<std::byte> bytes, std::uint32_t magic) {
  StoreAt(bytes.data(), 0, magic);
  record::StoreCrcAt(bytes, kCrcAt, kCovers);
}

FlashFault Check(std::span<const std::byte> bytes, std::uint32_t magic, std::size_t end) {
  if (bytes.size() < end) return FlashFault::kShort;
  if (LoadAt<std::uint32_t>(bytes.data(), 0) != magic) return FlashFault::kMagic;
  return record::CrcHoldsAt(bytes.first(end), kCrcAt, kCovers) ? FlashFault::kNone : FlashFault::kCrc;
}

}  // namespace

// A node refuses flash of another version by name; records of another one it would take for damaged.
static_assert(kFlashVersion == 1 && record::kRecordVersion == 1, "they go up together");

void EncodeSuperblock(const Superblock& superblock, std::span<std::byte> out) {
  CISTERN_ASSERT(out.size() >= kSectorBytes);
  std::memset(out.data(), 0, out.size());
  std::byte* to = out.data();
  StoreAt(to, 0, kSuperMagic);
  StoreAt(to, super_at::kVersion, kFlashVersion);
  StoreAt(to, super_at::kDevice, superblock.device_id);
  StoreAt(to, super_at::kJournal, superblock.journal_id);
  StoreAt(to, super_at::kRegionBytes, superblock.region_bytes);
  StoreAt(to, super_at::kUnit, superblock.unit);
  StoreAt(to, super_at::kRegions, superblock.regions);
  StoreAt(to, super_at::kMarkState, superblock.journal_mark.state);
  StoreAt(to, super_at::kMarkBytes, superblock.journal_mark.bytes);
  record::StoreCrcAt(out.first(super_at::kEnd), super_at::kCrc, super_at::kCovered);
}

std::expected<Superblock, FlashFault> DecodeSuperblock(std::span<const std::byte> bytes) {
  if (bytes.size() < super_at::kEnd) return std::unexpected(FlashFault::kShort);
  const std::byte* from = bytes.data();
  if (LoadAt<std::uint64_t>(from, 0) != kSuperMagic) return std::unexpected(FlashFault::kMagic);
  if (LoadAt<std::uint32_t>(from, super_at::kVersion) != kFlashVersion) {
    return std::unexpected(FlashFault::kVersion);
  }
  if (!record::CrcHoldsAt(bytes.first(super_at::kEnd), super_at::kCrc, super_at::kCovered)) {
    return std::unexpected(FlashFault::kCrc);
  }
  Superblock superblock;
  superblock.device_id = LoadAt<std::uint64_t>(from, super_at::kDevice);
  superblock.journal_id = LoadAt<std::uint64_t>(from, super_at::kJournal);
  superblock.region_bytes = LoadAt<std::uint64_t>(from, super_at::kRegionBytes);
  superblock.unit = LoadAt<std::uint32_t>(from, super_at::kUnit);
  superblock.regions = LoadAt<std::uint32_t>(from, super_at::kRegions);
  superblock.journal_mark = {LoadAt<std::uint64_t>(from, super_at::kMarkState),
                             LoadAt<std::uint64_t>(from, super_at::kMarkBytes)};
  return superblock;
}

void EncodeRegionHeader(const RegionHeader& header, std::span<std::byte> out) {
  CISTERN_ASSERT(out.size() >= kSectorBytes);
  std::memset(out.data(), 0, out.size());
  std::byte* to = out.data();
  StoreAt(to, header_at::kDevice, header.device_id);
  StoreAt(to, header_at::kEpoch, header.epoch);
  StoreAt(to, header_at::kFirst, header.first_sequence);
  StoreAt(to, header_at::kRegion, header.region);
  Finish(out.first(header_at::kEnd), kHeaderMagic);
}

std::expected<RegionHeader, FlashFault> DecodeRegionHeader(std::span<const std::byte> bytes) {
  const FlashFault fault = Check(bytes, kHeaderMagic, header_at::kEnd);
  if (fault != FlashFault::kNone) return std::unexpected(fault);
  RegionHeader header;
  header.device_id = LoadAt<std::uint64_t>(bytes.data(), header_at::kDevice);
  header.epoch = LoadAt<std::uint64_t>(bytes.data(), header_at::kEpoch);
  header.first_sequence = LoadAt<std::uint64_t>(bytes.data(), header_at::kFirst);
  header.region = LoadAt<std::uint32_t>(bytes.data(), header_at::kRegion);
  return header;
}

void EncodeLocator(const Locator& locator, std::span<std::byte> out) {
  CISTERN_ASSERT(out.size() >= kSectorBytes);
  std::memset(out.data(), 0, out.size());
  std::byte* to = out.data();
  StoreAt(to, locator_at::kEpoch, locator.epoch);
  StoreAt(to, locator_at::kLeast, locator.least_sequence);
  StoreAt(to, locator_at::kTable, locator.table_unit);
  StoreAt(to, locator_at::kEntries, locator.entries);
  StoreAt(to, locator_at::kScanned, static_cast<std::uint32_t>(locator.scanned));
  Finish(out.first(locator_at::kEnd), kLocatorMagic);
}

std::expected<Locator, FlashFault> DecodeLocator(std::span<const std::byte> bytes) {
  const FlashFault fault = Check(bytes, kLocatorMagic, locator_at::kEnd);
  if (fault != FlashFault::kNone) return std::unexpected(fault);
  Locator locator;
  locator.epoch = LoadAt<std::uint64_t>(bytes.data(), locator_at::kEpoch);
  locator.least_sequence = LoadAt<std::uint64_t>(bytes.data(), locator_at::kLeast);
  locator.table_unit = LoadAt<std::uint32_t>(bytes.data(), locator_at::kTable);
  locator.entries = LoadAt<std::uint32_t>(bytes.data(), locator_at::kEntries);
  const auto scanned = LoadAt<std::uint32_t>(bytes.data(), locator_at::kScanned);
  if (scanned > 1) return std::unexpected(FlashFault::kShape);
  locator.scanned = scanned == 1;
  return locator;
}

void EncodeEntry(const tier::TierEntry& entry, std::byte* out) {
  std::memset(out + entry_at::kZeros, 0, kEntryBytes - entry_at::kZeros);
  StoreKeyAt(out, entry_at::kKey, entry_at::kKeyLength, entry.key);
  StoreKeyAt(out, entry_at::kParent, entry_at::kParentLength, entry.parent);
  StoreAt(out, entry_at::kIncarnation, entry.incarnation);
  StoreAt(out, entry_at::kBorn, entry.born);
  StoreAt(out, entry_at::kSequence, entry.sequence);
  StoreAt(out, entry_at::kConversation, entry.conversation);
  StoreAt(out, entry_at::kExpiry, entry.expiry);
  StoreAt(out, entry_at::kBody, entry.body_bytes);
  StoreAt(out, entry_at::kRecord, entry.record_bytes);
  StoreAt(out, entry_at::kUnit, AddressOf(entry.location).unit);
  StoreAt(out, entry_at::kGroup, entry.group);
  StoreAt(out, entry_at::kParts, entry.parts);
}

std::expected<tier::TierEntry, FlashFault> DecodeEntry(const std::byte* bytes, std::uint32_t region) {
  tier::TierEntry entry;
  entry.key = LoadKeyAt(bytes, entry_at::kKey, entry_at::kKeyLength);
  entry.parent = LoadKeyAt(bytes, entry_at::kParent, entry_at::kParentLength);
  if (!IsKeyOrNone(entry.key) || entry.key.none() || !IsKeyOrNone(entry.parent)) {
    return std::unexpected(FlashFault::kShape);
  }
  entry.incarnation = LoadAt<std::uint64_t>(bytes, entry_at::kIncarnation);
  entry.born = LoadAt<std::uint64_t>(bytes, entry_at::kBorn);
  entry.sequence = LoadAt<std::uint64_t>(bytes, entry_at::kSequence);
  entry.conversation = LoadAt<std::uint64_t>(bytes, entry_at::kConversation);
  entry.expiry = LoadAt<std::uint32_t>(bytes, entry_at::kExpiry);
  entry.body_bytes = LoadAt<std::uint32_t>(bytes, entry_at::kBody);
  entry.record_bytes = LoadAt<std::uint32_t>(bytes, entry_at::kRecord);
  entry.group = LoadAt<std::uint16_t>(bytes, entry_at::kGroup);
  entry.parts = LoadAt<std::uint16_t>(bytes, entry_at::kParts);
  entry.location = LocationOf({region, LoadAt<std::uint32_t>(bytes, entry_at::kUnit)});
  if (entry.body_bytes == 0 || entry.body_bytes > kMaxBodyBytes || entry.record_bytes <= entry.body_bytes ||
      entry.parts == 0 || entry.parts > record::kMaxParts) {
    return std::unexpected(FlashFault::kShape);
  }
  return entry;
}

void EncodeBatchHead(const BatchHeader& head, std::span<std::byte> out) {
  const std::size_t end = BatchHeadBytes(head.entries);
  CISTERN_ASSERT(head.entries >= 1 && head.entries <= kMaxBatchEntries && out.size() >= end);
  std::byte* to = out.data();
  std::memset(to, 0, kBatchFixedBytes);
  StoreAt(to, batch_at::kEpoch, head.epoch);
  StoreAt(to, batch_at::kUnit, head.unit);
  StoreAt(to, batch_at::kEntries, head.entries);
  StoreAt(to, batch_at::kUnits, head.units);
  std::memset(to + end, 0, out.size() - end);
  Finish(out.first(end), kBatchMagic);
}

std::expected<BatchHeader, FlashFault> PeekBatch(std::span<const std::byte> bytes) {
  if (bytes.size() < kBatchFixedBytes) return std::unexpected(FlashFault::kShort);
  if (LoadAt<std::uint32_t>(bytes.data(), 0) != kBatchMagic) return std::unexpected(FlashFault::kMagic);
  BatchHeader head;
  head.epoch = LoadAt<std::uint64_t>(bytes.data(), batch_at::kEpoch);
  head.unit = LoadAt<std::uint32_t>(bytes.data(), batch_at::kUnit);
  head.entries = LoadAt<std::uint32_t>(bytes.data(), batch_at::kEntries);
  head.units = LoadAt<std::uint32_t>(bytes.data(), batch_at::kUnits);
  if (head.entries < 1 || head.entries > kMaxBatchEntries || head.units < 2) {
    return std::unexpected(FlashFault::kShape);
  }
  return head;
}

std::expected<BatchHeader, FlashFault> DecodeBatchHead(std::span<const std::byte> bytes) {
  const auto head = PeekBatch(bytes);
  if (!head) return head;
  const FlashFault fault = Check(bytes, kBatchMagic, BatchHeadBytes(head->entries));
  if (fault != FlashFault::kNone) return std::unexpected(fault);
  return head;
}

void EncodePageHead(const PageHeader& head, std::span<std::byte> page) {
  const std::size_t end = PageUsedBytes(head.entries);
  CISTERN_ASSERT(head.entries >= 1 && head.entries <= kPageEntries && page.size() >= end);
  std::byte* to = page.data();
  std::memset(to, 0, kEntryBytes);
  StoreAt(to, page_at::kEpoch, head.epoch);
  StoreAt(to, page_at::kPage, head.page);
  StoreAt(to, page_at::kEntries, head.entries);
  std::memset(to + end, 0, page.size() - end);
  Finish(page.first(end), kPageMagic);
}

std::expected<PageHeader, FlashFault> DecodePageHead(std::span<const std::byte> page) {
  if (page.size() < kEntryBytes) return std::unexpected(FlashFault::kShort);
  PageHeader head;
  head.epoch = LoadAt<std::uint64_t>(page.data(), page_at::kEpoch);
  head.page = LoadAt<std::uint32_t>(page.data(), page_at::kPage);
  head.entries = LoadAt<std::uint32_t>(page.data(), page_at::kEntries);
  if (LoadAt<std::uint32_t>(page.data(), 0) != kPageMagic) return std::unexpected(FlashFault::kMagic);
  if (head.entries < 1 || head.entries > kPageEntries) return std::unexpected(FlashFault::kShape);
  const FlashFault fault = Check(page, kPageMagic, PageUsedBytes(head.entries));
  if (fault != FlashFault::kNone) return std::unexpected(fault);
  return head;
}

bool AllZero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace cistern::flash
