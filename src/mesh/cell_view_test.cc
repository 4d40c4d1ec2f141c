// SPDX-License-Identifier: Apache-2.0
#include "mesh/cell_view.h"

#include <gtest/gtest.h>

#include "mesh/drop_pace.h"

namespace cistern::mesh {
namespace {

constexpr std::int64_t kSecond = 1'000'000;

class AcknowledgementTest : public ::testing::Test {
 protected:
  AcknowledgementTest() {
    known_.Add(batch_, false);
    known_.Add(later_, false);
    view_.revision = 20;
    view_.members["a"].process_number = 1;
    view_.members["b"].process_number = 2;
    heard_[1] = heard_[2] = {7, 12, batch_};
  }
  Acknowledgement Now() const { return AcknowledgedBy(view_, heard_, known_, 7, dropped_); }
  const BatchMark batch_{10, 100}, later_{12, 120};
  BatchMark dropped_ = batch_;
  KnownBatches known_;
  CellView view_;
  std::map<std::uint64_t, Answered> heard_;
};

TEST_F(AcknowledgementTest, EveryMemberOfTheViewHasAppliedIt) {
  EXPECT_TRUE(Now().complete());
  heard_[2].last = later_;
  EXPECT_TRUE(Now().complete());
  heard_[2].a = 9;
  EXPECT_FALSE(Now().complete());
  EXPECT_EQ(Now().missing, "b");
  view_.members.erase("b");  // it has lapsed
  EXPECT_TRUE(Now().complete());
}

TEST_F(AcknowledgementTest, AnotherStartOfAMemberHasToSayItAnew) {
  view_.members["b"].process_number = 3;
  EXPECT_FALSE(Now().complete());
}

TEST_F(AcknowledgementTest, WhatWasAppliedUnderAnotherHistoryOrInAnotherEtcdDoesNotCount) {
  heard_[2].history = 8;
  EXPECT_FALSE(Now().complete());
  heard_[2] = {7, 41, {38, 380}};  // of an etcd before it was restored
  EXPECT_FALSE(Now().complete());
  heard_[2] = {7, 41, {9, 90}};
  EXPECT_FALSE(Now().complete());
  heard_[2] = {7, 41, {12, 121}};
  EXPECT_FALSE(Now().complete());
  // The writer itself has seen another one at this revision.
  heard_[2] = {7, 41, later_};
  EXPECT_TRUE(Now().complete());
  dropped_ = {10, 101};
  EXPECT_FALSE(Now().complete());
}

class FootingTest : public ::testing::Test {
 protected:
  FootingTest() {
    known_.Add(first_, false);
    known_.Add(second_, false);
  }
  Footing Of(std::int64_t a, const BatchMark& last) const { return FootingOf(known_, floor_, a, last); }
  const BatchMark none_, first_{10, 100}, second_{20, 200};
  KnownBatches known_;
  CellFloor floor_;
};

TEST_F(FootingTest, WhatHasAppliedAllOrLessOfWhatWasSeenIsJudgedByItsNumber) {
  EXPECT_EQ(Of(25, second_), Footing::kCommon);
  EXPECT_EQ(Of(20, second_), Footing::kCommon);
  EXPECT_EQ(Of(19, first_), Footing::kCommon);
  EXPECT_EQ(Of(9, none_), Footing::kCommon);
}

TEST_F(FootingTest, WhatCountsTheRevisionsOfAnotherEtcdVouchesForNothing) {
  // Its etcd had no batch where this one has one.
  EXPECT_EQ(Of(25, first_), Footing::kOther);
  EXPECT_EQ(Of(9, first_), Footing::kOther);
  EXPECT_EQ(Of(10, none_), Footing::kOther);
  // It had one where this one has another, or none.
  EXPECT_EQ(Of(25, {20, 201}), Footing::kOther);
  EXPECT_EQ(Of(25, {15, 150}), Footing::kOther);
}

TEST_F(FootingTest, ABatchThatWasNotSeenYetIsWaitedFor) {
  EXPECT_EQ(Of(25, {21, 210}), Footing::kAhead);
  known_.Add({21, 210}, false);
  EXPECT_EQ(Of(25, {21, 210}), Footing::kCommon);
  EXPECT_EQ(Of(25, second_), Footing::kOther);
}

TEST_F(FootingTest, OfWhatWasTrimmedNobodyHasToKnow) {
  floor_ = {15, 15};
  EXPECT_EQ(Of(19, {12, 120}), Footing::kCommon);
  EXPECT_EQ(Of(19, none_), Footing::kCommon);
  EXPECT_EQ(Of(20, {12, 120}), Footing::kOther);
  EXPECT_EQ(Of(20, none_), Footing::kOther);
  EXPECT_EQ(Of(25, second_), Footing::kCommon);
}

TEST_F(FootingTest, R10WhereEndsAreTrimmedDropsThatAreKeptHaveToBeKnown) {
  const BatchMark end{30, 300};
  known_.Add(end, true);
  floor_ = {0, 32};
  EXPECT_EQ(Of(40, second_), Footing::kCommon);  // it read what etcd has when the end was gone
  EXPECT_EQ(Of(40, {31, 310}), Footing::kCommon);
  EXPECT_EQ(Of(40, first_), Footing::kOther);
  EXPECT_EQ(Of(40, none_), Footing::kOther);
  known_.Add({35, 350}, true);
  EXPECT_EQ(Of(40, second_), Footing::kOther);
}

TEST_F(FootingTest, R10WhatHasNotComeToTheFloorVouchesForNothing) {
  floor_ = {0, 22};
  EXPECT_EQ(Of(21, second_), Footing::kOther);
  EXPECT_EQ(Of(22, second_), Footing::kCommon);
}

TEST_F(FootingTest, BatchesThatWereForgottenAreAsThoseThatWereTrimmed) {
  for (std::size_t i = 0; i < KnownBatches::kMost - 1; ++i)
    known_.Add({30 + static_cast<std::int64_t>(i), i}, i % 2 == 0);
  EXPECT_EQ(known_.forgotten(), 10);
  EXPECT_EQ(Of(15, first_), Footing::kCommon);
  EXPECT_EQ(Of(29, second_), Footing::kCommon);
  EXPECT_EQ(Of(40, second_), Footing::kOther);
}

class JudgeHistoryTest : public ::testing::Test {
 protected:
  JudgeHistoryTest() { keys_[1].bytes.fill(std::byte{1}); }
  HistoryStep Judge(std::uint64_t own, const EtcdPast& past) const {
    return JudgeHistory(own, past, found_, std::span(keys_).first(keys_in_use_));
  }
  std::vector<net::CellKey> keys_{2};
  std::size_t keys_in_use_ = 1;
  FoundHistory found_{.cluster_id = 5,
                      .revision = 40,
                      .exists = true,
                      .value = HistoryValue{7, {HistoryValue::CheckOf(7, &keys_[0])}}};
};

TEST_F(JudgeHistoryTest, SameAnotherOrNone) {
  EXPECT_EQ(Judge(7, {5, 40, false}), HistoryStep::kSame);
  EXPECT_EQ(Judge(8, {5, 40, false}), HistoryStep::kDiscard);
  EXPECT_EQ(Judge(0, {}), HistoryStep::kDiscard);
  found_.exists = false;
  EXPECT_EQ(Judge(7, {5, 40, false}), HistoryStep::kMake);
}

TEST_F(JudgeHistoryTest, RestoredOrAnotherEtcdReplacesIt) {
  EXPECT_EQ(Judge(7, {5, 41, false}), HistoryStep::kReplace);
  EXPECT_EQ(Judge(7, {6, 40, false}), HistoryStep::kReplace);
  EXPECT_EQ(Judge(7, {5, 40, true}), HistoryStep::kReplace);
  // Somebody has done so already.
  EXPECT_EQ(Judge(8, {6, 41, true}), HistoryStep::kDiscard);
}

TEST_F(JudgeHistoryTest, KeysOfTheCell) {
  keys_in_use_ = 2;
  EXPECT_EQ(Judge(7, {5, 40, false}), HistoryStep::kChecks);
  found_.value->checks = found_.value->ChecksWith(keys_);
  EXPECT_EQ(Judge(7, {5, 40, false}), HistoryStep::kSame);
  keys_in_use_ = 1;
  EXPECT_EQ(Judge(7, {5, 40, false}), HistoryStep::kChecks) << "the cell has left the other one";
  std::ranges::reverse(found_.value->checks);
  EXPECT_EQ(Judge(7, {5, 40, false}), HistoryStep::kSame) << "the cell goes on to the other one";
  keys_in_use_ = 2;
  found_.value->checks = {HistoryValue::CheckOf(8, &keys_[0])};
  EXPECT_EQ(Judge(7, {5, 40, false}), HistoryStep::kRefuse);
  found_.value.reset();
  EXPECT_EQ(Judge(7, {5, 40, false}), HistoryStep::kRefuse);
}

TEST(DropPaceTest, MemberWritesItsShareBeyondWhatItHasSaved) {
  WriteShare share;
  const Instant start = Instant{}.PlusUs(100 * kSecond);
  EXPECT_EQ(share.ReadyAt(100 << 10, 4, start), start);
  share.Written(WriteShare::kSavedBytes);
  // 80 KiB a second of four members.
  EXPECT_NEAR(static_cast<double>(share.ReadyAt(160 << 10, 4, start).UsSince(start)), 2.0 * kSecond, 2.0);
  const Instant later = start.PlusUs(2 * kSecond + 1);
  EXPECT_EQ(share.ReadyAt(160 << 10, 4, later), later);
  EXPECT_GT(share.ReadyAt(161 << 10, 4, later), later);
}

TEST(DropPaceTest, ManySmallLooksSaveWhatOneDoes) {
  WriteShare share;
  Instant now = Instant{}.PlusUs(kSecond);
  (void)share.ReadyAt(1, 128, now);
  share.Written(WriteShare::kSavedBytes);
  for (int i = 0; i < 1'000'000; i += 100) {
    now = now.PlusUs(100);
    (void)share.ReadyAt(1, 128, now);
  }
  EXPECT_EQ(share.ReadyAt(2'550, 128, now), now);
  EXPECT_GT(share.ReadyAt(2'600, 128, now), now);
}

TEST(DropPaceTest, RevisionCountsAsHereFromWhenTheLastOfItCame) {
  Retention kept(1'000 * kSecond, 1'000'000);
  const Instant begin = Instant{}.PlusUs(kSecond);
  EXPECT_EQ(kept.HereFor(0, begin), 0);
  for (int i = 0; i < 100; ++i) kept.Add(begin.PlusUs(i * kSecond / 10), 10 + i, 1);
  const Instant end = begin.PlusUs(10 * kSecond);
  EXPECT_EQ(kept.HereFor(20 * kSecond, end), 0);
  EXPECT_EQ(kept.HereFor(0, end), 109);
  // Within what is one mark.
  EXPECT_LE(kept.HereFor(5 * kSecond, end), 60);
  EXPECT_GE(kept.HereFor(5 * kSecond, end), 40);
}

TEST(DropPaceTest, DropsAreKeptForTheirTimeAndNotPastTheirBytes) {
  Retention kept(1'000 * kSecond, 1'000);
  Instant now = Instant{}.PlusUs(kSecond);
  kept.Add(now, 10, 1);
  now = now.PlusUs(500 * kSecond);
  kept.Add(now, 20, 1);
  EXPECT_EQ(kept.FloorAt(now), 0);
  now = now.PlusUs(600 * kSecond);
  EXPECT_EQ(kept.FloorAt(now), 10);
  kept.Trimmed(10);
  EXPECT_EQ(kept.FloorAt(now), 0);
  for (int i = 0; i < 20; ++i) kept.Add(now, 30 + i, 100);
  // Those of the first hundreds of bytes that are too many.
  EXPECT_EQ(kept.FloorAt(now), 39);
  kept.Trimmed(39);
  EXPECT_EQ(kept.bytes(), 1'000u);
  EXPECT_EQ(kept.FloorAt(now), 0);
}

}  // namespace
}  // namespace cistern::mesh
