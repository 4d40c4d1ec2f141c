// SPDX-License-Identifier: Apache-2.0
#include "mesh/cell_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mesh/test_cell.h"

namespace cistern::mesh {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kSecond = 1'000'000;

class CellHistoryTest : public ::testing::Test {
 protected:
  CellHistoryTest() { key_[0].bytes.fill(std::byte{3}); }
  TestNode& Start(const std::string& id) {
    TestNode& node = cell_.Add(id);
    node.cell_keys = key_;
    cell_.Start(node);
    EXPECT_TRUE(Joined());
    return node;
  }
  void Start(TestNode& node) {
    cell_.Start(node);
    EXPECT_TRUE(Joined());
  }
  bool Joined() {
    return cell_.RunUntil(30 * kSecond, [this] { return cell_.AllJoined(); });
  }
  // Each that runs has given up everything for another history than this.
  bool BeganAnew(std::uint64_t history) {
    return cell_.RunUntil(30 * kSecond, [&] {
      return std::ranges::all_of(cell_.nodes, [&](const auto& node) {
        return !node->member || (node->member->joined() && node->member->state().history != history);
      });
    });
  }
  auto Replacing(std::span<const net::CellKey> keys, std::uint64_t random) {
    return ReplaceHistory(*person_, at_, keys, random, cell_.clock.Now().PlusUs(10 * kSecond));
  }
  auto Replace(std::span<const net::CellKey> keys, std::uint64_t random = 77) {
    return cell_.loop->BlockOn(Replacing(keys, random));
  }
  std::int64_t revision() const { return cell_.etcd.header().revision; }
  // Of the member's own.
  void Put(TestNode& node, std::uint64_t number) {
    node.store->Put({name_, KeyOf(number)}, {.put = ++puts_, .chain = {KeyOf(number)}});
  }
  bool Has(const TestNode& node, std::uint64_t number) const {
    return node.store->tree().contains({name_, KeyOf(number)});
  }

  const SharedNamespace name_ = NamespaceOf(1);
  std::vector<net::CellKey> key_{1};
  const CellKeys at_{"/cistern/"};
  TestCell cell_{1};
  std::unique_ptr<etcd::Etcd> person_ = cell_.etcd.Client("person");
  std::uint64_t puts_ = 0;
};

// Only who has not seen the drop comes back to an etcd that does not know it either.
TEST_F(CellHistoryTest, R10WhatWasDroppedSinceABackupComesBackWithNobodyWhoMissedTheDrop) {
  TestNode &saw = Start("a"), &missed = Start("b");
  Put(missed, 1);
  ASSERT_TRUE(cell_.RunUntil(30 * kSecond, [&] { return missed.medium.standing.history != 0; }));
  cell_.Kill(missed);
  ASSERT_TRUE(cell_.RunUntil(30 * kSecond, [&] { return saw.member->state().view.members.size() == 1; }));
  const auto backup = cell_.etcd.TakeBackup();
  ASSERT_TRUE(cell_.Drop(saw, DropOfKeys(name_, {KeyOf(1)})).has_value());
  cell_.Kill(saw);
  cell_.etcd.Restore(*backup);
  Start(missed);
  ASSERT_TRUE(Has(missed, 1)) << "else nobody would have to ask for another history";
  cell_.Kill(missed);

  const auto replaced = Replace(key_);
  ASSERT_TRUE(replaced.has_value()) << replaced.error().ToString();
  EXPECT_NE(replaced->before, replaced->now);
  Start(missed);
  EXPECT_EQ(missed.member->state().history, replaced->now);
  EXPECT_FALSE(Has(missed, 1));
  Put(missed, 2);
  Start(saw);
  EXPECT_TRUE(Has(missed, 2)) << "it is begun once, not by every start";
  EXPECT_EQ(saw.member->state().history, replaced->now);
}

TEST_F(CellHistoryTest, MembersThatRunBeginAnewAtOnce) {
  TestNode &a = Start("a"), &b = Start("b");
  Put(a, 1);
  Put(b, 1);
  const std::uint64_t history = a.member->state().history;
  const auto replaced = Replace(key_);
  ASSERT_TRUE(replaced.has_value()) << replaced.error().ToString();
  EXPECT_EQ(replaced->before, history);
  ASSERT_TRUE(BeganAnew(history));
  EXPECT_EQ(a.member->state().history, replaced->now);
  EXPECT_EQ(b.member->state().history, replaced->now);
  EXPECT_FALSE(Has(a, 1) || Has(b, 1));
  EXPECT_TRUE(cell_.Drop(a, DropOfKeys(name_, {KeyOf(1)}), DropWait::kApplied, 30 * kSecond).has_value());
}

TEST_F(CellHistoryTest, WhoHasNoKeyOfTheCellChangesNothing) {
  cell_.Kill(Start("a"));
  const std::int64_t before = revision();
  const auto keyless = Replace({});
  ASSERT_FALSE(keyless.has_value());
  EXPECT_EQ(keyless.error().code(), Code::kMismatch);
  EXPECT_THAT(std::string(keyless.error().message()), HasSubstr("cell key: none is given"));
  const std::vector<net::CellKey> another(1);
  const auto stranger = Replace(another);
  ASSERT_FALSE(stranger.has_value());
  EXPECT_EQ(stranger.error().code(), Code::kMismatch);
  EXPECT_THAT(std::string(stranger.error().message()), HasSubstr("none of the 1 given fits"));
  EXPECT_EQ(revision(), before);
}

// Of another kind: with certificates, or in the open.
TEST_F(CellHistoryTest, WhoHasAKeyIsToldThatTheCellHasNone) {
  const HistoryValue open = NewHistory(7, {});
  const FoundHistory found{.exists = true, .value = open};
  EXPECT_THAT(std::string(NoKeyFits(CellKeys("/cistern/test/"), found, 1).message()),
              HasSubstr("have none, they prove themselves by certificates"));
  const std::vector<net::CellKey> another(1);
  const FoundHistory keyed{.exists = true, .value = NewHistory(7, another)};
  EXPECT_THAT(std::string(NoKeyFits(CellKeys("/cistern/test/"), keyed, 1).message()),
              HasSubstr("none of the 1 given fits"));
}

TEST_F(CellHistoryTest, WhereThereIsNoCellNoneIsMade) {
  const std::int64_t before = revision();
  const auto none = Replace(key_);
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code(), Code::kMiss);
  EXPECT_THAT(std::string(none.error().message()), HasSubstr("no cell at /cistern/"));
  EXPECT_EQ(revision(), before);
}

TEST_F(CellHistoryTest, AHistoryThatCannotBeReadIsNamed) {
  etcd::Transaction write;
  write.then.push_back({.keys = {at_.History(), ""}, .value = "?"});
  ASSERT_TRUE(cell_.loop->BlockOn(person_->Commit(write, cell_.clock.Now().PlusUs(kSecond))).has_value());
  const auto damaged = Replace(key_);
  ASSERT_FALSE(damaged.has_value());
  EXPECT_EQ(damaged.error().code(), Code::kMismatch);
  EXPECT_THAT(std::string(damaged.error().message()), HasSubstr("/cistern/history"));
}

TEST_F(CellHistoryTest, WhoseAnswerWasLostIsReplacedOnce) {
  cell_.Kill(Start("a"));
  cell_.RunFor(20 * kSecond);  // its membership has lapsed
  std::uint64_t number = 1000, before = 0;
  std::size_t lost = 0;
  for (std::int64_t us = 0; us < 6'000; us += 100) {
    const std::int64_t at = revision();
    auto replacing = Replacing(key_, ++number);
    cell_.RunFor(us);
    const bool written = revision() > at;
    lost += written && !replacing.done() ? 1 : 0;
    cell_.etcd.LoseAnswers("person", 1);
    const auto replaced = cell_.loop->BlockOn(std::move(replacing));
    ASSERT_TRUE(replaced.has_value()) << us << ": " << replaced.error().ToString();
    EXPECT_EQ(revision(), at + 1) << us;
    EXPECT_EQ(replaced->now, number);
    if (before != 0) {
      EXPECT_EQ(replaced->before, before) << us;
    }
    before = replaced->now;
  }
  EXPECT_GT(lost, 0u) << "of what was written";
}

TEST_F(CellHistoryTest, OfTwoAtOnceTheLaterReplacesWhatTheEarlierHasBegun) {
  cell_.Kill(Start("a"));
  const auto other_person = cell_.etcd.Client("another");
  std::uint64_t number = 1000, before = 0;
  std::size_t met = 0;
  for (std::int64_t us = 0; us < 6'000; us += 100) {
    const Instant deadline = cell_.clock.Now().PlusUs(10 * kSecond);
    auto one = Replacing(key_, ++number);
    cell_.RunFor(us);
    met += one.done() ? 0 : 1;
    auto two = ReplaceHistory(*other_person, at_, key_, ++number, deadline);
    const auto first = cell_.loop->BlockOn(std::move(one)), second = cell_.loop->BlockOn(std::move(two));
    ASSERT_TRUE(first.has_value() && second.has_value());
    const bool in_order = first->now == second->before;
    EXPECT_TRUE(in_order || second->now == first->before) << us;
    const std::uint64_t was = in_order ? first->before : second->before;
    EXPECT_TRUE(before == 0 || before == was) << us;
    before = in_order ? second->now : first->now;
  }
  EXPECT_GT(met, 0u);
}

TEST_F(CellHistoryTest, EtcdThatDoesNotAnswerIsSaidByTheDeadline) {
  cell_.Kill(Start("a"));
  const Instant began = cell_.clock.Now();
  cell_.etcd.FallSilent();
  const auto silent = Replace(key_);
  ASSERT_FALSE(silent.has_value());
  EXPECT_EQ(silent.error().code(), Code::kTooLate);
  EXPECT_LE(cell_.clock.Now().UsSince(began), 10 * kSecond + kSecond);  // of simulated time
  cell_.etcd.Wake();
  cell_.etcd.Stop();
  const auto gone = Replace(key_);
  ASSERT_FALSE(gone.has_value());
  EXPECT_EQ(gone.error().code(), Code::kGone);
}

TEST_F(CellHistoryTest, ReplacingItEndsWhereEtcdTakesNothingAndAsksAFewTimesASecondMeanwhile) {
  Start("a");
  cell_.etcd.SetFull(true);
  // The first that has no room may take effect.
  (void)Replace(key_, 76);
  const auto full = Replace(key_);
  ASSERT_FALSE(full.has_value());
  EXPECT_EQ(full.error().code(), Code::kBusy) << full.error().ToString();
  cell_.etcd.SetFull(false);
  cell_.Kill(*cell_.nodes.front());
  cell_.etcd.SetChances({.broken_call = 1});
  const std::uint64_t before = cell_.etcd.questions();
  EXPECT_EQ(Replace(key_).error().code(), Code::kTooLate);
  EXPECT_LE(cell_.etcd.questions() - before, 100u);
}

}  // namespace
}  // namespace cistern::mesh
