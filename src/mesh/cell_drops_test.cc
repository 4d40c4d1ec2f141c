// SPDX-License-Identifier: Apache-2.0
// Drops and ends of conversations in a cell: whom they wait for, and what is said where they fail.
#include <gmock/gmock.h>

#include "base/step_budget.h"
#include "mesh/cell_history.h"
#include "mesh/test_members.h"

namespace cistern::mesh {
namespace {

using ::testing::HasSubstr;

TEST_F(CellTest, DropIsAcknowledgedOnceEveryMemberHasAppliedIt) {
  StartCell(5);
  for (std::size_t i = 0; i < 5; ++i) Put(i, {KeyOf(1), KeyOf(2)});
  Put(4, {KeyOf(7)});
  const auto receipt = cell_.Drop(node(2), DropOfKeys(name_, {KeyOf(1)}));
  ASSERT_TRUE(receipt.has_value()) << receipt.error().ToString();
  EXPECT_EQ(receipt->applied, 5u);
  EXPECT_EQ(receipt->members, 5u);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_FALSE(Has(i, KeyOf(2)));
    EXPECT_GE(node(i).medium.standing.applied, receipt->revision);
  }
  EXPECT_TRUE(Has(4, KeyOf(7)));
}

TEST_F(CellTest, WhatIsAppliedIsHeardThoughOtherMessagesFilledTheConnectionMeanwhile) {
  StartCell(2);
  FillTheConnectionOfTwo();
  auto drop = member(1).Drop(DropOfKeys(name_, {KeyOf(1)}), DropWait::kApplied,
                             cell_.clock.Now().PlusUs(20 * kSecond));
  const std::int64_t before = member(0).state().applied;
  ASSERT_TRUE(cell_.RunUntil(kSecond / 2, [&] { return member(0).state().applied > before; }));
  cell_.network.Heal("a", "b");
  EXPECT_TRUE(cell_.RunUntil(5 * kSecond, [&] { return drop.done(); }));
  EXPECT_TRUE(cell_.loop->BlockOn(std::move(drop)).has_value());
}

TEST_F(CellTest, DropOfTenThousandKeysIsOneCall) {
  StartCell(5);
  std::vector<BlockKey> keys;
  for (std::uint64_t i = 0; i < 10'000; ++i) keys.push_back(KeyOf(i));
  Put(3, {KeyOf(9'999)});
  const Instant began = cell_.clock.Now();
  const auto receipt = cell_.Drop(node(0), DropOfKeys(name_, keys));
  ASSERT_TRUE(receipt.has_value()) << receipt.error().ToString();
  EXPECT_FALSE(Has(3, KeyOf(9'999)));
  EXPECT_LT(cell_.clock.Now().UsSince(began), 2 * kSecond);  // of simulated time
}

TEST_F(CellTest, P5DropOfManyKeysIsCutUpInStepsThatAreCounted) {
  StartCell(2);
  std::vector<BlockKey> keys;
  for (std::uint64_t i = 0; i < 20'000; ++i) keys.push_back(KeyOf(i));
  const auto most_of_a_step = [](Executor& executor, std::uint64_t* most) -> Task<void> {
    for (int turns = 0; turns < 100; ++turns) {
      const std::uint64_t before = executor.work();
      co_await Yield();
      *most = std::max(*most, executor.work() - before);
    }
  };
  const std::uint64_t before = cell_.executor().work();
  std::uint64_t most = 0;
  auto dropping =
      member(0).Drop(DropOfKeys(name_, keys), DropWait::kDurable, cell_.clock.Now().PlusUs(60 * kSecond));
  most = cell_.executor().work() - before;
  cell_.loop->BlockOn(most_of_a_step(cell_.executor(), &most));
  EXPECT_GE(cell_.executor().work() - before, keys.size() * sizeof(BlockKey) / kBytesPerTouch);
  EXPECT_LE(most, kStepTouches);
  EXPECT_TRUE(cell_.loop->BlockOn(std::move(dropping)).has_value());
}

TEST_F(CellTest, DropOfWhichAPartWasWrittenIsNotSaidToBeNone) {
  StartCell(2);
  std::vector<BlockKey> keys;
  for (std::uint64_t i = 0; i < 60'000; ++i) keys.push_back(KeyOf(i));
  Put(1, {KeyOf(0)});
  auto dropping =
      member(0).Drop(DropOfKeys(name_, keys), DropWait::kApplied, cell_.clock.Now().PlusUs(60 * kSecond));
  ASSERT_TRUE(cell_.RunUntil(kSecond, [&] { return !Has(1, KeyOf(0)); }));
  ASSERT_FALSE(dropping.done());
  cell_.etcd.Deny("a");
  const auto ended = cell_.loop->BlockOn(std::move(dropping));
  ASSERT_FALSE(ended.has_value());
  EXPECT_EQ(ended.error().code(), Code::kTooLate) << ended.error().ToString();
  EXPECT_THAT(std::string(ended.error().message()), HasSubstr("some of its keys have been dropped"));
}

// Another part of the call is on its way by then.
TEST_F(CellTest, DropOfWhichAPartMayYetBeWrittenIsNotSaidToBeNone) {
  StartCell(2);
  std::vector<BlockKey> keys;
  for (std::uint64_t i = 0; i < 8'000; ++i) keys.push_back(KeyOf(i));
  Put(1, {KeyOf(7'999)});
  cell_.etcd.Stop();
  auto dropping =
      member(0).Drop(DropOfKeys(name_, keys), DropWait::kApplied, cell_.clock.Now().PlusUs(60 * kSecond));
  const auto ended = cell_.loop->BlockOn(std::move(dropping));
  cell_.etcd.Start();
  cell_.RunFor(10 * kSecond);
  ASSERT_FALSE(ended.has_value());
  if (!Has(1, KeyOf(7'999))) {
    EXPECT_EQ(ended.error().code(), Code::kTooLate) << ended.error().ToString();
  }
}

TEST_F(CellTest, DropWaitsForAMemberThatIsCutOffUntilItsMembershipLapses) {
  StartCell(3);
  Put(2, {KeyOf(1)});
  // Its lease stands, but nothing reaches it.
  cell_.etcd.Cut("c");
  const auto late = cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)}), DropWait::kApplied, kSecond);
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code(), Code::kTooLate);
  EXPECT_THAT(std::string(late.error().message()), HasSubstr("2 of 3 members"));
  EXPECT_TRUE(Has(2, KeyOf(1)));
  const auto durable = cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(2)}), DropWait::kDurable, kSecond);
  EXPECT_TRUE(durable.has_value());
  const auto acknowledged =
      cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)}), DropWait::kApplied, 30 * kSecond);
  ASSERT_TRUE(acknowledged.has_value()) << acknowledged.error().ToString();
  EXPECT_EQ(acknowledged->members, 2u);
  // Who has lapsed knows that nobody can vouch for it by now.
  EXPECT_LT(member(2).valid_until(), cell_.clock.Now());
  cell_.etcd.Heal("c");
  ASSERT_TRUE(Settled());
  EXPECT_FALSE(Has(2, KeyOf(1)));
}

TEST_F(CellTest, EndOfAConversationTakesWhatItAloneWrote) {
  StartCell(3);
  Put(0, {KeyOf(1)}, {71});
  Put(1, {KeyOf(1)}, {71, 72});
  Put(2, {KeyOf(1)});
  ASSERT_TRUE(cell_.Drop(node(0), EndOf(name_, 71)).has_value());
  EXPECT_FALSE(Has(0, KeyOf(1)));
  EXPECT_TRUE(Has(1, KeyOf(1)));
  EXPECT_TRUE(Has(2, KeyOf(1)));
}

TEST_F(CellTest, RecordFromBeforeADropIsNotTakenAfterIt) {
  StartCell(2);
  const Answered before = *member(1).Answering();
  ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)})).has_value());
  const std::vector<BlockKey> below = {KeyOf(1), KeyOf(2)}, beside = {KeyOf(3)};
  EXPECT_EQ(Judge(member(0), before, name_, below), Verdict::kCovered);
  EXPECT_EQ(Judge(member(0), before, name_, beside), Verdict::kTake);
  EXPECT_EQ(Judge(member(0), *member(1).Answering(), name_, below), Verdict::kTake);
  ASSERT_TRUE(cell_.Drop(node(0), EndOf(name_, 71)).has_value());
  std::vector<std::uint64_t> notes = {71};
  EXPECT_EQ(member(0).drops().CheckNotes(name_, &notes, before.a), Verdict::kCovered);
  ASSERT_TRUE(cell_.Drop(node(0), {.name = name_}).has_value());
  EXPECT_EQ(Judge(member(0), before, name_, beside), Verdict::kCovered);
  EXPECT_EQ(Judge(member(0), *member(1).Answering(), name_, beside), Verdict::kTake);
}

TEST_F(CellTest, DropsDoNotWaitForAMemberThatHasEnded) {
  net::CellKey first, second;
  second.bytes.fill(std::byte{2});
  cell_.Add("a").cell_keys = {first};
  cell_.Start(node(0));
  ASSERT_TRUE(Settled());
  cell_.Add("b").cell_keys = {first, second};
  for (int starts = 0; starts < 2; ++starts) {
    cell_.Kill(node(1));
    cell_.Start(node(1));
    ASSERT_TRUE(Settled());
    cell_.RunFor(kSecond);  // it remembers the history
  }
  const auto client = cell_.etcd.Client("somebody");
  const std::vector<net::CellKey> later = {second};
  const Instant deadline = cell_.clock.Now().PlusUs(kSecond);
  const auto replaced = cell_.loop->BlockOn(ReplaceHistory(*client, keys_, later, 77, deadline));
  ASSERT_TRUE(replaced.has_value()) << replaced.error().ToString();
  ASSERT_TRUE(cell_.RunUntil(10 * kSecond, [&] { return member(0).ended() && member(1).joined(); }));
  const auto dropped = cell_.Drop(node(1), DropOfKeys(name_, {KeyOf(1)}), DropWait::kApplied, 30 * kSecond);
  ASSERT_TRUE(dropped.has_value()) << dropped.error().ToString();
  EXPECT_EQ(dropped->members, 1u);
}

TEST_F(CellTest, DropWhoseAnswerWasLostIsWrittenOnce) {
  StartCell(2);
  cell_.etcd.LoseAnswers("a", 1);
  const std::int64_t before = cell_.etcd.header().revision;
  const auto receipt = cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)}), DropWait::kApplied, 10 * kSecond);
  ASSERT_TRUE(receipt.has_value()) << receipt.error().ToString();
  EXPECT_EQ(receipt->revision, before + 1);
  EXPECT_EQ(cell_.etcd.header().revision, before + 1);
}

TEST_F(CellTest, DropThatIsNotAcknowledgedNamesWhoHasNotAppliedIt) {
  StartCell(2);
  cell_.etcd.Cut("b");
  const auto late = cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)}), DropWait::kApplied, kSecond);
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code(), Code::kTooLate);
  EXPECT_THAT(std::string(late.error().message()),
              HasSubstr("1 of 2 members have applied it by the deadline, and b not yet"));
}

TEST_F(CellTest, DropsUnderWayEndWithTheirMemberAndSayHowFarTheyCame) {
  StartCell(2);
  cell_.etcd.Cut("b");
  auto dropping = member(0).Drop(DropOfKeys(name_, {KeyOf(1)}), DropWait::kApplied,
                                 cell_.clock.Now().PlusUs(60 * kSecond));
  cell_.RunFor(kSecond);
  ASSERT_FALSE(dropping.done());
  member(0).EndDrops();
  const auto ended = cell_.loop->BlockOn(std::move(dropping));
  ASSERT_FALSE(ended.has_value());
  EXPECT_EQ(ended.error().code(), Code::kTooLate) << "kGone says that nothing was dropped";
  EXPECT_THAT(std::string(ended.error().message()), HasSubstr("1 of 2 members"));
  EXPECT_EQ(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(2)})).error().code(), Code::kGone);
}

TEST_F(CellTest, DropThatMayHaveBeenWrittenIsNotSaidToBeNoneWhateverEtcdSaysLast) {
  StartCell(2);
  cell_.etcd.LoseAnswers("a", 1);
  auto dropping = member(0).Drop(DropOfKeys(name_, {KeyOf(1)}), DropWait::kApplied,
                                 cell_.clock.Now().PlusUs(60 * kSecond));
  cell_.RunFor(10'000);  // it is written
  cell_.etcd.Stop();
  cell_.RunFor(5 * kSecond);
  ASSERT_FALSE(dropping.done());
  member(0).EndDrops();
  const auto ended = cell_.loop->BlockOn(std::move(dropping));
  ASSERT_FALSE(ended.has_value());
  EXPECT_EQ(ended.error().code(), Code::kTooLate) << ended.error().ToString();
}

// Also where another one of the same revision can be read.
TEST_F(CellTest, R10BatchThatCannotBeReadDropsEverything) {
  StartCell(2);
  Put(1, {KeyOf(1)});
  Change({PutOf(keys_.Drops() + "x", "of a later version"),
          PutOf(keys_.Drops() + "y", EncodeBatch({DropOfKeys(name_, {KeyOf(2)})}))});
  ASSERT_TRUE(cell_.RunUntil(kSecond, [this] { return !Has(1, KeyOf(1)) && cell_.AllJoined(); }));
  EXPECT_GE(member(1).drops().begin(), cell_.etcd.header().revision)
      << "of what it has from before it vouches for nothing";
  EXPECT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)})).has_value());
}

// Its store is in the midst of it.
TEST_F(CellTest, MemberThatLeavesHasBegunTheWholeOfABatch) {
  cell_.faults.begin_us = 1'000;
  StartCell(2);
  constexpr std::uint64_t kDrops = 20;
  std::vector<CellDrop> drops;
  for (std::uint64_t key = 0; key < kDrops; ++key) {
    Put(1, {KeyOf(key)});
    drops.push_back(DropOfKeys(name_, {KeyOf(key)}));
  }
  Commit(keys_.Drops() + "x", EncodeBatch(drops));
  ASSERT_TRUE(cell_.RunUntil(kSecond, [this] { return !Has(1, KeyOf(0)); }));
  ASSERT_TRUE(Has(1, KeyOf(kDrops - 1)));
  cell_.loop->BlockOn(member(1).Leave(cell_.clock.Now().PlusUs(kSecond)));
  EXPECT_FALSE(Has(1, KeyOf(kDrops - 1)));
}

}  // namespace
}  // namespace cistern::mesh
