// SPDX-License-Identifier: Apache-2.0
// What becomes of whole chunks: they are emptied for another size, and headers close and open under them.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <vector>

#include "memory/slots.h"
#include "memory/test_slots.h"

namespace cistern::memory {
namespace {

TEST_F(SlotsTest, R14AChunkChangesItsSizeWhenItsSlotsAreGone) {
  const std::uint64_t small = record::RecordBytes(1 * kMiB, 4096),
                      large = record::RecordBytes(7 * kMiB, 4096);
  std::vector<arena::Place> places;
  while (Result<arena::Place> place = slots_.Allocate(small)) places.push_back(*place);
  EXPECT_FALSE(slots_.Allocate(large));
  // One slot of the second pair of headers stays; the third is pinned.
  const arena::Geometry& geometry = node_.arena.geometry();
  std::vector<arena::Place> kept;
  for (arena::Place place : places) {
    std::uint32_t header = geometry.header_of(place);
    bool first = geometry.offset(place) % arena::kHeaderSpanBytes == 0;
    if (header / 2 == 2 && first) slots_.Pin(place);
    if (header / 2 == 2 || header / 2 != 1 || first) {
      kept.push_back(place);
    } else {
      slots_.Free(place);
    }
  }
  std::optional<HeaderRange> range = slots_.BestToEmpty(large);
  ASSERT_TRUE(range);
  EXPECT_EQ(*range, (HeaderRange{2, 2}));
  slots_.StartEmptying(*range);
  std::uint64_t cursor = 0;
  arena::Place batch[1];
  std::vector<arena::Place> victims;
  while (slots_.UsedIn(*range, &cursor, batch) == 1) victims.push_back(batch[0]);
  EXPECT_EQ(victims.size(), 2u);
  EXPECT_FALSE(slots_.Allocate(small)) << "what is being emptied is not filled again";
  for (arena::Place place : victims) slots_.Free(place);
  EXPECT_FALSE(slots_.emptying());
  Result<arena::Place> place = slots_.Allocate(large);
  ASSERT_TRUE(place);
  EXPECT_EQ(geometry.header_of(*place), 2u);
}

TEST_F(SlotsTest, StoppedEmptyingGivesTheSlotsBack) {
  const std::uint64_t small = record::RecordBytes(1 * kMiB, 4096),
                      large = record::RecordBytes(7 * kMiB, 4096);
  std::vector<arena::Place> places;
  while (Result<arena::Place> place = slots_.Allocate(small)) places.push_back(*place);
  std::optional<HeaderRange> range = slots_.BestToEmpty(large);
  ASSERT_TRUE(range);
  slots_.StartEmptying(*range);
  std::uint64_t cursor = 0;
  arena::Place batch[40];
  std::size_t count = slots_.UsedIn(*range, &cursor, batch);
  ASSERT_EQ(count, 40u);
  for (arena::Place place : batch) slots_.Free(place);
  slots_.StopEmptying();
  for (int i = 0; i < 40; ++i) EXPECT_TRUE(slots_.Allocate(small)) << i;
  EXPECT_FALSE(slots_.Allocate(small));
}

TEST_F(SlotsTest, R14NothingOfWhatIsBeingEmptiedIsGivenOutAndAllElseIs) {
  std::vector<arena::Place> places = Fill(slots_, kSmall);
  FreeIn(slots_, places, 5, 6);
  const HeaderRange range{4, 2};
  slots_.StartEmptying(range);
  EXPECT_EQ(slots_.emptying(), range);
  EXPECT_FALSE(slots_.Allocate(kSmall)) << "of the header that was free";
  FreeIn(slots_, places, 4, 5, 1);
  EXPECT_FALSE(slots_.Allocate(kSmall));
  // Before and behind it, a slot and a whole chunk.
  FreeIn(slots_, places, 3, 4, 1);
  FreeIn(slots_, places, 6, 7, 1);
  FreeIn(slots_, places, 8, 9);
  for (int i = 0; i < 1 + 1 + 31; ++i) EXPECT_TRUE(slots_.Allocate(kSmall)) << i;
  EXPECT_FALSE(slots_.Allocate(kSmall));
  EXPECT_EQ(FreeIn(slots_, places, 4, 5), 30u);
  EXPECT_FALSE(slots_.emptying());
  const Result<arena::Place> place = slots_.Allocate(kLarge);
  ASSERT_TRUE(place);
  EXPECT_EQ(node_.arena.geometry().header_of(*place), 4u);
}

TEST_F(SlotsTest, R14AChunkThatIsEmptyWaitsForTheRestOfItsRange) {
  std::vector<arena::Place> places = Fill(slots_, kSmall);
  slots_.StartEmptying({4, 2});
  FreeIn(slots_, places, 4, 5);
  EXPECT_TRUE(slots_.emptying());
  EXPECT_FALSE(slots_.Allocate(kSmall));
  slots_.StopEmptying();
  for (int i = 0; i < 31; ++i) EXPECT_TRUE(slots_.Allocate(kSmall)) << i;
  EXPECT_FALSE(slots_.Allocate(kSmall));
}

TEST_F(SlotsTest, UsedPlacesOfARangeComeInBatchesEachOnce) {
  std::vector<arena::Place> places = Fill(slots_, kSmall);
  FreeIn(slots_, places, 3, 4);
  FreeIn(slots_, places, 2, 5, 5);
  std::vector<arena::Place> found;
  std::uint64_t cursor = 0;
  arena::Place batch[7];
  while (const std::size_t count = slots_.UsedIn({2, 3}, &cursor, batch))
    found.insert(found.end(), batch, batch + count);
  std::erase_if(places, [&](arena::Place place) {
    const std::uint32_t header = node_.arena.geometry().header_of(place);
    return header < 2 || header >= 5;
  });
  std::ranges::sort(places);
  EXPECT_EQ(found, places);
}

// A chunk of two headers in a range of four.
TEST_F(SlotsTest, StoppedEmptyingGivesBackWhatIsFreeAndNoMore) {
  std::vector<arena::Place> places = Fill(slots_, kLarge);
  for (std::uint32_t header : {0, 4, 8}) FreeIn(slots_, places, header, header + 2, 1);
  slots_.StartEmptying({4, 4});
  slots_.StopEmptying();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(slots_.Allocate(kLarge)) << i;
  EXPECT_FALSE(slots_.Allocate(kLarge));
}

TEST_F(SlotsTest, R14ALongerChunkIsEmptiedAsAWhole) {
  std::vector<arena::Place> places = Fill(slots_, kLarge);
  for (const arena::Place place : places) slots_.Pin(place);
  for (const arena::Place place : places) {
    if (node_.arena.geometry().header_of(place) / 2 == 3) slots_.Unpin(place);
  }
  EXPECT_EQ(slots_.BestToEmpty(kSmall), (HeaderRange{6, 2}));
}

TEST_F(SlotsTest, OthersIdleWhereTheyHaveAChunksSlotsFree) {
  const std::uint32_t shares[] = {5, 1};
  Slots slots(words_, node_.arena, NodePlan(shares, 1, 12));
  ASSERT_EQ(slots.plan().run(), 1u);
  const std::uint64_t other = record::RecordBytes(3 * kMiB, 4096);
  std::vector<arena::Place> places = Fill(slots, kSmall);
  EXPECT_FALSE(slots.OthersIdle(other, kAnyNode));
  FreeIn(slots, places, 0, 1, 15);
  FreeIn(slots, places, 1, 2, 15);
  EXPECT_FALSE(slots.OthersIdle(other, kAnyNode));
  EXPECT_FALSE(slots.BestToEmpty(other, true)) << "one has no free slot elsewhere";
  FreeIn(slots, places, 0, 1, 1);
  EXPECT_TRUE(slots.OthersIdle(other, kAnyNode));
  EXPECT_FALSE(slots.OthersIdle(other, kAnyFar));
  EXPECT_FALSE(slots.OthersIdle(kSmall, kAnyNode));
  EXPECT_EQ(slots.BestToEmpty(other, true), (HeaderRange{0, 1}));
  // Nor are they when chunks went.
  FreeIn(slots, places, 2, 12);
  EXPECT_TRUE(slots.OthersIdle(other, kAnyNode));
  FreeIn(slots, places, 0, 1);
  EXPECT_FALSE(slots.OthersIdle(other, kAnyNode));
}

TEST_F(SlotsTest, R14WhatHasFreeSlotsElsewhereMakesRoomBeforeWhatHasNone) {
  const std::uint64_t middle = record::RecordBytes(2 * kMiB, 4096);
  std::vector<arena::Place> places = Fill(slots_, kSmall);
  FreeIn(slots_, places, 0, 1);
  std::vector<arena::Place> alone;
  for (int i = 0; i < 2; ++i) alone.push_back(*slots_.Allocate(middle));
  ASSERT_EQ(node_.arena.geometry().header_of(alone[0]), 0u);
  FreeIn(slots_, places, 1, 2, 21);
  FreeIn(slots_, places, 2, 3, 20);
  // Less is in use in the first.
  EXPECT_EQ(slots_.BestToEmpty(record::RecordBytes(3 * kMiB, 4096)), (HeaderRange{1, 1}));
}

// Headers close and open while slots come and go.
void ResizeAtRandom(Slots& slots) {
  std::mt19937_64 random(11);
  const std::uint32_t all = slots.headers();
  const arena::Geometry& geometry = slots.arena().geometry();
  std::vector<arena::Place> places;
  const auto free_one = [&](std::size_t at) {
    slots.Free(places[at]);
    places[at] = places.back();
    places.pop_back();
  };
  for (int i = 0; i < 200; ++i) {
    while (slots.headers() > 1 + random() % all) slots.CloseHeader();
    while (slots.headers() < all && random() % 4 != 0) slots.OpenHeader();
    for (int k = 0; k < 300; ++k) {
      const std::uint64_t body = 1 + random() % (slots.max_body_bytes() >> random() % 12);
      const Result<arena::Place> place = slots.Allocate(record::RecordBytes(body, 4096));
      if (!place || random() % 2 == 0) {
        if (!places.empty()) free_one(random() % places.size());
      }
      if (!place) continue;
      const std::uint64_t end = geometry.offset(*place) + slots.SlotBytes(*place);
      ASSERT_LE(end, slots.bytes()) << "in a closed header";
      places.push_back(*place);
    }
    // What lies in closed headers is all that keeps them.
    const HeaderRange closed = slots.closed();
    std::uint64_t cursor = 0;
    std::vector<arena::Place> used(100'000);
    used.resize(slots.UsedIn(closed, &cursor, used));
    ASSERT_EQ(slots.closed_in_use() == 0, used.empty());
    if (i % 3 != 0) continue;
    for (const arena::Place place : used)
      free_one(static_cast<std::size_t>(std::ranges::find(places, place) - places.begin()));
    ASSERT_EQ(slots.closed_in_use(), 0u);
  }
  while (slots.headers() < all) slots.OpenHeader();
  for (const arena::Place place : places) slots.Free(place);
  EXPECT_EQ(slots.counts().free_headers, all);
  EXPECT_EQ(slots.counts().used_bytes, 0u);
  EXPECT_EQ(slots.counts().slots, 0u);
  for (std::uint32_t kind = 0; kind < slots.plan().nodes() * kSizeNumbers; ++kind)
    EXPECT_EQ(slots.chunks(static_cast<SlotKind>(kind)), 0u);
  const Result<arena::Place> longest = slots.Allocate(record::RecordBytes(slots.max_body_bytes(), 4096));
  ASSERT_TRUE(longest);
  slots.Free(*longest);
}

TEST_F(SlotsTest, R14ClosedHeadersGiveOutNothingAndComeBackWhole) {
  ResizeAtRandom(slots_);
  Slots divided(words_, node_.arena, NodePlan(2, 12));
  ASSERT_EQ(divided.plan().run(), 2u);
  ResizeAtRandom(divided);
}

TEST_F(SlotsTest, R14AChunkOfWhichAHeaderIsClosedGivesOutNothingUntilAllAreOpen) {
  std::vector<arena::Place> places = Fill(slots_, kLarge);
  FreeIn(slots_, places, 10, 12, 7);
  const SlotKind kind = slots_.KindAt(places.back());
  slots_.CloseHeader();
  EXPECT_EQ(slots_.closed(), (HeaderRange{10, 2}));
  EXPECT_EQ(slots_.closed_in_use(), 1u);
  FreeIn(slots_, places, 10, 12, 1);
  EXPECT_FALSE(slots_.Allocate(kLarge));
  EXPECT_EQ(slots_.BestToEmpty(kSmall)->first, 0u) << "all but the one with the least in use";
  slots_.CloseHeader();
  EXPECT_EQ(slots_.closed(), (HeaderRange{10, 2}));
  EXPECT_EQ(slots_.closed_in_use(), 2u);
  EXPECT_EQ(slots_.chunks(kind), 5u);
  EXPECT_FALSE(slots_.OthersIdle(kSmall, kAnyNode)) << "all that counts is full";
  slots_.OpenHeader();
  EXPECT_FALSE(slots_.Allocate(kLarge));
  EXPECT_EQ(slots_.chunks(kind), 5u);
  slots_.OpenHeader();
  EXPECT_EQ(slots_.closed(), (HeaderRange{12, 0}));
  EXPECT_EQ(slots_.closed_in_use(), 0u);
  EXPECT_EQ(slots_.chunks(kind), 6u);
  EXPECT_FALSE(slots_.OthersIdle(kSmall, kAnyNode)) << "eight slots of nine are free";
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(slots_.Allocate(kLarge)) << i;
  EXPECT_FALSE(slots_.Allocate(kLarge));
  // A full one that closes and opens is full.
  slots_.CloseHeader();
  slots_.OpenHeader();
  EXPECT_FALSE(slots_.Allocate(kLarge));
}

TEST_F(SlotsTest, R14TheOpenHeadersOfAnEmptyChunkServeAgain) {
  std::vector<arena::Place> places = Fill(slots_, kLarge);
  slots_.CloseHeader();
  FreeIn(slots_, places, 10, 12);
  EXPECT_EQ(slots_.closed_in_use(), 0u);
  EXPECT_EQ(slots_.closed(), (HeaderRange{11, 1}));
  EXPECT_EQ(slots_.counts().free_headers, 1u);
  std::vector<arena::Place> small = Fill(slots_, kSmall);
  EXPECT_EQ(small.size(), 31u);
  for (const arena::Place place : small) EXPECT_EQ(node_.arena.geometry().header_of(place), 10u);
}

TEST_F(SlotsTest, R14NoHeaderThatClosesIsBeingEmptied) {
  std::vector<arena::Place> places = Fill(slots_, kSmall);
  slots_.StartEmptying({0, 2});
  slots_.CloseHeader();
  EXPECT_TRUE(slots_.emptying()) << "it is another one";
  slots_.StopEmptying();
  slots_.StartEmptying({8, 2});
  slots_.CloseHeader();
  EXPECT_TRUE(slots_.emptying()) << "the one behind it closed";
  slots_.CloseHeader();
  EXPECT_FALSE(slots_.emptying());
  FreeIn(slots_, places, 9, 12);
  EXPECT_FALSE(slots_.Allocate(kSmall)) << "of a closed header";
}

TEST_F(SlotsTest, WhatIsComingFitsWhereItsHeadersLieTogetherAndNoneIsInUse) {
  while (slots_.headers() > 3) slots_.CloseHeader();
  EXPECT_FALSE(slots_.FitsSoon(kSmall, kAnyNode)) << "nothing is coming";
  slots_.Expect(4);
  EXPECT_TRUE(slots_.FitsSoon(kSmall, kAnyNode));
  EXPECT_TRUE(slots_.FitsSoon(kLarge, kAnyNode)) << "with the free one before it";
  Fill(slots_, kSmall);
  EXPECT_FALSE(slots_.FitsSoon(kLarge, kAnyNode));
  slots_.Expect(5);
  EXPECT_FALSE(slots_.FitsSoon(kLarge, kAnyNode));
  slots_.Expect(6);
  EXPECT_TRUE(slots_.FitsSoon(kLarge, kAnyNode));
  slots_.ExpectLater();
  EXPECT_FALSE(slots_.FitsSoon(kLarge, kAnyNode));
  EXPECT_FALSE(slots_.FitsSoon(kSmall, kAnyNode));

  const std::uint32_t shares[] = {1, 1};
  Slots divided(words_, node_.arena, NodePlan(shares, 1, 12));
  ASSERT_EQ(divided.plan().run(), 2u);
  while (divided.headers() > 2) divided.CloseHeader();
  divided.Expect(4);
  EXPECT_TRUE(divided.FitsSoon(kSmall, kAnyFar));
  EXPECT_FALSE(divided.FitsSoon(kSmall, kAnyNode)) << "the next header is far";
}

TEST_F(SlotsTest, ALongChunkIsHeldByWhatIsExpectedAndByNoLess) {
  const std::uint64_t longest = record::RecordBytes(14 * kMiB, 4096);
  ASSERT_EQ(SlotSize::For(longest, 4096).chunk_headers, 4u);
  while (slots_.headers() > 3) slots_.CloseHeader();
  slots_.Expect(3);
  EXPECT_FALSE(slots_.CanHold(longest));
  EXPECT_FALSE(slots_.FitsOnlyGrown(longest));
  slots_.Expect(4);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(slots_.CanHold(longest));
    EXPECT_TRUE(slots_.FitsOnlyGrown(longest));
    slots_.ExpectLater();
  }
  slots_.OpenHeader();
  EXPECT_TRUE(slots_.CanHold(longest));
  EXPECT_FALSE(slots_.FitsOnlyGrown(longest));
}

TEST_F(SlotsTest, R14PinnedChunksAreNotProposed) {
  const std::uint64_t small = record::RecordBytes(1 * kMiB, 4096),
                      large = record::RecordBytes(7 * kMiB, 4096);
  std::vector<arena::Place> places;
  while (Result<arena::Place> place = slots_.Allocate(small)) {
    places.push_back(*place);
    slots_.Pin(*place);
  }
  EXPECT_FALSE(slots_.BestToEmpty(large));
  for (arena::Place place : places) {
    if (node_.arena.geometry().header_of(place) / 2 == 4) slots_.Unpin(place);
  }
  EXPECT_EQ(slots_.BestToEmpty(large), (HeaderRange{8, 2}));
}

}  // namespace
}  // namespace cistern::memory
