// SPDX-License-Identifier: Apache-2.0
// worth_us decides by this: on a queue whose depth, sizes, writers and speed change, the estimate is near and
// refusals are right.
#include "flash/estimate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <queue>
#include <vector>

#include "base/random.h"
#include "flash/budget.h"

namespace cistern::flash {
namespace {

// A device with some channels and one bus: a read waits for a channel, takes its time there, then its bytes
// cross the bus in order.
struct Synthetic {
  double base_us = 80;
  double bytes_per_us = 3000;
  double noise = 0.1;
  std::vector<double> channels = std::vector<double>(8, 0.0);
  double bus_free = 0;

  double Ends(double now, std::uint64_t bytes, Random& random) {
    auto channel = std::ranges::min_element(channels);
    const double begins = std::max(now, *channel);
    const double sensed = begins + base_us * (1 + noise * (2 * random.Unit() - 1));
    const double ends = std::max(sensed, bus_free) + static_cast<double>(bytes) / bytes_per_us;
    *channel = bus_free = ends;
    return ends;
  }
};

struct Outcome {
  double median_error = 0;
  double refusals_right = 0;  // of those refused
  double decisions_right = 0;
  std::uint64_t refused = 0;
};

Instant At(double us) { return Instant{static_cast<std::int64_t>(us * 1000)}; }

Outcome Drive(std::uint64_t seed, Synthetic device, std::vector<std::uint64_t> sizes, std::uint64_t reads) {
  struct Flying {
    double ends;
    std::uint64_t bytes;
    Estimate::Expected expected;
    bool operator<(const Flying& other) const { return ends > other.ends; }
  };
  Random random(seed);
  Estimate estimate;
  std::priority_queue<Flying> flying;
  std::vector<double> errors;
  std::uint64_t refused = 0, rightly = 0, right = 0, count = 0;
  double now = 0;
  std::uint64_t depth = 1, writes = 0;
  const double speed = device.bytes_per_us;
  for (std::uint64_t n = 0; count < reads; ++n) {
    if (n % 300 == 0) {  // the load changes
      depth = 1ull << random.Below(7);
      for (; writes > 0; --writes) estimate.WriteEnded();
      if (random.Chance(0.5)) writes = 1 + random.Below(4);
      for (std::uint64_t i = 0; i < writes; ++i) estimate.WriteBegan();
      device.bytes_per_us = speed / (1 + 0.4 * static_cast<double>(writes)) * (0.7 + 0.6 * random.Unit());
    }
    while (flying.size() >= depth) {
      const Flying first = flying.top();
      flying.pop();
      now = std::max(now, first.ends);
      estimate.Ended(first.expected, first.bytes, At(now), true);
    }
    const std::uint64_t bytes = sizes[random.Below(sizes.size())];
    const double ends = device.Ends(now, bytes, random);
    const double took = ends - now;
    const double said = estimate.Us(bytes, At(now));
    if (n >= 200) {  // a device that nobody has read yet is not judged
      ++count;
      errors.push_back(std::abs(said - took) / took);
      const double worth = 50 * std::pow(1000, random.Unit());  // 50 us to 50 ms
      refused += said > worth;
      rightly += said > worth && took > worth;
      right += (said > worth) == (took > worth);
    }
    flying.push({ends, bytes, estimate.Came(bytes, At(now))});
    now += random.Unit() * 2;
  }
  std::ranges::nth_element(errors, errors.begin() + static_cast<std::ptrdiff_t>(errors.size() / 2));
  return {errors[errors.size() / 2], static_cast<double>(rightly) / static_cast<double>(refused),
          static_cast<double>(right) / static_cast<double>(count), refused};
}

TEST(FlashEstimate, IsNearAndRefusesRightlyUnderChangingLoad) {
  const std::vector<std::vector<std::uint64_t>> mixes = {
      {4096}, {64u << 10}, {2u << 20}, {8192, 64u << 10, 256u << 10, 2u << 20}};
  for (const auto& sizes : mixes) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      const Outcome outcome = Drive(seed, Synthetic(), sizes, 10'000);
      SCOPED_TRACE(testing::Message() << sizes.size() << " sizes from " << sizes[0] << ", seed " << seed);
      EXPECT_LT(outcome.median_error, 0.2);
      EXPECT_GT(outcome.refused, 500u);
      EXPECT_GT(outcome.refusals_right, 0.95);
      EXPECT_GT(outcome.decisions_right, 0.95);
    }
  }
}

// Some devices end what they have all at once: then as many come at once, and the first of them takes as long
// as the last.
TEST(FlashEstimate, IsNearWhereReadsEndInBursts) {
  Random random(1);
  Estimate estimate;
  std::vector<double> errors;
  double now = 0;
  for (int round = 0; round < 3000; ++round) {
    const std::size_t depth = round / 200 % 2 == 0 ? 32 : 8;
    std::vector<Estimate::Expected> burst;
    for (std::size_t i = 0; i < depth; ++i) burst.push_back(estimate.Came(4096, At(now += 0.5)));
    now += 20.0 * static_cast<double>(depth) * (0.9 + 0.2 * random.Unit());
    for (const Estimate::Expected& expected : burst) {
      const double took = now - static_cast<double>(expected.at.ns) / 1000;
      if (round >= 20) errors.push_back(std::abs(expected.us - took) / took);
      estimate.Ended(expected, 4096, At(now += 0.5), true);
    }
  }
  std::ranges::sort(errors);
  EXPECT_LT(errors[errors.size() / 2], 0.2);
}

TEST(FlashEstimate, OfAnIdleDeviceIsWhatItsReadsTook) {
  Estimate estimate;
  double now = 0;
  for (int i = 0; i < 100; ++i) {
    const auto expected = estimate.Came(4096, At(now));
    now += 90;
    estimate.Ended(expected, 4096, At(now), true);
    now += 1000;
  }
  EXPECT_NEAR(estimate.Us(4096, At(now)), 90, 9);
}

TEST(FlashEstimate, GrowsWithWhatIsQueuedAndFallsWhenItLeaves) {
  Estimate estimate;
  const double idle = estimate.Us(1 << 20, At(0));
  for (int i = 0; i < 50; ++i) (void)estimate.Came(1 << 20, At(0));
  EXPECT_GT(estimate.Us(1 << 20, At(0)), 10 * idle);
  for (int i = 0; i < 50; ++i) estimate.Left(1 << 20);
  EXPECT_NEAR(estimate.Us(1 << 20, At(0)), idle, idle / 100);
}

TEST(FlashEstimate, AFirstReadThatWaitedForTheHostMakesNoByteSlow) {
  Estimate estimate;
  const auto expected = estimate.Came(4096, At(0));
  estimate.Ended(expected, 4096, At(300'000), true);
  EXPECT_NEAR(estimate.Us(4096, At(300'000)), 300'000, 30'000);
  EXPECT_LT(estimate.Us(2u << 20, At(300'000)), 320'000);
}

// As where credits of a volume are used up. Reads beside a write come for the first time when it is slow.
TEST(FlashEstimate, WhatADeviceBecameSlowerByCountsOnceOfReadsThatCameFirstWhenItHad) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    Estimate estimate;
    double now = 0;
    for (int n = 0; n < 300; ++n) {
      const bool slow = n >= 100, beside = slow && (n < 104 || random.Chance(0.1));
      if (beside) estimate.WriteBegan();
      const double took = (slow ? 300'000 : 3'000) * (0.95 + 0.1 * random.Unit());
      const auto expected = estimate.Came(1u << 20, At(now));
      if (n >= 120) {
        EXPECT_LT(expected.us, 3 * took) << "seed " << seed << ", read " << n;
      }
      estimate.Ended(expected, 1u << 20, At(now += took), true);
      if (beside) estimate.WriteEnded();
    }
  }
}

TEST(FlashEstimate, AReadAfterASecondOfRestIsNotRefusedForWhatWasBefore) {
  Estimate estimate;
  double now = 0;
  for (int i = 0; i < 100; ++i) {
    const auto expected = estimate.Came(4096, At(now));
    estimate.Ended(expected, 4096, At(now += 300'000), true);
  }
  EXPECT_GT(estimate.Us(4096, At(now + 1'000'000)), 200'000);
  EXPECT_LT(estimate.Us(4096, At(now + 1'000'001)), 200);
  (void)estimate.Came(4096, At(now + 1'000'001));  // one: the next waits for what it tells
  EXPECT_GT(estimate.Us(4096, At(now + 1'000'001)), 200'000);
}

TEST(FlashBudget, LetsNoMoreThroughInADayThanADaysWorthAndAnHours) {
  Random random(1);
  constexpr std::uint64_t kDay = 240'000'000;
  Budget budget(kDay, Instant{0});
  std::uint64_t written = 0;
  constexpr std::int64_t kStepNs = 86'400'000'000'000 / 10'000;
  for (std::int64_t i = 0; i <= 10'000; ++i) {
    for (int tries = 0; tries < 20; ++tries) {
      const std::uint64_t bytes = 1 + random.Below(100'000);
      if (!budget.Allows(bytes, Instant{i * kStepNs})) continue;
      budget.Spend(bytes, Instant{i * kStepNs});
      written += bytes;
    }
  }
  EXPECT_LE(written, kDay + kDay / 24);
  EXPECT_GE(written, kDay);
}

TEST(FlashBudget, ABatchLargerThanTheBucketPassesWhenItIsFullAndIsPaidBack) {
  Budget budget(24'000, Instant{0});
  EXPECT_TRUE(budget.Allows(5'000, Instant{0}));
  budget.Spend(5'000, Instant{0});
  EXPECT_FALSE(budget.Allows(1, Instant{0}));
  constexpr std::int64_t kHourNs = 3'600'000'000'000;
  EXPECT_FALSE(budget.Allows(1'000, Instant{4 * kHourNs}));
  EXPECT_TRUE(budget.Allows(1'000, Instant{5 * kHourNs}));
}

}  // namespace
}  // namespace cistern::flash
