// SPDX-License-Identifier: Apache-2.0
#include "net/bandwidth.h"

#include <gtest/gtest.h>

#include <cmath>

namespace cistern::net {
namespace {

constexpr std::uint64_t kMega = 1'000'000;
constexpr Instant kStart{50'000'000'000};

TEST(BandwidthTest, WithoutABoundEverythingBeginsNow) {
  Bandwidth none(0);
  EXPECT_FALSE(none.bounded());
  EXPECT_TRUE(std::isinf(none.bytes_per_us()));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(none.Take(1ull << 40, kStart), kStart);
  EXPECT_EQ(none.waits().value(), 0u);
}

TEST(BandwidthTest, TurnsFollowEachOtherAtTheBoundsPace) {
  Bandwidth bound(100 * kMega);
  EXPECT_DOUBLE_EQ(bound.bytes_per_us(), 100);
  EXPECT_EQ(bound.Take(10 * kMega, kStart), kStart);
  // 100 ms, less the 10 ms that nobody had used.
  EXPECT_EQ(bound.BeginAt(kStart), kStart.PlusUs(90'000));
  EXPECT_EQ(bound.Take(kMega, kStart), kStart.PlusUs(90'000));
  EXPECT_EQ(bound.Take(kMega, kStart.PlusUs(50'000)), kStart.PlusUs(100'000));
  EXPECT_EQ(bound.BeginAt(kStart.PlusUs(300'000)), kStart.PlusUs(300'000));
  EXPECT_EQ(bound.waits().value(), 2u);
}

TEST(BandwidthTest, OfIdleTimeAMomentIsKeptAndNoMore) {
  Bandwidth bound(100 * kMega);
  (void)bound.Take(kMega, kStart);
  const Instant later = kStart.PlusUs(60'000'000);
  // 10 ms are 1 MB: so much goes at once, and the next waits for what is above.
  EXPECT_EQ(bound.Take(kMega, later), later);
  EXPECT_EQ(bound.Take(kMega, later), later);
  EXPECT_EQ(bound.Take(kMega, later), later.PlusUs(10'000));
}

TEST(BandwidthTest, OverManyTurnsItIsTheBoundWhateverTheSizes) {
  Bandwidth bound(250 * kMega);
  Instant now = kStart;
  std::uint64_t moved = 0;
  for (std::uint64_t i = 0; i < 10'000; ++i) {
    const std::uint64_t bytes = 1 + i * 7919 % 4'000'000;
    now = std::max(now, bound.Take(bytes, now));
    moved += bytes;
  }
  const double seconds = static_cast<double>(now.NsSince(kStart)) / 1e9;
  EXPECT_NEAR(static_cast<double>(moved) / seconds, 250e6, 250e6 * 0.01);
}

}  // namespace
}  // namespace cistern::net
