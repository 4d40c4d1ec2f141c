// SPDX-License-Identifier: Apache-2.0
// What a member finds that comes back to its cell: ends that were trimmed, batches that it cannot read, an
// etcd that lost what it had seen.
#include "mesh/drop_follower.h"

#include <gtest/gtest.h>

#include "mesh/test_cell.h"

namespace cistern::mesh {
namespace {

constexpr std::int64_t kSecond = 1'000'000;

class DropFollowerTest : public ::testing::Test {
 protected:
  void StartCell(int members) {
    for (int i = 0; i < members; ++i) cell_.Start(cell_.Add(std::string(1, static_cast<char>('a' + i))));
    ASSERT_TRUE(Joined());
  }
  bool Joined() {
    return cell_.RunUntil(60 * kSecond, [this] { return cell_.AllJoined(); });
  }
  TestNode& node(std::size_t i) { return *cell_.nodes[i]; }
  Member& member(std::size_t i) { return *node(i).member; }
  void Put(std::size_t i, std::uint64_t number, std::vector<std::uint64_t> notes = {}) {
    node(i).store->Put({name_, KeyOf(number)},
                       {.put = ++puts_, .chain = {KeyOf(number)}, .notes = std::move(notes)});
  }
  bool Has(std::size_t i, std::uint64_t number) {
    return node(i).store->tree().contains({name_, KeyOf(number)});
  }
  // By somebody who is no member.
  void Commit(std::string key, std::string value) {
    Change({.keys = {std::move(key), ""}, .value = std::move(value)});
  }
  void Remove(std::string key) {
    Change({.kind = etcd::Operation::Kind::kDelete, .keys = {std::move(key), ""}});
  }
  void Change(etcd::Operation change) {
    etcd::Transaction write;
    write.then.push_back(std::move(change));
    const auto client = cell_.etcd.Client("somebody");
    ASSERT_TRUE(cell_.loop->BlockOn(client->Commit(write, cell_.clock.Now().PlusUs(kSecond))).has_value());
  }
  // Its medium knows of all that it has seen.
  bool AllIsDurable(std::size_t i) {
    return cell_.RunUntil(10 * kSecond, [&] {
      return node(i).medium.standing.history == member(i).state().history &&
             node(i).medium.standing.applied >= member(i).state().last_seen.revision;
    });
  }

  const SharedNamespace name_ = NamespaceOf(1);
  const CellKeys keys_{"/cistern/"};
  TestCell cell_{1};
  std::uint64_t puts_ = 0;
};

// Which conversations ended is not known, so all that only conversations have goes, and nothing else.
TEST_F(DropFollowerTest, R10MemberBehindTheFloorOfEndsGivesUpWhatOnlyConversationsHave) {
  StartCell(3);
  Put(2, 1);
  Put(2, 2, {7});
  Put(2, 3, {8});
  cell_.Kill(node(2));
  const auto ended = cell_.Drop(node(0), EndOf(name_, 7), DropWait::kDurable);
  ASSERT_TRUE(ended.has_value());
  cell_.RunFor(CellLimits::kTrimAgeUs + kSecond);
  ASSERT_TRUE(cell_.loop->BlockOn(member(0).Trim({0, ended->revision})).ok());
  cell_.faults.failed_sync = 0.8;  // and it tries until that is durable
  for (int starts = 0; starts < 2; ++starts) {
    cell_.Start(node(2));
    ASSERT_TRUE(Joined());
    EXPECT_TRUE(Has(2, 1));
    EXPECT_FALSE(Has(2, 2));
    EXPECT_FALSE(Has(2, 3));
    if (starts == 0) {
      EXPECT_EQ(member(2).state().list.ends_begin(), ended->revision);
      EXPECT_LT(member(2).state().list.begin(), ended->revision);
    }
    cell_.faults.failed_sync = 0;
    cell_.Kill(node(2));
  }
}

TEST_F(DropFollowerTest, R10MemberThatWasAwayDropsEverythingForABatchThatItCannotRead) {
  StartCell(2);
  Put(1, 1);
  Put(1, 2);
  ASSERT_TRUE(AllIsDurable(1));
  cell_.Kill(node(1));
  Commit(keys_.Drops() + "x", "of a later version");
  ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(2)}), DropWait::kDurable).has_value());
  cell_.Start(node(1));
  ASSERT_TRUE(Joined());
  EXPECT_FALSE(Has(1, 1));
  EXPECT_FALSE(Has(1, 2));
  EXPECT_GE(member(1).state().list.begin(), member(1).state().last_seen.revision)
      << "of what it has from before it vouches for nothing";
  Put(1, 3);
  EXPECT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(3)})).has_value());
  EXPECT_FALSE(Has(1, 3));
}

TEST_F(DropFollowerTest, MemberThatReadsAllBehindABatchThatItCannotReadIsAMemberAgain) {
  StartCell(2);
  Put(1, 1);
  cell_.etcd.Cut("b");
  Commit(keys_.Drops() + "x", "of a later version");
  Commit("/another/key", "value");
  cell_.etcd.Compact(cell_.etcd.header().revision);
  cell_.etcd.CancelWatches();
  cell_.etcd.Heal("b");
  ASSERT_TRUE(cell_.RunUntil(9 * kSecond, [this] { return !Has(1, 1); }));
  ASSERT_TRUE(cell_.RunUntil(2 * kSecond, [this] { return member(1).joined(); }));
  EXPECT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(2)})).has_value());
}

// All members were down when etcd was restored, and others have written to it since: its revision tells
// nothing.
TEST_F(DropFollowerTest, R10MemberThatComesBackToAnEtcdWithoutTheLastBatchBeginsAnew) {
  for (const bool another_batch : {false, true}) {
    SCOPED_TRACE(another_batch ? "another batch has its revision" : "nothing is in its place");
    TestCell& cell = cell_;
    if (cell.nodes.empty()) StartCell(2);
    ASSERT_TRUE(Joined());
    const auto backup = cell.etcd.TakeBackup();
    Put(0, 1);
    const auto dropped = cell.Drop(node(0), DropOfKeys(name_, {KeyOf(9)}));
    ASSERT_TRUE(dropped.has_value());
    ASSERT_TRUE(AllIsDurable(0));
    const std::uint64_t history = member(0).state().history;
    cell.Kill(node(0));
    cell.Kill(node(1));
    const std::int64_t highest = cell.etcd.header().revision;
    cell.etcd.Restore(*backup);
    while (cell.etcd.header().revision < dropped->revision - 1) Commit("/another/key", "value");
    ASSERT_EQ(cell.etcd.header().revision, dropped->revision - 1);
    if (another_batch) {
      Commit(keys_.Drops() + CellKeys::BatchName(7, 1), EncodeBatch({DropOfKeys(name_, {KeyOf(8)})}));
    } else {
      Commit("/another/key", "value");
    }
    while (cell.etcd.header().revision <= highest + 10) Commit("/another/key", "value");
    cell.Start(node(0));
    ASSERT_TRUE(Joined());
    EXPECT_NE(member(0).state().history, history);
    EXPECT_FALSE(Has(0, 1));
    cell.Start(node(1));
  }
}

// Its disk takes nothing, and it goes on trying.
TEST_F(DropFollowerTest, MemberThatCannotGiveUpWhatItHasEndsAllTheSame) {
  StartCell(2);
  ASSERT_TRUE(AllIsDurable(1));
  cell_.Kill(node(1));
  cell_.faults.failed_sync = 1;
  cell_.Start(node(1));
  ASSERT_TRUE(Joined());
  Commit(keys_.Drops() + "x", "of a later version");
  ASSERT_TRUE(cell_.RunUntil(kSecond, [this] { return !member(1).joined(); }));
  auto leaving = member(1).Leave(cell_.clock.Now().PlusUs(kSecond));
  EXPECT_TRUE(cell_.RunUntil(10 * kSecond, [&] { return leaving.done(); }));
}

// Of as many batches as a node finds that was away, or comes new, or that come while it follows.
TEST_F(DropFollowerTest, P5KeysOfManyBatchesAreListedInStepsAndOnlyWhereTheyAreNeeded) {
  StartCell(2);
  const auto batch = [this](std::uint64_t number, std::uint64_t keys) {
    std::vector<CellDrop> drops;
    for (std::uint64_t drop = 0; drop < 4; ++drop) {
      drops.push_back(DropOfKeys(name_, {}));
      for (std::uint64_t key = 0; key < keys; ++key)
        drops.back().keys.push_back(KeyOf((number * 4 + drop) * 10'000 + key));
    }
    Commit(keys_.Drops() + CellKeys::BatchName(7, number), EncodeBatch(drops));
  };
  std::uint64_t number = 0;
  const auto steps_of_eight = [&](bool away, std::uint64_t keys) {
    if (away) cell_.Kill(node(1));
    const std::size_t listed = away ? 0 : member(1).drops().size();
    const std::uint64_t before = cell_.executor().steps();
    for (int i = 0; i < 8; ++i) batch(++number, keys);
    if (away) cell_.Start(node(1));
    EXPECT_TRUE(cell_.RunUntil(20 * kSecond, [&] { return member(1).drops().size() == listed + 32 * keys; }));
    EXPECT_TRUE(AllIsDurable(1));
    cell_.RunFor(20 * kSecond);
    return cell_.executor().steps() - before;
  };
  for (const bool away : {false, true}) {
    const std::uint64_t few = steps_of_eight(away, 1), many = steps_of_eight(away, 1'900);
    EXPECT_GT(many, few + 32 * 1'900 / kStepTouches / 2) << away;
  }
  cell_.Start(cell_.Add("c"));
  ASSERT_TRUE(Joined());
  EXPECT_EQ(member(2).drops().size(), 0u) << "all that it may have had is gone";
  EXPECT_LE(member(2).drops().begin(), member(2).state().seen);
}

TEST_F(DropFollowerTest, DropsDoNotWaitForAMemberWhoseDiskTakesNothing) {
  StartCell(3);
  ASSERT_TRUE(AllIsDurable(2));
  const auto start_with = [this](const ModelStore::Faults& faults) {
    cell_.Kill(node(2));
    cell_.faults = faults;
    cell_.Start(node(2));
    EXPECT_TRUE(Joined());
  };
  std::uint64_t key = 0;
  const auto drop = [&] {
    return cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(++key)}), DropWait::kApplied, 60 * kSecond);
  };
  for (const bool hangs : {false, true}) {
    SCOPED_TRACE(hangs ? "it does not answer" : "it fails");
    start_with(hangs ? ModelStore::Faults{.sync_us = 3600 * kSecond} : ModelStore::Faults{.failed_sync = 1});
    for (int drops = 0; drops < 2; ++drops) {
      const auto dropped = drop();
      ASSERT_TRUE(dropped.has_value()) << dropped.error().ToString();
      EXPECT_EQ(dropped->members, 2u);
      // It tries to join again, and does not while that is so.
      EXPECT_TRUE(cell_.RunUntil(20 * kSecond, [&] {
        const std::string_view why = member(2).why().message();
        return !member(2).joined() &&
               why.find(hangs ? "has not answered" : "the disk failed") != std::string_view::npos;
      }));
    }
    start_with({});
    EXPECT_EQ(drop()->members, 3u);
  }
}

// As a store's whose journal hangs under another change of the namespace that is dropped.
TEST_F(DropFollowerTest, DropsDoNotWaitForAMemberWhoseStoreDoesNotBeginThem) {
  StartCell(3);
  ASSERT_TRUE(AllIsDurable(2));
  cell_.Kill(node(2));
  cell_.faults.begin_us = 3600 * kSecond;
  cell_.Start(node(2));
  ASSERT_TRUE(Joined());
  const auto dropped = cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)}), DropWait::kApplied, 60 * kSecond);
  ASSERT_TRUE(dropped.has_value()) << dropped.error().ToString();
  EXPECT_EQ(dropped->members, 2u);
}

// Its leases are renewed all the same, as by an etcd whose answers to it are too long.
TEST_F(DropFollowerTest, DropsDoNotWaitForAMemberThatCannotReadEtcd) {
  StartCell(2);
  cell_.etcd.DenyKeys("b");
  cell_.etcd.CancelWatches();
  const auto dropped = cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)}), DropWait::kApplied, 60 * kSecond);
  ASSERT_TRUE(dropped.has_value()) << dropped.error().ToString();
  EXPECT_EQ(dropped->members, 1u);
  EXPECT_LT(member(1).valid_until(), cell_.clock.Now());
  cell_.etcd.DenyKeys("b", false);
  ASSERT_TRUE(cell_.RunUntil(20 * kSecond, [this] { return member(1).valid_until() > cell_.clock.Now(); }));
  EXPECT_EQ(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(2)}))->members, 2u);
}

// Its lease is not renewed while it cannot read, and has little left when it can.
TEST_F(DropFollowerTest, MemberThatCouldNotReadEtcdForLongStaysOnceItHasJoined) {
  StartCell(2);
  for (std::int64_t unread = 20; unread <= 31; ++unread) {
    SCOPED_TRACE(unread);
    cell_.etcd.DenyKeys("b");
    Remove(keys_.MemberKey("b"));
    ASSERT_TRUE(cell_.RunUntil(kSecond, [this] { return !member(1).joined(); }));
    cell_.RunFor(unread * kSecond);
    cell_.etcd.DenyKeys("b", false);
    ASSERT_TRUE(cell_.RunUntil(20 * kSecond, [this] { return member(1).joined(); }));
    EXPECT_FALSE(cell_.RunUntil(12 * kSecond, [this] { return !member(1).joined(); }));
  }
}

// As behind a proxy that passes no stream on, or ends each.
TEST_F(DropFollowerTest, DropsDoNotWaitForAMemberWhoseWatchesBringNothing) {
  StartCell(2);
  const std::uint64_t history = member(1).state().history;
  for (const bool silent : {true, false}) {
    SCOPED_TRACE(silent ? "they are silent" : "they end");
    if (silent) {
      cell_.etcd.SilenceWatches();
      cell_.etcd.Deafen("b");
    } else {
      cell_.etcd.SetChances({.cancelled_watch = 1});
      cell_.etcd.CancelWatches();
    }
    for (std::uint64_t key = 1; key <= 3; ++key) {
      Put(1, key);
      const auto dropped =
          cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(key)}), DropWait::kApplied, 30 * kSecond);
      ASSERT_TRUE(dropped.has_value()) << dropped.error().ToString();
      EXPECT_EQ(dropped->members, 2u);
      EXPECT_FALSE(Has(1, key));
    }
    // Who came and went meanwhile is no sign of another etcd, once it hears again.
    Commit(keys_.MemberKey("c"), MemberValue{.process_number = 9, .address = "c:1"}.Encode());
    Remove(keys_.MemberKey("c"));
    cell_.RunFor(30 * kSecond);
    cell_.etcd.Deafen("b", false);
    cell_.etcd.SetChances({});
    cell_.RunFor(10 * kSecond);
    EXPECT_TRUE(cell_.AllJoined());
    EXPECT_EQ(member(1).state().history, history);
    EXPECT_EQ(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(4)}))->members, 2u);
  }
}

// By who joined an etcd that was restored, for who does not reach it: what that one saw and etcd has lost is
// in no number. Ends are trimmed after an hour, drops after a day.
TEST_F(DropFollowerTest, R10WhatARestoredEtcdHasLostIsNotReadBackThoughEndsWereTrimmed) {
  StartCell(3);
  ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(5)})).has_value());
  ASSERT_TRUE(AllIsDurable(2));
  cell_.Kill(node(2));
  cell_.RunFor(15 * kSecond);
  const auto backup = cell_.etcd.TakeBackup();
  ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(6)})).has_value());
  const auto ended = cell_.Drop(node(0), EndOf(name_, 7));
  ASSERT_TRUE(ended.has_value());
  cell_.RunFor(CellLimits::kTrimAgeUs + kSecond);
  ASSERT_TRUE(cell_.loop->BlockOn(member(0).Trim({0, ended->revision})).ok());
  ASSERT_TRUE(cell_.RunUntil(kSecond, [&] { return member(0).state().floor.ends == ended->revision; }));
  for (const char* host : {"a", "b"}) cell_.etcd.Cut(host);
  cell_.etcd.Restore(*backup);
  cell_.Start(node(2));
  const std::vector<BlockKey> dropped = {KeyOf(6)};
  for (int changes = 0; changes < 20; ++changes) {
    ASSERT_TRUE(cell_.RunUntil(5 * kSecond, [&] {
      return member(2).joined() && member(2).state().applied == cell_.etcd.header().revision;
    }));
    ASSERT_EQ(member(2).state().history, member(0).state().history);
    EXPECT_NE(Judge(member(0), *member(2).Answering(), name_, dropped), Verdict::kTake) << changes;
    Commit(keys_.prefix() + "another", "value");
  }
}

}  // namespace
}  // namespace cistern::mesh
