// SPDX-License-Identifier: Apache-2.0
#include "policy/lower.h"

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
  const LastCopy leaf{.bytes = 10}, used{.used = true, .bytes = 10}, ancestor{.has_below = true, .bytes = 10};
  EXPECT_FALSE(KeptAtReclaim(leaf, 0, kRegion));
  EXPECT_TRUE(KeptAtReclaim(used, 0, kRegion));
  EXPECT_FALSE(KeptAtReclaim(used, 750, kRegion));
  EXPECT_TRUE(KeptAtReclaim(ancestor, 750, kRegion));
  EXPECT_FALSE(KeptAtReclaim(ancestor, 870, kRegion));
}

TEST(Lower, NamesAreReadBackAndUnknownOnesName) {
  EXPECT_EQ(*ParseWritePolicy("back"), WritePolicy::kBack);
  EXPECT_EQ(*ParseAdmission("second-hit"), Admission::kSecondHit);
  EXPECT_NE(ParseWritePolicy("off").error().message().find("selective"), std::string::npos);
  EXPECT_NE(ParseAdmission("").error().message().find("second-hit"), std::string::npos);
}

}  // namespace
}  // namespace cistern
