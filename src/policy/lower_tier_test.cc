// SPDX-License-Identifier: Apache-2.0
#include "policy/lower_tier.h"

#include <gtest/gtest.h>

namespace cistern {
namespace {

TEST(Lower, ThroughWritesAtThePutAndOnce) {
  const LowerPolicy policy{.write = WritePolicy::kThrough};
  EXPECT_TRUE(WrittenAtUse(policy, 0));
  for (std::uint32_t uses = 1; uses < 5; ++uses) EXPECT_FALSE(WrittenAtUse(policy, uses)) << uses;
}

TEST(Lower, SecondHitWritesAtTheFirstUseAndNotBefore) {
  const LowerPolicy policy{.write = WritePolicy::kThrough, .admit = Admission::kSecondHit};
  EXPECT_FALSE(WrittenAtUse(policy, 0));
  EXPECT_TRUE(WrittenAtUse(policy, 1));
  EXPECT_FALSE(WrittenAtUse(policy, 2));
  EXPECT_FALSE(Wanted(policy, 0));
}

TEST(Lower, SelectiveWritesAtTheNthUse) {
  const LowerPolicy policy{.write = WritePolicy::kSelective, .selective_uses = 3};
  for (std::uint32_t uses = 0; uses < 6; ++uses) EXPECT_EQ(WrittenAtUse(policy, uses), uses == 3) << uses;
  EXPECT_FALSE(Wanted(policy, 2));
}

TEST(Lower, BackWritesOnlyWhatIsColdAndWanted) {
  const LowerPolicy policy{.write = WritePolicy::kBack};
  for (std::uint32_t uses = 0; uses < 4; ++uses) EXPECT_FALSE(WrittenAtUse(policy, uses)) << uses;
  EXPECT_TRUE(Wanted(policy, 0));
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
  const LowerPolicy all, careful{.promote = Promotion::kSecondHit};
  EXPECT_TRUE(Promoted(all, false));
  EXPECT_FALSE(Promoted(careful, false));
  EXPECT_TRUE(Promoted(careful, true));
  EXPECT_EQ(*ReadPromotion("second-hit"), Promotion::kSecondHit);
  EXPECT_NE(ReadPromotion("none").error().message().find("second-hit"), std::string::npos);
}

TEST(Lower, AWishIsReadBackAndAnUnknownOneNamesTheKnown) {
  LowerWish wish;
  ASSERT_TRUE(ReadWrite("selective:3", wish).ok());
  EXPECT_EQ(wish, (LowerWish{.write = WritePolicy::kSelective, .selective_uses = 3}));
  for (std::string_view wrong :
       {"off", "", "selective:", "selective:0", "selective:256", "selective:3x", "back:1"})
    EXPECT_NE(ReadWrite(wrong, wish).message().find("selective:N"), std::string::npos) << wrong;
  EXPECT_NE(ReadAdmit("", wish).message().find("second-hit"), std::string::npos);
  EXPECT_EQ(wish, (LowerWish{.write = WritePolicy::kSelective, .selective_uses = 3}));
  ASSERT_TRUE(ReadAdmit("second-hit", wish).ok());
  EXPECT_EQ(wish.admit, Admission::kSecondHit);
}

TEST(Lower, AWishChangesWhatItNamesAndNothingElse) {
  const LowerPolicy node{
      .write = WritePolicy::kSelective, .admit = Admission::kSecondHit, .selective_uses = 7};
  EXPECT_EQ(LowerWish{}.Over(node).selective_uses, 7u);
  const LowerPolicy all = LowerWish{.admit = Admission::kAll}.Over(node);
  EXPECT_EQ(all.write, WritePolicy::kSelective);
  EXPECT_EQ(all.selective_uses, 7u);
  EXPECT_EQ(all.admit, Admission::kAll);
  LowerWish wish{.write = WritePolicy::kBack};
  wish.Add({.admit = Admission::kAll});
  EXPECT_EQ(wish, (LowerWish{.write = WritePolicy::kBack, .admit = Admission::kAll}));
  EXPECT_EQ(wish.Over(node).write, WritePolicy::kBack);
}

}  // namespace
}  // namespace cistern
