// SPDX-License-Identifier: Apache-2.0
// Every structure on the media comes back as it was written, and no flipped bit of it passes.
#include "flash/format.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/test_hex.h"
#include "flash/test_flash_tier.h"

namespace cistern::flash {
namespace {

tier::TierEntry EntryOf(std::uint64_t number) {
  tier::TierEntry entry;
  entry.key = KeyOf(number);
  if (number % 2 == 1) entry.parent = KeyOf(number - 1);
  entry.incarnation = number * 3;
  entry.born = number * 5;
  entry.sequence = number * 7;
  entry.conversation = number * 11;
  entry.expiry = static_cast<std::uint32_t>(number * 13);
  entry.body_bytes = 4096;
  entry.record_bytes = 8192;
  entry.group = 3;
  entry.parts = 2;
  entry.location = LocationOf({17, static_cast<std::uint32_t>(number)});
  return entry;
}

// Fixed values, of which every byte differs.
tier::TierEntry FixedEntry() {
  tier::TierEntry entry;
  entry.key = BlockKey::FromHex("a0a1a2a3a4a5a6a7a8a9aaabacadaeaf").value();
  entry.parent =
      BlockKey::FromHex("b0b1b2b3b4b5b6b7b8b9babbbcbdbebfc0c1c2c3c4c5c6c7c8c9cacbcccdcecf").value();
  entry.incarnation = 0x0807060504030201;
  entry.born = 0x100f0e0d0c0b0a09;
  entry.sequence = 0x1817161514131211;
  entry.conversation = 0x201f1e1d1c1b1a19;
  entry.expiry = 0x24232221;
  entry.body_bytes = 0x00272625;
  entry.record_bytes = 0x002a2928;
  entry.location = LocationOf({17, 0x2e2d2c2b});
  entry.group = 0x302f;
  entry.parts = 0x0031;
  return entry;
}

constexpr std::string_view kFixedEntryHex =
    "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf00000000000000000000000000000000"
    "b0b1b2b3b4b5b6b7b8b9babbbcbdbebfc0c1c2c3c4c5c6c7c8c9cacbcccdcecf"
    "0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20"
    "212223242526270028292a002b2c2d2e2f303100102000000000000000000000";

// The bytes from `from` to `to` as text; what stands behind `end` is zeros.
std::string HexOf(std::span<const std::byte> bytes, std::size_t from, std::size_t to, std::size_t end) {
  for (const std::byte byte : bytes.subspan(end)) EXPECT_EQ(byte, std::byte{0});
  return cistern::HexOf(bytes.subspan(from, to - from));
}

// Media of every release of this format version hold these bytes.
TEST(FlashFormat, EveryStructureHasItsBytes) {
  std::vector<std::byte> bytes(512, std::byte{0xff});
  EncodeSuperblock({0x0807060504030201, 0x100f0e0d0c0b0a09, 0x14131211, 0x1c1b1a1918171615, 0x201f1e1d},
                   bytes);
  EXPECT_EQ(HexOf(bytes, 0, 64, 64),
            "435354524e464c3101000000e05dbe340102030405060708090a0b0c0d0e0f10"
            "15161718191a1b1c111213141d1e1f2000000000000000000000000000000000");
  EncodeRegionHeader({0x0807060504030201, 0x100f0e0d0c0b0a09, 0x1817161514131211, 0x1c1b1a19}, bytes);
  EXPECT_EQ(HexOf(bytes, 0, 64, 64),
            "5245474ebd518ed40102030405060708090a0b0c0d0e0f101112131415161718"
            "191a1b1c00000000000000000000000000000000000000000000000000000000");
  EncodeLocator({0x0807060504030201, 0x100f0e0d0c0b0a09, 0x14131211, 0x18171615, true}, bytes);
  EXPECT_EQ(HexOf(bytes, 0, 64, 64),
            "54424c429466aab10102030405060708090a0b0c0d0e0f101112131415161718"
            "0100000000000000000000000000000000000000000000000000000000000000");
  bytes.assign(512, std::byte{0xff});
  EncodeEntry(FixedEntry(), bytes.data() + 64);
  EncodeBatchHead({0x0807060504030201, 0x0c0b0a09, 1, 0x100f0e0d}, bytes);
  EXPECT_EQ(HexOf(bytes, 0, 64, 192),
            "42544348777238560102030405060708090a0b0c010000000d0e0f1000000000"
            "0000000000000000000000000000000000000000000000000000000000000000");
  EXPECT_EQ(HexOf(bytes, 64, 192, 192), kFixedEntryHex);
  bytes.assign(512, std::byte{0xff});
  EncodeEntry(FixedEntry(), bytes.data() + 128);
  EncodePageHead({0x0807060504030201, 0x0c0b0a09, 1}, bytes);
  EXPECT_EQ(HexOf(bytes, 0, 128, 256),
            "504147450bea41410102030405060708090a0b0c010000000000000000000000"
            "0000000000000000000000000000000000000000000000000000000000000000"
            "0000000000000000000000000000000000000000000000000000000000000000"
            "0000000000000000000000000000000000000000000000000000000000000000");
  EXPECT_EQ(HexOf(bytes, 128, 256, 256), kFixedEntryHex);
}

// Each bit of the first `covered` bytes, flipped, is noticed.
template <class Check>
void EveryFlipIsNoticed(std::vector<std::byte> bytes, std::size_t covered, Check sound) {
  ASSERT_TRUE(sound(bytes));
  for (std::size_t i = 0; i < covered; ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      bytes[i] ^= static_cast<std::byte>(1 << bit);
      EXPECT_FALSE(sound(bytes)) << "byte " << i << " bit " << bit;
      bytes[i] ^= static_cast<std::byte>(1 << bit);
    }
  }
}

TEST(FlashFormat, SuperblockHeaderAndLocatorComeBackAndNoFlipPasses) {
  std::vector<std::byte> bytes(4096);
  const Superblock superblock{11, 12, 4096, 1 << 30, 77};
  EncodeSuperblock(superblock, bytes);
  EXPECT_EQ(*DecodeSuperblock(bytes), superblock);
  EveryFlipIsNoticed(bytes, 64, [](const auto& b) { return DecodeSuperblock(b).has_value(); });
  const RegionHeader header{1, 2, 3, 4};
  EncodeRegionHeader(header, bytes);
  EXPECT_EQ(*DecodeRegionHeader(bytes), header);
  EveryFlipIsNoticed(bytes, 64, [](const auto& b) { return DecodeRegionHeader(b).has_value(); });
  const Locator locator{1, 2, 3, 4, true};
  EncodeLocator(locator, bytes);
  EXPECT_EQ(*DecodeLocator(bytes), locator);
  EveryFlipIsNoticed(bytes, 64, [](const auto& b) { return DecodeLocator(b).has_value(); });
}

TEST(FlashFormat, EveryDamageHasItsFault) {
  std::vector<std::byte> bytes(512);
  const auto changed = [&](std::size_t at) {
    std::vector<std::byte> other = bytes;
    other[at] ^= std::byte{0x40};
    return other;
  };
  EncodeSuperblock({11, 12, 4096, 1 << 30, 77}, bytes);
  EXPECT_EQ(DecodeSuperblock(std::span(bytes).first(63)).error(), FlashFault::kShort);
  EXPECT_EQ(DecodeSuperblock(changed(7)).error(), FlashFault::kMagic);
  EXPECT_EQ(DecodeSuperblock(changed(8)).error(), FlashFault::kVersion);
  EXPECT_EQ(DecodeSuperblock(changed(12)).error(), FlashFault::kCrc);
  EXPECT_EQ(DecodeSuperblock(changed(63)).error(), FlashFault::kCrc);
  EncodeRegionHeader({1, 2, 3, 4}, bytes);
  EXPECT_EQ(DecodeRegionHeader(std::span(bytes).first(63)).error(), FlashFault::kShort);
  EXPECT_EQ(DecodeRegionHeader(changed(0)).error(), FlashFault::kMagic);
  EXPECT_EQ(DecodeRegionHeader(changed(63)).error(), FlashFault::kCrc);
  EncodeLocator({1, 2, 3, 4, true}, bytes);
  EXPECT_EQ(DecodeLocator(std::span(bytes).first(63)).error(), FlashFault::kShort);
  EXPECT_EQ(DecodeLocator(changed(0)).error(), FlashFault::kMagic);
  EXPECT_EQ(DecodeLocator(changed(32)).error(), FlashFault::kCrc);
  EncodeEntry(EntryOf(1), bytes.data() + BatchHeadBytes(0));
  EncodeBatchHead({9, 8, 1, 1000}, bytes);
  EXPECT_EQ(DecodeBatchHead(std::span(bytes).first(63)).error(), FlashFault::kShort);
  EXPECT_EQ(DecodeBatchHead(std::span(bytes).first(191)).error(), FlashFault::kShort);
  EXPECT_EQ(DecodeBatchHead(changed(0)).error(), FlashFault::kMagic);
  EXPECT_EQ(DecodeBatchHead(changed(23)).error(), FlashFault::kShape);
  EXPECT_EQ(DecodeBatchHead(changed(191)).error(), FlashFault::kCrc);
  EncodeEntry(EntryOf(1), bytes.data() + PageUsedBytes(0));
  EncodePageHead({5, 6, 1}, bytes);
  EXPECT_EQ(DecodePageHead(std::span(bytes).first(127)).error(), FlashFault::kShort);
  EXPECT_EQ(DecodePageHead(std::span(bytes).first(255)).error(), FlashFault::kShort);
  EXPECT_EQ(DecodePageHead(changed(0)).error(), FlashFault::kMagic);
  EXPECT_EQ(DecodePageHead(changed(23)).error(), FlashFault::kShape);
  EXPECT_EQ(DecodePageHead(changed(255)).error(), FlashFault::kCrc);
}

// What an entry alone can say is wrong: its CRC is its batch's or its page's.
TEST(FlashFormat, ATableOfAnyCountHasItsSize) {
  EXPECT_EQ(TableBytes(0), 0u);
  EXPECT_EQ(TableBytes(kPageEntries), kPageBytes);
  EXPECT_EQ(TableBytes(kPageEntries + 1), kPageBytes + 2 * kEntryBytes);
  for (const std::uint32_t entries : {0xff800100u, UINT32_MAX}) {
    EXPECT_GT(TableBytes(entries), std::uint64_t{entries} * kEntryBytes) << entries;
  }
}

TEST(FlashFormat, AnEntryThatCannotBeIsNone) {
  const auto decodes = [](auto change) {
    std::byte bytes[kEntryBytes];
    tier::TierEntry entry = FixedEntry();
    entry.parts = 1;
    change(entry);
    EncodeEntry(entry, bytes);
    return DecodeEntry(bytes, 17).has_value();
  };
  EXPECT_TRUE(decodes([](tier::TierEntry&) {}));
  EXPECT_TRUE(decodes([](tier::TierEntry& entry) { entry.parent = BlockKey(); }));
  EXPECT_FALSE(decodes([](tier::TierEntry& entry) { entry.key = BlockKey(); }));
  EXPECT_FALSE(decodes([](tier::TierEntry& entry) { entry.key.length = 15; }));  // a byte behind its end
  EXPECT_FALSE(decodes([](tier::TierEntry& entry) { entry.parent.length = 33; }));
  EXPECT_FALSE(decodes([](tier::TierEntry& entry) { entry.body_bytes = 0; }));
  EXPECT_FALSE(decodes([](tier::TierEntry& entry) { entry.record_bytes = entry.body_bytes; }));
  EXPECT_FALSE(decodes([](tier::TierEntry& entry) { entry.parts = 0; }));
  EXPECT_FALSE(decodes([](tier::TierEntry& entry) { entry.parts = 257; }));
}

// A structure that a device writes whole or not at all lies in one sector.
TEST(FlashFormat, WhatMustNotTearLiesInOneSector) {
  std::vector<std::byte> bytes(4096, std::byte{0xff});
  EncodeSuperblock({1, 2, 3, 4, 5}, bytes);
  EXPECT_TRUE(DecodeSuperblock(std::span(bytes).first(kSectorBytes)).has_value());
  EncodeRegionHeader({1, 2, 3, 4}, bytes);
  EXPECT_TRUE(DecodeRegionHeader(std::span(bytes).first(kSectorBytes)).has_value());
  EncodeLocator({1, 2, 3, 4, false}, bytes);
  EXPECT_TRUE(DecodeLocator(std::span(bytes).first(kSectorBytes)).has_value());
}

TEST(FlashFormat, ABatchHeadAndATablePageComeBackAndNoFlipPasses) {
  for (const std::uint32_t count : {1u, 3u, 256u}) {
    std::vector<std::byte> bytes(RoundUp(BatchHeadBytes(count), 512));
    for (std::uint32_t i = 0; i < count; ++i) EncodeEntry(EntryOf(i + 1), bytes.data() + BatchHeadBytes(i));
    const BatchHeader head{9, 8, count, 1000};
    EncodeBatchHead(head, bytes);
    EXPECT_EQ(*DecodeBatchHead(bytes), head);
    for (std::uint32_t i = 0; i < count; ++i) {
      EXPECT_EQ(*DecodeEntry(bytes.data() + BatchHeadBytes(i), 17), EntryOf(i + 1));
    }
    EXPECT_EQ(DecodeBatchHead(std::span(bytes).first(kBatchFixedBytes + 1)).error(), FlashFault::kShort);
    if (count <= 3) {
      EveryFlipIsNoticed(bytes, BatchHeadBytes(count),
                         [](const auto& b) { return DecodeBatchHead(b).has_value(); });
    }
  }
  std::vector<std::byte> page(kPageBytes);
  for (std::uint32_t i = 0; i < kPageEntries; ++i)
    EncodeEntry(EntryOf(i + 1), page.data() + PageUsedBytes(i));
  EncodePageHead({5, 6, kPageEntries}, page);
  EXPECT_EQ(DecodePageHead(page)->entries, kPageEntries);
  EXPECT_EQ(PageUsedBytes(kPageEntries), kPageBytes);
  EXPECT_EQ(*DecodeEntry(page.data() + PageUsedBytes(kPageEntries - 1), 17), EntryOf(kPageEntries));
  EncodePageHead({5, 6, 2}, page);
  EveryFlipIsNoticed(page, PageUsedBytes(2), [](const auto& b) { return DecodePageHead(b).has_value(); });
  EXPECT_EQ(TableBytes(kPageEntries), kPageBytes);
  EXPECT_EQ(TableBytes(kPageEntries + 1), kPageBytes + 2 * kEntryBytes);
}

}  // namespace
}  // namespace cistern::flash
