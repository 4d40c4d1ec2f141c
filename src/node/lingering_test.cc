// SPDX-License-Identifier: Apache-2.0
#include "node/lingering.h"

#include <gtest/gtest.h>

namespace cistern::node {
namespace {

constexpr std::int64_t kDayUs = 86'400'000'000, kSecondUs = 1'000'000;

TEST(LingeringTest, IsCountedFromTheLastClientThoughItWasNotAskedForThen) {
  const Instant start{1};
  Lingering lingering(start);
  EXPECT_FALSE(lingering.IsOver(start.PlusUs(kDayUs), false, 0));
  EXPECT_FALSE(lingering.IsOver(start.PlusUs(kDayUs + kSecondUs), true, 10 * kSecondUs)) << "a reload set it";
  EXPECT_TRUE(lingering.IsOver(start.PlusUs(kDayUs + 10 * kSecondUs), true, 10 * kSecondUs));
}

TEST(LingeringTest, ANodeThatNobodyCameToEndsAfterItsStart) {
  const Instant start{1};
  Lingering lingering(start);
  EXPECT_FALSE(lingering.IsOver(start.PlusUs(kSecondUs - 1), true, kSecondUs));
  EXPECT_TRUE(lingering.IsOver(start.PlusUs(kSecondUs), true, kSecondUs));
  EXPECT_FALSE(lingering.IsOver(start.PlusUs(kDayUs), true, 0)) << "it stays";
}

}  // namespace
}  // namespace cistern::node
