// SPDX-License-Identifier: Apache-2.0
// Every structure on the media comes back as it was written, and no flipped bit of it passes.
#include "flash/format.h"

#include <gtest/gtest.h>

#include <vector>

#include "flash/test_flash_tier.h"

namespace cistern::flash {
namespace {

TierEntry EntryOf(std::uint64_t number) {
  TierEntry entry;
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
