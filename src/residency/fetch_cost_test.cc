// SPDX-License-Identifier: Apache-2.0
#include "residency/fetch_cost.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace cistern::residency {
namespace {

constexpr Instant kNow{5'000'000'000};

TEST(FetchCost, IsNothingUntilAFetchWasSeen) { EXPECT_EQ(FetchCost().Us(1 << 20, 3, 1000, kNow), 0); }

TEST(FetchCost, FollowsTheMiddleByBytesAndByOthersUnderWay) {
  FetchCost cost;
  Random random(1);
  for (int i = 0; i < 400; ++i) {
    const double noise = (0.9 + 0.2 * random.Unit()) * (random.Chance(0.2) ? 50 : 1);  // some are disturbed
    cost.Took(64 << 10, 0, 10 * noise, kNow);
    cost.Took(2 << 20, 0, 120 * noise, kNow);
    cost.Took(2 << 20, 16, 900 * noise, kNow);
  }
  EXPECT_NEAR(cost.Us(64 << 10, 0, 1000, kNow), 10, 3);
  EXPECT_NEAR(cost.Us(2 << 20, 0, 1000, kNow), 120, 30);
  EXPECT_NEAR(cost.Us(2 << 20, 20, 1000, kNow), 900, 250);
}

TEST(FetchCost, OfWhatWasNeverSeenIsTheNearest) {
  FetchCost cost;
  cost.Took(1 << 20, 0, 80, kNow);
  cost.Took(1 << 20, 8, 400, kNow);
  EXPECT_EQ(cost.Us(2 << 20, 0, 1000, kNow), cost.Us(1 << 20, 0, 1000, kNow));
  EXPECT_EQ(cost.Us(1 << 20, 100, 1000, kNow), cost.Us(1 << 20, 8, 1000, kNow));
}

// Else the fetches that it keeps away would be those that show it to be over.
TEST(FetchCost, WhatHeldUpTheFirstOfAKindIsExpectedForASecondAndNotForGood) {
  FetchCost cost;
  cost.Took(2 << 20, 0, 12'000'000, kNow);  // for room, as when all of memory is leased
  EXPECT_EQ(cost.Us(2 << 20, 0, 1000, kNow), 12'000'000);
  const Instant later = kNow.PlusUs(FetchCost::kRestUs + 1);
  cost.Took(64 << 10, 0, 10, later);
  EXPECT_EQ(cost.Us(2 << 20, 0, 1000, later), 1000) << "as long again as the read";
  for (int i = 0; i < 200; ++i) cost.Took(2 << 20, 0, 120, later);
  EXPECT_NEAR(cost.Us(2 << 20, 0, 1000, later), 120, 20);
}

}  // namespace
}  // namespace cistern::residency
