// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <limits>

#include "store/block_store_fixture.h"
#include "store/tick_until.h"

namespace cistern::store {
namespace {

TEST_F(BlockStoreTest, R10DroppedNeverComesBack) {
  Make();
  PutChain(1, 5);
  Put(6, 99);  // pending elsewhere
  PartWrite below = Part(7, 5);
  below.held = true;
  WriteOne(below);
  auto grant = Acquire({4}, Me());
  auto dropped = Drop(3);
  ASSERT_TRUE(dropped.has_value());
  EXPECT_EQ(*dropped, 3u);
  EXPECT_TRUE(Here(1) && Here(2));
  EXPECT_FALSE(Here(3) || Here(4) || Here(5));
  EXPECT_NE(t->Generation(grant.views[0].place), grant.views[0].generation);
  EXPECT_EQ(Occupied().pending, 1u) << "the put below it ended, the other did not";
  EXPECT_EQ(Occupied().tombstones, 0u);
  EXPECT_EQ(t->slots->counts().used_slots, 3u);
  // The same key again: what lived below its namesake does not.
  EXPECT_EQ(Put(3, 2), State::kPublished);
  EXPECT_FALSE(Here(4));
  Restart();
  EXPECT_TRUE(Exact(1) && Exact(2) && Exact(3));
  EXPECT_FALSE(Here(4) || Here(5) || Here(7));
}

TEST_F(BlockStoreTest, P5DropsAtTheSameTimeKeepToTheBoundOfTombstones) {
  constexpr std::uint64_t kKeys = 200, kMost = 300;
  Make({.store = {.max_tombstones = kMost}});
  std::array<std::vector<BlockKey>, 2> keys;
  for (std::uint64_t n = 0; n < 2 * kKeys; ++n) {
    ASSERT_EQ(Put(n, std::nullopt), State::kPublished);
    keys[n / kKeys].push_back(Key(n));
  }
  Task<Result<std::uint64_t>> first = t->store->Drop(ns.slot, keys[0]);
  Task<Result<std::uint64_t>> second = t->store->Drop(ns.slot, keys[1]);
  while (!first.done() || !second.done()) {
    t->loop->Turn();
    ASSERT_LE(Occupied().tombstones, kMost);
  }
  EXPECT_EQ(*first.Take(), kKeys);
  const Result<std::uint64_t> refused = second.Take();
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), Code::kBusy);
  EXPECT_EQ(*t->Run(t->store->Drop(ns.slot, keys[1])), kKeys);
}

TEST_F(BlockStoreTest, R10AFlippedGenerationDoesNotBringADroppedBlockBack) {
  Make();
  PutChain(1, 3);
  auto grant = Acquire({2, 3}, Me());
  ASSERT_TRUE(Drop(2).has_value());
  for (const ViewGrant& view : grant.views) *t->arena.generation(view.place) ^= 1;
  Restart();
  EXPECT_TRUE(Exact(1));
  EXPECT_FALSE(Here(2) || Here(3));
  EXPECT_EQ(Occupied().records, 1u);
}

TEST_F(BlockStoreTest, R10AReputUnderADropInProgressStartsAfresh) {
  Make({.headers = 4});
  PutChain(1, 600);
  const BlockKey key = Key(2);
  Task<Result<std::uint64_t>> drop = t->store->Drop(ns.slot, std::span(&key, 1));
  // In the middle of collecting: old block 3 still stands in the table below the cut one.
  EXPECT_FALSE(drop.done());
  EXPECT_FALSE(Here(2));
  EXPECT_EQ(Put(3, 2), State::kPending);
  EXPECT_EQ(Put(2, 1), State::kPublished);
  EXPECT_TRUE(Exact(3));
  EXPECT_EQ(*t->Run(std::move(drop)), 599u);
  EXPECT_TRUE(Exact(1) && Exact(2) && Exact(3));
  EXPECT_FALSE(Here(4) || Here(600));
  EXPECT_EQ(Occupied().records, 3u);
  EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
}

// While the chain is collected a block in it expires, and while what that took along is collected one in
// that.
TEST_F(BlockStoreTest, R10ADescendantThatExpiresDuringADropTakesNothingOutOfIt) {
  Make({.headers = 4});
  for (std::uint64_t n = 1; n <= 900; ++n) {
    PartWrite part = Part(n, n == 1 ? std::nullopt : std::optional(n - 1));
    if (n == 300) part.ttl_s = 20;
    if (n == 450) part.ttl_s = 30;
    ASSERT_TRUE(WriteOne(std::move(part)).status.ok());
  }
  const BlockKey key = Key(2);
  Task<Result<std::uint64_t>> drop = t->store->Drop(ns.slot, std::span(&key, 1));
  const auto expire = [this](Executor&) -> Task<void> {
    t->clock.AdvanceUs(21'000'000);
    co_await Yield();
    t->store->Tick();
    while (Here(3)) co_await Yield();
    EXPECT_TRUE(Here(500)) << "what was cut out is collected after what it was cut out of";
    t->clock.AdvanceUs(10'000'000);
    co_await Yield();
    t->store->Tick();
  };
  ASSERT_FALSE(drop.done());
  t->Run(expire(t->loop->executor()));
  ASSERT_TRUE(t->Run(std::move(drop)).has_value());
  for (std::uint64_t n = 2; n <= 900; ++n) EXPECT_FALSE(Here(n)) << n;
}

// Its parents were not here when they were dropped, so that drop could not find it below them.
TEST_F(BlockStoreTest, R10APutOfADroppedDescendantStaysGoneWhateverIsDroppedLater) {
  Make();
  PutChain(11, 12);
  PartWrite child = Part(3, 2);
  child.held = true;
  const PutId child_put = child.put_id;
  ASSERT_EQ(WriteOne(child).state, State::kPending);
  ASSERT_TRUE(Drop(1).has_value());
  PutChain(1, 2);
  ASSERT_TRUE(Drop(12).has_value());
  ASSERT_TRUE(t->Run(t->store->Publish(Me(), ns.slot, std::span(&child_put, 1))).has_value());
  EXPECT_FALSE(Here(3));
  EXPECT_EQ(Occupied().pending, 0u);
}

TEST_F(BlockStoreTest, ADropElsewhereEndsNoChainThatIsHeld) {
  Make();
  PutChain(11, 12);
  std::vector<PutId> puts;
  for (std::uint64_t n = 1; n <= 3; ++n) {
    PartWrite part = Part(n, n == 1 ? std::nullopt : std::optional(n - 1));
    part.held = true;
    puts.push_back(part.put_id);
    ASSERT_EQ(WriteOne(part).state, State::kPending);
  }
  ASSERT_TRUE(Drop(12).has_value());
  ASSERT_TRUE(t->Run(t->store->Publish(Me(), ns.slot, puts)).has_value());
  EXPECT_TRUE(Exact(1) && Exact(2) && Exact(3));
}

TEST_F(BlockStoreTest, ADropDoesNotWaitForWhatIsDroppedOfAnotherNamespace) {
  constexpr std::uint64_t kMany = 2500;
  Make({.headers = 4});
  const std::uint32_t many = ns.slot;
  PutChain(1, kMany);
  Attach(OneGroup("few"));
  PutChain(1, 3);
  const BlockKey first = Key(1), second = Key(2);
  auto dropping = t->store->Drop(many, std::span(&first, 1));
  auto dropped = t->store->Drop(ns.slot, std::span(&second, 1));
  while (t->store->counters().dropped.value() == 0) t->loop->executor().RunReady(1);
  EXPECT_EQ(t->store->counters().dropped.value(), 2u) << "it is collected first";
  EXPECT_EQ(t->Run(std::move(dropped)), 2u);
  EXPECT_EQ(t->Run(std::move(dropping)), kMany);
  EXPECT_TRUE(Exact(1));
  EXPECT_FALSE(Here(2) || Here(3));
}

// Below a prompt that is longer than a step's looks reach.
TEST_F(BlockStoreTest, WhileOthersAreCollectedALongPromptIsExtendedAndDropped) {
  constexpr std::uint64_t kDeep = 600, kOther = 10'000;
  Make({.headers = 4});
  PutChain(1, kDeep);
  PutChain(kOther, kOther + 2500);
  PartWrite held = Part(kDeep + 1, kDeep);
  held.held = true;
  const PutId put = held.put_id;
  ASSERT_EQ(WriteOne(held).state, State::kPending);
  const BlockKey other = Key(kOther), deep = Key(kDeep - 1);
  auto dropping = t->store->Drop(ns.slot, std::span(&other, 1));
  EXPECT_EQ(Put(kDeep + 11, kDeep), State::kPublished);
  EXPECT_EQ(Put(kDeep, kDeep - 1), State::kPresent);
  EXPECT_EQ(t->Run(t->store->Publish(Me(), ns.slot, std::span(&put, 1))), 1u);
  EXPECT_TRUE(Here(kDeep + 1));
  auto deep_drop = t->store->Drop(ns.slot, std::span(&deep, 1));
  while (Here(kDeep - 1)) t->loop->executor().RunReady(1);
  EXPECT_FALSE(dropping.done()) << "nothing was collected any more";
  EXPECT_EQ(t->Run(std::move(dropping)), 2501u);
  EXPECT_EQ(t->Run(std::move(deep_drop)), 4u);
  EXPECT_EQ(Match(1, kDeep), kDeep - 2);
  EXPECT_EQ(Occupied().pending, 0u);
  EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
}

TEST_F(BlockStoreTest, R10ACrashWhileCollectingLeavesNothingOfWhatWasDropped) {
  Make({.headers = 4});
  PutChain(1, 600);
  const BlockKey key = Key(2);
  {
    Task<Result<std::uint64_t>> drop = t->store->Drop(ns.slot, std::span(&key, 1));
    t->loop->Crash();
  }
  t->Restart();
  Attach(OneGroup());
  EXPECT_TRUE(Here(1));
  for (std::uint64_t n = 2; n <= 600; ++n) ASSERT_FALSE(Here(n)) << n;
  EXPECT_EQ(Put(2, 1), State::kPublished);
  Restart();
  EXPECT_EQ(Occupied().records, 2u);
}

TEST_F(BlockStoreTest, R10ANamespaceDropChangesItsIncarnation) {
  Make();
  PutChain(1, 5);
  Put(9, 8);
  auto dropped = t->Run(t->store->DropNamespace(ns.slot));
  ASSERT_TRUE(dropped.has_value());
  EXPECT_EQ(dropped->first, 5u);
  EXPECT_NE(dropped->second, ns.incarnation);
  EXPECT_EQ(t->store->CheckNamespace(ns.slot, ns.incarnation).code(), Code::kMiss);
  EXPECT_TRUE(t->store->CheckNamespace(ns.slot, dropped->second).ok());
  EXPECT_EQ(Occupied().records, 0u);
  EXPECT_EQ(Occupied().pending, 0u);
  EXPECT_EQ(t->slots->counts().used_slots, 0u);
  EXPECT_FALSE(Here(1));
  PutChain(1, 2);
  const std::uint64_t incarnation = dropped->second;
  Restart();
  EXPECT_EQ(ns.incarnation, incarnation);
  EXPECT_TRUE(Exact(1) && Exact(2));
}

TEST_F(BlockStoreTest, R10ANamespaceDropEndsItsOwnPutsAlone) {
  Make();
  const Attached first = ns;
  Attach(OneGroup("other"));
  const Attached second = ns;
  std::vector<PutId> puts;
  for (const Attached& each : {first, second}) {
    ns = each;
    for (std::uint64_t n = 1; n <= 3; ++n) {
      PartWrite part = Part(n, n == 1 ? std::nullopt : std::optional(n - 1));
      part.held = true;
      puts.push_back(part.put_id);
      ASSERT_EQ(WriteOne(std::move(part)).state, State::kPending);
    }
  }
  ASSERT_EQ(Occupied().pending, 6u);
  const auto dropped = t->Run(t->store->DropNamespace(first.slot));
  ASSERT_TRUE(dropped.has_value());
  EXPECT_EQ(Occupied().pending, 3u);
  ns = first;
  (void)t->Run(t->store->Publish(Me(), first.slot, std::span(puts).first(3)));
  EXPECT_FALSE(Here(1) || Here(2) || Here(3));
  ns = second;
  ASSERT_TRUE(t->Run(t->store->Publish(Me(), second.slot, std::span(puts).last(3))).has_value());
  EXPECT_TRUE(Exact(1) && Exact(2) && Exact(3));
  EXPECT_EQ(Occupied().pending, 0u);
}

// Of what came after the drop it takes nothing.
TEST_F(BlockStoreTest, APutMadeUnderADropInProgressIsNotEndedByIt) {
  Make({.headers = 4});
  PutChain(1, 600);
  const BlockKey key = Key(2);
  Task<Result<std::uint64_t>> drop = t->store->Drop(ns.slot, std::span(&key, 1));
  ASSERT_FALSE(drop.done());
  EXPECT_EQ(Put(3, 2), State::kPending);
  EXPECT_EQ(*t->Run(std::move(drop)), 599u);
  EXPECT_EQ(Occupied().pending, 1u);
  EXPECT_EQ(Put(2, 1), State::kPublished);
  EXPECT_TRUE(Exact(2) && Exact(3));
}

TEST_F(BlockStoreTest, R10ADropWhoseTombstoneIsNotDurableIsNotAcknowledged) {
  Make();
  PutChain(1, 3);
  PutChain(11, 13);
  int left = 1;
  t->disk.set_faults([&](const io::IoRequest&, const std::string&) {
    return left-- > 0 ? io::Fault{io::FaultKind::kIoError, 0} : io::Fault{};
  });
  const BlockKey keys[] = {Key(2), Key(12)};
  const auto dropped = t->Run(t->store->Drop(ns.slot, keys));
  ASSERT_FALSE(dropped.has_value());
  EXPECT_EQ(dropped.error().code(), Code::kIoError);
  EXPECT_FALSE(Here(2) || Here(3) || Here(12) || Here(13)) << "it has happened all the same";
  EXPECT_TRUE(Drop(2).has_value() && Drop(11).has_value());
  Restart();
  EXPECT_TRUE(Exact(1));
  EXPECT_FALSE(Here(2) || Here(3) || Here(11) || Here(12) || Here(13));
}

TEST_F(BlockStoreTest, R10ATimeToLiveIsAHardLimitAndCutsDescendants) {
  Make();
  PartWrite mortal = Part(1, {});
  mortal.ttl_s = 5;
  WriteOne(mortal);
  PutChain(11, 12);
  Put(2, 1);
  t->Advance(4'000'000);
  EXPECT_TRUE(Here(1));
  t->Advance(1'000'000);
  EXPECT_FALSE(Here(1) || Here(2));
  EXPECT_TRUE(Here(12));
  EXPECT_EQ(Occupied().records, 2u);
  EXPECT_EQ(t->store->counters().expired.value(), 2u);
}

// Behind what it once was the wall clock says nothing of the time that the host slept.
TEST_F(BlockStoreTest, R10ATimeToLiveGoesOnWhileTheHostSleeps) {
  SimulatedClock boot;
  TestStoreOptions options;
  options.boot = &boot;
  Make(options);
  t->clock.StepWall(-7200);
  PartWrite mortal = Part(1, {});
  mortal.ttl_s = 600;
  WriteOne(mortal);
  boot.AdvanceUs(599'000'000);
  t->clock.StepWall(599);
  t->Tick();
  EXPECT_TRUE(Here(1));
  boot.AdvanceUs(2'000'000);
  t->clock.StepWall(2);
  t->Tick();
  EXPECT_FALSE(Here(1));
}

// As that of a host whose RTC reads all ones: what it says would be the time for good.
TEST_F(BlockStoreTest, ATimeToLiveHoldsAfterAWallClockPastAllExpiries) {
  Make();
  PartWrite mortal = Part(1, {});
  mortal.ttl_s = 100;
  const auto step = static_cast<std::int64_t>(std::numeric_limits<std::uint32_t>::max()) -
                    static_cast<std::int64_t>(t->clock.Wall().seconds) - 5;
  t->Tick();
  t->clock.StepWall(step);
  WriteOne(mortal);
  t->Advance(90'000'000);
  EXPECT_TRUE(Here(1));
  t->clock.StepWall(-step);
  t->Advance(9'000'000);
  EXPECT_TRUE(Here(1));
  t->Advance(2'000'000);
  EXPECT_FALSE(Here(1));
  Restart();
  WriteOne(mortal);
  t->Advance(90'000'000);
  EXPECT_TRUE(Here(1));
}

TEST_F(BlockStoreTest, R10ExpiredStaysGoneWhenTheClockStepsBack) {
  Make();
  PartWrite mortal = Part(1, {});
  mortal.ttl_s = 5;
  WriteOne(mortal);
  Put(2, 1);
  t->clock.AdvanceUs(6'000'000);
  t->store->Tick();
  t->clock.StepWall(-1000);
  EXPECT_FALSE(Here(1));
  Restart();
  EXPECT_FALSE(Here(1) || Here(2));
  EXPECT_EQ(Occupied().records, 0u);
}

// An hour back, or an hour ahead once: the time that the clients see goes on all the same.
TEST_F(BlockStoreTest, R10ATimeToLiveEndsThoughTheClockIsWrong) {
  for (const bool was_ahead : {false, true}) {
    Make();
    if (was_ahead) {
      t->clock.StepWall(3600);
      t->Tick();
    }
    PartWrite mortal = Part(1, {});
    mortal.ttl_s = 2;
    WriteOne(mortal);
    t->clock.StepWall(-3600);
    t->Advance(1'000'000);
    EXPECT_TRUE(Here(1));
    for (int i = 0; i < 20; ++i) t->Advance(1'000'000);
    EXPECT_FALSE(Here(1));
    Restart();
    EXPECT_FALSE(Here(1));
    EXPECT_EQ(Occupied().records, 0u);
  }
}

TEST_F(BlockStoreTest, P5NoStepIsLongerThanItsBoundInADropOfMany) {
  Make({.headers = 16});
  constexpr std::uint64_t kBlocks = 20'000;
  const std::vector<std::byte> body = Body(1, 512);
  for (std::uint64_t n = 0; n < kBlocks; n += 100) {
    std::vector<PartWrite> parts;
    for (std::uint64_t i = n; i < n + 100; ++i) {
      PartWrite part;
      part.key = Key(i);
      if (i > 0) part.parent = Key((i - 1) / 2);
      part.put_id = {2, i};
      part.from = body;
      parts.push_back(part);
    }
    for (const PartOutcome& outcome : Write(parts, Me())) ASSERT_EQ(outcome.state, State::kPublished);
  }
  EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
  EXPECT_EQ(*Drop(0), kBlocks);
  EXPECT_EQ(Occupied().records, 0u);
  EXPECT_EQ(Occupied().blocks, 0u);
  EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
}

TEST_F(BlockStoreTest, ATickIsOverInTimeThoughMuchIsLeftOfADrop) {
  Make({.headers = 4});
  constexpr std::uint64_t kBlocks = 1000;
  const std::vector<std::byte> body = Body(1, 512);
  std::vector<PartWrite> parts;
  for (std::uint64_t n = 0; n < kBlocks; ++n) {
    PartWrite part;
    part.key = Key(n);
    if (n > 0) part.parent = Key(0);
    part.put_id = {2, n};
    part.from = body;
    parts.push_back(part);
  }
  for (const PartOutcome& outcome : Write(parts, Me())) ASSERT_EQ(outcome.state, State::kPublished);
  const BlockKey root = Key(0);
  Task<Result<std::uint64_t>> drop = t->store->Drop(ns.slot, std::span(&root, 1));
  while (Here(0)) t->loop->Turn();
  EXPECT_TRUE(t->Run(TickUntil(t->loop->executor(), *t->store, t->clock.Now())));
  EXPECT_GT(Occupied().records, 0u);
  EXPECT_FALSE(t->Run(TickUntil(t->loop->executor(), *t->store, Instant::Never())));
  EXPECT_EQ(Occupied().records, 0u);
  while (!drop.done()) t->loop->Turn();
  EXPECT_EQ(drop.Take().value_or(0), kBlocks);
}

TEST_F(BlockStoreTest, P5ManyPutsOfOneParentEndInSteps) {
  Make({.headers = 4});
  Put(1, {});
  for (std::uint64_t n = 10; n < 2000; ++n) {
    PartWrite held = Part(n, 1);
    held.held = true;
    WriteOne(held);
  }
  Drop(1);
  EXPECT_EQ(Occupied().pending, 0u);
  EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
}

TEST_F(BlockStoreTest, P5ManyPutsOfOneNumberEndInSteps) {
  Make({.headers = 4});
  for (std::uint64_t n = 10; n < 2000; ++n) {
    PartWrite held = Part(n, 1);
    held.held = true;
    held.put_id = {7, 7};
    WriteOne(held);
  }
  const PutId id{7, 7};
  EXPECT_EQ(*t->Run(t->store->Abandon(Me(), ns.slot, std::span(&id, 1))), 1990u);
  EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
}

}  // namespace
}  // namespace cistern::store
