// SPDX-License-Identifier: Apache-2.0
// Reads whose peer is silent, cut off or gone, or whose node ends: they are over in their time and leave
// nothing.
#include <deque>

#include "mesh/test_reading.h"

namespace cistern::mesh {
namespace {

TEST_F(ReadingTest, CallsEndByTheirDeadlineWhateverThePeerDoes) {
  StartNodes(2);
  PutAndTell(0, 8);
  const PeerMatch match = Find(1, 1, 8);
  node(0).stopped = true;
  Instant began = clock.Now();
  const auto read = Read(1, match, 50'000);
  EXPECT_EQ(read.error().code(), Code::kTooLate);
  EXPECT_LE(clock.Now().UsSince(began), 50'000);
  // It is not asked again for a while.
  began = clock.Now();
  EXPECT_EQ(Find(1, 1, 8, 0, 50'000).run, nullptr);
  EXPECT_EQ(node(1).links->questions[kMatchQuestion], 1);
  // One question tries.
  RunFor(1'100'000);
  EXPECT_EQ(Find(1, 1, 8, 0, 50'000).run, nullptr);
  EXPECT_EQ(node(1).links->questions[kMatchQuestion], 2);
  node(0).stopped = false;
  node(0).forever.Set();
  RunFor(2'200'000);
  EXPECT_NE(Find(1, 1, 8, 0, 50'000).run, nullptr);
  EXPECT_TRUE(RunUntil([&] { return node(1).reader->landing_bytes() == 0; }));
  EXPECT_EQ(node(1).store->occupancy().pending, 0u);
}

TEST_F(ReadingTest, ReadOverACutWayEndsByItsDeadlineAndLeavesNothing) {
  StartNodes(2);
  PutAndTell(0, 8, 200'000);
  const PeerMatch match = Find(1, 1, 8);
  bool cut = false;
  node(0).lie = [&](net::RailSource::Answer&) {
    if (!std::exchange(cut, true)) network.Cut("a", "b");
  };
  const Instant began = clock.Now();
  EXPECT_EQ(Read(1, match, 100'000).value_or(0), 0u);
  EXPECT_LE(clock.Now().UsSince(began), 100'000);
  ASSERT_TRUE(RunUntil([&] { return node(1).reader->landing_bytes() == 0; }));
  EXPECT_EQ(node(1).store->occupancy().pending, 0u);
  network.Heal("a", "b");
  node(0).lie = nullptr;
  ASSERT_TRUE(RunUntil([&] { return Know(); }));
  RunFor(2 * kSecond);
  EXPECT_EQ(FindAndRead(1, 8), 8u);
  for (std::uint64_t n = 1; n <= 8; ++n) EXPECT_TRUE(Exact(1, n, 200'000)) << n;
}

TEST_F(ReadingTest, WindowsUnderWayFromAPeerThatDiesEndLongBeforeTheirDeadline) {
  StartNodes(2);
  node(1).reader->SetMemory(PeerReadLimits::kMemoryShare * kWindowBytes);
  PutChain(0, 1, 100, 100'000);
  ASSERT_TRUE(RunUntil([&] { return BlocksOf(Find(1, 1, 100)) == 100; }));
  const PeerMatch match = Find(1, 1, 100);
  int asked = 0;
  node(0).before_find = [&](Executor& on) -> Task<void> {
    (void)on;
    if (++asked != 8) co_return;
    network.Reset("a", "b");
    network.Stop("a");
  };
  const Instant began = clock.Now();
  std::deque<Task<Result<std::size_t>>> reads;
  // Each that ends is followed by the next one, as the windows of a client's read are.
  for (const std::size_t end : {20, 40, 60, 80, 100}) {
    if (reads.size() == 2) {
      (void)loop->BlockOn(std::move(reads.front()));
      reads.pop_front();
    }
    reads.push_back(node(1).reader->Read(match.run, 0, end, 0, After(20'000'000)));
  }
  for (Task<Result<std::size_t>>& read : reads) (void)loop->BlockOn(std::move(read));
  EXPECT_GE(asked, 8);
  EXPECT_LT(clock.Now().UsSince(began), 10'000'000);
  EXPECT_EQ(node(1).reader->landing_bytes(), 0u);
}

TEST_F(ReadingTest, EndOfTheNodeWaitsForNoTurn) {
  StartNodes(2, Blocks(), {.bytes_a_second = 1u << 20});
  PutAndTell(0, 16, 512u << 10);
  const PeerMatch match = Find(1, 1, 16, 0, 60 * kSecond);
  ASSERT_NE(match.run, nullptr);
  Result<std::size_t> outcome(0);
  int ended = 0;
  TaskGroup readers(executor());
  readers.Spawn(ReadInto(executor(), 1, match.run, After(60 * kSecond), &outcome, &ended));
  RunFor(100'000);
  const Instant began = clock.Now();
  loop->BlockOn(node(1).reader->Close());
  EXPECT_LT(clock.Now().UsSince(began), kSecond);  // of simulated time
  ASSERT_TRUE(RunUntil([&] { return ended == 1; }, kSecond));
  EXPECT_LT(outcome.value_or(0), 4u);
  loop->BlockOn(readers.Close());
}

}  // namespace
}  // namespace cistern::mesh
