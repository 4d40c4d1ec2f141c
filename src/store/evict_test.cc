// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <set>

#include "store/block_store_fixture.h"

namespace cistern::store {
namespace {

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

TEST_F(BlockStoreTest, R14AChunkIsEmptiedForAnotherSize) {
  Make({.headers = 2});
  // Fill both headers with 1 MiB blocks, then ask for small ones.
  std::uint64_t n = 100;
  while (t->slots->counts().used_bytes + (1u << 20) <= 2 * arena::kHeaderSpanBytes - 2 * (1u << 20)) {
    ASSERT_EQ(Put(n++, {}, 1u << 20), State::kPublished);
  }
  EXPECT_EQ(t->slots->counts().free_headers, 0u);
  EXPECT_EQ(Put(1, {}, 4096), State::kPublished);
  EXPECT_TRUE(Exact(1));
  std::uint64_t left = 0;
  for (std::uint64_t i = 100; i < n; ++i) left += Exact(i, 1u << 20);
  EXPECT_EQ(left + 1, Occupied().records);
  EXPECT_GE(left, 28u) << "no more than a chunk's worth went";
  Restart();
  EXPECT_EQ(Occupied().records, left + 1);
}

// Blocks 1 to 5 in the first chunk, the rest of their chain in the second, the last of it held: nothing may
// go, and the first chunk is emptied by moving what is in it.
TEST_F(BlockStoreTest, R14AChunkThatWasFreedMeanwhileIsOthers) {
  Make({.headers = 2});
  constexpr std::size_t kBytes = 1u << 20;
  PutChain(1, 5, kBytes);
  for (std::uint64_t n = 100; t->slots->counts().free_headers > 0; ++n)
    ASSERT_EQ(Put(n, {}, kBytes), State::kPublished);
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
  while (t->slots->counts().free_headers == 0) ASSERT_EQ(t->loop->executor().RunReady(1), 1u);
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

// Under load somebody reads in every chunk: that one is left, and another one is emptied.
TEST_F(BlockStoreTest, R14AReaderInAChunkDoesNotKeepAnotherSizeOut) {
  Make({.headers = 6});
  constexpr std::size_t kBytes = 1u << 20;
  std::map<arena::Place, std::uint64_t> at;
  for (std::uint64_t n = 1; t->store->counters().evicted.value() == 0; ++n) {
    ASSERT_EQ(Put(n, {}, kBytes), State::kPublished);
    const AcquireGrant grant = Acquire({n}, Me());
    at[grant.views[0].place] = n;
    ASSERT_TRUE(t->store->Release(Me(), grant.lease).ok());
    t->Tick();
  }
  t->movers->paused = true;
  auto small = t->store->Write(Me(), ns.slot, {Part(5000, {}, 4096)}, Soon());
  std::set<std::uint32_t> read_in;
  for (int turns = 0; !small.done(); ++turns) {
    ASSERT_LT(turns, 100'000);
    const auto emptying = t->slots->emptying();
    if (emptying && !t->movers->waiting.empty() && read_in.size() < 4 &&
        read_in.insert(emptying->first).second) {
      // The last one that is still there.
      const arena::Place end =
          t->geometry.place((emptying->first + emptying->count) * arena::kHeaderSpanBytes);
      for (auto one = at.lower_bound(end); one != at.begin();) {
        if (Acquire({(--one)->second}, Me()).lease != 0) break;
      }
    }
    if (!t->movers->waiting.empty()) t->movers->MoveOne(0);
    t->loop->executor().RunReady(1);
  }
  EXPECT_EQ(read_in.size(), 4u);
  EXPECT_EQ(t->Run(std::move(small))[0].state, State::kPublished);
  t->movers->paused = false;
}

TEST_F(BlockStoreTest, P5APutThatHasASlotOutlivesThePartThatFoundNone) {
  Make({.headers = 1});
  std::vector<catalog::LeaseId> leases;
  for (std::uint64_t n = 1000; t->slots->counts().used_slots < t->slots->counts().slots || n == 1000; ++n) {
    ASSERT_EQ(Put(n, {}), State::kPublished);
    leases.push_back(*Hold(n, n, kMaxLeaseUs, Somebody(n)));
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
  ASSERT_TRUE(t->store->Release(Somebody(1000), leases[0]).ok());
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
  Make({.headers = 8});
  Random random(3);
  std::uint64_t full = 0, put = 0;
  for (std::uint64_t n = 0; put < 3 * 8 * arena::kHeaderSpanBytes; ++n) {
    const std::size_t bytes = std::size_t{16384} << 2 * random.Below(4);
    ASSERT_EQ(Put(n, {}, bytes), State::kPublished);
    bodies_.clear();
    put += bytes;
    full = std::max(full, t->slots->counts().used_bytes);
    if (put < 2 * 8 * arena::kHeaderSpanBytes) continue;
    // But for what is left of a chunk that changes its size.
    ASSERT_GE(t->slots->counts().used_bytes + arena::kHeaderSpanBytes, full) << n;
  }
  EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
}

TEST_F(BlockStoreTest, R14ASizeThatNobodyAsksForAnyMoreGivesUpAllItsChunks) {
  Make({.headers = 4});
  for (std::uint64_t n = 0; t->slots->counts().free_headers > 0 || n < 4000; ++n) {
    ASSERT_EQ(Put(n, {}, 16384), State::kPublished);
    bodies_.clear();
  }
  for (std::uint64_t n = 10'000; n < 10'400; ++n) {
    ASSERT_EQ(Put(n, {}, 1u << 20), State::kPublished);
    bodies_.clear();
  }
  EXPECT_EQ(Occupied().records, memory::Slots::Capacity(t->geometry, (1u << 20) + 4096));
}

TEST_F(BlockStoreTest, P5FullMemoryEvictsAndIsBusyAtOnceWhenAllIsHeld) {
  Make({.headers = 1});
  constexpr std::size_t kBytes = 1u << 20;
  std::uint64_t n = 0;
  while (t->store->counters().evicted.value() == 0) ASSERT_EQ(Put(n++, {}, kBytes), State::kPublished);
  const std::uint64_t records = Occupied().records;
  for (int i = 0; i < 50; ++i) ASSERT_EQ(Put(n++, {}, kBytes), State::kPublished);
  EXPECT_EQ(Occupied().records, records);
  EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
  for (std::uint64_t i = n - records; i < n; ++i)
    ASSERT_TRUE(Hold(i, i, 1'000'000, Somebody(i)).has_value()) << i;
  EXPECT_EQ(WriteOne(Part(n, {}, kBytes)).status.code(), Code::kBusy);
  EXPECT_EQ(WriteOne(Part(n, {}, 4096)).status.code(), Code::kBusy)
      << "no chunk with a lease in it is emptied";
  EXPECT_EQ(t->store->counters().writes_without_room.value(), 2u);
  EXPECT_EQ(Occupied().records, records);
}

TEST_F(BlockStoreTest, P5WhatCameWhileRoomWasLookedForLeavesForIt) {
  Make({.headers = 1, .store = {.core_copy_bytes = 0}});
  constexpr std::size_t kBytes = 1u << 20;
  const std::uint64_t last = memory::Slots::Capacity(t->geometry, kBytes + 4096) - 1;
  PutChain(1, last, kBytes);
  ASSERT_NE(Acquire({last}, Me()).lease, 0u);
  t->movers->paused = true;
  auto first = t->store->Write(Me(), ns.slot, {Part(100, {}, kBytes)}, Soon());
  auto second = t->store->Write(Me(), ns.slot, {Part(101, {}, kBytes)}, Soon());
  ASSERT_FALSE(second.done()) << "it looks for room, in steps, while the first one is copied";
  t->movers->MoveOne(0);
  t->movers->paused = false;
  EXPECT_EQ(t->Run(std::move(first))[0].state, State::kPublished);
  const PartOutcome outcome = t->Run(std::move(second))[0];
  EXPECT_EQ(outcome.state, State::kPublished) << outcome.status.ToString();
  EXPECT_FALSE(Here(100));
}

TEST_F(BlockStoreTest, P5BlocksBehindTheirWindowDoNotEndAllPuts) {
  Make({.headers = 1}, OneWindow(1));
  for (std::uint64_t chain = 1; chain <= 60; ++chain) PutChain(chain * 1000, chain * 1000 + 299);
}

// Where the index has no place for a block, an occupant leaves: here the child for which the block is there.
TEST_F(BlockStoreTest, BlockWhoseLastChildGivesItItsPlaceInTheIndexStays) {
  Make({}, WindowOnly());
  const auto buckets = [&](std::uint64_t n) {
    const auto fingerprint = arena::FingerprintOf(ns.incarnation, 0, Key(n));
    return std::pair(t->index.bucket(fingerprint, 0), t->index.bucket(fingerprint, 1));
  };
  constexpr std::uint64_t kBlock = 1;
  const auto own = buckets(kBlock);
  std::vector<std::uint64_t> first, second;
  for (std::uint64_t n = 2;
       first.size() < arena::kEntriesPerBucket || second.size() < arena::kEntriesPerBucket; ++n) {
    const std::uint64_t bucket = buckets(n).first;
    if (bucket == own.first && first.size() < arena::kEntriesPerBucket) first.push_back(n);
    if (bucket == own.second && second.size() < arena::kEntriesPerBucket) second.push_back(n);
  }
  const std::uint64_t child = first.back();
  first.pop_back();
  ASSERT_EQ(Put(child, kBlock), State::kPublished);
  first.insert(first.end(), second.begin(), second.end());
  for (const std::uint64_t n : first) ASSERT_EQ(Put(n, std::nullopt), State::kPublished);
  const AcquireGrant held = Acquire(first, Me());
  const std::uint64_t blocks = t->store->occupancy().blocks;
  ASSERT_EQ(Put(kBlock, std::nullopt), State::kPublished);
  EXPECT_TRUE(Exact(kBlock));
  EXPECT_FALSE(Here(child));
  EXPECT_EQ(t->store->occupancy().blocks, blocks - 2) << "the child, and where orphans were";
  // It has its place in the tree.
  EXPECT_EQ(Match(kBlock, kBlock), 1u);
  ASSERT_TRUE(Drop(kBlock).has_value());
  EXPECT_FALSE(Here(kBlock));
}

}  // namespace
}  // namespace cistern::store
