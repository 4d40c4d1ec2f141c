// SPDX-License-Identifier: Apache-2.0
#include "store/block_store.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/limits.h"
#include "record/verified_copy.h"
#include "store/block_store_fixture.h"
#include "store/open_puts.h"

namespace cistern::store {
namespace {

TEST_F(BlockStoreTest, P1AHitIsBitExact) {
  Make();
  EXPECT_EQ(Put(1, {}, 100'000), State::kPublished);
  EXPECT_TRUE(Exact(1, 100'000));
  EXPECT_FALSE(Here(2));
  EXPECT_EQ(Match(1, 3), 1u);
}

TEST_F(BlockStoreTest, R7ABlockIsPendingUntilItsParentIsReachable) {
  Make();
  EXPECT_EQ(Put(3, 2), State::kPending);
  EXPECT_EQ(Put(2, 1), State::kPending);
  EXPECT_FALSE(Here(3));
  EXPECT_FALSE(Here(2));
  EXPECT_EQ(Occupied().pending, 2u);
  EXPECT_EQ(Put(1, {}), State::kPublished);
  EXPECT_TRUE(Exact(1) && Exact(2) && Exact(3));
  EXPECT_EQ(Occupied().pending, 0u);
  EXPECT_EQ(Match(1, 4), 3u);
}

TEST_F(BlockStoreTest, R7PendingPutsAreBoundedInTime) {
  Make();
  Put(3, 2);
  t->Advance(31'000'000);
  EXPECT_EQ(Occupied().pending, 0u);
  EXPECT_EQ(t->store->counters().pending_dropped.value(), 1u);
  PutChain(1, 2);
  EXPECT_FALSE(Here(3));
  EXPECT_EQ(t->slots->counts().used_slots, 2u);
}

TEST_F(BlockStoreTest, R7PendingPutsAreBoundedInCount) {
  Make({.store = {.max_pending = 3}});
  for (std::uint64_t n = 10; n < 13; ++n) Put(n, n + 100);
  EXPECT_EQ(WriteOne(Part(13, 113)).status.code(), Code::kBusy);
}

TEST_F(BlockStoreTest, R7NumberOfPendingPutsFollowsMemory) {
  Make({.headers = 13});  // 416 MiB: what seven groups of a chunk of prompts take is more than a fixed bound
  const std::uint64_t puts = catalog::PendingBound::kLeastPuts + 904;
  for (std::uint64_t n = 1; n <= puts; ++n) ASSERT_EQ(Put(n, n + 100'000, 64), State::kPending) << n;
  EXPECT_EQ(Occupied().pending, puts);
}

TEST_F(BlockStoreTest, R7PendingPutsAreBoundedInBytes) {
  Make();
  const std::uint64_t half = t->geometry.slots_bytes() / 2;
  std::uint64_t n = 0;
  PartOutcome outcome;
  do {
    ++n;
    outcome = WriteOne(Part(n, n + 1000, 1u << 20));
  } while (outcome.state == State::kPending && n < 100);
  EXPECT_EQ(outcome.status.code(), Code::kBusy);
  EXPECT_NE(outcome.status.message().find(Text(half)), std::string_view::npos) << outcome.status.message();
  EXPECT_EQ(n - 1, half * 4 / 5 / (1u << 20)) << "four fifths of the half are what one owner may have";
  t->Advance(31'000'000);
  EXPECT_EQ(Put(n, n + 1000, 1u << 20), State::kPending) << "what was dropped no longer counts";
}

TEST_F(BlockStoreTest, R4TheFirstPublishedWinsWhole) {
  Make();
  EXPECT_EQ(Put(1, {}), State::kPublished);
  PartWrite other = Part(1, {});
  std::vector<std::byte> bytes = Body(999, 4096);
  other.from = bytes;
  EXPECT_EQ(WriteOne(other).state, State::kPresent);
  EXPECT_TRUE(Exact(1));
  EXPECT_EQ(t->slots->counts().used_slots, 1u);
}

TEST_F(BlockStoreTest, R4PendingPutsOfOtherIdsDoNotBlock) {
  Make();
  PartWrite held = Part(1, {});
  held.held = true;
  EXPECT_EQ(WriteOne(held).state, State::kPending);
  EXPECT_EQ(Put(1, {}), State::kPublished);
  const PutId id = held.put_id;
  EXPECT_EQ(*t->Run(t->store->Publish(Me(), ns.slot, std::span(&id, 1))), 1u);
  EXPECT_EQ(t->slots->counts().used_slots, 1u);
  EXPECT_EQ(Occupied().pending, 0u);
}

TEST_F(BlockStoreTest, P2NothingIsVisibleBeforeAllPartsOfOnePutCommitted) {
  Make({}, TwoParts());
  PartWrite first = Part(1, {}, 70'000), second = Part(2, {}, 5'000), stranger = Part(3, {}, 5'000);
  second.key = stranger.key = first.key;
  second.put_id = stranger.put_id = first.put_id;
  second.part = stranger.part = 1;
  EXPECT_EQ(WriteOne(first).state, State::kPending);
  // Another owner's part under the same number is another put's.
  EXPECT_EQ(Write({stranger}, Me(2, 2))[0].state, State::kPending);
  EXPECT_FALSE(Here(1));
  // The same owner's other process.
  EXPECT_EQ(Write({second}, Me(1, 7))[0].state, State::kPublished);
  auto body = t->Read(ns.slot, Key(1));
  EXPECT_FALSE(body.has_value()) << "a range past the first part";
  auto grant = Acquire({1}, Me());
  ASSERT_EQ(grant.views[0].code, Code::kOk);
  const std::byte* data = t->arena.slot(grant.views[0].place);
  EXPECT_TRUE(std::equal(bodies_[0].begin(), bodies_[0].end(), data));
  EXPECT_TRUE(std::equal(bodies_[1].begin(), bodies_[1].end(), data + 70'000));
}

TEST_F(BlockStoreTest, P2BothPartsInOneCallReportPublished) {
  Make({}, TwoParts());
  PartWrite first = Part(1, {}, 70'000), second = Part(2, {}, 5'000);
  second.key = first.key;
  second.put_id = first.put_id;
  second.part = 1;
  const auto outcomes = Write({first, second}, Me());
  EXPECT_EQ(outcomes[0].state, State::kPublished);
  EXPECT_EQ(outcomes[1].state, State::kPublished);
}

TEST_F(BlockStoreTest, HeldPutsArePublishedOrAbandonedByTheirOwnerAlone) {
  Make();
  PartWrite a = Part(1, {}), b = Part(2, 1);
  a.held = b.held = true;
  Write({a, b}, Me());
  EXPECT_FALSE(Here(1));
  const PutId ids[] = {a.put_id, b.put_id};
  auto foreign = t->Run(t->store->Publish(Me(2, 9), ns.slot, ids));
  ASSERT_FALSE(foreign.has_value());
  EXPECT_EQ(foreign.error().code(), Code::kDenied);
  EXPECT_EQ(*t->Run(t->store->Publish(Me(1, 9), ns.slot, std::span(ids).first(1))), 1u);
  EXPECT_TRUE(Here(1));
  EXPECT_FALSE(Here(2));
  EXPECT_EQ(*t->Run(t->store->Abandon(Me(), ns.slot, std::span(ids).last(1))), 1u);
  EXPECT_EQ(Occupied().pending, 0u);
  EXPECT_EQ(t->slots->counts().used_slots, 1u);
}

TEST_F(BlockStoreTest, APutOfSeveralPartsThatIsPresentIsOne) {
  Make({}, TwoParts());
  const auto write = [&] {
    PartWrite first = Part(1, {}, 70'000), second = Part(1, {}, 5'000);
    second.part = 1;
    second.put_id = first.put_id;
    return Write({first, second}, Me());
  };
  EXPECT_EQ(write()[1].state, State::kPublished);
  for (const PartOutcome& outcome : write()) EXPECT_EQ(outcome.state, State::kPresent);
  EXPECT_EQ(t->store->counters().present.value(), 1u);
}

TEST_F(BlockStoreTest, R6ADifferenceToTheWritersChecksumsPublishesNothing) {
  Make();
  PartWrite part = Part(1, {}, 70'000);
  part.checksums = {record::Crc32c(part.from.data(), 65536),
                    record::Crc32c(part.from.data() + 65536, 70'000 - 65536) ^ 1};
  const PartOutcome outcome = WriteOne(part);
  EXPECT_EQ(outcome.status.code(), Code::kInvalid);
  EXPECT_FALSE(Here(1));
  EXPECT_EQ(t->slots->counts().used_slots, 0u);
  part.checksums[1] ^= 1;
  EXPECT_EQ(WriteOne(part).state, State::kPublished);
}

// Its caller fills the staging anew two seconds after the deadline: the copy may be of two contents.
TEST_F(BlockStoreTest, R6ACopyThatEndsWhenItsStagingMayBeFilledAnewPublishesNothing) {
  Make({.store = {.core_copy_bytes = 1}});
  const auto copied_late = [&](PartWrite part, std::int64_t late_us) {
    t->movers->paused = true;
    auto writing = t->store->Write(Me(), ns.slot, {std::move(part)}, Soon());
    while (t->movers->waiting.empty()) t->loop->Turn();
    t->Advance(1'000'000 + late_us);
    t->movers->paused = false;
    t->movers->MoveOne(0);
    return t->Run(std::move(writing))[0];
  };
  const PartOutcome late = copied_late(Part(1, {}, 70'000), kStagingGraceUs);
  EXPECT_EQ(late.status.code(), Code::kTooLate) << late.status.ToString();
  EXPECT_FALSE(Here(1));
  EXPECT_EQ(t->slots->counts().used_slots, 0u);
  EXPECT_EQ(copied_late(Part(1, {}, 70'000), kStagingGraceUs - 1).state, State::kPublished);
  PartWrite compared = Part(2, {}, 70'000);
  compared.checksums = {record::Crc32c(compared.from.data(), 65536),
                        record::Crc32c(compared.from.data() + 65536, 70'000 - 65536)};
  EXPECT_EQ(copied_late(compared, kStagingGraceUs).state, State::kPublished);
}

TEST_F(BlockStoreTest, LargeBatchesGoThroughMovers) {
  Make({.store = {.core_copy_bytes = 1u << 20}});
  EXPECT_EQ(Put(1, {}, 900'000), State::kPublished);
  EXPECT_EQ(t->movers->jobs, 0u);
  const auto outcomes = Write({Part(2, 1, 700'000), Part(3, 2, 700'000)}, Me());
  EXPECT_EQ(outcomes[0].state, State::kPublished);
  EXPECT_EQ(outcomes[1].state, State::kPublished);
  EXPECT_EQ(t->movers->jobs, 2u);
  EXPECT_TRUE(Exact(3, 700'000));
}

// Keys of one hash, as anybody can write them down: the first half of what XXH3 adds up for 32 bytes is zero
// whatever the second word is.
BlockKey KeyOfOneHash(std::uint64_t n) {
  constexpr std::array<std::uint8_t, 8> kOfSecret = {0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe};
  BlockKey key;
  key.length = 32;
  std::ranges::copy(kOfSecret, key.bytes.begin());
  std::memcpy(&key.bytes[8], &n, sizeof(n));
  return key;
}

TEST_F(BlockStoreTest, P5KeysOfOneHashAreFewAndCostNoStepMoreThanItsBound) {
  Make();
  std::uint64_t next = 0;
  const auto put = [&](bool held) {
    PartWrite part = Part(1000 + next, {}, 64);
    part.key = KeyOfOneHash(++next);
    part.held = held;
    return WriteOne(part);
  };
  ASSERT_EQ(KeyOfOneHash(1).Hash(), KeyOfOneHash(2).Hash());
  const std::uint32_t most = OpenPuts::kMostOfOneHash;
  for (std::uint32_t i = 0; i < most; ++i) ASSERT_EQ(put(false).state, State::kPublished) << i;
  const PartOutcome refused = put(false);
  EXPECT_EQ(refused.status.code(), Code::kBusy);
  EXPECT_NE(refused.status.message().find("have the hash of its key"), std::string_view::npos)
      << refused.status.ToString();
  EXPECT_EQ(Put(1, {}), State::kPublished) << "nobody else is meant";
  t->store->TakeLongestStep();
  std::vector<BlockKey> keys;
  for (std::uint64_t n = 1; n <= most; ++n) keys.push_back(KeyOfOneHash(n));
  ASSERT_TRUE(t->Run(t->store->Drop(ns.slot, keys)).has_value());
  EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
  for (std::uint32_t i = 0; i < most; ++i) ASSERT_EQ(put(true).state, State::kPending) << i;
  EXPECT_EQ(put(true).status.code(), Code::kBusy) << "pending ones count as well";
  EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
}

TEST_F(BlockStoreTest, SessionsPendingPutsEndWithTheLastOfTheirOwner) {
  Make();
  PartWrite held = Part(1, {});
  held.held = true;
  WriteOne(held);
  t->Run(t->store->SessionEnded(Me(1, 1), false));
  EXPECT_EQ(Occupied().pending, 1u);
  t->Run(t->store->SessionEnded(Me(1, 2), true));
  EXPECT_EQ(Occupied().pending, 0u);
  EXPECT_EQ(t->slots->counts().used_slots, 0u);
}

TEST_F(BlockStoreTest, R7AWindowNeedsItsParentInTheFullGroupAlone) {
  Make({}, FullAndWindow());
  PartWrite full1 = Part(1, {}), full2 = Part(2, 1), local2 = Part(2, 1), local3 = Part(3, 2);
  local2.group = local3.group = 1;
  EXPECT_EQ(WriteOne(local3).state, State::kPending);
  EXPECT_EQ(WriteOne(full1).state, State::kPublished);
  EXPECT_EQ(WriteOne(local2).state, State::kPublished);
  EXPECT_EQ(WriteOne(full2).state, State::kPublished);
  EXPECT_TRUE(Here(3, 1)) << "published with its parent's full record, without older windows";
  EXPECT_EQ(Match(1, 3), 0u) << "block 1 has no window record";
  PartWrite full3 = Part(3, 2);
  EXPECT_EQ(WriteOne(full3).state, State::kPublished);
  EXPECT_EQ(Match(1, 3), 3u) << "the last two have";
}

TEST_F(BlockStoreTest, R7AWindowThatIsRefusedKeepsNothingBelowItsBlockOut) {
  Make({}, FullAndWindow());
  PartWrite window = Part(1, {});
  window.group = 1;
  window.checksums = {1};
  const std::vector<PartOutcome> outcomes = Write({Part(1, {}), window, Part(2, 1)}, Me());
  EXPECT_EQ(outcomes[0].state, State::kPublished);
  EXPECT_EQ(outcomes[1].status.code(), Code::kInvalid);
  EXPECT_EQ(outcomes[2].state, State::kPublished) << outcomes[2].status.ToString();
}

// What was cut meanwhile hides a deep parent from one slice of the cascade to the next.
TEST_F(BlockStoreTest, R7ACutElsewhereKeepsNoGroupWaitingForItsTime) {
  Make({.headers = 4}, FullAndWindow());
  PutChain(1, 250);
  PutChain(1001, 1600);
  for (std::uint64_t n = 300; n < 400; ++n) ASSERT_EQ(Put(n, 251), State::kPending);
  PartWrite window = Part(300, 251), parent = Part(251, 250);
  window.group = 1;
  ASSERT_EQ(WriteOne(window).state, State::kPending);
  auto writing = t->store->Write(Me(), ns.slot, {parent}, Soon());
  ASSERT_FALSE(writing.done()) << "published, and not all below it";
  const BlockKey other = Key(1001);
  auto dropping = t->store->Drop(ns.slot, std::span(&other, 1));
  EXPECT_EQ(t->Run(std::move(writing))[0].state, State::kPublished);
  EXPECT_TRUE(t->Run(std::move(dropping)).has_value());
  t->Tick();
  EXPECT_EQ(Occupied().pending, 0u);
  for (std::uint64_t n = 300; n < 400; ++n) ASSERT_TRUE(Here(n)) << n;
  EXPECT_TRUE(Here(300, 1));
  EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
}

TEST_F(BlockStoreTest, R7ANamespaceWithoutAFullGroupPublishesWithout) {
  Make({}, WindowOnly());
  EXPECT_EQ(Put(3, 2), State::kPublished);
  EXPECT_EQ(Put(2, 1), State::kPublished);
  EXPECT_EQ(Put(1, {}), State::kPublished);
  EXPECT_EQ(Put(4, 3), State::kPublished);
  EXPECT_EQ(Match(1, 4), 4u);
  Restart(WindowOnly());
  EXPECT_EQ(Occupied().records, 4u);
  auto dropped = Drop(2);
  ASSERT_TRUE(dropped.has_value());
  EXPECT_EQ(*dropped, 3u);
  EXPECT_TRUE(Here(1));
  EXPECT_FALSE(Here(3) || Here(4));
}

TEST_F(BlockStoreTest, AKeyWithTwoParentsIsRefused) {
  Make();
  PutChain(1, 2);
  Put(11, {});
  NamespaceSpec spec = FullAndWindow();
  Attach(spec);
  PartWrite a = Part(1, {}), b = Part(2, {}), c = Part(3, 1), d = Part(3, 2);
  d.group = 1;
  WriteOne(a);
  WriteOne(b);
  EXPECT_EQ(WriteOne(c).state, State::kPublished);
  EXPECT_EQ(WriteOne(d).status.code(), Code::kInvalid);
}

TEST_F(BlockStoreTest, R16LongListsAreTakenInSteps) {
  Make({.headers = 2});
  std::vector<PartWrite> parts;
  std::vector<BlockKey> keys;
  std::vector<catalog::BlockName> names;
  const std::vector<std::byte> body = Body(1, 64);
  for (std::uint64_t n = 0; n < 4096; ++n) {
    PartWrite& part = parts.emplace_back();
    part.key = Key(n);
    part.put_id = {2, n};
    part.from = body;
  }
  for (std::uint64_t n = 0; n < 20'000; ++n) {
    keys.push_back(Key(n));
    names.push_back({Key(n), 0});
  }
  const auto steps_of = [&](auto task) {
    const std::uint64_t before = t->loop->executor().steps();
    const auto result = t->Run(std::move(task));
    EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
    return std::pair(t->loop->executor().steps() - before, result);
  };
  // Besides what each of them touches in the forest, its lists are gone over.
  const auto again = parts;
  EXPECT_GT(steps_of(t->store->Write(Me(), ns.slot, std::move(parts), Soon())).first,
            3 * 4096 / kStepTouches);
  EXPECT_GT(steps_of(t->store->Write(Me(), ns.slot, again, Soon())).first, 3 * 4096 / kStepTouches);
  const auto [steps, grant] = steps_of(t->store->Acquire(Me(), ns.slot, names, 1'000'000, Soon()));
  ASSERT_TRUE(grant.has_value());
  EXPECT_EQ(grant->views.size(), names.size());
  EXPECT_EQ(grant->views[4095].code, Code::kOk);
  EXPECT_EQ(grant->views[4096].code, Code::kMiss);
  EXPECT_EQ(steps_of(t->store->Touch(ns.slot, keys)).second, 4096u);
  const auto dropped = steps_of(t->store->Drop(ns.slot, keys));
  EXPECT_EQ(*dropped.second, 4096u);
  EXPECT_GT(dropped.first, (20'000 * 3 + 4096 * 6) / kStepTouches);
}

TEST_F(BlockStoreTest, P5ABlockThatComesAfterItsChildrenIsPlacedInAStepOrNotAtAll) {
  Make({.headers = 4}, OneWindow(1000));
  PutChain(1, 1000);
  Put(2001, 2000);
  EXPECT_EQ(Put(2000, 100), State::kPublished);
  Put(3001, 3000);
  EXPECT_EQ(WriteOne(Part(3000, 1000)).status.code(), Code::kBusy);
  EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
}

// A chain of placeholders as deep as the forest has room.
TEST_F(BlockStoreTest, P2NobodyFindsWhatHasNoPlaceInTheTree) {
  Make({.headers = 1, .store = {.max_blocks = 2}}, OneWindow(1));
  const std::byte* from = reinterpret_cast<const std::byte*>(t->index.entry(0));
  const std::size_t bytes = t->index.entry_count() * sizeof(arena::IndexEntry);
  std::uint64_t n = 1;
  std::vector<std::byte> before;
  PartOutcome outcome;
  do {
    before.assign(from, from + bytes);
    outcome = WriteOne(Part(n + 1, n, 64));
    bodies_.clear();
    ASSERT_LT(++n, 20'000u);
  } while (outcome.status.ok());
  EXPECT_EQ(outcome.status.code(), Code::kBusy);
  std::size_t changed = 0;
  for (std::size_t at = 0; at < bytes; at += sizeof(arena::IndexEntry)) {
    changed += std::memcmp(from + at + 8, before.data() + at + 8, sizeof(arena::IndexEntry) - 8) != 0;
  }
  EXPECT_EQ(changed, 0u) << "not even for a moment";
}

TEST_F(BlockStoreTest, P5TicksOfATimerAreStepsOfTheirOwn) {
  Make({.headers = 4});
  for (std::uint64_t n = 1; n < 500; ++n) {
    PartWrite mortal = Part(n, {});
    mortal.ttl_s = 5;
    WriteOne(mortal);
  }
  t->clock.AdvanceUs(10'000'000);
  bool more = true;
  int ticks = 0;
  std::optional<Timer> timer;
  timer.emplace(t->loop->executor(), [&] {
    more = t->store->Tick();
    if (more && ++ticks < 1000) timer->Arm(t->clock.Now());
  });
  timer->Arm(t->clock.Now());
  t->loop->RunUntilIdle();
  EXPECT_FALSE(more);
  EXPECT_EQ(Occupied().records, 0u);
}

TEST_F(BlockStoreTest, WhatIsWrongWithAWriteIsNamed) {
  Make({}, TwoParts());
  PartWrite part = Part(1, {}, 70'000);
  part.group = 3;
  EXPECT_EQ(WriteOne(part).status.code(), Code::kInvalid);
  part = Part(1, {}, 70'000);
  part.part = 2;
  EXPECT_EQ(WriteOne(part).status.code(), Code::kInvalid);
  part = Part(1, {}, 69'999);
  EXPECT_EQ(WriteOne(part).status.code(), Code::kInvalid);
  part = Part(1, {}, 70'000);
  part.checksums = {1};
  EXPECT_EQ(WriteOne(part).status.code(), Code::kInvalid);
  part.checksums.clear();
  part.parent = part.key;
  EXPECT_EQ(WriteOne(part).status.code(), Code::kInvalid);
  EXPECT_EQ(t->Run(t->store->Write(Me(), ns.slot, {Part(1, {}, 70'000)}, Instant{0}))[0].status.code(),
            Code::kTooLate);
  EXPECT_EQ(t->slots->counts().used_slots, 0u);
}

}  // namespace
}  // namespace cistern::store
