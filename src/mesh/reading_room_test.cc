// SPDX-License-Identifier: Apache-2.0
// Room for what lands, slots for it, and what may be read a second.
#include "mesh/test_reading.h"

namespace cistern::mesh {
namespace {

TEST_F(ReadingTest, WhatLandsFromAPeerIsBounded) {
  StartNodes(2, Blocks(), {.headers = 8});
  PutAndTell(0, 32, 1u << 20);
  const PeerMatch match = Find(1, 1, 32);
  ASSERT_NE(match.run, nullptr);
  std::uint64_t most = 0;
  node(0).lie = [&](net::RailSource::Answer&) { most = std::max(most, node(1).reader->landing_bytes()); };
  EXPECT_EQ(Read(1, match, 10 * kSecond).value_or(0), 32u);
  EXPECT_GT(most, 2u << 20);
  EXPECT_LE(most, PeerReadLimits::kBatches << 20);
  for (std::uint64_t n = 1; n <= 32; ++n) EXPECT_TRUE(Exact(1, n, 1u << 20)) << n;
}

// All who wait for room are woken together by what has landed.
TEST_F(ReadingTest, P5WhatLandsForManyReadersOfAPeerIsBounded) {
  constexpr int kReaders = 24;
  // The share of the memory is more than one peer's bound.
  StartNodes(2, Blocks(), {.headers = 20});
  std::vector<std::shared_ptr<const PeerRun>> runs;
  for (std::uint64_t n = 1; n <= std::uint64_t{kReaders}; ++n) Put(0, n, std::nullopt, 1u << 20);
  ASSERT_TRUE(Told(0));
  for (std::uint64_t n = 1; n <= std::uint64_t{kReaders}; ++n) {
    runs.push_back(Find(1, n, n).run);
    ASSERT_NE(runs.back(), nullptr) << n;
  }
  std::uint64_t most = 0;
  node(0).lie = [&](net::RailSource::Answer&) { most = std::max(most, node(1).reader->landing_bytes()); };
  std::vector<Result<std::size_t>> outcomes(kReaders, Result<std::size_t>(0));
  int ended = 0;
  TaskGroup readers(executor());
  for (std::size_t i = 0; i < std::size_t{kReaders}; ++i)
    readers.Spawn(ReadInto(executor(), 1, runs[i], After(10 * kSecond), &outcomes[i], &ended));
  ASSERT_TRUE(RunUntil([&] { return ended == kReaders; }));
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.value_or(0), 1u);
  EXPECT_GT(most, 2u << 20);
  EXPECT_LE(most, PeerReadLimits::kPeerBytes);
  loop->BlockOn(readers.Close());
}

// Each that comes later needs less room than it.
TEST_F(ReadingTest, P5LargeBlockIsReadThoughSmallOnesOfItsPeerNeverEnd) {
  constexpr std::uint64_t kReaders = 20, kLarge = 10'000;
  StartNodes(2, Blocks(), {.headers = 20});
  Put(0, kLarge, std::nullopt, 12u << 20);
  std::vector<std::shared_ptr<const PeerRun>> runs;
  for (std::uint64_t n = 1; n <= 8 * kReaders; ++n) Put(0, n, std::nullopt, 1u << 20);
  ASSERT_TRUE(Told(0));
  for (std::uint64_t n = 1; n <= 8 * kReaders; ++n) {
    runs.push_back(Find(1, n, n).run);
    ASSERT_NE(runs.back(), nullptr) << n;
  }
  const PeerMatch large = Find(1, kLarge, kLarge);
  ASSERT_NE(large.run, nullptr);
  std::vector<Result<std::size_t>> outcomes(runs.size() + 1, Result<std::size_t>(0));
  int ended = 0, large_ended = 0;
  TaskGroup readers(executor());
  std::size_t begun = 0;
  const auto begin = [&] {
    while (begun < runs.size() && begun < static_cast<std::size_t>(ended) + kReaders) {
      readers.Spawn(ReadInto(executor(), 1, runs[begun], After(10 * kSecond), &outcomes[begun], &ended));
      ++begun;
    }
  };
  begin();
  readers.Spawn(ReadInto(executor(), 1, large.run, After(10 * kSecond), &outcomes.back(), &large_ended));
  int ended_before = 0;
  const auto all = [&] {
    begin();
    if (large_ended == 0) ended_before = ended;
    return large_ended == 1 && ended == static_cast<int>(runs.size());
  };
  ASSERT_TRUE(RunUntil(all));
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.value_or(0), 1u);
  EXPECT_LE(ended_before, static_cast<int>(3 * kReaders));
  loop->BlockOn(readers.Close());
}

// A thirty-second of memory is room for 20 of their blocks: two windows' worth is not.
TEST_F(ReadingTest, WindowsOfAChainThatAreReadBesideEachOtherDoNotWaitForEachOthersRoom) {
  StartNodes(2);
  node(1).reader->SetMemory(PeerReadLimits::kMemoryShare * kWindowBytes);
  PutChain(0, 1, 60, 100'000);
  ASSERT_TRUE(RunUntil([&] { return BlocksOf(Find(1, 1, 60)) == 60; }));
  const PeerMatch match = Find(1, 1, 60);
  const Instant began = clock.Now();
  std::vector<Task<Result<std::size_t>>> reads;
  for (const std::size_t end : {20, 40, 60})
    reads.push_back(node(1).reader->Read(match.run, 0, end, 0, After(10'000'000)));
  for (std::size_t i = 0; i < reads.size(); ++i) {
    const Result<std::size_t> here = loop->BlockOn(std::move(reads[i]));
    ASSERT_TRUE(here.has_value()) << here.error().ToString();
    EXPECT_EQ(*here, 20 * (i + 1));
  }
  EXPECT_LT(clock.Now().UsSince(began), 5'000'000);
  for (std::uint64_t n = 1; n <= 60; ++n) EXPECT_TRUE(Exact(1, n, 100'000)) << n;
  EXPECT_EQ(node(1).reader->landing_bytes(), 0u);
}

TEST_F(ReadingTest, WindowThatFailedIsFetchedAnewThoughTheNextOneHasTheRoom) {
  StartNodes(2);
  node(1).reader->SetMemory(PeerReadLimits::kMemoryShare * kWindowBytes);
  PutChain(0, 1, 60, 100'000);
  ASSERT_TRUE(RunUntil([&] { return BlocksOf(Find(1, 1, 60)) == 60; }));
  const PeerMatch match = Find(1, 1, 60);
  int asked = 0;
  Event go_on;
  node(0).before_find = [&](Executor&) -> Task<void> {
    if (++asked > 20) co_await go_on.Wait();
  };
  node(0).lie = [first = true](net::RailSource::Answer& answer) mutable {
    if (std::exchange(first, false)) answer.status = Status(Code::kMiss, "a lie");
  };
  const auto read = [&](std::size_t end) {
    return node(1).reader->Read(match.run, 0, end, 0, After(20'000'000));
  };
  Task<Result<std::size_t>> failing = read(20), next = read(40);
  EXPECT_FALSE(loop->BlockOn(std::move(failing)).has_value());
  ASSERT_TRUE(RunUntil([&] { return node(1).reader->transfers() == 20 && asked > 20; }));
  const Instant began = clock.Now();
  Task<Result<std::size_t>> anew = read(60);
  go_on.Set();
  (void)loop->BlockOn(std::move(next));
  EXPECT_EQ(loop->BlockOn(std::move(anew)).value_or(0), 20u);
  // Blocks that are here take no room of those that are not.
  ASSERT_TRUE(RunUntil([&] { return node(1).reader->transfers() == 0; }, 5'000'000));
  EXPECT_EQ(loop->BlockOn(read(60)).value_or(0), 60u);
  EXPECT_LT(clock.Now().UsSince(began), 5'000'000);
  for (std::uint64_t n = 1; n <= 60; ++n) EXPECT_TRUE(Exact(1, n, 100'000)) << n;
}

TEST_F(ReadingTest, WhatIsReadASecondIsBoundedAndWhatWouldBeLateIsNotAskedFor) {
  constexpr std::uint64_t kBlock = 1u << 20, kASecond = 64u << 20;
  StartNodes(2, Blocks(), {.headers = 8, .bytes_a_second = kASecond});
  PutAndTell(0, 32, kBlock);
  const PeerMatch match = Find(1, 1, 32);
  ASSERT_NE(match.run, nullptr);
  // The match says so before: 32 MiB take half a second.
  EXPECT_GT(match.runs.back().ready_in_us, 400'000);
  const Instant began = clock.Now();
  EXPECT_EQ(Read(1, match, 10 * kSecond).value_or(0), 32u);
  // The last block goes when its turn comes, and so does what was kept.
  const double least_us = 31.0 * kBlock / kASecond * 1e6 - net::Bandwidth::kKeptNs / 1e3;
  EXPECT_GE(static_cast<double>(clock.Now().UsSince(began)), least_us);
  EXPECT_GT(node(1).peers.bandwidth().waits().value(), 0u);
  for (std::uint64_t n = 1; n <= 32; ++n) EXPECT_TRUE(Exact(1, n, kBlock)) << n;
}

// A transfer has the deadline of the call that began it.
TEST_F(ReadingTest, PeerThatIsNotAskedTakesNoTurnOfWhatIsReadASecond) {
  StartNodes(2, Blocks(), {.bytes_a_second = 1u << 20});
  Put(0, 1, std::nullopt, 1u << 20);
  ASSERT_TRUE(Told(0));
  const PeerMatch match = Find(1, 1, 1);
  ASSERT_NE(match.run, nullptr);
  node(1).peers.Of(node(0).process_number).breaker.Failed(clock.Now(), true);
  EXPECT_FALSE(Read(1, match, 10 * kSecond).has_value());
  EXPECT_EQ(node(1).peers.bandwidth().BeginAt(clock.Now()), clock.Now());
}

// Node 1's memory is leased but for a few slots of the blocks that it reads from node 0.
class FullMemoryReadingTest : public ReadingTest {
 protected:
  void StartFull(const NamespaceSpec& spec, std::size_t bytes, std::uint64_t slots) {
    StartNodes(2, spec, {.headers = 1, .store = {.core_copy_bytes = 0}});
    const std::uint64_t all = memory::Slots::Capacity({4096, 1}, bytes + 4096);
    for (std::uint64_t n = kLeased; n < kLeased + all - slots; ++n) {
      Put(1, n, std::nullopt, bytes);
      const catalog::BlockName name{store::Key(n), 0};
      catalog::Caller caller{n, {}};
      std::memcpy(caller.owner.data(), &n, sizeof(n));
      auto grant = loop->BlockOn(
          node(1).store->Acquire(caller, slot, std::span(&name, 1), 60 * kSecond, After(kSecond)));
      ASSERT_TRUE(grant && grant->lease != 0) << n;
      leases_.push_back({caller, grant->lease});
    }
  }
  void EndLeases(std::size_t count) {
    for (; count > 0; --count, leases_.pop_back())
      ASSERT_TRUE(node(1).store->Release(leases_.back().first, leases_.back().second).ok());
  }

 private:
  static constexpr std::uint64_t kLeased = 1000;
  std::vector<std::pair<catalog::Caller, catalog::LeaseId>> leases_;
};

TEST_F(FullMemoryReadingTest, WhatHasLandedIsVisibleWhileTheNextBlockWaitsForASlot) {
  constexpr std::size_t kBytes = 1u << 20;  // a batch
  StartFull(Blocks(), kBytes, 3);
  PutAndTell(0, 4, kBytes);
  const PeerMatch match = Find(1, 1, 4);
  ASSERT_NE(match.run, nullptr);
  // A save of a block that fills a slot for as long as its mover takes.
  node(1).movers.paused = true;
  const std::vector<std::byte> body = store::Body(500, kBytes);
  const store::PartWrite part{.key = store::Key(500), .put_id = {9, 1}, .from = body};
  auto saving = node(1).store->Write({1, {std::byte{1}}}, slot, {part}, After(60 * kSecond));
  Status why;
  auto reading = node(1).reader->Read(match.run, 0, 4, 0, After(30 * kSecond), &why);
  EXPECT_TRUE(RunUntil([&] { return Here(1, 1) && Here(1, 2); }));
  EXPECT_FALSE(reading.done());
  node(1).movers.MoveOne(0);
  node(1).movers.paused = false;
  EXPECT_EQ(loop->BlockOn(std::move(saving))[0].state, store::PartOutcome::State::kPublished);
  EXPECT_EQ(loop->BlockOn(std::move(reading)).value_or(0), 3u);
  EXPECT_EQ(why.code(), Code::kBusy);
  EXPECT_FALSE(Here(1, 500)) << "its slot is what the third block has";
}

TEST_F(FullMemoryReadingTest, BlockOfWhichOneGroupHasNoSlotIsNotAskedForInTheOther) {
  constexpr std::size_t kBytes = 60'000;
  NamespaceSpec spec = Blocks();
  spec.groups = {{.name = "one"}, {.name = "other"}};
  StartFull(spec, kBytes, 3);
  for (std::uint64_t n = 1; n <= 2; ++n) {
    for (std::uint16_t group = 0; group < 2; ++group) {
      const std::vector<std::byte> body = store::Body(n + 10 * group, kBytes);
      store::PartWrite part{
          .key = store::Key(n), .group = group, .put_id = {5, n + 10 * group}, .from = body};
      if (n > 1) part.parent = store::Key(n - 1);
      (void)loop->BlockOn(node(0).store->Write({1, {std::byte{1}}}, slot, {part}, After(kSecond)));
    }
  }
  ASSERT_TRUE(Told(0));
  const PeerMatch match = Find(1, 1, 2);
  ASSERT_NE(match.run, nullptr);
  ASSERT_EQ(match.run->count, 2u);
  int asked = 0;
  node(0).before_find = [&](Executor&) -> Task<void> {
    ++asked;
    co_return;
  };
  EXPECT_EQ(Read(1, match).value_or(0), 1u);
  EXPECT_EQ(asked, 2);
  EndLeases(1);
  EXPECT_EQ(Read(1, match).value_or(0), 2u);
  EXPECT_EQ(asked, 4);
  EXPECT_EQ(node(1).ReadBody(slot, store::Key(2), 1), store::Body(12, kBytes));
}

}  // namespace
}  // namespace cistern::mesh
