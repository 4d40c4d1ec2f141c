// SPDX-License-Identifier: Apache-2.0
#include "policy/placement.h"

#include <gtest/gtest.h>

namespace cistern::policy {
namespace {

TEST(Lower, ThroughWritesAtThePutAndOnce) {
  const LowerPolicy policy{.write = {WritePolicy::kThrough}, .admit = Admission::kAll};
  EXPECT_TRUE(WrittenAtUse(policy, 0, true));
  for (std::uint32_t uses = 1; uses < 5; ++uses) EXPECT_FALSE(WrittenAtUse(policy, uses, true)) << uses;
}

TEST(Lower, SecondHitWritesAtTheFirstUseAndNotBefore) {
  const LowerPolicy policy{.write = {WritePolicy::kThrough}, .admit = Admission::kSecondHit};
  EXPECT_FALSE(WrittenAtUse(policy, 0, true));
  EXPECT_TRUE(WrittenAtUse(policy, 1, true));
  EXPECT_FALSE(WrittenAtUse(policy, 2, true));
  EXPECT_FALSE(Wanted(policy, 0, true));
}

TEST(Lower, WorthWritesWhatPaysAtThePutOrAtAnyUse) {
  const LowerPolicy policy{.write = {WritePolicy::kThrough}, .admit = Admission::kWorth};
  for (std::uint32_t uses = 0; uses < 3; ++uses) {
    EXPECT_TRUE(WrittenAtUse(policy, uses, true)) << uses;
    EXPECT_FALSE(WrittenAtUse(policy, uses, false)) << uses;
    EXPECT_FALSE(Wanted(policy, uses, false)) << uses;
  }
  const LowerPolicy selective{.write = {WritePolicy::kSelective, 2}, .admit = Admission::kWorth};
  EXPECT_FALSE(Wanted(selective, 1, true));
  EXPECT_TRUE(WrittenAtUse(selective, 3, true));
}

TEST(Lower, SelectiveWritesAtTheNthUse) {
  const LowerPolicy policy{.write = {WritePolicy::kSelective, 3}, .admit = Admission::kAll};
  for (std::uint32_t uses = 0; uses < 6; ++uses)
    EXPECT_EQ(WrittenAtUse(policy, uses, true), uses == 3) << uses;
  EXPECT_FALSE(Wanted(policy, 2, true));
}

TEST(Lower, BackWritesOnlyWhatIsColdAndWanted) {
  const LowerPolicy policy{.write = {WritePolicy::kBack}};
  for (std::uint32_t uses = 0; uses < 4; ++uses) EXPECT_FALSE(WrittenAtUse(policy, uses, true)) << uses;
  EXPECT_TRUE(Wanted(policy, 0, true));
}

TEST(Lower, R9AncestorsGoBeforeWhatWasUsedAndARegionAlwaysGivesBackSomething) {
  constexpr std::uint64_t kRegion = 1000;
  const LastCopy leaf{.bytes = 10}, used{.used = true, .bytes = 10},
      ancestor{.has_descendants = true, .bytes = 10};
  EXPECT_FALSE(KeptAtReclaim(leaf, 0, kRegion));
  EXPECT_TRUE(KeptAtReclaim(used, 0, kRegion));
  EXPECT_FALSE(KeptAtReclaim(used, 750, kRegion));
  EXPECT_TRUE(KeptAtReclaim(ancestor, 750, kRegion));
  EXPECT_FALSE(KeptAtReclaim(ancestor, 870, kRegion));
}

TEST(Lower, AReadIsRefusedOnlyWhereItIsClearlyTooLate) {
  EXPECT_FALSE(Refused(1000, 1000));
  EXPECT_FALSE(Refused(1000, 875));
  EXPECT_TRUE(Refused(1000, 874));
  EXPECT_TRUE(Refused(1, 0)) << "an offer that nothing can keep";
  EXPECT_TRUE(Refused(1, -5)) << "the deadline is over";
  EXPECT_FALSE(Refused(INT64_MAX / 2, INT64_MAX)) << "without a limit";
}

TEST(Lower, HalfOfWhatDoesNotStayIsReadAloneAndOfWhatStaysWhereTheRestWouldBeLate) {
  constexpr std::uint64_t kBytes = 1000;
  EXPECT_EQ(ChooseFetch(false, 500, kBytes, false, false), FetchChoice::kSegments);
  EXPECT_EQ(ChooseFetch(false, 501, kBytes, false, false), FetchChoice::kWhole);
  EXPECT_EQ(ChooseFetch(true, 100, kBytes, false, false), FetchChoice::kWhole);
  EXPECT_EQ(ChooseFetch(true, 100, kBytes, true, false), FetchChoice::kSegments);
  EXPECT_EQ(ChooseFetch(true, 900, kBytes, true, false), FetchChoice::kNone);
  EXPECT_EQ(ChooseFetch(false, 100, kBytes, true, true), FetchChoice::kNone);
}

TEST(Lower, WhatWasAskedForBeforeIsPromotedAndTheRestByPolicy) {
  const LowerPolicy by_worth, all{.promote = Promotion::kAll}, careful{.promote = Promotion::kSecondHit};
  for (const bool passes : {false, true}) {
    EXPECT_TRUE(Promoted(all, false, passes));
    EXPECT_FALSE(Promoted(careful, false, passes));
    EXPECT_TRUE(Promoted(careful, true, passes));
    EXPECT_NE(Promoted(by_worth, false, passes), passes);
    EXPECT_NE(Promoted(by_worth, true, passes), passes);
  }
}

TEST(Lower, AWishChangesWhatItNamesAndNothingElse) {
  const LowerPolicy node{.write = {WritePolicy::kSelective, 7}, .admit = Admission::kSecondHit};
  EXPECT_EQ(LowerWish{}.Over(node).write, node.write);
  const LowerPolicy all = LowerWish{.admit = Admission::kAll}.Over(node);
  EXPECT_EQ(all.write, node.write);
  EXPECT_EQ(all.admit, Admission::kAll);
  constexpr WriteRule kBack{.policy = WritePolicy::kBack};
  LowerWish wish{.write = kBack};
  wish.Add({.admit = Admission::kAll});
  EXPECT_EQ(wish, (LowerWish{.write = kBack, .admit = Admission::kAll}));
  EXPECT_EQ(wish.Over(node).write, kBack);
}

}  // namespace
}  // namespace cistern::policy
