// SPDX-License-Identifier: Apache-2.0
// What a member reads of its cell at once, when it joins or where its watch does not bring what there is:
// nothing that was dropped is missed, nothing is taken for another etcd, and what it knows is what etcd has.
#include <functional>

#include "mesh/test_members.h"

namespace cistern::mesh {
namespace {

class CellReadingTest : public CellTest {
 protected:
  void StartWith(std::size_t i, const ModelStore::Faults& faults) {
    cell_.Kill(node(i));
    cell_.faults = faults;
    cell_.Start(node(i));
    cell_.faults = {};
    ASSERT_TRUE(Settled());
  }
  // Its watch has to begin anew, behind what is compacted.
  void LoseWatches() {
    RaiseTo(cell_.etcd.header().revision + 3);
    cell_.etcd.Compact(cell_.etcd.header().revision);
    cell_.etcd.CancelWatches();
  }
  std::uint64_t BytesOf(const std::string& prefix) {
    std::uint64_t bytes = 0;
    for (const etcd::KeyValue& key : Found(prefix)) bytes += key.key.size() + key.value.size();
    return bytes;
  }
  void ExpectThatAllKnowWhatIsKept() {
    for (std::size_t i = 0; i < cell_.nodes.size(); ++i) {
      EXPECT_EQ(member(i).state().kept_drops.bytes(), BytesOf(keys_.Drops())) << i;
      EXPECT_EQ(member(i).state().kept_ends.bytes(), BytesOf(keys_.Ends())) << i;
    }
  }
};

// Their keys are in no order of their revisions.
TEST_F(CellReadingTest, R10EveryPageOfDropsAndOfEndsIsReadAndEachIsAsOldAsItWas) {
  constexpr std::uint64_t kBatches = 5 * CellLimits::kPageKeys / 2;
  StartCell(2);
  const auto backup = cell_.etcd.TakeBackup();
  for (std::uint64_t n = 0; n <= kBatches; ++n) {
    Put(1, {KeyOf(n)});
    Put(1, {KeyOf(1'000 + n)}, {n});
  }
  ASSERT_TRUE(AllIsDurable(1));
  cell_.Kill(node(1));
  for (std::uint64_t n = 0; n < kBatches; ++n) {
    const std::string name = CellKeys::BatchName(7, 1'000 - n);
    Commit(keys_.Drops() + name, EncodeBatch({DropOfKeys(name_, {KeyOf(n)})}));
    Commit(keys_.Ends() + name, EncodeBatch({EndOf(name_, n)}));
  }
  const std::int64_t last = cell_.etcd.header().revision;
  // Whichever page does not come, it has not joined.
  cell_.etcd.SetLags({.answer_us = 10'000});
  for (std::int64_t us = 40'000; us < 120'000; us += 5'000) {
    cell_.Start(node(1));
    cell_.RunFor(us);
    if (member(1).joined()) break;
    cell_.etcd.Cut("b");
    EXPECT_FALSE(cell_.RunUntil(2 * kSecond, [this] { return member(1).joined(); })) << us;
    cell_.Kill(node(1));
    cell_.etcd.Heal("b");
  }
  cell_.etcd.SetLags({});
  ASSERT_TRUE(Settled());
  ASSERT_TRUE(AllIsDurable(1));
  EXPECT_EQ(node(1).store->tree().size(), 2u);
  const auto knows_all = [&] {
    for (std::size_t i = 0; i < 2; ++i) {
      const CellState& state = member(i).state();
      EXPECT_EQ(state.list.size(), 2 * kBatches) << i;
      EXPECT_EQ(state.witness.key, keys_.Ends() + CellKeys::BatchName(7, 1'001 - kBatches)) << i;
      EXPECT_TRUE(state.witness.of_end) << i;
      EXPECT_EQ(state.last_seen.revision, last) << i;
      EXPECT_EQ(state.kept_ends.last(), last) << i;
      EXPECT_EQ(state.kept_drops.last(), last - 1) << i;
    }
    ExpectThatAllKnowWhatIsKept();
  };
  knows_all();
  const std::uint64_t history = member(0).state().history;
  const std::int64_t joined = member(1).state().view.revision;
  cell_.RunFor(CellLimits::kTrimAgeUs + kSecond);
  LoseWatches();
  ASSERT_TRUE(cell_.RunUntil(kSecond, [&] { return member(1).state().view.revision > joined; }));
  cell_.RunFor(kSecond);
  knows_all();
  EXPECT_GT(member(1).state().kept_drops.HereFor(CellLimits::kTrimAgeUs, cell_.clock.Now()), 0);
  // Of the two kinds one is trimmed while a member is away.
  cell_.etcd.Cut("b");
  ASSERT_TRUE(cell_.loop->BlockOn(member(0).Trim({last, 0})).ok());
  LoseWatches();
  cell_.etcd.Heal("b");
  ASSERT_TRUE(cell_.RunUntil(kSecond, [&] { return member(1).state().floor.drops == last - 1; }));
  EXPECT_EQ(member(1).state().history, history);
  EXPECT_EQ(member(1).state().kept_drops.bytes(), 0u);
  ExpectThatAllKnowWhatIsKept();
  // Whatever another history had is not in this one's way.
  cell_.etcd.Restore(*backup);
  ASSERT_TRUE(BeganAnew(history));
  ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)})).has_value());
  ExpectThatAllKnowWhatIsKept();
}

// A start keeps its clients waiting as long, and other members' drops wait for it: the fewer pages the
// better.
TEST_F(CellReadingTest, R10MemberSaysThatItReadsUntilWhatWasDroppedHasBegun) {
  constexpr std::uint64_t kBatches = 64 * CellLimits::kPageKeys;
  StartCell(2);
  Put(1, {KeyOf(1)});
  ASSERT_TRUE(AllIsDurable(1));
  cell_.Kill(node(1));
  std::vector<etcd::Operation> puts;
  for (std::uint64_t n = 0; n < kBatches; ++n) {
    const std::string name = CellKeys::BatchName(7, n);
    puts.push_back(PutOf(keys_.Drops() + name, EncodeBatch({DropOfKeys(name_, {KeyOf(1'000 + n)})})));
    if (puts.size() == 100) Change(std::exchange(puts, {}));
  }
  Change(std::move(puts));
  Commit(keys_.Drops() + CellKeys::BatchName(8, 1), EncodeBatch({DropOfKeys(name_, {KeyOf(1)})}));
  cell_.etcd.SetLags({.answer_us = 100'000});
  cell_.Start(node(1));
  EXPECT_FALSE(member(1).reading());
  ASSERT_TRUE(cell_.RunUntil(2 * kSecond, [this] { return member(1).reading(); }));
  const std::uint64_t asked = cell_.etcd.questions();
  ASSERT_TRUE(cell_.RunUntil(60 * kSecond, [this] {
    EXPECT_TRUE(member(1).reading() || member(1).joined());
    return !Has(1, KeyOf(1));
  }));
  ASSERT_TRUE(cell_.RunUntil(kSecond, [this] { return member(1).joined(); }));
  EXPECT_FALSE(member(1).reading());
  EXPECT_LE(cell_.etcd.questions() - asked, 30u) << "of both members; a page of the largest has 64";
}

// Else its clients would be kept waiting for ever.
TEST_F(CellReadingTest, MemberWhoseStoreTakesNothingSoonSaysNoMoreThatItReads) {
  StartCell(2);
  ASSERT_TRUE(AllIsDurable(1));
  cell_.Kill(node(1));
  Commit(keys_.Drops() + "x", "of a later version");
  cell_.faults.sync_us = 3600 * kSecond;
  cell_.Start(node(1));
  ASSERT_TRUE(cell_.RunUntil(kSecond, [this] { return member(1).reading(); }));
  cell_.RunFor(kSecond);
  EXPECT_TRUE(member(1).reading());
  EXPECT_TRUE(cell_.RunUntil(CellLimits::kUnfitUs, [this] { return !member(1).reading(); }));
  EXPECT_FALSE(member(1).joined());
}

// Of what is behind the floor nothing is looked at.
TEST_F(CellReadingTest, PageThatIsTooLongForOneAnswerIsReadInParts) {
  constexpr std::size_t kSmall = CellLimits::kPageKeys, kLarge = 400;
  StartCell(1);
  cell_.Kill(node(0));
  for (std::size_t n = 0; n < kSmall; ++n) Commit(keys_.Drops() + CellKeys::BatchName(7, n), "small");
  for (std::size_t n = 0; n < kLarge; ++n)
    Commit(keys_.Drops() + CellKeys::BatchName(8, n), std::string(DropLimits::kBatchBytes, 'x'));
  static_assert(kLarge * DropLimits::kBatchBytes * 4 / 3 > etcd::Limits::kAnswerBytes);
  Commit(keys_.Floor(), CellFloor{cell_.etcd.header().revision, 0}.Encode());
  cell_.Start(node(0));
  ASSERT_TRUE(Settled());
  EXPECT_GT(member(0).state().kept_drops.bytes(), kLarge * DropLimits::kBatchBytes);
}

// Whatever it has asked by then, and whether it joins or reads all as a member.
TEST_F(CellReadingTest, R10WhatChangesWhileAMemberReadsAllIsNeitherMissedNorASignOfAnotherEtcd) {
  cell_.etcd.SetLags({.answer_us = 10'000, .event_us = 1'000, .lapse_us = 0});
  StartCell(2);
  std::uint64_t number = 0;
  const std::string value = MemberValue{.process_number = 9, .address = "c:1"}.Encode();
  const auto own_key_is_there = [this] {
    return member(0).state().view.members.contains("b") && member(1).state().view.members.contains("b");
  };
  const std::vector<std::pair<std::string, std::function<void()>>> changes = {
      {"a drop",
       [&] {
         Commit(keys_.Drops() + CellKeys::BatchName(7, number),
                EncodeBatch({DropOfKeys(name_, {KeyOf(number)})}));
       }},
      {"the floor", [&] { Commit(keys_.Floor(), CellFloor{}.Encode()); }},
      {"a member came and went",
       [&] {
         Commit(keys_.MemberKey("c"), value);
         Remove(keys_.MemberKey("c"));
       }},
      {"it is cut off",
       [&] {
         cell_.etcd.Cut("b");
         EXPECT_FALSE(cell_.RunUntil(2 * kSecond, [&] {
           return member(1).joined() && !member(1).state().view.members.contains("b");
         }));
         cell_.etcd.Heal("b");
       }},
      {"its key is gone", [&] { Remove(keys_.MemberKey("b")); }},
      {"there is no history", [&] { Remove(keys_.History()); }},
  };
  for (const auto& [what, change] : changes) {
    for (const bool joins : {true, false}) {
      for (std::int64_t us = 0; us < (joins ? 70'000 : 250'000); us += joins ? 1'000 : 2'000) {
        SCOPED_TRACE(what + (joins ? ", it joins, " : ", it reads all again, ") + std::to_string(us));
        const std::uint64_t history = member(0).state().history;
        Put(1, {KeyOf(++number)});
        Put(1, {KeyOf(100'000)});
        ASSERT_TRUE(AllIsDurable(1));
        if (joins) {
          cell_.Kill(node(1));
          cell_.Start(node(1));
        } else {
          LoseWatches();
        }
        cell_.RunFor(us);
        change();
        ASSERT_TRUE(cell_.RunUntil(10 * kSecond, [&] {
          EXPECT_TRUE(!member(1).joined() || member(1).state().view.members.contains("b"));
          return member(1).joined() && own_key_is_there();
        }));
        cell_.etcd.CancelWatches();
        cell_.RunFor(kSecond);
        ASSERT_TRUE(cell_.RunUntil(10 * kSecond, [&] { return cell_.AllJoined() && own_key_is_there(); }));
        EXPECT_EQ(member(1).state().history, member(0).state().history);
        if (what == "a drop") {
          EXPECT_FALSE(Has(1, KeyOf(number)));
        }
        if (what == "there is no history") continue;
        ASSERT_EQ(member(0).state().history, history);
        EXPECT_TRUE(Has(1, KeyOf(100'000)));
      }
    }
  }
}

// Of drops and of ends: it discards nothing, and begins with the next.
TEST_F(CellReadingTest, R10MemberThatHasComeAsFarAsTheFloorMissesNothingBehindIt) {
  StartCell(2);
  for (const bool ends : {false, true}) {
    SCOPED_TRACE(ends);
    Put(1, {KeyOf(1)});
    Put(1, {KeyOf(2)});
    Put(1, {KeyOf(3)}, {7});
    Put(1, {KeyOf(4)}, {8});
    const auto last = cell_.Drop(node(0), ends ? EndOf(name_, 99) : DropOfKeys(name_, {KeyOf(99)}));
    ASSERT_TRUE(last.has_value());
    ASSERT_EQ(node(1).medium.standing.applied, last->revision);
    cell_.Kill(node(1));
    cell_.RunFor(CellLimits::kTrimAgeUs + kSecond);
    const CellFloor floor{ends ? 0 : last->revision, ends ? last->revision : 0};
    ASSERT_TRUE(cell_.loop->BlockOn(member(0).Trim(floor)).ok());
    for (const CellDrop& drop : {DropOfKeys(name_, {KeyOf(2)}), EndOf(name_, 7)})
      ASSERT_TRUE(cell_.Drop(node(0), drop, DropWait::kDurable).has_value());
    cell_.Start(node(1));
    ASSERT_TRUE(Settled());
    for (const std::uint64_t key : {1, 4}) EXPECT_TRUE(Has(1, KeyOf(key))) << key;
    for (const std::uint64_t key : {2, 3}) EXPECT_FALSE(Has(1, KeyOf(key))) << key;
  }
}

// Its list begins there, and does not know what was dropped before.
TEST_F(CellReadingTest, R10MemberThatStartsAnewTakesNothingFromBeforeWhatItHadApplied) {
  StartCell(2);
  const Answered before = *member(1).Answering();
  ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)})).has_value());
  ASSERT_TRUE(AllIsDurable(0));
  cell_.Kill(node(0));
  cell_.Start(node(0));
  ASSERT_TRUE(Settled());
  EXPECT_EQ(Judge(member(0), before, name_, {KeyOf(1)}), Verdict::kBehind);
  EXPECT_EQ(Judge(member(0), *member(1).Answering(), name_, {KeyOf(1)}), Verdict::kTake);
}

// All were down when etcd was restored, and the next drop has a revision that was a member's coming.
TEST_F(CellReadingTest, R10DropOfARestoredEtcdInARevisionThatWasSeenIsNotMissedByAStart) {
  StartCell(2);
  Put(0, {KeyOf(1)});
  ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(9)})).has_value());
  const auto backup = cell_.etcd.TakeBackup();
  const std::string value = MemberValue{.process_number = 9, .address = "c:1"}.Encode();
  for (int i = 0; i < 3; ++i) Commit(keys_.MemberKey("c"), value);
  const std::int64_t seen = cell_.etcd.header().revision;
  ASSERT_TRUE(cell_.RunUntil(kSecond, [&] { return node(0).medium.standing.applied == seen; }));
  EXPECT_GE(node(0).medium.standing.highest_revision, seen);
  for (std::size_t i = 0; i < 2; ++i) cell_.Kill(node(i));
  cell_.etcd.Restore(*backup);
  Commit(keys_.Drops() + "x", EncodeBatch({DropOfKeys(name_, {KeyOf(1)})}));
  ASSERT_LT(cell_.etcd.header().revision, seen);
  RaiseTo(seen + 10);
  cell_.Start(node(0));
  ASSERT_TRUE(cell_.RunUntil(20 * kSecond, [this] { return member(0).joined(); }));
  EXPECT_FALSE(Has(0, KeyOf(1)));
}

// What is durable only then is of the history that has ended.
TEST_F(CellReadingTest, R10WhatWasAppliedOfOneHistoryIsSaidOfNoOther) {
  StartCell(2);
  for (std::uint64_t round = 0; round < 8; ++round) {
    SCOPED_TRACE(round);
    StartWith(1, {.sync_us = kSecond / 2});
    const std::uint64_t history = member(1).state().history;
    const auto backup = cell_.etcd.TakeBackup();
    RaiseTo(cell_.etcd.header().revision + 100);
    ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)}), DropWait::kDurable).has_value());
    ASSERT_TRUE(cell_.RunUntil(kSecond, [this] { return member(1).drops().size() > 0; }));
    cell_.RunFor(static_cast<std::int64_t>(round) * 100'000);
    cell_.etcd.Restore(*backup);
    ASSERT_TRUE(cell_.RunUntil(10 * kSecond,
                               [&] { return member(1).joined() && member(1).state().history != history; }));
    EXPECT_FALSE(
        cell_.RunUntil(3 * kSecond, [&] { return member(1).state().own().a > member(1).state().seen; }));
    ASSERT_TRUE(Settled());
  }
}

TEST_F(CellReadingTest, WhatAMemberHasAppliedIsNoLessBecauseItReadsAllAgain) {
  StartCell(2);
  StartWith(1, {.sync_us = kSecond});
  ASSERT_TRUE(AllIsDurable(1));
  const std::int64_t applied = member(1).state().applied;
  LoseWatches();
  ASSERT_FALSE(cell_.RunUntil(kSecond, [&] { return member(1).state().applied < applied; }));
  EXPECT_TRUE(cell_.RunUntil(3 * kSecond, [&] { return member(1).state().applied > applied; }));
}

// Drops wait for it as long as it may be a member.
TEST_F(CellReadingTest, MemberWhoseTroubleIsShortStaysOne) {
  StartCell(2);
  std::uint64_t key = 0;
  const auto stays = [&](std::int64_t us) {
    const std::uint64_t views = member(0).state().views;
    for (const Instant until = cell_.clock.Now().PlusUs(us); cell_.clock.Now() < until;) {
      const auto dropped =
          cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(++key)}), DropWait::kApplied, 60 * kSecond);
      ASSERT_TRUE(dropped.has_value()) << dropped.error().ToString();
      EXPECT_EQ(dropped->applied, 2u);
      cell_.RunFor(3 * kSecond);
    }
    EXPECT_EQ(member(0).state().views, views);
  };
  cell_.etcd.DenyKeys("b");
  stays(CellLimits::kUnfitUs * 3 / 4);
  EXPECT_FALSE(member(1).why().ok());
  cell_.etcd.DenyKeys("b", false);
  stays(CellLimits::kUnfitUs * 2);
  EXPECT_TRUE(member(1).why().ok());
  StartWith(1, {.failed_sync = 0.5});
  stays(CellLimits::kUnfitUs * 4);
  StartWith(1, {.sync_us = CellLimits::kUnfitUs * 5 / 8});
  stays(CellLimits::kUnfitUs * 2);
}

// All else that is to be durable is.
TEST_F(CellReadingTest, DropsDoNotWaitForAMemberThatCannotGiveUpWhatItHas) {
  StartCell(2);
  StartWith(1, {.failed_discard = 1});
  ASSERT_TRUE(AllIsDurable(1));
  Commit(keys_.Drops() + "x", "of a later version");
  ASSERT_TRUE(cell_.RunUntil(kSecond, [this] { return !member(1).joined(); }));
  const auto dropped = cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)}), DropWait::kApplied, 60 * kSecond);
  ASSERT_TRUE(dropped.has_value()) << dropped.error().ToString();
  EXPECT_EQ(dropped->members, 1u);
}

}  // namespace
}  // namespace cistern::mesh
