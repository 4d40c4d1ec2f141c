// SPDX-License-Identifier: Apache-2.0
// Callers that read beside each other: they share transfers, rails and places, and none fails for another's
// lack of time or luck.
#include "mesh/test_reading.h"

namespace cistern::mesh {
namespace {

TEST_F(ReadingTest, ManyReadersWaitForOneTransfer) {
  StartNodes(2);
  PutAndTell(0, 8);
  const PeerMatch match = Find(1, 1, 8);
  int answers = 0;
  node(0).lie = [&](net::RailSource::Answer&) { ++answers; };
  std::vector<Result<std::size_t>> outcomes(20, Result<std::size_t>(0));
  int ended = 0;
  TaskGroup readers(executor());
  for (auto& outcome : outcomes)
    readers.Spawn(ReadInto(executor(), 1, match.run, After(kSecond), &outcome, &ended));
  ASSERT_TRUE(RunUntil([&] { return ended == 20; }));
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.value_or(0), 8u);
  EXPECT_EQ(answers, 8);
  loop->BlockOn(readers.Close());
}

TEST_F(ReadingTest, CallerReadsFromItsOwnPeerWhatAnothersPeerDidNotHave) {
  StartNodes(3);
  PutAndTell(0, 1);
  const PeerMatch one = Find(1, 1, 1);
  ASSERT_NE(one.run, nullptr);
  Put(2, 1, std::nullopt);
  ASSERT_TRUE(Told(2));
  PeerMatch other = one;
  for (int asked = 0; asked < 100 && (!other.run || other.run->peer == one.run->peer); ++asked)
    other = Find(1, 1, 1);
  ASSERT_TRUE(other.run && other.run->peer != one.run->peer);
  TwoReads reads(*this, one, other);
  const BlockKey key = store::Key(1);
  ASSERT_TRUE(loop->BlockOn(node(0).store->Drop(slot, std::span(&key, 1))).has_value());
  ASSERT_NO_FATAL_FAILURE(reads.End());
  EXPECT_FALSE(reads.outcomes[0].has_value());
  EXPECT_EQ(reads.outcomes[1].value_or(0), 1u);
  EXPECT_TRUE(Here(1, 1));
}

TEST_F(ReadingTest, CallerWithMoreTimeReadsWhatAnotherHadTooLittleTimeFor) {
  constexpr std::uint64_t kBlock = 1u << 20;
  StartNodes(2, Blocks(), {.headers = 8, .bytes_a_second = 2u << 20});
  PutAndTell(0, 8, kBlock);
  for (std::uint64_t n = 101; n <= 108; ++n) Put(0, n, std::nullopt, kBlock);
  ASSERT_TRUE(Told(0));
  const PeerMatch match = Find(1, 1, 8);
  ASSERT_NE(match.run, nullptr);
  std::vector<Result<std::size_t>> outcomes(2, Result<std::size_t>(0));
  int ended = 0;
  TaskGroup readers(executor());
  readers.Spawn(ReadInto(executor(), 1, match.run, After(kSecond / 2), &outcomes[0], &ended));
  readers.Spawn(ReadInto(executor(), 1, match.run, After(60 * kSecond), &outcomes[1], &ended));
  ASSERT_TRUE(RunUntil([&] { return ended == 2; }, 61 * kSecond));
  EXPECT_LT(outcomes[0].value_or(0), 8u);
  EXPECT_EQ(outcomes[1].value_or(0), 8u);
  EXPECT_EQ(node(1).reader->landing_bytes(), 0u);
  loop->BlockOn(readers.Close());
}

// The rail is opened for all who read of the peer.
TEST_F(ReadingTest, CallerWithTimeToCatchUpReadsWhatAnotherHadNoneFor) {
  StartNodes(2);
  PutAndTell(0, 1);
  const PeerMatch match = Find(1, 1, 1);
  ASSERT_NE(match.run, nullptr);
  node(0).rule.last.revision = 1;
  std::vector<Result<std::size_t>> outcomes(2, Result<std::size_t>(0));
  int ended = 0;
  TaskGroup readers(executor());
  for (const std::int64_t us : {PeerReadLimits::kCatchUpUs / 2, kSecond})
    readers.Spawn(ReadInto(executor(), 1, match.run, After(us), &outcomes[us == kSecond ? 1 : 0], &ended));
  ASSERT_TRUE(RunUntil([&] { return ended == 1; }));
  EXPECT_EQ(outcomes[0].error().code(), Code::kTooLate);
  node(1).rule.last.revision = 1;
  node(1).rule.changed.Pulse();
  ASSERT_TRUE(RunUntil([&] { return ended == 2; }));
  EXPECT_EQ(outcomes[1].value_or(0), 1u);
  loop->BlockOn(readers.Close());
}

TEST_F(ReadingTest, RailThatOneWithLittleTimeBeganToOpenIsThereForWhoHasMore) {
  StartNodes(2);
  PutChain(0, 1, 8);
  PutChain(0, 101, 108);
  ASSERT_TRUE(Told(0));
  const PeerMatch match = Find(1, 1, 8), other = Find(1, 101, 108);
  ASSERT_NE(match.run, nullptr);
  ASSERT_NE(other.run, nullptr);
  auto hasty = node(1).reader->Read(match.run, 0, 8, 0, After(40));
  auto patient = node(1).reader->Read(other.run, 0, 8, 0, After(kSecond));
  const auto late = loop->BlockOn(std::move(hasty));
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code(), Code::kTooLate);
  EXPECT_EQ(loop->BlockOn(std::move(patient)).value_or(0), 8u);
}

TEST_F(ReadingTest, PlaceThatIsFreedByAnAnswerNobodyWaitsForIsTaken) {
  StartNodes(2);
  for (std::uint64_t n = 1; n <= 35; ++n) Put(0, n, std::nullopt);
  ASSERT_TRUE(Told(0));
  std::vector<PeerMatch> matches;
  for (std::uint64_t n = 1; n <= 35; ++n) matches.push_back(Find(1, n, n));
  std::vector<Result<std::size_t>> outcomes(35, Result<std::size_t>(0));
  int ended = 0;
  TaskGroup readers(executor());
  const auto read = [&](std::size_t i, std::int64_t us) {
    readers.Spawn(ReadInto(executor(), 1, matches[i].run, After(us), &outcomes[i], &ended));
  };
  for (const std::size_t i : {33u, 34u}) read(i, kSecond);  // both rails are open then
  ASSERT_TRUE(RunUntil([&] { return ended == 2; }));
  RunFor(kSecond);
  Event goes_on;
  node(0).before_find = [&](Executor&) -> Task<void> { co_await goes_on.Wait(); };
  // As many as the rails take, which have little time, and one more.
  for (std::size_t i = 0; i < 33; ++i) read(i, i == 32 ? 10 * kSecond : 50'000);
  ASSERT_TRUE(RunUntil([&] { return ended == 34; }));
  RunFor(50'000);
  goes_on.Set();
  EXPECT_TRUE(RunUntil([&] { return ended == 35; }, kSecond));
  EXPECT_EQ(outcomes[32].value_or(0), 1u);
  loop->BlockOn(readers.Close());
}

TEST_F(ReadingTest, WhatLiesInMemoryHasAPlaceBesideWhatIsReadFromFlash) {
  StartNodes(2);
  for (std::uint64_t n = 1; n <= 41; ++n) Put(0, n, std::nullopt);
  ASSERT_TRUE(Told(0));
  node(0).match_lie = [](MatchReply& reply) {
    for (MatchRun& run : reply.runs) run.where = Where::kFlash;
  };
  std::vector<PeerMatch> matches;
  for (std::uint64_t n = 1; n <= 41; ++n) {
    if (n == 41) node(0).match_lie = nullptr;
    matches.push_back(Find(1, n, n));
  }
  node(1).peers.Of(node(0).process_number).room_bytes = 1u << 30;
  Event goes_on;
  bool held = true;
  node(0).before_find = [&](Executor&) -> Task<void> {
    if (held) co_await goes_on.Wait();
  };
  std::vector<Result<std::size_t>> outcomes(41, Result<std::size_t>(0));
  int ended = 0;
  TaskGroup readers(executor());
  const auto read = [&](std::size_t i) {
    readers.Spawn(ReadInto(executor(), 1, matches[i].run, After(10 * kSecond), &outcomes[i], &ended));
  };
  for (std::size_t i = 0; i < 40; ++i) read(i);
  RunFor(100'000);
  held = false;
  read(40);
  EXPECT_TRUE(RunUntil([&] { return ended == 1; }, kSecond));
  EXPECT_EQ(outcomes[40].value_or(0), 1u);
  goes_on.Set();
  ASSERT_TRUE(RunUntil([&] { return ended == 41; }));
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.value_or(0), 1u);
  loop->BlockOn(readers.Close());
}

// What waits for room is begun in the namespace that it was found in, or not at all.
TEST_F(ReadingTest, NothingComesIntoTheNamespaceThatTookItsSlotMeanwhile) {
  PeerMatch one, other;
  ASSERT_NO_FATAL_FAILURE(FindTwoThatFitOneByOne(&one, &other));
  TwoReads reads(*this, one, other);
  ASSERT_TRUE(loop->BlockOn(node(1).store->DropNamespace(slot)).has_value());
  ASSERT_NO_FATAL_FAILURE(reads.End());
  for (const auto& outcome : reads.outcomes) EXPECT_EQ(outcome.error().code(), Code::kMiss);
  EXPECT_FALSE(Here(1, 1) || Here(1, 2));
}

}  // namespace
}  // namespace cistern::mesh
