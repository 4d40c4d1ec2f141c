// SPDX-License-Identifier: Apache-2.0
#include "memory/slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <random>
#include <vector>

#include "arena/protocol.h"
#include "arena/test_arena.h"
#include "base/event.h"
#include "base/task.h"
#include "memory/free_headers.h"
#include "memory/test_slots.h"

namespace cistern::memory {
namespace {

TEST(SlotSizeTest, R14WasteIsAtMostAnEighth) {
  for (std::uint32_t alignment : {512u, 4096u}) {
    std::uint64_t before = 0;
    std::mt19937_64 random(1);
    for (int i = 0; i < 20'000; ++i) {
      std::uint64_t body = 1 + random() % (kMaxBodyBytes >> random() % 16);
      std::uint64_t record = record::RecordBytes(body, alignment);
      SlotSize size = SlotSize::For(record, alignment);
      EXPECT_GE(size.bytes, record);
      EXPECT_EQ(size.bytes % alignment, 0u);
      EXPECT_EQ(SlotSize::For(size.bytes, alignment), size) << "a slot is of its own size";
      if (size.bytes > arena::Geometry{alignment, 1}.min_slot_bytes()) {
        EXPECT_LE((size.bytes - record) * 8, size.bytes) << record;
      }
      std::uint64_t chunk = size.chunk_headers * arena::kHeaderSpanBytes;
      EXPECT_GE(chunk / size.bytes, arena::kMinSlotsPerChunk);
      EXPECT_LE(chunk % size.bytes * 8, chunk) << "the chunk's rest";
      EXPECT_TRUE(arena::IsSlotSize({alignment, 64}, size.bytes, size.chunk_headers));
    }
    for (std::uint64_t body = 4096; body <= kMaxBodyBytes; body *= 2) {
      SlotSize size = SlotSize::For(record::RecordBytes(body, 4096), 4096);
      if (body <= 32 * kMiB) {
        EXPECT_EQ(size.bytes, body + 4096) << "round bodies waste nothing";
      }
      EXPECT_GT(size.bytes, before);
      before = size.bytes;
    }
  }
}

// Slots of two sizes under one number would be given out for one another.
TEST(SlotSizeTest, SizesAreNumberedInTheirOrderWithoutAGap) {
  for (std::uint32_t alignment : {512u, 4096u}) {
    SlotSize size = SlotSize::For(1, alignment);
    EXPECT_EQ(size.bytes, (arena::Geometry{alignment, 1}.min_slot_bytes()));
    for (;;) {
      const SlotSize next = SlotSize::For(size.bytes + 1, alignment);
      ASSERT_EQ(next.Number(alignment), size.Number(alignment) + 1) << next.bytes;
      if (next.bytes > 2 * kMaxBodyBytes) break;
      size = next;
    }
    EXPECT_LT(size.Number(alignment), kSizeNumbers);
  }
}

TEST(FreeHeadersTest, RunsAreAlignedDisjointAndJoinAgain) {
  std::mt19937 random(3);
  for (std::uint32_t headers : {1u, 7u, 64u, 237u}) {
    FreeHeaders free(headers);
    std::map<std::uint32_t, std::uint32_t> taken;
    std::uint32_t sum = 0;
    for (int i = 0; i < 5'000; ++i) {
      if (random() % 2 == 0) {
        std::uint32_t count = 1u << random() % 5;
        std::optional<std::uint32_t> first = free.Take(count);
        if (!first) continue;
        EXPECT_EQ(*first % count, 0u);
        auto next = taken.lower_bound(*first);
        EXPECT_TRUE(next == taken.end() || next->first >= *first + count);
        EXPECT_TRUE(next == taken.begin() || std::prev(next)->first + std::prev(next)->second <= *first);
        EXPECT_LE(*first + count, headers);
        taken[*first] = count;
        sum += count;
        EXPECT_LE(sum, headers);
      } else if (!taken.empty()) {
        auto gone = std::next(taken.begin(), random() % taken.size());
        EXPECT_FALSE(free.TakeAt(gone->first, gone->second));
        free.Give(gone->first, gone->second);
        EXPECT_TRUE(free.TakeAt(gone->first, gone->second));
        free.Give(gone->first, gone->second);
        sum -= gone->second;
        taken.erase(gone);
      }
    }
    for (auto [first, count] : taken) free.Give(first, count);
    std::uint32_t longest = std::bit_floor(headers);
    EXPECT_TRUE(free.Take(longest)) << "all joined";
  }
}

TEST_F(SlotsTest, SlotsAreDisjointAndReadersFindThem) {
  std::mt19937_64 random(7);
  std::map<std::uint64_t, std::uint64_t> used;  // offset -> bytes
  std::vector<arena::Place> places;
  int busy = 0;
  for (int i = 0; i < 60'000; ++i) {
    if (places.empty() || random() % 100 < (i / 10'000 % 2 == 0 ? 70 : 30)) {
      std::uint64_t body = 1 + random() % (slots_.max_body_bytes() >> random() % 12);
      Result<arena::Place> place = slots_.Allocate(record::RecordBytes(body, 4096));
      if (!place) {
        EXPECT_EQ(place.error().code(), Code::kBusy);
        busy++;
        continue;
      }
      std::uint64_t offset = node_.arena.geometry().offset(*place);
      std::optional<arena::CheckedSlot> slot = arena::CheckPlace(words_, node_.arena, *place, body);
      ASSERT_TRUE(slot);
      auto next = used.lower_bound(offset);
      ASSERT_TRUE(next == used.end() || next->first >= offset + slot->slot_bytes);
      ASSERT_TRUE(next == used.begin() || std::prev(next)->first + std::prev(next)->second <= offset);
      used[offset] = slot->slot_bytes;
      places.push_back(*place);
      EXPECT_TRUE(slots_.used(*place));
      EXPECT_EQ(slots_.SlotBytes(*place), SlotSize::For(record::RecordBytes(body, 4096), 4096).bytes);
    } else {
      std::size_t at = random() % places.size();
      slots_.Free(places[at]);
      EXPECT_FALSE(slots_.used(places[at]));
      used.erase(node_.arena.geometry().offset(places[at]));
      places[at] = places.back();
      places.pop_back();
    }
    EXPECT_EQ(slots_.counts().used_slots, places.size());
  }
  EXPECT_GT(busy, 0) << "the arena was never full";
  for (arena::Place place : places) slots_.Free(place);
  for (arena::Place place : places) EXPECT_FALSE(arena::CheckPlace(words_, node_.arena, place, 1));
  EXPECT_EQ(slots_.counts().free_headers, slots_.counts().headers) << "empty chunks serve any size again";
  EXPECT_EQ(slots_.counts().used_bytes, 0u);
  EXPECT_TRUE(slots_.Allocate(record::RecordBytes(slots_.max_body_bytes(), 4096)));
}

TEST_F(SlotsTest, CapacityIsWhatAnEmptyArenaTakes) {
  for (std::uint64_t body : {64 * kKiB, 2 * kMiB, 5 * kMiB}) {
    std::uint64_t count = 0;
    std::vector<arena::Place> places;
    while (Result<arena::Place> place = slots_.Allocate(record::RecordBytes(body, 4096))) {
      places.push_back(*place);
      count++;
    }
    EXPECT_EQ(count, Slots::Capacity(node_.arena.geometry(), record::RecordBytes(body, 4096)));
    for (arena::Place place : places) slots_.Free(place);
  }
}

TEST_F(SlotsTest, R14AFreeSlotIsFoundInWhicheverChunkItLies) {
  std::mt19937_64 random(5);
  const std::uint64_t all = Slots::Capacity(node_.arena.geometry(), kLarge);
  std::vector<arena::Place> places;
  for (int i = 0; i < 20'000; ++i) {
    if (random() % 100 < (i / 1'000 % 2 == 0 ? 60 : 40)) {
      const Result<arena::Place> place = slots_.Allocate(kLarge);
      ASSERT_EQ(place.has_value(), places.size() < all) << places.size();
      if (place) places.push_back(*place);
    } else if (!places.empty()) {
      std::swap(places[random() % places.size()], places.back());
      slots_.Free(places.back());
      places.pop_back();
    }
  }
}

TEST(ShortestSlotsTest, R14EachIsGivenOutOnce) {
  arena::RealWords words;
  arena::TestArena<arena::RealWords> node{words, 4096, {512, 1}};
  arena::Uncarve(words, node.arena, 0, 1);
  Slots slots(words, node.arena);
  std::vector<arena::Place> places;
  while (const Result<arena::Place> place = slots.Allocate(1)) places.push_back(*place);
  EXPECT_EQ(places.size(), 8192u);
  std::ranges::sort(places);
  EXPECT_TRUE(std::ranges::adjacent_find(places) == places.end());
  for (const std::size_t at : {8191u, 4096u, 4095u, 64u, 63u, 0u}) {
    slots.Free(places[at]);
    EXPECT_EQ(slots.Allocate(1), places[at]);
  }
}

TEST_F(SlotsTest, WhoWaitsLooksAgainWhenASlotOrAHeaderIsFreeOrNothingPinsOne) {
  SimulatedClock clock;
  Executor executor(clock);
  const auto wait = [](Executor&, Event& event) -> Task<> { co_await event.Wait(); };
  const auto wakes = [&](auto&& act) {
    const Task<> waits = wait(executor, slots_.loosened());
    act();
    executor.RunReady(1);
    return waits.done();
  };
  const std::vector<arena::Place> places = Fill(slots_, kLarge);
  slots_.Pin(places[0]);
  EXPECT_TRUE(wakes([&] { slots_.Unpin(places[0]); }));
  EXPECT_TRUE(wakes([&] { slots_.Free(places[0]); }));
  slots_.CloseHeader();
  EXPECT_TRUE(wakes([&] { slots_.OpenHeader(); }));
}

TEST_F(SlotsTest, BlocksPastTheLimitAreRefusedWithNumbers) {
  EXPECT_EQ(slots_.max_body_bytes(), 12 * kMiB);
  EXPECT_TRUE(slots_.CheckBody(12 * kMiB).ok());
  Status status = slots_.CheckBody(12 * kMiB + 1);
  EXPECT_EQ(status.code(), Code::kInvalid);
  EXPECT_NE(status.message().find("12582913"), std::string::npos);
  EXPECT_NE(status.message().find("12582912"), std::string::npos);
  EXPECT_EQ(slots_.CheckBody(0).code(), Code::kInvalid);
}

// As many headers are free as a chunk takes, and no two of them lie together.
TEST_F(SlotsTest, R14RoomIsWhatAllocateWouldGive) {
  // Chunks of two headers, and of one.
  const std::uint64_t large = arena::kHeaderSpanBytes / arena::kMinSlotsPerChunk + 1, small = large / 2;
  std::vector<arena::Place> places;
  while (slots_.HasRoom(small)) {
    const auto place = slots_.Allocate(small);
    ASSERT_TRUE(place.has_value());
    places.push_back(*place);
  }
  EXPECT_FALSE(slots_.Allocate(small).has_value());
  ASSERT_EQ(slots_.counts().free_headers, 0u);
  for (const arena::Place place : places) {
    if (slots_.arena().geometry().header_of(place) % 2 == 0) slots_.Free(place);
  }
  ASSERT_GE(slots_.counts().free_headers, 2u);
  EXPECT_FALSE(slots_.HasRoom(large));
  EXPECT_FALSE(slots_.Allocate(large).has_value());
  for (const arena::Place place : places) {
    if (slots_.arena().geometry().header_of(place) == 1) slots_.Free(place);
  }
  EXPECT_TRUE(slots_.HasRoom(large));
  EXPECT_TRUE(slots_.Allocate(large).has_value());
}

TEST_F(SlotsTest, ASlotIsOfTheNodeThatIsAskedForAsLongAsThatHasOne) {
  Slots slots(words_, node_.arena, NodePlan(3, 12));
  const std::uint64_t record = record::RecordBytes(1 * kMiB, 4096);
  const std::uint64_t a_node = 4 * (arena::kHeaderSpanBytes / SlotSize::For(record, 4096).bytes);
  std::vector<arena::Place> places;
  for (std::uint64_t i = 0; i < 3 * a_node; ++i) {
    const Result<arena::Place> place = slots.Allocate(record, 1);
    ASSERT_TRUE(place);
    EXPECT_EQ(slots.NodeOf(*place), 1 + i / a_node == 3 ? 0 : 1 + i / a_node) << i;
    EXPECT_EQ(slots.KindAt(*place) / kSizeNumbers, slots.NodeOf(*place));
    places.push_back(*place);
  }
  EXPECT_FALSE(slots.Allocate(record, 1));
  for (NodeIndex node = 0; node < 3; ++node) EXPECT_GT(slots.used_bytes(node), slots.bytes(node) / 10 * 9);
  // Whoever does not care gets it where the least is in use.
  slots.Free(places[a_node]);
  EXPECT_EQ(slots.KindFor(record, kAnyNode) / kSizeNumbers, 2);
  EXPECT_EQ(slots.Allocate(record), places[a_node]);
  for (arena::Place place : places) slots.Free(place);
  EXPECT_EQ(slots.counts().free_headers, 12u);
  for (NodeIndex node = 0; node < 3; ++node) EXPECT_EQ(slots.used_bytes(node), 0u);
}

TEST_F(SlotsTest, AFarSlotIsForWhoAsksForOneAndNothingIsEmptiedThereForANearOne) {
  const std::uint32_t shares[] = {1, 1, 1};
  Slots slots(words_, node_.arena, NodePlan(shares, 2, 12));
  const std::uint64_t record = record::RecordBytes(1 * kMiB, 4096);
  const std::uint64_t a_node = 4 * (arena::kHeaderSpanBytes / SlotSize::For(record, 4096).bytes);
  for (std::uint64_t i = 0; i < 2 * a_node; ++i) {
    const Result<arena::Place> place = slots.Allocate(record, 1);
    ASSERT_TRUE(place);
    EXPECT_FALSE(slots.IsFar(*place));
    EXPECT_LT(slots.KindAt(*place), slots.first_far_kind());
  }
  EXPECT_FALSE(slots.Allocate(record, 1));
  EXPECT_FALSE(slots.Allocate(record));
  EXPECT_TRUE(slots.HasRoom(record));
  const std::uint64_t small = record::RecordBytes(64 * kKiB, 4096);
  const Result<arena::Place> far = slots.Allocate(small, kAnyFar);
  ASSERT_TRUE(far);
  EXPECT_EQ(slots.NodeOf(*far), 2);
  EXPECT_GE(slots.KindAt(*far), slots.first_far_kind());
  EXPECT_EQ(slots.used_bytes_beside(kAnyFar), slots.used_bytes(2));
  EXPECT_EQ(slots.used_bytes_beside(0), slots.used_bytes(0) + slots.used_bytes(1));
  // The one chunk of another size is far.
  EXPECT_FALSE(slots.BestToEmpty(record));
  const std::optional<HeaderRange> range = slots.BestToEmpty(record, false, kAnyFar);
  ASSERT_TRUE(range);
  EXPECT_EQ(slots.plan().Of(range->first), 2);
}

TEST_F(SlotsTest, OfSeveralFarNodesTheOneWithTheLeastInUseGivesTheSlot) {
  const std::uint32_t shares[] = {1, 1, 1, 1};
  Slots slots(words_, node_.arena, NodePlan(shares, 1, 12));
  for (int i = 0; i < 9; ++i) {
    const SlotKind kind = slots.KindFor(kSmall, kAnyFar);
    const Result<arena::Place> place = slots.Allocate(kSmall, kAnyFar);
    ASSERT_TRUE(place);
    EXPECT_EQ(slots.KindAt(*place), kind);
    EXPECT_EQ(slots.NodeOf(*place), 1 + i % 3);
  }
}

TEST_F(SlotsTest, P7AChunkThatIsLongerThanARunOfNodesIsAdoptedAllTheSame) {
  const SlotSize size = SlotSize::For(record::RecordBytes(14 * kMiB, 4096), 4096);
  ASSERT_EQ(size.chunk_headers, 4u);
  arena::Carve(words_, node_.arena, 4, size.chunk_headers, size.bytes);
  Slots slots(words_, node_.arena, NodePlan(3, 12));
  EXPECT_GT(size.chunk_headers, slots.plan().run());
  EXPECT_FALSE(slots.CanHold(size.bytes));
  ASSERT_TRUE(slots.AdoptChunk(4, size));
  EXPECT_TRUE(slots.CanHold(size.bytes));
  EXPECT_FALSE(slots.AdoptChunk(4, size)) << "it is not free any more";
  // Of what is free in part nothing is taken.
  ASSERT_TRUE(slots.AdoptChunk(2, SlotSize::For(kLarge, 4096)));
  EXPECT_FALSE(slots.AdoptChunk(0, size));
  ASSERT_TRUE(slots.AdoptChunk(0, SlotSize::For(kLarge, 4096)));
  slots.EndAdoption();
  EXPECT_EQ(slots.counts().free_headers, 12u);
  EXPECT_EQ(Fill(slots, kLarge).size(), Slots::Capacity(node_.arena.geometry(), kLarge));
}

// Of a node that an arena is divided among: no run is too short for what CheckBody lets in.
TEST_F(SlotsTest, TheLongestBodyFitsIntoARunOfANode) {
  for (std::uint32_t nodes : {1u, 2u, 3u}) {
    Slots slots(words_, node_.arena, NodePlan(nodes, 12));
    for (NodeIndex node = 0; node < nodes; ++node) {
      const auto place = slots.Allocate(record::RecordBytes(slots.max_body_bytes(), 4096), node);
      ASSERT_TRUE(place) << nodes;
      EXPECT_EQ(slots.NodeOf(*place), node);
      slots.Free(*place);
    }
  }
}

TEST_F(SlotsTest, P7AChunkStaysUntilTheEndOfAdoption) {
  const SlotSize size = SlotSize::For(record::RecordBytes(1 * kMiB, 4096), 4096);
  arena::Carve(words_, node_.arena, 2, size.chunk_headers, size.bytes);
  Slots slots(words_, node_.arena);
  ASSERT_TRUE(slots.AdoptChunk(2, size));
  const arena::Place first = node_.arena.geometry().place(2 * arena::kHeaderSpanBytes);
  const arena::Place second = node_.arena.geometry().place(2 * arena::kHeaderSpanBytes + size.bytes);
  ASSERT_TRUE(slots.AdoptUsed(first));
  slots.Free(first);
  EXPECT_TRUE(slots.AdoptUsed(second)) << "the one after a refused one";
  slots.Free(second);
  EXPECT_EQ(slots.counts().chunks, 1u);
  slots.EndAdoption();
  EXPECT_EQ(slots.counts().chunks, 0u);
  EXPECT_EQ(slots.counts().free_headers, slots.counts().headers);
  slots.Free(*slots.Allocate(size.bytes));
  EXPECT_EQ(slots.counts().chunks, 0u);
}

// What a header says under a check that holds, and a place that an entry says.
TEST_F(SlotsTest, R1OnlyChunksAndPlacesThatItWouldGiveOutItselfAreAdopted) {
  Slots slots(words_, node_.arena);
  const arena::Geometry& geometry = node_.arena.geometry();
  const SlotSize size =
      SlotSize::For(record::RecordBytes(100 * kKiB, geometry.alignment), geometry.alignment);
  const std::uint64_t bytes = size.bytes;
  for (const SlotSize wrong :
       {SlotSize{0, 1}, SlotSize{bytes + 1, 1}, SlotSize{bytes + 512, 1}, SlotSize{bytes, 2},
        SlotSize{bytes, 0}, SlotSize{3 * kMaxBodyBytes, 1}, SlotSize{1ull << 60, 1}}) {
    EXPECT_FALSE(slots.AdoptChunk(0, wrong)) << wrong.bytes << " in " << wrong.chunk_headers;
  }
  EXPECT_FALSE(slots.AdoptChunk(1, SlotSize::For(kLarge, geometry.alignment)))
      << "not a multiple of its length";
  EXPECT_EQ(slots.counts().chunks, 0u);
  ASSERT_TRUE(slots.AdoptChunk(0, size));
  EXPECT_FALSE(slots.AdoptChunk(0, size)) << "it is taken";
  const std::uint64_t count = arena::kHeaderSpanBytes / bytes;
  const auto place = [&](std::uint64_t offset) { return geometry.place(offset); };
  ASSERT_TRUE(slots.AdoptUsed(place(bytes)));
  EXPECT_FALSE(slots.AdoptUsed(place(bytes))) << "it is used already";
  ASSERT_TRUE(slots.AdoptUsed(place((count - 1) * bytes)));
  for (const std::uint64_t no_slot : {bytes + geometry.alignment, count * bytes, arena::kHeaderSpanBytes}) {
    EXPECT_FALSE(slots.AdoptUsed(place(no_slot))) << no_slot;
    EXPECT_FALSE(slots.used(place(no_slot))) << no_slot;
  }
  EXPECT_FALSE(slots.used(place(geometry.slots_bytes())));
  EXPECT_FALSE(slots.used(place(0)));
  EXPECT_EQ(slots.counts().used_slots, 2u);
  EXPECT_EQ(slots.counts().used_bytes, 2 * bytes);
  slots.EndAdoption();
  EXPECT_EQ(slots.counts().chunks, 1u);
}

}  // namespace
}  // namespace cistern::memory
