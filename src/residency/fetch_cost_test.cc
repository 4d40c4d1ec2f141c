// SPDX-License-Identifier: Apache-2.0
#include "residency/fetch_cost.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace cistern::residency {
namespace {

TEST(FetchCost, IsNothingUntilAFetchWasSeen) { EXPECT_EQ(FetchCost().Us(1 << 20, 3), 0); }

TEST(FetchCost, FollowsTheMiddleByBytesAndByOthersUnderWay) {
  FetchCost cost;
  Random random(1);
  for (int i = 0; i < 400; ++i) {
    const double noise = (0.9 + 0.2 * random.Unit()) * (random.Chance(0.2) ? 50 : 1);  // some are disturbed
    cost.Took(64 << 10, 0, 10 * noise);
    cost.Took(2 << 20, 0, 120 * noise);
    cost.Took(2 << 20, 16, 900 * noise);
  }
  EXPECT_NEAR(cost.Us(64 << 10, 0), 10, 3);
  EXPECT_NEAR(cost.Us(2 << 20, 0), 120, 30);
  EXPECT_NEAR(cost.Us(2 << 20, 20), 900, 250);
}

TEST(FetchCost, OfWhatWasNeverSeenIsTheNearest) {
  FetchCost cost;
  cost.Took(1 << 20, 0, 80);
  cost.Took(1 << 20, 8, 400);
  EXPECT_EQ(cost.Us(2 << 20, 0), cost.Us(1 << 20, 0));
  EXPECT_EQ(cost.Us(1 << 20, 100), cost.Us(1 << 20, 8));
}

}  // namespace
}  // namespace cistern::residency
