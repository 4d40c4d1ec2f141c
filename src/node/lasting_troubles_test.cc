// SPDX-License-Identifier: Apache-2.0
#include "node/lasting_troubles.h"

#include <gtest/gtest.h>

namespace cistern::node {
namespace {

using Say = LastingTroubles::Say;

class LastingTroublesTest : public testing::Test {
 protected:
  Say After(std::int64_t us, bool trouble, std::uint64_t process = 1) {
    return troubles_.Note(process, trouble, Instant().PlusUs(us));
  }
  static constexpr std::int64_t kLong = LastingTroubles::kLastsUs;
  LastingTroubles troubles_;
};

TEST_F(LastingTroublesTest, IsSaidOnceAndThatItIsOverOnce) {
  EXPECT_EQ(After(0, true), Say::kNothing);
  EXPECT_EQ(After(kLong - 1, true), Say::kNothing);
  EXPECT_EQ(After(kLong, true), Say::kTrouble);
  EXPECT_EQ(After(2 * kLong, true), Say::kNothing);
  EXPECT_EQ(After(2 * kLong, true, 2), Say::kNothing) << "another one";
  EXPECT_EQ(After(3 * kLong, false), Say::kOver);
  EXPECT_EQ(After(4 * kLong, false), Say::kNothing);
}

TEST_F(LastingTroublesTest, OfWhatPassedNothingIsSaid) {
  EXPECT_EQ(After(0, true), Say::kNothing);
  EXPECT_EQ(After(kLong - 1, false), Say::kNothing);
  EXPECT_EQ(After(kLong, true), Say::kNothing) << "it began anew";
}

TEST_F(LastingTroublesTest, OfWhoIsNoMoreNothingIsSaid) {
  EXPECT_EQ(After(0, true), Say::kNothing);
  EXPECT_EQ(After(kLong, true), Say::kTrouble);
  troubles_.KeepOnly([](std::uint64_t process) { return process != 1; });
  EXPECT_EQ(After(2 * kLong, false), Say::kNothing);
}

}  // namespace
}  // namespace cistern::node
