// SPDX-License-Identifier: Apache-2.0
#include "measure.h"

#include <gtest/gtest.h>

namespace cistern {
namespace {

// Else the median of two rounds is the better of them, for a rate and for its ratio to the limit.
TEST(Measure, MedianOfAnEvenCountIsBetweenTheTwoInTheMiddle) {
  EXPECT_EQ(Median({}), 0);
  EXPECT_EQ(Median({7}), 7);
  EXPECT_EQ(Median({3, 1}), 2);
  EXPECT_EQ(Median({9, 1, 5}), 5);
  EXPECT_EQ(Median({40, 10, 30, 20}), 25);
  const BenchRow row = RateRow("row", "memcpy", {.rounds = {8, 2}}, {.rounds = {8, 4}});
  EXPECT_EQ(row.value, 5);
  EXPECT_EQ(row.limit_value, 6);
  EXPECT_EQ(row.ratio, 0.75);
  EXPECT_EQ(row.ratio_low, 0.5);
  EXPECT_EQ(row.ratio_high, 1);
}

TEST(Measure, QuantilesAreValuesThatOccurred) {
  EXPECT_EQ(Quantile({}, 0.99), 0);
  EXPECT_EQ(Quantile({3, 1, 2}, 0), 1);
  EXPECT_EQ(Quantile({3, 1, 2}, 1), 3);
  EXPECT_EQ(Quantile({3, 1, 2, 4}, 0.99), 4);
}

}  // namespace
}  // namespace cistern
