// SPDX-License-Identifier: Apache-2.0
// What lies on a flash device, byte by byte: docs/formats/flash.md. Encoding and checking only; nothing here
// does I/O, allocates, or reads outside the span that it is given, whatever the bytes say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <span>

#include "tier/entry.h"
#include "tier/journal_view.h"

namespace cistern::flash {

inline constexpr std::uint32_t kFlashVersion = 1;
// Before the first region; the superblock is its first sector.
inline constexpr std::uint64_t kSuperBytes = 64u << 10;
// What a device writes whole or not at all: superblock, region header and locator each lie in one.
inline constexpr std::uint32_t kSectorBytes = 512;
inline constexpr std::uint32_t kEntryBytes = 128;
inline constexpr std::uint32_t kBatchFixedBytes = 64;
inline constexpr std::uint32_t kMaxBatchEntries = 256;
inline constexpr std::uint32_t kPageBytes = 64u << 10;
inline constexpr std::uint32_t kPageEntries = kPageBytes / kEntryBytes - 1;  // one place is the page's head

// Why bytes are not what was looked for.
enum class FlashFault : std::uint8_t {
  kNone = 0,
  kShort,    // the span ends before it does
  kMagic,    // something else, or nothing
  kVersion,  // a superblock of another format version
  kShape,    // counts and lengths that cannot be
  kCrc,      // changed or torn
};

struct Superblock {
  std::uint64_t device_id = 0;
  std::uint64_t journal_id = 0;
  std::uint32_t unit = 0;
  std::uint64_t region_bytes = 0;
  std::uint32_t regions = 0;
  tier::JournalMark journal_mark;  // the journal had come so far when this was written
  friend bool operator==(const Superblock&, const Superblock&) = default;
};
// `out` holds a sector; what is behind it becomes zeros.
void EncodeSuperblock(const Superblock& superblock, std::span<std::byte> out);
std::expected<Superblock, FlashFault> DecodeSuperblock(std::span<const std::byte> bytes);

// Of a region; epoch 0: it is empty, whatever lies behind.
struct RegionHeader {
  std::uint64_t device_id = 0;
  std::uint64_t epoch = 0;
  std::uint64_t first_sequence = 0;
  std::uint32_t region = 0;  // its number on the device
  friend bool operator==(const RegionHeader&, const RegionHeader&) = default;
};
void EncodeRegionHeader(const RegionHeader& header, std::span<std::byte> out);
std::expected<RegionHeader, FlashFault> DecodeRegionHeader(std::span<const std::byte> bytes);

// Where the table of a closed region lies; in the region's last unit.
struct Locator {
  std::uint64_t epoch = 0;
  std::uint64_t least_sequence = 0;  // of all records that were ever written there in this epoch
  std::uint32_t table_unit = 0;
  std::uint32_t entries = 0;
  bool scanned = false;  // closed by a recovery: power may have been lost under its records
  friend bool operator==(const Locator&, const Locator&) = default;
};
void EncodeLocator(const Locator& locator, std::span<std::byte> out);
std::expected<Locator, FlashFault> DecodeLocator(std::span<const std::byte> bytes);

// An entry, kEntryBytes. The region of its location is not written; the reader gives it.
void EncodeEntry(const tier::TierEntry& entry, std::byte* out);
std::expected<tier::TierEntry, FlashFault> DecodeEntry(const std::byte* bytes, std::uint32_t region);

struct BatchHeader {
  std::uint64_t epoch = 0;
  std::uint32_t unit = 0;     // where it is in the region
  std::uint32_t entries = 0;  // 1 to kMaxBatchEntries
  std::uint32_t units = 0;    // of head and records together
  friend bool operator==(const BatchHeader&, const BatchHeader&) = default;
};
constexpr std::uint32_t BatchHeadBytes(std::uint32_t entries) {
  return kBatchFixedBytes + entries * kEntryBytes;
}
// The entries were encoded behind it already, at BatchHeadBytes(i).
void EncodeBatchHead(const BatchHeader& head, std::span<std::byte> out);
// kShort with a shape that can be: `bytes` holds too little to check it; PeekBatch says how much it takes.
std::expected<BatchHeader, FlashFault> DecodeBatchHead(std::span<const std::byte> bytes);
// The unchecked head; kBatchFixedBytes suffice.
std::expected<BatchHeader, FlashFault> PeekBatch(std::span<const std::byte> bytes);

// A table is pages of kPageBytes, the last one cut behind its entries and rounded up to the unit.
struct PageHeader {
  std::uint64_t epoch = 0;
  std::uint32_t page = 0;
  std::uint32_t entries = 0;  // 1 to kPageEntries
};
constexpr std::uint32_t PagesFor(std::uint32_t entries) {
  return entries / kPageEntries + (entries % kPageEntries != 0);
}
constexpr std::uint64_t TableBytes(std::uint32_t entries) {
  return kEntryBytes * (std::uint64_t{entries} + PagesFor(entries));
}
constexpr std::uint32_t PageUsedBytes(std::uint32_t entries) { return kEntryBytes * (entries + 1); }
// Its entries were encoded already, at PageUsedBytes(i).
void EncodePageHead(const PageHeader& head, std::span<std::byte> page);
std::expected<PageHeader, FlashFault> DecodePageHead(std::span<const std::byte> page);

// Whether nothing was ever written there.
bool AllZero(std::span<const std::byte> bytes);

constexpr std::uint64_t RoundUp(std::uint64_t bytes, std::uint64_t to) { return (bytes + to - 1) / to * to; }

}  // namespace cistern::flash
