// SPDX-License-Identifier: Apache-2.0
#include "store/block_store_fixture.h"

namespace cistern::store {
namespace {

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

TEST_F(BlockStoreTest, P5OneOwnersLeasesLeaveMemoryToOthers) {
  Make({.headers = 1});
  constexpr std::size_t kBytes = 1u << 20;
  std::uint64_t n = 0;
  while (t->store->counters().evicted.value() == 0) ASSERT_EQ(Put(n++, {}, kBytes), State::kPublished);
  const std::uint64_t records = Occupied().records, first = n - records;
  const auto lease_all = [&](const catalog::Caller& caller) {
    std::uint64_t leased = 0;
    for (std::uint64_t i = first; i < n; ++i) {
      const Result<catalog::LeaseId> lease = Hold(i, i, kMaxLeaseUs, caller);
      leased += lease.has_value();
      EXPECT_TRUE(lease || lease.error().code() == Code::kBusy);
    }
    return leased;
  };
  EXPECT_EQ(lease_all(Me(2, 2)), records * 4 / 5 + 1);  // the arena has a part of a slot more
  // What several leases of one owner keep together is what counts.
  EXPECT_TRUE(Hold(first, first, kMaxLeaseUs, Me(3, 3)).has_value());
  EXPECT_TRUE(Hold(first + 1, first + 1, kMaxLeaseUs, Me(3, 3)).has_value());
  EXPECT_EQ(Put(n++, {}, kBytes), State::kPublished);
  EXPECT_EQ(Put(n++, {}, kBytes), State::kPublished);
  EXPECT_TRUE(t->store->Release(Me(2, 2), *Hold(n - 1, n - 1, kMaxLeaseUs, Me(4, 4))).code() ==
              Code::kDenied);
  t->Run(t->store->SessionEnded(Me(2, 2), true));
  EXPECT_TRUE(Hold(n - 1, n - 1, kMaxLeaseUs, Me(2, 2)).has_value());
}

TEST_F(BlockStoreTest, P5ManyLeasesOfTheSameBlocksTakeThemOnce) {
  Make({.headers = 1});
  PutChain(1, 10, 1u << 20);
  // Of a third of the memory, ten times over.
  std::vector<std::uint64_t> keys(10);
  for (std::uint64_t i = 0; i < 10; ++i) keys[i] = i + 1;
  for (int i = 0; i < 10; ++i) EXPECT_NE(Acquire(keys, Me()).lease, 0u) << i;
  EXPECT_EQ(Occupied().leases, 10u);
}

TEST_F(BlockStoreTest, P4ALeaseWhoseTimeIsOverTakesNoRoomFromTheNext) {
  Make({.store = {.max_leases = 2, .max_leased_blocks = 10}});
  PutChain(1, 3);
  ASSERT_TRUE(Hold(1, 1, 1000).has_value());
  ASSERT_TRUE(Hold(1, 2, 1000).has_value());
  t->clock.AdvanceUs(2000);
  EXPECT_TRUE(Hold(1, 3).has_value());
  EXPECT_EQ(Acquire({1}, Me()).views.size(), 1u);
}

TEST_F(BlockStoreTest, ABadBodyIsVerifiedAgainAndCutWithItsDescendants) {
  Make();
  PutChain(1, 3);
  const catalog::BlockName name{Key(2), 0};
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

TEST_F(BlockStoreTest, ABadBodyDeepInAChainIsVerifiedAgainWhileOthersAreCollected) {
  constexpr std::uint64_t kDeep = 600, kOther = 10'000;
  Make({.headers = 4});
  PutChain(1, kDeep);
  PutChain(kOther, kOther + 2000);
  const BlockKey other = Key(kOther);
  auto dropping = t->store->Drop(ns.slot, std::span(&other, 1));
  const catalog::BlockName name{Key(kDeep), 0};
  auto reporting = t->store->ReportBad(ns.slot, std::span(&name, 1));
  ASSERT_FALSE(dropping.done());
  EXPECT_TRUE(t->Run(std::move(reporting)).ok());
  EXPECT_EQ(t->store->counters().reported_good.value(), 1u);
  EXPECT_TRUE(t->Run(std::move(dropping)).has_value());
}

TEST_F(BlockStoreTest, R1ADamagedEntryOfASoundRecordIsRepaired) {
  Make();
  PutChain(1, 2);
  const arena::Fingerprint fingerprint = arena::FingerprintOf(ns.incarnation, 0, Key(2));
  std::uint64_t number = 0;
  while (t->index.entry(number)->fingerprint[0] != fingerprint.words[0]) ++number;
  arena::IndexEntry* entry = t->index.entry(number);
  const arena::IndexEntry was = *entry;
  for (std::uint64_t* word : {&entry->fingerprint[1], &entry->place_and_bytes, &entry->rest}) {
    *word ^= 1u << 13;
    EXPECT_FALSE(Here(2));
    const catalog::BlockName name{Key(2), 0};
    ASSERT_TRUE(t->Run(t->store->ReportBad(ns.slot, std::span(&name, 1))).ok());
    EXPECT_EQ(std::memcmp(entry, &was, sizeof(was)), 0);
    EXPECT_TRUE(Exact(2));
  }
  EXPECT_EQ(t->store->counters().reported_good.value(), 3u);
  EXPECT_EQ(Occupied().records, 2u);
}

// Between the verification and who waited for it another task may end the record, and a new one take its
// number.
TEST_F(BlockStoreTest, P1WhatWentAfterItWasVerifiedIsNotGranted) {
  for (int steps = 0;; ++steps) {
    Make();
    PutChain(1, 1);
    Restart();
    t->movers->paused = true;
    const BlockKey key = Key(1);
    const catalog::BlockName name{key, 0};
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

// A drop cuts its block at once and collects what hangs below it in later steps.
// Deeper than a step's looks reach, from the block up.
TEST_F(BlockStoreTest, ADeepBlockIsFoundWhileOthersAreCollected) {
  constexpr std::uint64_t kDeep = 600, kOther = 10'000;
  Make();
  PutChain(1, kDeep);
  PutChain(kOther, kOther + 2000);
  const BlockKey other = Key(kOther);
  Task<Result<std::uint64_t>> dropping = t->store->Drop(ns.slot, std::span(&other, 1));
  const std::vector<catalog::BlockName> names = {{Key(kDeep - 1), 0}, {Key(kDeep), 0}, {Key(kDeep - 200), 0}};
  Task<Result<AcquireGrant>> acquiring = t->store->Acquire(Me(), ns.slot, names, 1'000'000, Soon());
  const std::vector<BlockKey> rest = {Key(kDeep - 1), Key(kDeep), Key(kDeep + 1)};
  Task<Result<std::vector<MatchRun>>> matching = t->store->MatchRest(ns.slot, kDeep - 2, rest);
  ASSERT_FALSE(dropping.done());
  const Result<AcquireGrant> grant = t->Run(std::move(acquiring));
  const Result<std::vector<MatchRun>> runs = t->Run(std::move(matching));
  EXPECT_FALSE(dropping.done()) << "nothing was collected any more";
  ASSERT_TRUE(grant.has_value());
  for (const ViewGrant& view : grant->views) EXPECT_EQ(view.code, Code::kOk);
  ASSERT_TRUE(runs.has_value());
  ASSERT_EQ(runs->size(), 1u);
  EXPECT_EQ((*runs)[0].blocks, 2u);
  EXPECT_EQ(t->Run(std::move(dropping)), 2001u);
}

// Each of them is as deep as a step's looks reach, in a chain of its own.
TEST_F(BlockStoreTest, P5ManyDeepBlocksAreFoundInStepsWhileOthersAreCollected) {
  constexpr std::uint64_t kChains = 32, kDeep = 300, kOther = 100'000;
  Make({.headers = 4});
  std::vector<catalog::BlockName> names;
  for (std::uint64_t chain = 0; chain < kChains; ++chain) {
    PutChain(1'000 * chain, 1'000 * chain + kDeep);
    names.push_back({Key(1'000 * chain + kDeep), 0});
  }
  PutChain(kOther, kOther + 2000);
  const BlockKey other = Key(kOther);
  Task<Result<std::uint64_t>> dropping = t->store->Drop(ns.slot, std::span(&other, 1));
  ASSERT_FALSE(dropping.done());
  t->store->TakeLongestStep();
  const Result<AcquireGrant> grant = t->Run(t->store->Acquire(Me(), ns.slot, names, 1'000'000, Soon()));
  ASSERT_TRUE(grant.has_value());
  for (const ViewGrant& view : grant->views) EXPECT_EQ(view.code, Code::kOk);
  EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
  EXPECT_EQ(t->Run(std::move(dropping)), 2001u);
}

TEST_F(BlockStoreTest, ADeepBlockThatStandsIsGrantedThoughAnotherDropBeganMeanwhile) {
  constexpr std::uint64_t kDeep = 600, kOther = 10'000;
  Make({.headers = 4});
  PutChain(1, kDeep);
  Restart();
  PutChain(kOther, kOther + 2000);
  t->movers->paused = true;
  const catalog::BlockName name{Key(kDeep), 0};
  auto acquiring = t->store->Acquire(Me(), ns.slot, std::span(&name, 1), 1'000'000, Soon());
  ASSERT_EQ(t->movers->waiting.size(), 1u);
  const BlockKey other = Key(kOther);
  auto dropping = t->store->Drop(ns.slot, std::span(&other, 1));
  t->movers->MoveOne(0);
  while (!acquiring.done()) t->loop->executor().RunReady(1);
  ASSERT_FALSE(dropping.done()) << "nothing was collected any more";
  const auto grant = t->Run(std::move(acquiring));
  ASSERT_TRUE(grant.has_value());
  EXPECT_EQ(grant->views[0].code, Code::kOk);
  EXPECT_TRUE(t->Run(std::move(dropping)).has_value());
}

// Both are looked at again because of a first drop elsewhere; the second drop is of one of them, at each step
// in turn.
TEST_F(BlockStoreTest, P6WhatIsCutOffWhileAGrantIsCheckedIsNotGranted) {
  constexpr std::uint64_t kDeep = 150, kSecond = 1'000, kOther = 10'000;
  for (int steps = 0;; ++steps) {
    Make({.headers = 4});
    PutChain(1, kDeep);
    PutChain(kSecond, kSecond + kDeep);
    Restart();
    PutChain(kOther, kOther + 2000);
    Acquire({kDeep}, Me());  // verified then
    t->movers->paused = true;
    const std::vector<catalog::BlockName> names = {{Key(kDeep), 0}, {Key(kSecond + kDeep), 0}};
    auto acquiring = t->store->Acquire(Me(), ns.slot, names, 1'000'000, Soon());
    ASSERT_EQ(t->movers->waiting.size(), 1u) << "of the second";
    const BlockKey other = Key(kOther), top = Key(kSecond);
    auto first = t->store->Drop(ns.slot, std::span(&other, 1));
    t->movers->MoveOne(0);
    for (int i = 0; i < steps && !acquiring.done(); ++i) t->loop->executor().RunReady(1);
    const bool done = acquiring.done();
    auto second = t->store->Drop(ns.slot, std::span(&top, 1));
    bool gone = false;  // before the step in which the acquire ended
    while (!acquiring.done()) {
      gone = !Here(kSecond);
      t->loop->executor().RunReady(1);
    }
    const auto grant = t->Run(std::move(acquiring));
    EXPECT_TRUE(t->Run(std::move(first)).has_value());
    EXPECT_TRUE(t->Run(std::move(second)).has_value());
    ASSERT_TRUE(grant.has_value());
    EXPECT_EQ(grant->views[0].code, Code::kOk);
    EXPECT_EQ(grant->views[1].code == Code::kOk, !gone) << steps << " steps";
    if (!done) continue;
    EXPECT_GE(steps, 2);
    break;
  }
}

TEST_F(BlockStoreTest, P6WhatWasCutOffDuringAnAcquireIsNotGranted) {
  for (const std::vector<int>& asked : {std::vector{2}, std::vector{2, 9}}) {
    Make();
    PutChain(1, 2);
    ASSERT_EQ(Put(9, {}), State::kPublished);
    Restart();
    if (asked.size() == 2) Acquire({2}, Me());  // verified then
    t->movers->paused = true;
    std::vector<catalog::BlockName> names;
    for (const int code : asked) names.push_back({Key(code), 0});
    auto acquiring = t->store->Acquire(Me(), ns.slot, names, 1'000'000, Soon());
    ASSERT_EQ(t->movers->waiting.size(), 1u) << "of the last";
    const BlockKey top = Key(1);
    auto dropping = t->store->Drop(ns.slot, std::span(&top, 1));
    t->movers->MoveOne(0);
    while (!acquiring.done()) t->loop->executor().RunReady(1);
    const auto grant = t->Run(std::move(acquiring));
    ASSERT_TRUE(grant.has_value());
    EXPECT_EQ(grant->views[0].code, Code::kMiss);
    const bool other = asked.size() == 2;
    EXPECT_EQ(other && grant->views[1].code == Code::kOk, other);
    EXPECT_EQ(grant->lease != 0, other);
    EXPECT_TRUE(t->Run(std::move(dropping)).has_value());
  }
}

TEST_F(BlockStoreTest, P1ASlotThatIsReadIsGivenOutWhenItsLastReaderEnds) {
  Make();
  PutChain(1, 1);
  const arena::Place place = Acquire({1}, Me()).views[0].place;
  t->movers->paused = true;
  const catalog::BlockName name{Key(1), 0};
  auto first = t->store->ReportBad(ns.slot, std::span(&name, 1));
  auto second = t->store->ReportBad(ns.slot, std::span(&name, 1));
  ASSERT_EQ(t->movers->waiting.size(), 2u);
  ASSERT_TRUE(Drop(1).has_value());
  const auto put = [&](std::uint64_t n) {
    EXPECT_EQ(Put(n, {}), State::kPublished);
    return Acquire({n}, Me()).views[0].place;
  };
  EXPECT_NE(put(2), place);
  t->movers->MoveOne(0);
  EXPECT_TRUE(t->Run(std::move(first)).ok());
  EXPECT_NE(put(3), place);
  EXPECT_EQ(t->slots->counts().used_slots, 3u);
  t->movers->MoveOne(0);
  EXPECT_TRUE(t->Run(std::move(second)).ok());
  EXPECT_EQ(t->slots->counts().used_slots, 2u);
  EXPECT_EQ(put(4), place);
}

TEST_F(BlockStoreTest, P5BlocksThatWereLeasedAndDroppedCountForNoLeaseAnyMore) {
  Make();
  constexpr std::size_t kBytes = 1u << 20;
  for (std::uint64_t n = 0; n < 200; ++n) {
    ASSERT_EQ(Put(n, {}, kBytes), State::kPublished);
    const AcquireGrant grant = Acquire({n}, Me());
    ASSERT_NE(grant.lease, 0u) << n;
    // Who has a lease already may have a share.
    ASSERT_NE(Acquire({n}, Me()).lease, 0u) << n;
    ASSERT_TRUE(Drop(n).has_value());
    t->Run(t->store->SessionEnded(Me(), true));
    t->Tick();
  }
}

TEST_F(BlockStoreTest, R1WhatWentAfterItWasVerifiedHasNoEntryRepaired) {
  for (int steps = 0;; ++steps) {
    Make();
    PutChain(1, 1);
    t->movers->paused = true;
    const BlockKey key = Key(1);
    const catalog::BlockName name{key, 0};
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

TEST_F(BlockStoreTest, P6AWideWindowIsAskedForWhole) {
  NamespaceSpec spec = OneGroup();
  spec.groups.push_back({.name = "window", .reach = Reach::kWindow, .window_tokens = 128});
  Make({.headers = 4}, spec);
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
  Make({.headers = 4}, spec);
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

}  // namespace
}  // namespace cistern::store
