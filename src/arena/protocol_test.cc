// SPDX-License-Identifier: Apache-2.0
#include "arena/protocol.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "arena/match.h"
#include "arena/reader.h"
#include "arena/test_arena.h"

namespace cistern::arena {
namespace {

class ProtocolTest : public testing::Test {
 protected:
  RealWords words_;
  TestArena<RealWords> node_{words_};
  Reader<RealWords> reader_{words_, node_.arena, node_.index};
  OpenRecord record_;

  ReadOutcome Read(const BlockKey& key, std::span<std::byte> to, std::uint64_t offset = 0,
                   std::uint64_t now = 0) {
    std::span<std::byte> pieces[] = {to};
    RangeCopy ranges[] = {{{0, offset, to.size()}, pieces}};
    return reader_.Read(reader_.Begin(0, now), {key, 0, 1}, nullptr, ranges, record_);
  }
};

TEST_F(ProtocolTest, P1ReadReturnsWhatWasPublished) {
  std::vector<std::byte> body = BodyOf(200'000, 1);
  ASSERT_TRUE(node_.Put(TestKey(1), {}, body, 0));
  std::vector<std::byte> got(body.size());
  ASSERT_EQ(Read(TestKey(1), got), ReadOutcome::kHit);
  EXPECT_EQ(got, body);
  EXPECT_EQ(record_.stamp.born, 7u);
  EXPECT_EQ(Read(TestKey(2), got), ReadOutcome::kMiss);
}

TEST_F(ProtocolTest, ReadScattersARangeAcrossSegments) {
  std::vector<std::byte> body = BodyOf(200'000, 1);
  ASSERT_TRUE(node_.Put(TestKey(1), {}, body, 0));
  std::vector<std::byte> a(10'000), b(1), c(90'000);
  std::span<std::byte> pieces[] = {a, std::span<std::byte>(), b, c};
  RangeCopy ranges[] = {{{0, 60'000, 100'001}, pieces}, {{0, 0, 0}, {}}};
  ASSERT_EQ(reader_.Read(reader_.Begin(0, 0), {TestKey(1)}, nullptr, ranges, record_), ReadOutcome::kHit);
  std::vector<std::byte> joined(a);
  joined.insert(joined.end(), b.begin(), b.end());
  joined.insert(joined.end(), c.begin(), c.end());
  EXPECT_TRUE(std::equal(joined.begin(), joined.end(), body.begin() + 60'000));
  std::vector<std::byte> beyond(2);
  EXPECT_EQ(Read(TestKey(1), beyond, body.size() - 1), ReadOutcome::kOutOfRange);
}

TEST_F(ProtocolTest, R1OddGenerationIsAMiss) {
  std::vector<std::byte> body = BodyOf(5'000, 1), got(body.size());
  ASSERT_TRUE(node_.Put(TestKey(1), {}, body, 0));
  Place place = node_.place(0);
  Retire(words_, node_.arena, place);
  EXPECT_EQ(Read(TestKey(1), got), ReadOutcome::kMiss);
}

TEST_F(ProtocolTest, R1AReusedSlotUnderAnOldEntryIsAMiss) {
  std::vector<std::byte> body = BodyOf(5'000, 1), got(body.size());
  ASSERT_TRUE(node_.Put(TestKey(1), {}, body, 0));
  std::optional<Found> hint = reader_.Find(reader_.Begin(0, 0), 0, TestKey(1));
  ASSERT_TRUE(hint);
  node_.Remove(TestKey(1), 0);
  ASSERT_TRUE(node_.Put(TestKey(2), {}, BodyOf(5'000, 2), 0));
  std::span<std::byte> pieces[] = {got};
  RangeCopy ranges[] = {{{0, 0, got.size()}, pieces}};
  EXPECT_EQ(reader_.Read(reader_.Begin(0, 0), {TestKey(1)}, &*hint, ranges, record_), ReadOutcome::kMiss);
  // Even if the entry of the old block claims the new generation: the seal has another key.
  hint->generation_low += 2;
  EXPECT_EQ(reader_.Read(reader_.Begin(0, 0), {TestKey(1)}, &*hint, ranges, record_), ReadOutcome::kMiss);
}

TEST_F(ProtocolTest, R1RecarvingEndsWhatLayThere) {
  std::vector<std::byte> body = BodyOf(5'000, 1), got(body.size());
  ASSERT_TRUE(node_.Put(TestKey(1), {}, body, 3));
  OpenRecord record;
  ASSERT_EQ(reader_.Open(reader_.Begin(0, 0), {TestKey(1)}, nullptr, record), ReadOutcome::kHit);
  EXPECT_TRUE(reader_.StillGood(record));
  Retire(words_, node_.arena, node_.place(3));
  Carve(words_, node_.arena, 0, 1, 3 * node_.slot_bytes);
  EXPECT_FALSE(reader_.StillGood(record));
  EXPECT_EQ(Read(TestKey(1), got), ReadOutcome::kMiss);
  EXPECT_FALSE(reader_.CheckView(record.place, record.generation));
  EXPECT_FALSE(reader_.CheckView(~Place{0}, record.generation));
}

TEST_F(ProtocolTest, P1DamageIsBadNotAHit) {
  std::vector<std::byte> body = BodyOf(100'000, 1), got(body.size());
  ASSERT_TRUE(node_.Put(TestKey(1), {}, body, 0));
  std::byte* slot = node_.arena.slot(node_.place(0));
  for (std::uint64_t at :
       {std::uint64_t{0}, std::uint64_t{70'000}, record::TrailerOffset(body.size(), 4096) + 10,
        record::TrailerOffset(body.size(), 4096) + 100}) {
    slot[at] ^= std::byte{4};
    EXPECT_EQ(Read(TestKey(1), got), ReadOutcome::kBad) << at;
    slot[at] ^= std::byte{4};
  }
  // A range is proved by its own segments.
  slot[70'000] ^= std::byte{4};
  got.resize(60'000);
  EXPECT_EQ(Read(TestKey(1), got), ReadOutcome::kHit);
}

TEST_F(ProtocolTest, R1TheStampNamesPlaceAndGeneration) {
  std::vector<std::byte> body = BodyOf(5'000, 1), got(body.size());
  ASSERT_TRUE(node_.Put(TestKey(1), {}, body, 0));
  ASSERT_TRUE(node_.Put(TestKey(2), {}, body, 1));
  // A record that was copied byte by byte into another slot is sound and still not that slot's.
  std::memcpy(node_.arena.slot(node_.place(1)), node_.arena.slot(node_.place(0)), node_.slot_bytes);
  std::optional<Found> found = reader_.Find(reader_.Begin(0, 0), 0, TestKey(2));
  ASSERT_TRUE(found);
  EXPECT_EQ(reader_.Open(reader_.Begin(0, 0), {TestKey(1)}, &*found, record_), ReadOutcome::kHit)
      << "the second try finds the right place";
  EXPECT_EQ(record_.place, node_.place(0));
  node_.Remove(TestKey(1), 0);
  EXPECT_EQ(reader_.Open(reader_.Begin(0, 0), {TestKey(1)}, &*found, record_), ReadOutcome::kMiss);
}

TEST_F(ProtocolTest, R10ExpiryIsHeldAgainstTheLaterClock) {
  std::vector<std::byte> body = BodyOf(5'000, 1), got(body.size());
  ASSERT_TRUE(node_.Put(TestKey(1), {}, body, 0, 0, 1000));
  EXPECT_EQ(Read(TestKey(1), got, 0, 999), ReadOutcome::kHit);
  EXPECT_EQ(Read(TestKey(1), got, 0, 1000), ReadOutcome::kMiss);
  EXPECT_EQ(AdvanceTime(words_, node_.arena, 1000), 1000u);
  EXPECT_EQ(Read(TestKey(1), got, 0, 999), ReadOutcome::kMiss) << "the clock stepped back";
  EXPECT_EQ(AdvanceTime(words_, node_.arena, 5), 1000u);
}

TEST_F(ProtocolTest, R10ANamespaceDropHidesItsBlocks) {
  std::vector<std::byte> body = BodyOf(5'000, 1), got(body.size());
  ASSERT_TRUE(node_.Put(TestKey(1), {}, body, 0));
  SetIncarnation(words_, node_.index, 0, kTestIncarnation + 1);
  EXPECT_EQ(Read(TestKey(1), got), ReadOutcome::kMiss);
  SetIncarnation(words_, node_.index, 0, 0);
  EXPECT_EQ(Read(TestKey(1), got), ReadOutcome::kMiss);
}

TEST_F(ProtocolTest, R1GenerationsNeverRepeatThroughRecarving) {
  std::uint64_t last = 0;
  for (int round = 0; round < 5; ++round) {
    Carve(words_, node_.arena, 0, 1, (round + 2) * 8192);
    std::uint64_t generation = BeginFill(words_, node_.arena, 0);
    EXPECT_GT(generation, last);
    EXPECT_EQ(generation % 2, 0u);
    last = generation;
    // An abandoned fill leaves the slot free; the next one may use the number, which nobody saw.
    EXPECT_EQ(BeginFill(words_, node_.arena, 0), generation);
    words_.StoreRelease(node_.arena.generation(0), generation);
    Retire(words_, node_.arena, 0);
  }
}

TEST_F(ProtocolTest, R1CheckPlaceRefusesWhatIsNoSlot) {
  Geometry geometry = node_.arena.geometry();
  Place slot = geometry.place(node_.slot_bytes);
  EXPECT_TRUE(CheckPlace(words_, node_.arena, slot, 5000));
  EXPECT_FALSE(CheckPlace(words_, node_.arena, slot + 1, 5000));
  EXPECT_FALSE(CheckPlace(words_, node_.arena, slot, 0));
  EXPECT_FALSE(CheckPlace(words_, node_.arena, slot, node_.slot_bytes));
  EXPECT_TRUE(CheckPlace(words_, node_.arena, slot, node_.slot_bytes - 4096));
  EXPECT_FALSE(CheckPlace(words_, node_.arena, slot, node_.slot_bytes - 4095));
  EXPECT_FALSE(CheckPlace(words_, node_.arena, ~Place{0}, 5000));
  EXPECT_FALSE(CheckPlace(words_, node_.arena, geometry.place(kHeaderSpanBytes), 5000)) << "never carved";
  Uncarve(words_, node_.arena, 0, 1);
  EXPECT_FALSE(CheckPlace(words_, node_.arena, slot, 5000));
}

// Headers may be torn, of another time, or damaged.
TEST_F(ProtocolTest, R1WhateverHeadersSayASlotLiesWithinItsChunkAndTheArena) {
  constexpr std::uint64_t kMany = UINT64_MAX, kSpan = kHeaderSpanBytes;
  constexpr std::uint32_t kHeaders = 6;
  TestArena<RealWords> node(words_, 72u << 12, {4096, kHeaders});
  const Geometry& geometry = node.arena.geometry();
  std::mt19937_64 random(1);
  const auto one_of = [&](std::initializer_list<std::uint64_t> values) {
    return values.begin()[random() % values.size()];
  };
  int found = 0;
  for (int i = 0; i < 300'000; ++i) {
    ChunkHeader* header = node.arena.header(static_cast<std::uint32_t>(random() % kHeaders));
    words_.Store(&header->carve, one_of({0, 1, 2, 2, 4, kMany}));
    words_.Store(&header->part_of, one_of({0, 1, 2, 3, 4, 5, 6, 1ull << 32, kMany}));
    words_.Store(&header->chunk_headers, one_of({0, 1, 2, 3, 6, 7, 1ull << 39, kMany}));
    words_.Store(&header->slot_bytes,
                 one_of({0, 512, 4096, 8192, 8193, 12'288, 72u << 12, kSpan / 2, kSpan - 4096, kSpan,
                         2 * kSpan, 3 * kSpan, 1ull << 63, kMany - 4095, kMany}));
    const std::uint64_t offset =
        random() % 4 * kSpan + one_of({0, 0, 4096, 8192, kSpan / 2, 2 * kSpan, random() % kSpan});
    const Place place = geometry.place(offset);
    const std::uint64_t at = geometry.offset(place);
    const std::uint64_t body =
        one_of({0, 1, 4096, 4097, 100'000, kSpan - 8192, kSpan - 4096, kSpan, kMany, kMany - 4096});
    const std::optional<CheckedSlot> slot = CheckPlace(words_, node.arena, place, body);
    if (!slot) continue;
    ++found;
    const ChunkHeader* chunk = node.arena.header(slot->first_header);
    const std::uint64_t begin = slot->first_header * kSpan, end = begin + chunk->chunk_headers * kSpan;
    ASSERT_LE(chunk->chunk_headers, kHeaders - slot->first_header);
    ASSERT_TRUE(slot->carve == chunk->carve && slot->carve != 0 && slot->carve % 2 == 0);
    ASSERT_TRUE(begin <= at && at + slot->slot_bytes <= end && end <= geometry.slots_bytes());
    ASSERT_EQ((at - begin) % slot->slot_bytes, 0u);
    ASSERT_EQ(slot->slot_bytes % 4096, 0u);
    ASSERT_GE(slot->slot_bytes, geometry.min_slot_bytes());
    ASSERT_TRUE(0 < body && body <= slot->trailer_offset);
    ASSERT_EQ(slot->trailer_offset + slot->trailer_room, slot->slot_bytes);
    ASSERT_GE(slot->trailer_room, 4096u);
  }
  EXPECT_GT(found, 500);
  for (const std::uint64_t beyond : {geometry.slots_bytes(), geometry.slots_bytes() + kSpan})
    EXPECT_FALSE(CheckPlace(words_, node.arena, geometry.place(beyond), 1));
}

// The index says where a record may be, and the seal what it is.
TEST_F(ProtocolTest, R1AHintOfAnotherBlocksRecordIsAMiss) {
  constexpr std::uint16_t kGroup = 2;
  ASSERT_TRUE(node_.Put(TestKey(1), {}, BodyOf(5'000, 1), 0, kGroup, 1000));
  const ReadCall call = reader_.Begin(0, 0);
  const std::optional<Found> hint = reader_.Find(call, kGroup, TestKey(1));
  ASSERT_TRUE(hint.has_value());
  const auto open = [&](const ReadCall& as, const BlockKey& key, std::uint16_t group) {
    return reader_.Open(as, {key, group}, &*hint, record_);
  };
  EXPECT_EQ(open(call, TestKey(1), kGroup), ReadOutcome::kHit);
  EXPECT_EQ(open(call, TestKey(2), kGroup), ReadOutcome::kMiss);
  EXPECT_EQ(open(call, TestKey(1), kGroup + 1), ReadOutcome::kMiss);
  EXPECT_EQ(open({call.incarnation + 1, 0}, TestKey(1), kGroup), ReadOutcome::kMiss);
  EXPECT_EQ(open({call.incarnation, 999}, TestKey(1), kGroup), ReadOutcome::kHit);
  EXPECT_EQ(open({call.incarnation, 1000}, TestKey(1), kGroup), ReadOutcome::kMiss);
}

TEST_F(ProtocolTest, ALargeChunkHasItsSlotsInAllItsHeaders) {
  std::uint64_t slot_bytes = 6u << 20;
  Carve(words_, node_.arena, 0, 2, slot_bytes);
  Geometry geometry = node_.arena.geometry();
  Place eighth = geometry.place(7 * slot_bytes);
  EXPECT_EQ(geometry.header_of(eighth), 1u);
  std::optional<CheckedSlot> slot = CheckPlace(words_, node_.arena, eighth, slot_bytes - 4096);
  ASSERT_TRUE(slot);
  EXPECT_EQ(slot->first_header, 0u);
  EXPECT_FALSE(CheckPlace(words_, node_.arena, geometry.place(10 * slot_bytes), 4096))
      << "behind the last whole one";
  Carve(words_, node_.arena, 0, 1, 8192);
  EXPECT_FALSE(CheckPlace(words_, node_.arena, eighth, 4096)) << "its header names a chunk that ends before";
}

TEST_F(ProtocolTest, FillCutsSegmentsWhateverThePieces) {
  std::vector<std::byte> body = BodyOf(150'000, 3);
  std::uint32_t expected[3], crcs[3];
  for (int i = 0; i < 3; ++i) {
    expected[i] =
        record::Crc32c(body.data() + i * 65536, std::min<std::size_t>(65536, body.size() - i * 65536));
  }
  std::span<const std::byte> all(body);
  std::span<const std::byte> pieces[] = {all.first(1), all.subspan(1, 65'535), all.subspan(65'536, 30'000),
                                         all.subspan(95'536)};
  RunFill(words_, {node_.arena.slot(0), pieces, crcs});
  EXPECT_TRUE(std::equal(crcs, crcs + 3, expected));
  EXPECT_TRUE(std::equal(body.begin(), body.end(), node_.arena.slot(0)));
}

TEST_F(ProtocolTest, MatchTakesAllGroupsTogether) {
  std::vector<BlockKey> chain;
  for (int i = 0; i < 40; ++i) chain.push_back(TestKey(i));
  for (int i = 0; i < 30; ++i) node_.Index(chain[i], 0);
  MatchGroup full{0, 0}, window{1, WindowBlocks(1024, 512)};
  EXPECT_EQ(window.reach_blocks, 2u);
  EXPECT_EQ(WindowBlocks(UINT32_MAX, 16), 1u << 28);
  EXPECT_EQ(WindowBlocks(UINT32_MAX, (1u << 31) + 1), 2u);
  auto match = [&](std::initializer_list<MatchGroup> groups) {
    return MatchPrefix(reader_, reader_.Begin(0, 0), chain, std::span(groups.begin(), groups.size()));
  };
  EXPECT_EQ(match({full}), 30u);
  EXPECT_EQ(match({full, window}), 0u);
  node_.Index(chain[0], 1);
  EXPECT_EQ(match({full, window}), 1u) << "the window reaches to the chain's start";
  node_.Index(chain[10], 1);
  EXPECT_EQ(match({full, window}), 1u) << "one of two blocks";
  node_.Index(chain[11], 1);
  EXPECT_EQ(match({full, window}), 12u);
  EXPECT_EQ(match({window, full}), 12u);
  for (int i = 27; i < 40; ++i) node_.Index(chain[i], 1);
  EXPECT_EQ(match({full, window}), 30u);
  EXPECT_EQ(match({window}), 40u);
  MatchGroup other{2, 3};
  for (int i : {9, 10, 11}) node_.Index(chain[i], 2);
  EXPECT_EQ(match({full, window, other}), 12u);
  EXPECT_EQ(match({other, window, full}), 12u);
}

TEST_F(ProtocolTest, MatchAgreesWithTheDefinition) {
  std::mt19937 random(5);
  for (int round = 0; round < 100; ++round) {
    TestArena<RealWords> node(words_, 8192, {4096, 1});
    Reader<RealWords> reader(words_, node.arena, node.index);
    std::vector<MatchGroup> groups;
    std::size_t group_count = 1 + random() % 3;
    for (std::size_t g = 0; g < group_count; ++g)
      groups.push_back({static_cast<std::uint16_t>(g), static_cast<std::uint32_t>(random() % 4)});
    std::vector<BlockKey> chain;
    std::vector<std::vector<bool>> has(groups.size(), std::vector<bool>(24));
    for (int i = 0; i < 24; ++i) {
      chain.push_back(TestKey(i));
      for (std::size_t g = 0; g < groups.size(); ++g) {
        has[g][i] = random() % 8 != 0;
        if (has[g][i]) node.Index(chain[i], static_cast<std::uint16_t>(g));
      }
    }
    std::uint32_t expected = 0;
    for (std::uint32_t n = 1; n <= 24; ++n) {
      bool good = true;
      for (std::size_t g = 0; g < groups.size(); ++g) {
        std::uint32_t reach = groups[g].reach_blocks == 0 ? n : std::min(n, groups[g].reach_blocks);
        for (std::uint32_t i = n - reach; i < n; ++i) good = good && has[g][i];
      }
      if (good) expected = n;
    }
    EXPECT_EQ(MatchPrefix(reader, reader.Begin(0, 0), chain, groups), expected) << round;
  }
}

}  // namespace
}  // namespace cistern::arena
