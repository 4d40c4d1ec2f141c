// SPDX-License-Identifier: Apache-2.0
#include "store/block_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/random.h"
#include "record/verified_copy.h"
#include "store/test_store.h"

namespace cistern {
namespace {

using State = PartOutcome::State;

BlockKey Key(std::uint64_t n) {
  BlockKey key;
  key.length = 16;
  Random random(n + 1);
  for (int i = 0; i < 16; ++i) key.bytes[i] = static_cast<std::uint8_t>(random.Next());
  return key;
}

std::vector<std::byte> Body(std::uint64_t n, std::size_t bytes) {
  std::vector<std::byte> body(bytes);
  Random random(n * 31 + 7);
  for (std::size_t at = 0; at < bytes; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random.Next();
    std::memcpy(body.data() + at, &word, std::min(bytes - at, sizeof(word)));
  }
  return body;
}

NamespaceSpec OneGroup(std::string name = "test") {
  NamespaceSpec spec;
  spec.name = name;
  spec.fields = {{"name", name}};
  spec.groups = {{.name = "full"}};
  return spec;
}

class BlockStoreTest : public testing::Test {
 protected:
  void Make(const TestStoreOptions& options = {}, const NamespaceSpec& spec = OneGroup()) {
    t.emplace(options);
    ASSERT_TRUE(t->recovered.ok()) << t->recovered.ToString();
    Attach(spec);
  }
  void Attach(const NamespaceSpec& spec) {
    auto attached = t->Run(t->store->Attach(spec));
    ASSERT_TRUE(attached.has_value()) << attached.error().ToString();
    ns = *attached;
  }
  Instant Soon() { return t->clock.Now().PlusUs(1'000'000); }
  Caller Me(std::uint8_t owner = 1, SessionId session = 1) {
    Caller caller{session, {}};
    caller.owner[0] = std::byte{owner};
    return caller;
  }
  // Block n with parent (none for 0), its bytes made from its content number.
  PartWrite Part(std::uint64_t n, std::optional<std::uint64_t> parent, std::size_t bytes = 4096) {
    bodies_.push_back(Body(n, bytes));
    PartWrite part;
    part.key = Key(n);
    if (parent) part.parent = Key(*parent);
    part.put_id = {1, ++puts_};
    part.from = bodies_.back();
    return part;
  }
  std::vector<PartOutcome> Write(std::vector<PartWrite> parts, Caller caller) {
    return t->Run(t->store->Write(caller, ns.slot, std::move(parts), Soon()));
  }
  PartOutcome WriteOne(PartWrite part) { return Write({std::move(part)}, Me())[0]; }
  State Put(std::uint64_t n, std::optional<std::uint64_t> parent, std::size_t bytes = 4096) {
    const PartOutcome outcome = WriteOne(Part(n, parent, bytes));
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.ToString();
    return outcome.state;
  }
  // Blocks first to last, each below the one before; the first a chain's first.
  void PutChain(std::uint64_t first, std::uint64_t last, std::size_t bytes = 4096) {
    for (std::uint64_t n = first; n <= last; ++n) {
      ASSERT_EQ(Put(n, n == first ? std::nullopt : std::optional(n - 1), bytes), State::kPublished) << n;
    }
  }
  bool Here(std::uint64_t n, std::uint16_t group = 0) { return t->Read(ns.slot, Key(n), group).has_value(); }
  bool Exact(std::uint64_t n, std::size_t bytes = 4096) { return t->Read(ns.slot, Key(n)) == Body(n, bytes); }
  std::uint32_t Match(std::uint64_t first, std::uint64_t last, std::uint32_t matched = 0) {
    std::vector<BlockKey> chain;
    for (std::uint64_t n = first; n <= last; ++n) chain.push_back(Key(n));
    return *t->Run(t->store->MatchRest(ns.slot, matched, chain));
  }
  Result<LeaseId> Hold(std::uint64_t first, std::uint64_t last, std::int64_t us = 1'000'000, Caller caller = {1, {}}) {
    std::vector<BlockKey> chain;
    for (std::uint64_t n = first; n <= last; ++n) chain.push_back(Key(n));
    return t->Run(t->store->Hold(caller, ns.slot, chain, us));
  }
  AcquireGrant Acquire(std::vector<std::uint64_t> ns_keys, Caller caller) {
    std::vector<BlockStore::BlockName> names;
    for (std::uint64_t n : ns_keys) names.push_back({Key(n), 0});
    auto grant = t->Run(t->store->Acquire(caller, ns.slot, names, 1'000'000, Soon()));
    EXPECT_TRUE(grant.has_value());
    return *grant;
  }
  Result<std::uint64_t> Drop(std::uint64_t n) {
    const BlockKey key = Key(n);
    return t->Run(t->store->Drop(ns.slot, std::span(&key, 1)));
  }
  void Restart(const NamespaceSpec& spec = OneGroup()) {
    t->Restart();
    ASSERT_TRUE(t->recovered.ok()) << t->recovered.ToString();
    Attach(spec);
  }
  BlockStore::Occupancy Occupied() { return t->store->occupancy(); }

  std::optional<TestStore> t;
  Attached ns;
  std::vector<std::vector<std::byte>> bodies_;
  std::uint64_t puts_ = 0;
};

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

NamespaceSpec TwoParts() {
  NamespaceSpec spec = OneGroup("parts");
  spec.groups[0].part_bytes = {70'000, 5'000};
  return spec;
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

TEST_F(BlockStoreTest, R6ADifferenceToTheWritersChecksumsPublishesNothing) {
  Make();
  PartWrite part = Part(1, {}, 70'000);
  part.checksums = {Crc32c(part.from.data(), 65536), Crc32c(part.from.data() + 65536, 70'000 - 65536) ^ 1};
  const PartOutcome outcome = WriteOne(part);
  EXPECT_EQ(outcome.status.code(), Code::kInvalid);
  EXPECT_FALSE(Here(1));
  EXPECT_EQ(t->slots->counts().used_slots, 0u);
  part.checksums[1] ^= 1;
  EXPECT_EQ(WriteOne(part).state, State::kPublished);
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

TEST_F(BlockStoreTest, EvictionTakesTheColdestLeafAndCountsRecordsExactly) {
  Make({.store = {.max_blocks = 6}});
  PutChain(1, 3);
  PutChain(11, 13);
  EXPECT_EQ(Occupied().records, 6u);
  Put(21, {});
  EXPECT_EQ(Occupied().records, 6u);
  EXPECT_FALSE(Here(3));
  EXPECT_TRUE(Here(1) && Here(2) && Here(13) && Here(21));
  const BlockKey leaf_to_root[] = {Key(2), Key(1)};
  EXPECT_EQ(t->Run(t->store->Touch(ns.slot, leaf_to_root)), 2u);
  Put(22, {});
  EXPECT_FALSE(Here(13));
  EXPECT_TRUE(Here(2));
  EXPECT_EQ(t->store->counters().evicted.value(), 2u);
}

TEST_F(BlockStoreTest, AChainLongerThanTheStoreKeepsItsFirstBlocks) {
  Make({.store = {.max_blocks = 4}});
  std::vector<PartWrite> parts;
  for (std::uint64_t n = 1; n <= 7; ++n) {
    parts.push_back(Part(n, n == 1 ? std::nullopt : std::optional(n - 1)));
  }
  const auto outcomes = Write(parts, Me());
  for (int i = 0; i < 4; ++i) EXPECT_EQ(outcomes[i].state, State::kPublished) << i;
  for (int i = 4; i < 7; ++i) EXPECT_EQ(outcomes[i].status.code(), Code::kBusy) << i;
  EXPECT_EQ(Match(1, 7), 4u);
  EXPECT_EQ(Occupied().pending, 0u);
  EXPECT_EQ(t->slots->counts().used_slots, 4u);
}

TEST_F(BlockStoreTest, P4AHoldKeepsItsChainUntilItsDeadline) {
  Make({.store = {.max_blocks = 4}});
  PutChain(1, 4);
  ASSERT_TRUE(Hold(1, 4).has_value());
  EXPECT_EQ(WriteOne(Part(11, {})).status.code(), Code::kBusy);
  EXPECT_EQ(Match(1, 4), 4u);
  t->Advance(1'000'001);
  EXPECT_EQ(Occupied().leases, 0u);
  EXPECT_EQ(Put(12, {}), State::kPublished);
  EXPECT_FALSE(Here(4));
  EXPECT_EQ(Hold(1, 4).error().code(), Code::kMiss);
}

TEST_F(BlockStoreTest, P4LeasesEndByReleaseOwnerAndSession) {
  Make({.store = {.max_blocks = 2}});
  PutChain(1, 2);
  AcquireGrant grant = Acquire({1, 2, 3}, Me());
  EXPECT_NE(grant.lease, 0u);
  EXPECT_EQ(grant.views[0].code, Code::kOk);
  EXPECT_EQ(grant.views[2].code, Code::kMiss);
  EXPECT_EQ(Occupied().leased_blocks, 2u);
  EXPECT_EQ(t->store->Release(Me(2, 2), grant.lease).code(), Code::kDenied);
  EXPECT_TRUE(t->store->Release(Me(1, 5), grant.lease).ok());
  EXPECT_EQ(t->store->Release(Me(), grant.lease).code(), Code::kLapsed);
  grant = Acquire({1}, Me(1, 3));
  t->Run(t->store->SessionEnded(Me(1, 3), false));
  EXPECT_EQ(Occupied().leases, 0u);
  EXPECT_EQ(Occupied().leased_blocks, 0u);
  EXPECT_EQ(Put(9, {}), State::kPublished);
}

TEST_F(BlockStoreTest, P5LeasesAreBounded) {
  Make({.store = {.max_leases = 2, .max_leased_blocks = 10}});
  PutChain(1, 3);
  ASSERT_TRUE(Hold(1, 1).has_value());
  ASSERT_TRUE(Hold(1, 2).has_value());
  EXPECT_EQ(Hold(1, 3).error().code(), Code::kBusy);
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
  Make({.heads = 4});
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

// Its parents were not here when they were dropped, so that drop could not find it below them.
TEST_F(BlockStoreTest, R10APutThatWasBelowADropStaysGoneWhateverIsDroppedLater) {
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

TEST_F(BlockStoreTest, R10ACrashWhileCollectingLeavesNothingOfWhatWasDropped) {
  Make({.heads = 4});
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

TEST_F(BlockStoreTest, R10ATimeToLiveIsAHardLimitAndCutsWhatIsBelow) {
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

TEST_F(BlockStoreTest, P7ARestartBringsBackWhatIsReachable) {
  Make();
  for (std::uint64_t chain = 0; chain < 20; ++chain) PutChain(chain * 100, chain * 100 + 30);
  Put(5000, 4999);  // pending: is not published, does not come back
  const auto before = Occupied();
  Restart();
  EXPECT_EQ(Occupied().records, before.records);
  EXPECT_EQ(Occupied().bytes, before.bytes);
  EXPECT_EQ(t->slots->counts().used_slots, before.records);
  EXPECT_EQ(t->store->counters().recovered.value(), before.records);
  EXPECT_TRUE(Exact(1930));
  EXPECT_EQ(Match(100, 130), 31u);
  EXPECT_FALSE(Here(5000));
  AcquireGrant grant = Acquire({130}, Me());
  EXPECT_EQ(grant.views[0].code, Code::kOk);
  EXPECT_EQ(t->movers->jobs, 1u) << "verified once after the restart";
  Acquire({130}, Me());
  EXPECT_EQ(t->movers->jobs, 1u);
}

TEST_F(BlockStoreTest, P7RecoveryGoesOverLongStretchesOfFreeSlots) {
  Make({.heads = 4});
  for (std::uint64_t n = 0; n < 9000; n += 100) {
    std::vector<PartWrite> parts;
    for (std::uint64_t i = n; i < n + 100; ++i) parts.push_back(Part(i, {}, 512));
    Write(std::move(parts), Me());
  }
  for (std::uint64_t n = 10; n < 8990; n += 500) {
    std::vector<BlockKey> keys;
    for (std::uint64_t i = n; i < n + 500 && i < 8990; ++i) keys.push_back(Key(i));
    ASSERT_TRUE(t->Run(t->store->Drop(ns.slot, keys)).has_value());
  }
  Restart();
  EXPECT_EQ(Occupied().records, 20u);
}

TEST_F(BlockStoreTest, P7WhatRecoveryRefusesDoesNotTakeItsChunkAlong) {
  Make();
  // As many as recovery takes at a time, so that nothing of the chunk is in use when they are refused.
  for (std::uint64_t n = 1; n <= 128; ++n) {
    PartWrite mortal = Part(n, {});
    mortal.ttl_s = 5;
    WriteOne(mortal);
  }
  for (std::uint64_t n = 200; n < 300; ++n) Put(n, {});
  t->clock.AdvanceUs(10'000'000);
  Restart();
  EXPECT_EQ(Occupied().records, 100u);
  EXPECT_TRUE(Exact(250));
}

TEST_F(BlockStoreTest, R3RecoveryCutsWhatTheIndexHasNoRoomFor) {
  Make({.heads = 1});
  const auto fingerprint = [&](std::uint64_t n) { return FingerprintOf(ns.incarnation, 0, Key(n)); };
  const std::uint64_t a = t->index.bucket(fingerprint(1), 0), b = t->index.bucket(fingerprint(1), 1);
  // By first and second bucket.
  std::vector<std::uint64_t> ab, ba, ac;
  for (std::uint64_t n = 10; ab.size() < 32 || ba.size() < 32 || ac.size() < 4; ++n) {
    const std::uint64_t first = t->index.bucket(fingerprint(n), 0), second = t->index.bucket(fingerprint(n), 1);
    if (first == a) (second == b ? ab : ac).push_back(n);
    if (first == b && second == a) ba.push_back(n);
  }
  for (std::uint64_t n = 1; n <= 4; ++n) Put(n, {});
  for (int i = 0; i < 32; ++i) Put(ab[i], {});
  for (int i = 0; i < 32; ++i) Put(ba[i], {});
  for (std::uint64_t n = 1; n <= 4; ++n) Drop(n);
  // These have the lowest places now, so they come first at a restart and take what was others'.
  for (int i = 0; i < 4; ++i) Put(ac[i], {});
  EXPECT_GT(Occupied().records, 64u);
  Restart();
  EXPECT_EQ(Occupied().records, 64u);
  EXPECT_TRUE(Here(ac[0]));
}

TEST_F(BlockStoreTest, R11RecoveryBelievesAChildOnlyBelowAnOlderParent) {
  Make();
  PutChain(1, 3);
  // As a crash in the middle of a drop leaves it: the parent's record is gone.
  auto grant = Acquire({2}, Me());
  t->Stop();
  Retire(t->words, t->arena, grant.views[0].place);
  t->Start();
  Attach(OneGroup());
  EXPECT_TRUE(Here(1));
  EXPECT_FALSE(Here(3));
  EXPECT_EQ(Put(2, 1), State::kPublished);
  Restart();
  EXPECT_EQ(Occupied().records, 2u);
  EXPECT_FALSE(Here(3));
}

TEST_F(BlockStoreTest, ABadBodyIsVerifiedAgainAndCutWithWhatIsBelow) {
  Make();
  PutChain(1, 3);
  const BlockStore::BlockName name{Key(2), 0};
  ASSERT_TRUE(t->Run(t->store->ReportBad(ns.slot, std::span(&name, 1))).ok());
  EXPECT_EQ(t->store->counters().reported_good.value(), 1u);
  EXPECT_TRUE(Here(2));
  auto grant = Acquire({2}, Me());
  t->arena.slot(grant.views[0].place)[100] ^= std::byte{1};
  EXPECT_FALSE(Here(2));
  ASSERT_TRUE(t->Run(t->store->ReportBad(ns.slot, std::span(&name, 1))).ok());
  EXPECT_EQ(t->store->counters().reported_bad.value(), 1u);
  t->Tick();
  EXPECT_TRUE(Here(1));
  EXPECT_FALSE(Here(3));
  EXPECT_EQ(Put(2, 1), State::kPublished) << "what is known bad does not count as present";
  EXPECT_TRUE(Exact(2));
}

TEST_F(BlockStoreTest, R1ADamagedEntryOfASoundRecordIsRepaired) {
  Make();
  PutChain(1, 2);
  const Fingerprint fingerprint = FingerprintOf(ns.incarnation, 0, Key(2));
  std::uint64_t number = 0;
  while (t->index.entry(number)->fingerprint[0] != fingerprint.words[0]) ++number;
  IndexEntry* entry = t->index.entry(number);
  const IndexEntry was = *entry;
  for (std::uint64_t* word : {&entry->fingerprint[1], &entry->place_and_bytes, &entry->rest}) {
    *word ^= 1u << 13;
    EXPECT_FALSE(Here(2));
    const BlockStore::BlockName name{Key(2), 0};
    ASSERT_TRUE(t->Run(t->store->ReportBad(ns.slot, std::span(&name, 1))).ok());
    EXPECT_EQ(std::memcmp(entry, &was, sizeof(was)), 0);
    EXPECT_TRUE(Exact(2));
  }
  EXPECT_EQ(t->store->counters().reported_good.value(), 3u);
  EXPECT_EQ(Occupied().records, 2u);
}

// Between the verification and who waited for it another task may end the record, and a new one take its number.
TEST_F(BlockStoreTest, P1WhatWentAfterItWasVerifiedIsNotGranted) {
  for (int steps = 0;; ++steps) {
    Make();
    PutChain(1, 1);
    Restart();
    t->movers->paused = true;
    const BlockKey key = Key(1);
    const BlockStore::BlockName name{key, 0};
    auto acquiring = t->store->Acquire(Me(), ns.slot, std::span(&name, 1), 1'000'000, Soon());
    ASSERT_EQ(t->movers->waiting.size(), 1u);
    t->movers->MoveOne(0);
    for (int i = 0; i < steps; ++i) t->loop->executor().RunReady(1);
    if (acquiring.done()) {
      EXPECT_GE(steps, 2);
      break;
    }
    auto dropping = t->store->Drop(ns.slot, std::span(&key, 1));
    auto writing = t->store->Write(Me(), ns.slot, {Part(9, {}, 4096)}, Soon());
    const auto grant = t->Run(std::move(acquiring));
    ASSERT_TRUE(grant.has_value());
    EXPECT_EQ(grant->views[0].code, Code::kMiss) << steps << " steps";
    EXPECT_EQ(grant->lease, 0u);
    EXPECT_TRUE(t->Run(std::move(dropping)).has_value());
    EXPECT_EQ(t->Run(std::move(writing))[0].state, State::kPublished);
    EXPECT_TRUE(Exact(9));
  }
}

TEST_F(BlockStoreTest, R1WhatWentAfterItWasVerifiedHasNoEntryRepaired) {
  for (int steps = 0;; ++steps) {
    Make();
    PutChain(1, 1);
    t->movers->paused = true;
    const BlockKey key = Key(1);
    const BlockStore::BlockName name{key, 0};
    auto reporting = t->store->ReportBad(ns.slot, std::span(&name, 1));
    ASSERT_EQ(t->movers->waiting.size(), 1u);
    t->movers->MoveOne(0);
    for (int i = 0; i < steps; ++i) t->loop->executor().RunReady(1);
    if (reporting.done()) {
      EXPECT_GE(steps, 2);
      break;
    }
    auto dropping = t->store->Drop(ns.slot, std::span(&key, 1));
    EXPECT_TRUE(t->Run(std::move(reporting)).ok());
    EXPECT_TRUE(t->Run(std::move(dropping)).has_value());
    EXPECT_FALSE(Here(1));
    EXPECT_EQ(Put(1, {}), State::kPublished);
    EXPECT_TRUE(Exact(1));
  }
}

TEST_F(BlockStoreTest, AcquireCutsWhatTheRestartLeftBad) {
  Make();
  PutChain(1, 2);
  auto grant = Acquire({2}, Me());
  t->arena.slot(grant.views[0].place)[100] ^= std::byte{1};
  Restart();
  grant = Acquire({1, 2}, Me());
  EXPECT_EQ(grant.views[0].code, Code::kOk);
  EXPECT_EQ(grant.views[1].code, Code::kMiss);
  t->Tick();
  EXPECT_EQ(Occupied().records, 1u);
}

NamespaceSpec FullAndWindow() {
  NamespaceSpec spec = OneGroup("window");
  spec.groups = {{.name = "full"}, {.name = "local", .reach = Reach::kWindow, .window_tokens = 2}};
  return spec;
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

TEST_F(BlockStoreTest, WindowsBehindTheReachGoFirst) {
  Make({.store = {.max_blocks = 8}}, FullAndWindow());
  for (std::uint64_t n = 1; n <= 4; ++n) {
    PartWrite full = Part(n, n == 1 ? std::nullopt : std::optional(n - 1)), local = full;
    local.group = 1;
    local.put_id.low += 1000;
    for (const PartOutcome& outcome : Write({full, local}, Me())) EXPECT_EQ(outcome.state, State::kPublished);
  }
  PartWrite more = Part(5, 4);
  WriteOne(more);
  more.group = 1;
  WriteOne(more);
  EXPECT_FALSE(Here(1, 1) || Here(2, 1));
  EXPECT_TRUE(Here(4, 1) && Here(5, 1) && Here(1) && Here(5));
  EXPECT_EQ(Match(1, 5), 5u);
}

// What was cut meanwhile hides a deep parent from one slice of the cascade to the next.
TEST_F(BlockStoreTest, R7ACutElsewhereKeepsNoGroupWaitingForItsTime) {
  Make({.heads = 4}, FullAndWindow());
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

NamespaceSpec WindowOnly() {
  NamespaceSpec spec = OneGroup("window only");
  spec.groups = {{.name = "local", .reach = Reach::kWindow, .window_tokens = 2}};
  return spec;
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

TEST_F(BlockStoreTest, R14AChunkIsEmptiedForAnotherSize) {
  Make({.heads = 2});
  // Fill both heads with 1 MiB blocks, then ask for small ones.
  std::uint64_t n = 100;
  while (t->slots->counts().used_bytes + (1u << 20) <= 2 * kHeadSpanBytes - 2 * (1u << 20)) {
    ASSERT_EQ(Put(n++, {}, 1u << 20), State::kPublished);
  }
  EXPECT_EQ(t->slots->counts().free_heads, 0u);
  EXPECT_EQ(Put(1, {}, 4096), State::kPublished);
  EXPECT_TRUE(Exact(1));
  std::uint64_t left = 0;
  for (std::uint64_t i = 100; i < n; ++i) left += Exact(i, 1u << 20);
  EXPECT_EQ(left + 1, Occupied().records);
  EXPECT_GE(left, 28u) << "no more than a chunk's worth went";
  Restart();
  EXPECT_EQ(Occupied().records, left + 1);
}

// Blocks 1 to 5 in the first chunk, the rest of their chain in the second, the last of it held: nothing may go, and
// the first chunk is emptied by moving what is in it.
TEST_F(BlockStoreTest, R14AChunkThatWasFreedMeanwhileIsOthers) {
  Make({.heads = 2});
  constexpr std::size_t kBytes = 1u << 20;
  PutChain(1, 5, kBytes);
  for (std::uint64_t n = 100; t->slots->counts().free_heads > 0; ++n) ASSERT_EQ(Put(n, {}, kBytes), State::kPublished);
  for (std::uint64_t n = 6; n <= 32; ++n) ASSERT_EQ(Put(n, n - 1, kBytes), State::kPublished);
  std::vector<BlockKey> others;
  for (std::uint64_t n = 100; n < 200; ++n) others.push_back(Key(n));
  ASSERT_TRUE(t->Run(t->store->Drop(ns.slot, others)).has_value());
  ASSERT_EQ(t->slots->counts().chunks, 2u);
  ASSERT_TRUE(Hold(1, 32).has_value());
  t->movers->paused = true;
  auto small = t->store->Write(Me(), ns.slot, {Part(50, {}, 4096)}, Soon());
  for (int i = 0; t->movers->waiting.empty(); ++i) {
    ASSERT_LT(i, 1000);
    t->loop->executor().RunReady(1);
  }
  const std::uint64_t jobs = t->movers->jobs;
  const BlockKey first = Key(1);
  auto dropping = t->store->Drop(ns.slot, std::span(&first, 1));
  while (!dropping.done()) t->loop->Turn();
  t->movers->MoveOne(0);
  while (t->slots->counts().free_heads == 0) ASSERT_EQ(t->loop->executor().RunReady(1), 1u);
  // Before the one that emptied it goes on.
  std::vector<Task<std::vector<PartOutcome>>> thieves;
  for (std::uint64_t n = 40; n < 43; ++n) {
    thieves.push_back(t->store->Write(Me(), ns.slot, {Part(n, {}, kBytes)}, Soon()));
  }
  EXPECT_EQ(t->Run(std::move(small))[0].state, State::kPublished);
  for (auto& thief : thieves) EXPECT_EQ(t->Run(std::move(thief))[0].state, State::kPublished);
  EXPECT_EQ(t->movers->jobs, jobs) << "what others put there is not moved";
  EXPECT_EQ(t->store->counters().evicted.value(), 0u);
  t->movers->paused = false;
}

TEST_F(BlockStoreTest, P5APutThatHasASlotOutlivesThePartThatFoundNone) {
  Make({.heads = 1});
  std::vector<LeaseId> leases;
  for (std::uint64_t n = 1000; t->slots->counts().used_slots < t->slots->counts().slots || n == 1000; ++n) {
    ASSERT_EQ(Put(n, {}), State::kPublished);
    leases.push_back(*Hold(n, n, kMaxLeaseUs));
  }
  NamespaceSpec spec = OneGroup("parts");
  spec.groups[0].part_bytes = {3000, 1000};
  Attach(spec);
  PartWrite parts[] = {Part(1, {}, 3000), Part(1, {}, 1000)};
  parts[1].put_id = parts[0].put_id;
  parts[1].part = 1;
  parts[1].from = std::span(bodies_.back()).first(1000);
  std::vector<Task<std::vector<PartOutcome>>> writes;
  for (const PartWrite& part : parts) writes.push_back(t->store->Write(Me(), ns.slot, {part}, Soon()));
  t->loop->executor().RunReady(4);
  ASSERT_EQ(Occupied().pending, 1u);
  // One of the two finds the slot; for the other the time is over before there is another one.
  ASSERT_TRUE(t->store->Release(Me(), leases[0]).ok());
  while (t->store->counters().evicted.value() == 0) ASSERT_EQ(t->loop->executor().RunReady(1), 1u);
  t->loop->executor().RunReady(6);
  ASSERT_FALSE(writes[0].done() && writes[1].done());
  t->clock.AdvanceUs(2'000'000);
  for (auto& write : writes) {
    const auto outcomes = t->Run(std::move(write));
    EXPECT_TRUE(outcomes[0].status.ok()) << outcomes[0].status.ToString();
  }
  EXPECT_EQ(t->store->counters().evicted.value(), 1u);
  EXPECT_EQ(Occupied().pending, 0u);
  EXPECT_EQ(Acquire({1}, Me()).views[0].code, Code::kOk);
}

TEST_F(BlockStoreTest, R14SizesThatPressInTogetherLeaveNoMemoryEmpty) {
  Make({.heads = 8});
  Random random(3);
  std::uint64_t full = 0, put = 0;
  for (std::uint64_t n = 0; put < 3 * 8 * kHeadSpanBytes; ++n) {
    const std::size_t bytes = std::size_t{16384} << 2 * random.Below(4);
    ASSERT_EQ(Put(n, {}, bytes), State::kPublished);
    bodies_.clear();
    put += bytes;
    full = std::max(full, t->slots->counts().used_bytes);
    if (put < 2 * 8 * kHeadSpanBytes) continue;
    // But for what is left of a chunk that changes its size.
    ASSERT_GE(t->slots->counts().used_bytes + kHeadSpanBytes, full) << n;
  }
  EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
}

TEST_F(BlockStoreTest, R14ASizeThatNobodyAsksForAnyMoreGivesUpAllItsChunks) {
  Make({.heads = 4});
  for (std::uint64_t n = 0; t->slots->counts().free_heads > 0 || n < 4000; ++n) {
    ASSERT_EQ(Put(n, {}, 16384), State::kPublished);
    bodies_.clear();
  }
  for (std::uint64_t n = 10'000; n < 10'400; ++n) {
    ASSERT_EQ(Put(n, {}, 1u << 20), State::kPublished);
    bodies_.clear();
  }
  EXPECT_EQ(Occupied().records, Slots::Capacity(t->geometry, (1u << 20) + 4096));
}

TEST_F(BlockStoreTest, P5FullMemoryEvictsAndIsBusyAtOnceWhenAllIsHeld) {
  Make({.heads = 1});
  constexpr std::size_t kBytes = 1u << 20;
  std::uint64_t n = 0;
  while (t->store->counters().evicted.value() == 0) ASSERT_EQ(Put(n++, {}, kBytes), State::kPublished);
  const std::uint64_t records = Occupied().records;
  for (int i = 0; i < 50; ++i) ASSERT_EQ(Put(n++, {}, kBytes), State::kPublished);
  EXPECT_EQ(Occupied().records, records);
  EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
  for (std::uint64_t i = n - records; i < n; ++i) ASSERT_TRUE(Hold(i, i).has_value()) << i;
  EXPECT_EQ(WriteOne(Part(n, {}, kBytes)).status.code(), Code::kBusy);
  EXPECT_EQ(WriteOne(Part(n, {}, 4096)).status.code(), Code::kBusy) << "no chunk with a lease in it is emptied";
  EXPECT_EQ(t->store->counters().writes_without_room.value(), 2u);
  EXPECT_EQ(Occupied().records, records);
}

TEST_F(BlockStoreTest, P5NoStepIsLongerThanItsBoundInADropOfMany) {
  Make({.heads = 16});
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
  EXPECT_EQ(Occupied().blocks, 1u) << "the root alone";
  EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
}

TEST_F(BlockStoreTest, R16LongListsAreTakenInSteps) {
  Make({.heads = 2});
  std::vector<PartWrite> parts;
  std::vector<BlockKey> keys;
  std::vector<BlockStore::BlockName> names;
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
  // Besides what each of them touches in the tree, its lists are gone over.
  const auto again = parts;
  EXPECT_GT(steps_of(t->store->Write(Me(), ns.slot, std::move(parts), Soon())).first, 3 * 4096 / kStepTouches);
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

TEST_F(BlockStoreTest, P5ManyPutsOfOneParentEndInSteps) {
  Make({.heads = 4});
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
  Make({.heads = 4});
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

NamespaceSpec OneWindow(std::uint32_t blocks) {
  NamespaceSpec spec = OneGroup("window");
  spec.groups = {{.name = "window", .reach = Reach::kWindow, .window_tokens = blocks}};
  return spec;
}

TEST_F(BlockStoreTest, P5ABlockThatComesAfterItsChildrenIsPlacedInAStepOrNotAtAll) {
  Make({.heads = 4}, OneWindow(1000));
  PutChain(1, 1000);
  Put(2001, 2000);
  EXPECT_EQ(Put(2000, 100), State::kPublished);
  Put(3001, 3000);
  EXPECT_EQ(WriteOne(Part(3000, 1000)).status.code(), Code::kBusy);
  EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
}

TEST_F(BlockStoreTest, P5BlocksBehindTheirWindowDoNotEndAllPuts) {
  Make({.heads = 1}, OneWindow(1));
  for (std::uint64_t chain = 1; chain <= 60; ++chain) PutChain(chain * 1000, chain * 1000 + 299);
}

// A chain of ghosts as deep as the tree has room.
TEST_F(BlockStoreTest, P2NobodyFindsWhatHasNoPlaceInTheTree) {
  Make({.heads = 1, .store = {.max_blocks = 2}}, OneWindow(1));
  const std::byte* from = reinterpret_cast<const std::byte*>(t->index.entry(0));
  const std::size_t bytes = t->index.entry_count() * sizeof(IndexEntry);
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
  for (std::size_t at = 0; at < bytes; at += sizeof(IndexEntry)) {
    changed += std::memcmp(from + at + 8, before.data() + at + 8, sizeof(IndexEntry) - 8) != 0;
  }
  EXPECT_EQ(changed, 0u) << "not even for a moment";
}

TEST_F(BlockStoreTest, P6AWideWindowIsAskedForWhole) {
  NamespaceSpec spec = OneGroup();
  spec.groups.push_back({.name = "window", .reach = Reach::kWindow, .window_tokens = 128});
  Make({.heads = 4}, spec);
  PutChain(1, 200);
  for (std::uint64_t n = 101; n <= 200; ++n) {
    PartWrite part = Part(n, n - 1);
    part.group = 1;
    ASSERT_EQ(WriteOne(part).state, State::kPublished);
  }
  EXPECT_EQ(Match(1, 200), 0u);
  EXPECT_EQ(Hold(1, 200).error().code(), Code::kMiss);
  EXPECT_EQ(Occupied().leased_blocks, 0u);
}

TEST_F(BlockStoreTest, P6AWideWindowThatIsHereIsFoundFromTheMiddleOn) {
  NamespaceSpec spec = OneGroup();
  spec.block_tokens = 16;
  spec.groups.push_back({.name = "window", .reach = Reach::kWindow, .window_tokens = 16 * 600 - 15});
  Make({.heads = 4}, spec);
  PutChain(1, 1000);
  for (std::uint64_t n = 301; n <= 1000; ++n) {
    PartWrite part = Part(n, n - 1);
    part.group = 1;
    ASSERT_EQ(WriteOne(part).state, State::kPublished);
  }
  EXPECT_EQ(Match(951, 1000, 950), 50u);
  EXPECT_EQ(Match(901, 901, 900), 1u) << "its window begins with block 302";
  EXPECT_EQ(Match(900, 900, 899), 1u) << "with block 301";
  EXPECT_EQ(Match(899, 899, 898), 0u) << "with block 300, which is not here";
  EXPECT_EQ(Match(801, 1000, 800), 200u);
  EXPECT_EQ(Match(801, 899, 800), 0u);
  EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
}

TEST_F(BlockStoreTest, P5TicksOfATimerAreStepsOfTheirOwn) {
  Make({.heads = 4});
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

TEST_F(BlockStoreTest, TouchesFromReadersAreCheckedAgainstPlaceAndGeneration) {
  Make({.store = {.max_blocks = 2}});
  Put(1, {});
  Put(2, {});
  const auto grant = Acquire({1}, Me());
  EXPECT_TRUE(t->store->Release(Me(), grant.lease).ok());
  t->store->TouchPlace(grant.views[0].place, static_cast<std::uint32_t>(grant.views[0].generation) ^ 2);
  t->store->TouchPlace(0xffff'ffff, 2);
  t->store->TouchPlace(grant.views[0].place + 1, 2);
  EXPECT_EQ(t->store->counters().touches_refused.value(), 3u);
  t->store->TouchPlace(grant.views[0].place, static_cast<std::uint32_t>(grant.views[0].generation));
  Put(3, {});
  EXPECT_TRUE(Here(1));
  EXPECT_FALSE(Here(2));
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

TEST_F(BlockStoreTest, NamespacesSurviveAndAnUnnamedEmptyOneGoes) {
  Make();
  NamespaceSpec unnamed = OneGroup("other");
  unnamed.name.clear();
  Attach(unnamed);
  EXPECT_EQ(Occupied().namespaces, 2u);
  Restart();
  EXPECT_EQ(Occupied().namespaces, 1u);
  NamespaceSpec other = OneGroup();
  other.fields[0].second = "changed";
  auto attached = t->Run(t->store->Attach(other));
  ASSERT_FALSE(attached.has_value());
  EXPECT_EQ(attached.error().code(), Code::kMismatch);
}

}  // namespace
}  // namespace cistern
