// SPDX-License-Identifier: Apache-2.0
// An etcd that is silent, away, restored from a backup, or another.
#include "mesh/test_members.h"

namespace cistern::mesh {
namespace {

TEST_F(CellTest, SilentWatchIsFoundByALook) {
  StartCell(2);
  Put(1, {KeyOf(1)});
  cell_.etcd.SilenceWatches();
  const auto receipt = cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)}), DropWait::kApplied, 10 * kSecond);
  EXPECT_TRUE(receipt.has_value());
  EXPECT_FALSE(Has(1, KeyOf(1)));
}

TEST_F(CellTest, WithoutEtcdTheCellGoesOnAndADropChangesNothing) {
  StartCell(2);
  Put(1, {KeyOf(1)});
  cell_.etcd.Stop();
  cell_.RunFor(3600 * kSecond);
  EXPECT_TRUE(member(0).joined() && member(1).joined());
  const std::vector<BlockKey> chain = {KeyOf(1)};
  EXPECT_EQ(Judge(member(0), *member(1).Answering(), name_, chain), Verdict::kTake);
  EXPECT_LT(member(0).valid_until(), cell_.clock.Now());
  const auto dropped = cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)}));
  ASSERT_FALSE(dropped.has_value());
  EXPECT_EQ(dropped.error().code(), Code::kGone);
  EXPECT_TRUE(Has(1, KeyOf(1)));
  cell_.etcd.Start();
  EXPECT_TRUE(cell_.RunUntil(20 * kSecond, [this] { return member(0).valid_until() > cell_.clock.Now(); }));
  EXPECT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)})).has_value());
}

TEST_F(CellTest, RestoredEtcdBeginsAnotherHistory) {
  StartCell(3);
  const auto backup = cell_.etcd.TakeBackup();
  const std::uint64_t history = member(0).state().history;
  for (std::size_t i = 0; i < 3; ++i) Put(i, {KeyOf(1)});
  ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(5)})).has_value());
  cell_.etcd.Restore(*backup);
  ASSERT_TRUE(cell_.RunUntil(30 * kSecond, [&] {
    for (std::size_t i = 0; i < 3; ++i) {
      if (member(i).state().history == history || !member(i).joined()) return false;
    }
    return true;
  }));
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(member(i).state().history, member(0).state().history);
    EXPECT_FALSE(Has(i, KeyOf(1)));
  }
  ASSERT_TRUE(Settled());
  EXPECT_TRUE(cell_.Drop(node(1), DropOfKeys(name_, {KeyOf(5)})).has_value());
}

TEST_F(CellTest, RestoredEtcdIsNoticedThoughItsRevisionHasRisenSince) {
  StartCell(2);
  const auto backup = cell_.etcd.TakeBackup();
  const std::uint64_t history = member(0).state().history;
  ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(5)})).has_value());
  cell_.etcd.Restore(*backup);
  for (int i = 0; i < 10; ++i) Commit("/another/key", "value");
  EXPECT_TRUE(cell_.RunUntil(30 * kSecond, [&] {
    return member(0).state().history != history && member(1).state().history != history;
  }));
}

// Before anybody has looked.
TEST_F(CellTest, R10NothingIsTrimmedInAnEtcdThatWasRestoredMeanwhile) {
  StartCell(2);
  ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(5)})).has_value());
  const auto backup = cell_.etcd.TakeBackup();
  const std::uint64_t history = member(0).state().history;
  ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(6)})).has_value());
  const std::int64_t seen = member(0).state().seen;
  cell_.etcd.Restore(*backup);
  EXPECT_EQ(cell_.loop->BlockOn(member(0).Trim({seen, seen})).code(), Code::kLapsed);
  const CellKeys keys("/cistern/");
  EXPECT_EQ(KeysOf(keys.Drops()), 1u);
  EXPECT_EQ(KeysOf(keys.Floor()), 0u);
  EXPECT_TRUE(cell_.RunUntil(30 * kSecond, [&] { return member(1).state().history != history; }));
}

// By who knows nothing of what was lost; the revision has risen, and the floor, before anybody looks.
TEST_F(CellTest, R10AMemberThatJoinsARestoredEtcdTrimsNothingThatOthersHaveToMiss) {
  StartCell(3);
  ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(5)})).has_value());
  cell_.Kill(node(2));
  cell_.RunFor(15 * kSecond);
  const auto backup = cell_.etcd.TakeBackup();
  const std::uint64_t history = member(0).state().history;
  ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(6)})).has_value());
  cell_.etcd.Restore(*backup);
  for (const char* host : {"a", "b"}) cell_.etcd.Cut(host);
  cell_.Start(node(2));
  ASSERT_TRUE(cell_.RunUntil(5 * kSecond, [this] { return member(2).joined(); }));
  for (int i = 0; i < 10; ++i) Commit("/another/key", "value");
  const auto dropped = cell_.Drop(node(2), DropOfKeys(name_, {KeyOf(7)}), DropWait::kDurable);
  ASSERT_TRUE(dropped.has_value());
  ASSERT_TRUE(cell_.RunUntil(kSecond, [&] { return member(2).state().seen >= dropped->revision; }));
  ASSERT_TRUE(cell_.loop->BlockOn(member(2).Trim({dropped->revision, dropped->revision})).ok());
  for (const char* host : {"a", "b"}) cell_.etcd.Heal(host);
  EXPECT_TRUE(cell_.RunUntil(30 * kSecond, [&] {
    return member(0).state().history != history && member(1).state().history != history;
  }));
}

TEST_F(CellTest, FloorBeyondWhatEtcdHasCostsWhatIsHereAndEndsNobody) {
  StartCell(1);
  Commit(CellKeys("/cistern/").Floor(), CellFloor{1'000, 1'000}.Encode());
  cell_.Start(cell_.Add("b"));
  ASSERT_TRUE(Settled());
  EXPECT_LE(member(1).state().list.begin(), cell_.etcd.header().revision);
  Put(1, {KeyOf(1)});
  const auto dropped = cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)}));
  ASSERT_TRUE(dropped.has_value());
  EXPECT_EQ(dropped->applied, 2u);
  EXPECT_FALSE(Has(1, KeyOf(1)));
  const std::vector<BlockKey> chain = {KeyOf(1)};
  EXPECT_EQ(Judge(member(0), *member(1).Answering(), name_, chain), Verdict::kTake);
}

TEST_F(CellTest, DropInTheRevisionOfAChangeThatARestoredEtcdHasLostIsNotMissed) {
  StartCell(2);
  const auto backup = cell_.etcd.TakeBackup();
  cell_.Start(cell_.Add("c"));
  ASSERT_TRUE(Settled());
  cell_.Kill(node(2));
  Put(0, {KeyOf(1)});
  const std::int64_t seen = member(0).state().seen;
  cell_.etcd.Restore(*backup);
  Commit(CellKeys("/cistern/").Drops() + "x", EncodeBatch({DropOfKeys(name_, {KeyOf(1)})}));
  ASSERT_LE(cell_.etcd.header().revision, seen);
  Commit("/another/key", "value");
  EXPECT_TRUE(cell_.RunUntil(30 * kSecond, [this] { return !Has(0, KeyOf(1)); }));
}

TEST_F(CellTest, RevisionsOfAnEtcdBeforeItWasRestoredVouchForNothing) {
  StartCell(2);
  const auto backup = cell_.etcd.TakeBackup();
  for (const std::uint64_t key : {5, 6})
    ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(key)})).has_value());
  // On its way to a member that joins after the restore, which nobody else is left to notice.
  const Answered before = *member(1).Answering();
  cell_.Kill(node(0));
  cell_.Kill(node(1));
  cell_.etcd.Restore(*backup);
  cell_.Start(cell_.Add("c"));
  ASSERT_TRUE(cell_.RunUntil(20 * kSecond, [this] { return member(2).joined(); }));
  ASSERT_EQ(member(2).state().history, before.history);
  const std::vector<BlockKey> chain = {KeyOf(1)};
  EXPECT_TRUE(member(2).Behind(before));
  EXPECT_EQ(Judge(member(2), before, name_, chain), Verdict::kBehind);
  Commit(CellKeys("/cistern/").Drops() + "x", EncodeBatch({DropOfKeys(name_, {KeyOf(1)})}));
  ASSERT_LE(cell_.etcd.header().revision, before.a);
  ASSERT_TRUE(cell_.RunUntil(20 * kSecond, [this] { return member(2).drops().size() > 0; }));
  EXPECT_EQ(Judge(member(2), before, name_, chain), Verdict::kBehind);
}

TEST_F(CellTest, AnotherClusterBeginsAnotherHistory) {
  StartCell(2);
  const std::uint64_t history = member(0).state().history;
  Put(1, {KeyOf(1)});
  cell_.etcd.Restore(*cell_.etcd.TakeBackup(), true);
  ASSERT_TRUE(cell_.RunUntil(30 * kSecond, [&] { return member(1).state().history != history; }));
  EXPECT_FALSE(Has(1, KeyOf(1)));
}

}  // namespace
}  // namespace cistern::mesh
