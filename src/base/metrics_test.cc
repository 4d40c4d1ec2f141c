// SPDX-License-Identifier: Apache-2.0
#include "base/metrics.h"

#include <gtest/gtest.h>

#include <thread>

namespace cistern {
namespace {

TEST(Histogram, BucketsAreContiguousAndPreciseToAThirtySecond) {
  std::uint64_t previous = 0;
  for (std::size_t i = 1; i < Histogram::kBuckets; ++i) {
    std::uint64_t last = Histogram::BucketLast(i);
    ASSERT_GT(last, previous);
    if (i >= 2 * Histogram::kSub) {
      ASSERT_LE((last - previous) * Histogram::kSub, last + 1);
    }
    for (std::uint64_t value : {previous + 1, last}) {
      Histogram one;
      one.Record(value);
      ASSERT_EQ(one.bucket(i), 1u) << value;
    }
    previous = last;
  }
  EXPECT_EQ(previous, (std::uint64_t{1} << Histogram::kMaxBits) - 1);
}

TEST(Histogram, PercentilesOfAKnownDistribution) {
  Histogram histogram;
  EXPECT_EQ(histogram.Percentile(0.5), 0u);
  for (std::uint64_t i = 1; i <= 10'000; ++i) histogram.Record(i);
  EXPECT_EQ(histogram.count(), 10'000u);
  EXPECT_EQ(histogram.max(), 10'000u);
  EXPECT_NEAR(static_cast<double>(histogram.Percentile(0.5)), 5000, 5000 / 32.0);
  EXPECT_NEAR(static_cast<double>(histogram.Percentile(0.99)), 9900, 9900 / 32.0);
  EXPECT_EQ(histogram.Percentile(1), 10'000u);
  EXPECT_EQ(histogram.Percentile(0), 1u);
  EXPECT_DOUBLE_EQ(histogram.mean(), 5000.5);
  Histogram sum;
  sum.Record(std::uint64_t{1} << 50);  // beyond the range counts as the greatest
  sum.Merge(histogram);
  EXPECT_EQ(sum.count(), 10'001u);
  EXPECT_EQ(sum.Percentile(1), (std::uint64_t{1} << Histogram::kMaxBits) - 1);
}

TEST(Metrics, AnotherThreadReadsWhileTheOwnerWrites) {
  Counter counter;
  Histogram histogram;
  std::jthread reader([&] {
    std::uint64_t seen = 0;
    while (seen < 100'000) {
      std::uint64_t now = counter.value();
      EXPECT_GE(now, seen);
      EXPECT_LE(histogram.Percentile(0.99), 99u);
      seen = now;
    }
  });
  for (int i = 0; i < 100'000; ++i) {
    histogram.Record(static_cast<std::uint64_t>(i) % 100);
    counter.Add();
  }
}

}  // namespace
}  // namespace cistern
