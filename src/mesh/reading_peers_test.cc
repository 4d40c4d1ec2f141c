// SPDX-License-Identifier: Apache-2.0
// Which member is asked, and what its answers, its silence and its end say of it.
#include "mesh/test_reading.h"

namespace cistern::mesh {
namespace {

TEST_F(ReadingTest, WhereTheFirstDoesNotAnswerOneMoreIsAsked) {
  StartNodes(4);
  PutAndTell(0, 8);
  PutAndTell(1, 8);
  node(2).links->near[node(0).process_number] = true;
  node(0).stopped = true;
  const Instant began = clock.Now();
  const PeerMatch match = Find(2, 1, 8, 0, 200'000);
  ASSERT_NE(match.run, nullptr);
  EXPECT_EQ(match.run->peer, node(1).process_number);
  EXPECT_LE(clock.Now().UsSince(began), 200'000);
}

TEST_F(ReadingTest, MembersOfTheOwnZoneComeFirst) {
  StartNodes(4);
  for (const std::size_t i : {0, 1, 2}) PutAndTell(i, 8);
  node(3).links->near[node(1).process_number] = true;
  for (int i = 0; i < 8; ++i) EXPECT_EQ(Find(3, 1, 8).run->peer, node(1).process_number);
}

TEST_F(ReadingTest, MemberThatDidNotAnswerHidesNoOtherThatHasLess) {
  StartNodes(3);
  PutAndTell(0, 16);
  PutAndTell(1, 8);
  ASSERT_EQ(Find(2, 1, 16).run->peer, node(0).process_number);
  node(2).peers.Of(node(0).process_number).breaker.Failed(clock.Now(), true);
  const PeerMatch match = Find(2, 1, 16);
  ASSERT_NE(match.run, nullptr);
  EXPECT_EQ(match.run->peer, node(1).process_number);
  EXPECT_EQ(match.run->count, 8u);
}

// A batch takes as long as those beside it let it: the rate is that of all of them.
TEST_F(ReadingTest, ExpectedTimeOfARunIsThatOfItsBatchesSideBySide) {
  constexpr std::uint64_t kBlock = 1u << 20;
  StartNodes(2, Blocks(), {.headers = 8});
  PutAndTell(0, 32, kBlock);
  ASSERT_EQ(FindAndRead(1, 32), 32u);
  PutChain(0, 101, 132, kBlock);
  ASSERT_TRUE(Told(0));
  const PeerMatch match = Find(1, 101, 132);
  ASSERT_NE(match.run, nullptr);
  const Instant began = clock.Now();
  ASSERT_EQ(Read(1, match).value_or(0), 32u);
  const auto took_us = static_cast<double>(clock.Now().UsSince(began));
  EXPECT_GT(static_cast<double>(match.runs.back().ready_in_us), 0.7 * took_us);
  EXPECT_LT(static_cast<double>(match.runs.back().ready_in_us), 1.5 * took_us);
}

TEST_F(ReadingTest, PeerThatHasNothingOfWhatItIsAskedForIsNoFastOne) {
  StartNodes(2);
  PutAndTell(0, 8);
  const PeerMatch match = Find(1, 1, 8);
  for (std::uint64_t n = 1; n <= 8; ++n) {
    const BlockKey key = store::Key(n);
    ASSERT_TRUE(loop->BlockOn(node(0).store->Drop(slot, std::span(&key, 1))).has_value());
  }
  const double before = node(1).peers.Of(match.run->peer).bytes_per_us(clock.Now());
  EXPECT_FALSE(Read(1, match).has_value());
  EXPECT_EQ(node(1).reader->counters().batch_ns.count(), 0u);
  EXPECT_EQ(node(1).peers.Of(match.run->peer).bytes_per_us(clock.Now()), before);
}

TEST_F(ReadingTest, ChainThatIsNoneIsNoFaultOfThePeers) {
  StartNodes(2);
  Put(0, 1, std::nullopt);
  for (std::uint64_t n = 2; n <= 5; ++n) Put(0, n, 1);
  ASSERT_TRUE(Told(0));
  const PeerMatch match = Find(1, 1, 5);
  ASSERT_NE(match.run, nullptr);
  ASSERT_EQ(match.run->count, 5u);
  for (int i = 0; i < Breaker::kFailures; ++i) EXPECT_EQ(Read(1, match).value_or(0), 2u);
  EXPECT_FALSE(node(1).peers.Of(node(0).process_number).breaker.open());
}

TEST_F(ReadingTest, QuestionThatNeverWentOutSaysNothingOfThePeer) {
  StartNodes(2);
  for (std::uint64_t n = 1; n <= 40; ++n) Put(0, n, std::nullopt);
  ASSERT_TRUE(Told(0));
  std::vector<PeerMatch> matches;
  for (std::uint64_t n = 1; n <= 40; ++n) matches.push_back(Find(1, n, n));
  Event goes_on;
  node(0).before_find = [&](Executor&) -> Task<void> { co_await goes_on.Wait(); };
  std::vector<Result<std::size_t>> outcomes(40, Result<std::size_t>(0));
  int ended = 0;
  TaskGroup readers(executor());
  // As many as the rails take, and one more that has little time.
  for (std::size_t i = 0; i < 40; ++i) {
    ASSERT_NE(matches[i].run, nullptr);
    readers.Spawn(
        ReadInto(executor(), 1, matches[i].run, After(i == 39 ? 50'000 : kSecond), &outcomes[i], &ended));
  }
  ASSERT_TRUE(RunUntil([&] { return ended == 1; }));
  EXPECT_FALSE(outcomes[39].has_value());
  EXPECT_FALSE(node(1).peers.Of(node(0).process_number).breaker.open());
  goes_on.Set();
  ASSERT_TRUE(RunUntil([&] { return ended == 40; }));
  for (std::size_t i = 0; i < 39; ++i) EXPECT_EQ(outcomes[i].value_or(0), 1u) << i;
  loop->BlockOn(readers.Close());
}

TEST_F(ReadingTest, MemberThatABatchWaitsForIsForgottenWhenItHasEnded) {
  PeerMatch one, other;
  ASSERT_NO_FATAL_FAILURE(FindTwoThatFitOneByOne(&one, &other));
  TwoReads reads(*this, one, other);
  PeerTable& peers = node(1).peers;
  const std::uint64_t number = node(2).process_number;
  EXPECT_EQ(peers.Of(number).landing_bytes, 0u);
  peers.Forget(number);
  EXPECT_NE(peers.Find(number), nullptr) << "a batch knows it by its address";
  ASSERT_NO_FATAL_FAILURE(reads.End());
  EXPECT_EQ(reads.outcomes[1].value_or(0), 1u);
  const auto is_forgotten = [&] {
    peers.ForgetEnded();
    return peers.Find(number) == nullptr;
  };
  EXPECT_TRUE(RunUntil(is_forgotten, kSecond));
}

TEST_F(ReadingTest, WhatWasFoundAtAMemberThatIsNoMoreMakesItNotKnownAgain) {
  StartNodes(2);
  PutAndTell(0, 8);
  const PeerMatch match = Find(1, 1, 8);
  ASSERT_NE(match.run, nullptr);
  const std::uint64_t gone = node(0).process_number;
  node(1).peers.Forget(gone);
  for (int i = 0; i < Breaker::kFailures; ++i) {
    const auto read = Read(1, match);
    ASSERT_FALSE(read.has_value());
    EXPECT_EQ(read.error().code(), Code::kGone);
  }
  EXPECT_EQ(node(1).peers.Find(gone), nullptr);
  EXPECT_EQ(node(1).peers.Open(), 0u);
  EXPECT_EQ(node(1).reader->counters().failed.value(), 0u) << "it was not asked";
}

}  // namespace
}  // namespace cistern::mesh
