// SPDX-License-Identifier: Apache-2.0
#include "store/block_store_fixture.h"

namespace cistern::store {
namespace {

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
  Make({.headers = 4});
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
  EXPECT_EQ(t->store->counters().recovery_dropped.value(), 128u);
  EXPECT_EQ(t->store->counters().recovery_refused.value(), 0u);
}

TEST_F(BlockStoreTest, R3RecoveryCutsWhatTheIndexHasNoRoomFor) {
  Make({.headers = 1});
  const auto fingerprint = [&](std::uint64_t n) { return arena::FingerprintOf(ns.incarnation, 0, Key(n)); };
  const std::uint64_t a = t->index.bucket(fingerprint(1), 0), b = t->index.bucket(fingerprint(1), 1);
  // By first and second bucket.
  std::vector<std::uint64_t> ab, ba, ac;
  for (std::uint64_t n = 10; ab.size() < 32 || ba.size() < 32 || ac.size() < 4; ++n) {
    const std::uint64_t first = t->index.bucket(fingerprint(n), 0),
                        second = t->index.bucket(fingerprint(n), 1);
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

TEST_F(BlockStoreTest, R11RecoveryBelievesAChildOfAnOlderParentOnly) {
  Make();
  PutChain(1, 3);
  // As a crash in the middle of a drop leaves it: the parent's record is gone.
  auto grant = Acquire({2}, Me());
  t->Stop();
  arena::Retire(t->words, t->arena, grant.views[0].place);
  t->Start();
  Attach(OneGroup());
  EXPECT_TRUE(Here(1));
  EXPECT_FALSE(Here(3));
  EXPECT_EQ(Put(2, 1), State::kPublished);
  Restart();
  EXPECT_EQ(Occupied().records, 2u);
  EXPECT_FALSE(Here(3));
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

// A header that was emptied is looked over unit by unit, more than one call of the recovery looks at, and
// what lies in the headers behind it comes back all the same.
TEST_F(BlockStoreTest, P7WhatLiesBehindAnEmptiedChunkHeaderComesBack) {
  Make();
  ASSERT_EQ(Put(1, {}, 4096), State::kPublished);
  ASSERT_EQ(Put(2, {}, 100'000), State::kPublished);
  ASSERT_TRUE(Drop(1).has_value());
  t->Kill();
  EXPECT_FALSE(Here(1));
  EXPECT_TRUE(Exact(2, 100'000));
}

// A chunk of which nothing was kept is free for any size after a restart.
TEST_F(BlockStoreTest, R14AChunkWithoutARecordIsTakenApartAtARestart) {
  Make();
  ASSERT_EQ(Put(1, {}), State::kPublished);
  const std::uint64_t free_headers = t->slots->counts().free_headers;
  t->arena.directory(0)->born ^= 1;  // not believed any more
  t->Kill();
  EXPECT_FALSE(Here(1));
  EXPECT_EQ(t->slots->counts().free_headers, free_headers + 1);
}

}  // namespace
}  // namespace cistern::store
