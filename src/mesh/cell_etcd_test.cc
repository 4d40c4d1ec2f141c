// SPDX-License-Identifier: Apache-2.0
// An etcd that is silent, away, restored from a backup, or another.
#include <functional>

#include "mesh/cell_history.h"
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
  EXPECT_EQ(KeysOf(keys_.Drops()), 1u);
  EXPECT_EQ(KeysOf(keys_.Floor()), 0u);
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
  Commit(keys_.Floor(), CellFloor{1'000, 1'000}.Encode());
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
  Commit(keys_.Drops() + "x", EncodeBatch({DropOfKeys(name_, {KeyOf(1)})}));
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
  Commit(keys_.Drops() + "x", EncodeBatch({DropOfKeys(name_, {KeyOf(1)})}));
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

// Others have written to it since, and nothing of the cell is lost.
TEST_F(CellTest, R10RestoredEtcdIsAnotherThoughItsRevisionRoseAgainBeforeItWasAskedAgain) {
  StartCell(2);
  const auto backup = cell_.etcd.TakeBackup();
  RaiseTo(cell_.etcd.header().revision + 10);
  cell_.RunFor(2 * CellLimits::kLookUs);  // of these only a look tells
  const std::uint64_t history = member(0).state().history;
  cell_.etcd.Cut("b");
  cell_.etcd.Restore(*backup);
  ASSERT_TRUE(cell_.RunUntil(CellLimits::kLookUs, [this] { return !member(0).joined(); }));
  cell_.etcd.Cut("a");
  RaiseTo(cell_.etcd.header().revision + 20);
  for (const char* host : {"a", "b"}) cell_.etcd.Heal(host);
  EXPECT_TRUE(BeganAnew(history));
}

// By a look, which comes before anything is believed of a watch.
TEST_F(CellTest, R10BatchThatARestoredEtcdHasNotIsMissedByALook) {
  StartCell(2);
  for (const bool elsewhere : {false, true}) {
    SCOPED_TRACE(elsewhere ? "its key has another revision" : "its key is gone");
    const auto backup = cell_.etcd.TakeBackup();
    const std::uint64_t history = member(0).state().history;
    ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(5)})).has_value());
    const std::string key = member(0).state().witness.key;
    const std::int64_t highest = cell_.etcd.header().revision;
    for (const char* host : {"a", "b"}) {
      cell_.etcd.Deafen(host);
      cell_.etcd.Cut(host);
    }
    cell_.etcd.Restore(*backup);
    RaiseTo(highest + 10);
    if (elsewhere) Commit(key, EncodeBatch({DropOfKeys(name_, {KeyOf(5)})}));
    for (const char* host : {"a", "b"}) cell_.etcd.Heal(host);
    EXPECT_TRUE(BeganAnew(history, CellLimits::kLookUs));
    for (const char* host : {"a", "b"}) cell_.etcd.Deafen(host, false);
    ASSERT_TRUE(Settled());
  }
}

// Of drops or of ends, as the last batch was, and up to it.
TEST_F(CellTest, BatchThatWasTrimmedIsNoSignOfAnotherEtcd) {
  StartCell(2);
  Put(1, {KeyOf(1)});
  const std::uint64_t history = member(0).state().history;
  for (const bool ends : {false, true}) {
    SCOPED_TRACE(ends);
    const auto dropped =
        cell_.Drop(node(0), ends ? EndOf(name_, 7) : DropOfKeys(name_, {KeyOf(5)}), DropWait::kApplied);
    ASSERT_TRUE(dropped.has_value());
    ASSERT_EQ(member(1).state().witness.revision, dropped->revision);
    cell_.RunFor(CellLimits::kTrimAgeUs + kSecond);
    const CellFloor floor{ends ? 0 : dropped->revision, ends ? dropped->revision : 0};
    ASSERT_TRUE(cell_.loop->BlockOn(member(0).Trim(floor)).ok());
    ASSERT_EQ(KeysOf(ends ? keys_.Ends() : keys_.Drops()), 0u);
    cell_.RunFor(3 * CellLimits::kLookUs);
    EXPECT_EQ(member(1).state().history, history);
    EXPECT_TRUE(Has(1, KeyOf(1)));
  }
}

// A watch begins with the last change that was seen, whatever came behind it.
TEST_F(CellTest, R10WhatAnotherWatchBringsAgainIsNotTakenAgain) {
  StartCell(2);
  const std::string value = MemberValue{.process_number = 9, .address = "c:1"}.Encode();
  const std::vector<std::pair<std::string, std::function<void()>>> changes = {
      {"a drop", [] {}},
      {"a member came", [&] { Commit(keys_.MemberKey("c"), value); }},
      {"it went", [&] { Remove(keys_.MemberKey("c")); }},
      {"two batches in one revision",
       [&] {
         Change({PutOf(keys_.Drops() + "x", EncodeBatch({DropOfKeys(name_, {KeyOf(2)})})),
                 PutOf(keys_.Ends() + "x", EncodeBatch({EndOf(name_, 7)}))});
       }},
      {"a name", [&] { Commit(keys_.NameKey("default", "name"), "value"); }},
      {"a member that cannot be read", [&] { Commit(keys_.MemberKey("d"), "of a later version"); }},
      {"it went, and a batch came",
       [&] {
         Change({{.kind = etcd::Operation::Kind::kDelete, .keys = {keys_.MemberKey("d"), ""}},
                 PutOf(keys_.Drops() + "y", EncodeBatch({DropOfKeys(name_, {KeyOf(3)})}))});
       }},
  };
  const std::uint64_t history = member(1).state().history;
  ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)})).has_value());
  for (const auto& [what, change] : changes) {
    SCOPED_TRACE(what);
    change();
    ASSERT_TRUE(
        cell_.RunUntil(kSecond, [this] { return member(1).state().seen == cell_.etcd.header().revision; }));
    EXPECT_FALSE(member(1).state().view.members.contains("d"));
    for (const std::uint64_t key : {1, 2, 3}) Put(1, {KeyOf(key)});
    const std::size_t listed = member(1).drops().size();
    const std::uint64_t views = member(1).state().views, kept = member(1).state().kept_drops.bytes();
    cell_.etcd.CancelWatches();
    cell_.RunFor(kSecond);
    ASSERT_EQ(member(1).state().history, history);
    EXPECT_TRUE(member(1).joined());
    for (const std::uint64_t key : {1, 2, 3}) EXPECT_TRUE(Has(1, KeyOf(key))) << key;
    EXPECT_EQ(member(1).drops().size(), listed);
    EXPECT_EQ(member(1).state().views, views);
    EXPECT_EQ(member(1).state().kept_drops.bytes(), kept);
  }
  const std::uint64_t views = member(1).state().views;
  EXPECT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)})).has_value());
  EXPECT_EQ(member(1).state().views, views) << "no member came or went";
  // A compaction forgets deletes before it forgets the put that they came behind.
  Commit(keys_.MemberKey("c"), value);
  Remove(keys_.MemberKey("c"));
  cell_.etcd.Compact(cell_.etcd.header().revision);
  cell_.etcd.CancelWatches();
  EXPECT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)})).has_value());
  EXPECT_EQ(member(1).state().history, history);
}

// What it has in their place is of the same revisions, so that numbers say nothing, and no batch is lost.
TEST_F(CellTest, R10RestoredEtcdWhoseLastChangesAreOthersIsAnotherOne) {
  StartCell(2);
  const auto value = [](std::uint64_t number) {
    return MemberValue{.process_number = number, .address = "c:1"}.Encode();
  };
  struct Case {
    std::string what;
    std::function<void()> lost, instead;
  };
  const std::vector<Case> cases = {
      {"a member that came has not", [&] { Commit(keys_.MemberKey("e"), value(9)); },
       [&] {
         RaiseTo(member(0).state().seen + 10);
         Commit(keys_.Drops() + "x", EncodeBatch({DropOfKeys(name_, {KeyOf(1)})}));
       }},
      {"a member that went came", [&] { Remove(keys_.MemberKey("c")); },
       [&] { Commit(keys_.MemberKey("c"), value(10)); }},
      {"another member went", [&] { Remove(keys_.MemberKey("c")); }, [&] { Remove(keys_.MemberKey("d")); }},
      {"a member went in the revision in which another came",
       [&] {
         Change({PutOf(keys_.MemberKey("e"), value(11)),
                 {.kind = etcd::Operation::Kind::kDelete, .keys = {keys_.MemberKey("c"), ""}}});
       },
       [&] {
         Change({PutOf(keys_.MemberKey("e"), value(11)),
                 {.kind = etcd::Operation::Kind::kDelete, .keys = {keys_.MemberKey("d"), ""}}});
       }},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.what);
    const auto seen = [this] {
      return cell_.RunUntil(kSecond, [this] {
        return member(0).state().seen == cell_.etcd.header().revision &&
               member(1).state().seen == cell_.etcd.header().revision;
      });
    };
    Commit(keys_.MemberKey("c"), value(7));
    Commit(keys_.MemberKey("d"), value(8));
    ASSERT_TRUE(seen());
    const std::uint64_t history = member(0).state().history;
    const auto backup = cell_.etcd.TakeBackup();
    one.lost();
    ASSERT_TRUE(seen());
    for (const char* host : {"a", "b"}) cell_.etcd.Cut(host);
    cell_.etcd.Restore(*backup);
    one.instead();
    RaiseTo(member(0).state().past.highest_revision + 10);
    for (const char* host : {"a", "b"}) cell_.etcd.Heal(host);
    EXPECT_TRUE(BeganAnew(history));
    for (const char* id : {"c", "d", "e"}) Remove(keys_.MemberKey(id));
    ASSERT_TRUE(Settled());
  }
}

// What it read at once says that no change of the cell came behind its own key.
TEST_F(CellTest, R10DropOfARestoredEtcdInARevisionThatAMemberReadToIsNotMissed) {
  StartCell(2);
  Put(1, {KeyOf(1)});
  ASSERT_TRUE(AllIsDurable(1));
  cell_.Kill(node(1));
  const std::int64_t before = cell_.etcd.header().revision;
  cell_.etcd.SetLags({.answer_us = 20'000, .event_us = 1'000});
  cell_.Start(node(1));
  ASSERT_TRUE(cell_.RunUntil(kSecond, [&] { return cell_.etcd.header().revision > before; }));
  const auto backup = cell_.etcd.TakeBackup();
  cell_.etcd.SetLags({});
  RaiseTo(cell_.etcd.header().revision + 3);
  ASSERT_TRUE(Settled());
  ASSERT_EQ(member(1).state().seen, cell_.etcd.header().revision);
  ASSERT_TRUE(Has(1, KeyOf(1)));
  for (const char* host : {"a", "b"}) cell_.etcd.Cut(host);
  cell_.etcd.Restore(*backup);
  Commit(keys_.Drops() + "x", EncodeBatch({DropOfKeys(name_, {KeyOf(1)})}));
  ASSERT_LT(cell_.etcd.header().revision, member(1).state().seen);
  RaiseTo(member(1).state().past.highest_revision + 10);
  for (const char* host : {"a", "b"}) cell_.etcd.Heal(host);
  EXPECT_TRUE(cell_.RunUntil(10 * kSecond, [this] { return !Has(1, KeyOf(1)); }));
}

// Its own put may be answered before a look that was asked earlier is.
TEST_F(CellTest, MemberThatWritesWhileItLooksSeesNoOtherEtcd) {
  StartCell(1);
  const std::uint64_t history = member(0).state().history;
  cell_.etcd.SetChances({.slow = 0.3});
  const Instant until = cell_.clock.Now().PlusUs(60 * kSecond);
  for (std::uint64_t key = 0; cell_.clock.Now() < until; ++key) {
    ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(key)}), DropWait::kDurable).has_value());
    cell_.RunFor(10'000);
  }
  cell_.etcd.SetChances({});
  EXPECT_EQ(member(0).state().history, history);
}

TEST_F(CellTest, HistoryThatIsReplacedRemovedOrDamagedEndsWhatIsSharedAtOnce) {
  StartCell(2);
  const auto person = cell_.etcd.Client("person");
  const auto shared_no_more = [&](std::uint64_t history) {
    return cell_.RunUntil(100'000, [&] {
      return std::ranges::none_of(cell_.nodes, [&](const auto& each) {
        return each->member->joined() && each->member->state().history == history;
      });
    });
  };
  for (std::uint64_t round = 0; round < 8; ++round) {
    const std::uint64_t history = member(0).state().history;
    if (round % 2 == 0) {
      const Instant deadline = cell_.clock.Now().PlusUs(kSecond);
      ASSERT_TRUE(cell_.loop->BlockOn(ReplaceHistory(*person, keys_, {}, 77 + round, deadline)).has_value());
    } else {
      Remove(keys_.History());
    }
    EXPECT_TRUE(shared_no_more(history)) << round;
    ASSERT_TRUE(Settled());
    cell_.RunFor(300'000);
  }
  Commit(keys_.History(), "of a later version");
  EXPECT_TRUE(shared_no_more(member(0).state().history));
}

TEST_F(CellTest, WatchThatEndsIsBegunAgainAtOnce) {
  StartCell(2);
  for (std::uint64_t key = 0; key < 10; ++key) {
    cell_.etcd.CancelWatches();
    EXPECT_TRUE(
        cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(key)}), DropWait::kApplied, kSecond / 2).has_value());
  }
}

TEST_F(CellTest, QuietMemberAsksEtcdOnlyForALookAndItsLease) {
  StartCell(1);
  ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)})).has_value());
  cell_.RunFor(10 * kSecond);
  const std::uint64_t before = cell_.etcd.questions();
  cell_.RunFor(60 * kSecond);
  EXPECT_LE(cell_.etcd.questions() - before,
            60 * kSecond / CellLimits::kLookUs + 60 * kSecond / CellLimits::kKeepAliveUs + 2);
}

// Its watch is silent, as one of a quiet cell is in an etcd that others write to.
TEST_F(CellTest, MemberWritesNothingWhereOnlyOthersWriteToEtcd) {
  StartCell(2);
  ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)})).has_value());
  const auto own_key = [this] { return Found(keys_.MemberKey("b")).front().mod_revision; };
  const auto others_write_for = [this](std::int64_t us, std::int64_t pause_us) {
    for (const Instant until = cell_.clock.Now().PlusUs(us); cell_.clock.Now() < until;) {
      Commit("/another/key", "value");
      cell_.RunFor(pause_us);
    }
  };
  const std::int64_t entered = own_key();
  others_write_for(60 * kSecond, 50'000);
  EXPECT_EQ(own_key(), entered);
  // One that hears nothing reads all, and no more often than it looks.
  cell_.etcd.SilenceWatches();
  cell_.etcd.Deafen("b");
  others_write_for(20 * kSecond, 50'000);
  const std::uint64_t views = member(1).state().views;
  others_write_for(60 * kSecond, 100);
  EXPECT_GT(member(1).state().views, views);
  EXPECT_LE(member(1).state().views, views + 60 * kSecond / CellLimits::kLookUs + 1);
  // Once nobody writes any more there is nothing to be read.
  cell_.RunFor(20 * kSecond);
  const std::int64_t last = own_key();
  cell_.RunFor(60 * kSecond);
  EXPECT_EQ(own_key(), last);
}

TEST_F(CellTest, EtcdThatGivesNothingIsAskedAFewTimesASecondAndIsNamedMeanwhile) {
  const auto asks_little = [this] {
    const std::uint64_t before = cell_.etcd.questions();
    cell_.RunFor(10 * kSecond);
    EXPECT_LE(cell_.etcd.questions() - before, 500u);
  };
  FillEtcd();
  cell_.Start(cell_.Add("a"));
  asks_little();
  EXPECT_FALSE(member(0).joined());
  EXPECT_EQ(member(0).why().code(), Code::kBusy) << member(0).why().ToString();
  cell_.etcd.SetFull(false);
  ASSERT_TRUE(Settled());
  EXPECT_TRUE(member(0).why().ok());

  // Who has joined says so too, from the first drop that it refuses to the next that it takes.
  FillEtcd();
  EXPECT_FALSE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)}), DropWait::kApplied, kSecond).has_value());
  cell_.RunFor(2 * CellLimits::kLookUs);
  EXPECT_TRUE(member(0).joined());
  EXPECT_EQ(member(0).why().code(), Code::kBusy) << member(0).why().ToString();
  cell_.etcd.SetFull(false);
  EXPECT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)})).has_value());
  EXPECT_TRUE(member(0).why().ok());

  cell_.etcd.SetChances({.cancelled_watch = 1});
  cell_.etcd.CancelWatches();
  asks_little();
  cell_.etcd.SetChances({});

  // What its watch brought next is compacted, and it may not write its key again.
  RaiseTo(cell_.etcd.header().revision + 5);
  FillEtcd();
  cell_.etcd.Compact(cell_.etcd.header().revision);
  cell_.etcd.CancelWatches();
  asks_little();
  cell_.etcd.SetFull(false);
  EXPECT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)})).has_value());

  cell_.etcd.Stop();
  asks_little();
  EXPECT_TRUE(member(0).joined());
  EXPECT_EQ(member(0).why().code(), Code::kGone) << member(0).why().ToString();
  cell_.etcd.Start();
  EXPECT_TRUE(cell_.RunUntil(3 * kSecond, [this] { return member(0).why().ok(); }));
}

}  // namespace
}  // namespace cistern::mesh
