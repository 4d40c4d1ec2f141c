// SPDX-License-Identifier: Apache-2.0
#include "workload/draw.h"

#include <gtest/gtest.h>

#include <cmath>

namespace cistern::workload {
namespace {

TEST(Draw, FixedPointLogarithmAndPowerAreRight) {
  for (const std::uint64_t x : {1ull, 2ull, 3ull, 5ull, 1000ull, 999'983ull, 1ull << 63, ~0ull}) {
    EXPECT_NEAR(static_cast<double>(Log2Q32(x)) / 0x1p32, std::log2(static_cast<double>(x)), 0x1p-30) << x;
  }
  for (const double y : {0.0, 0.25, 0.5, 1.0, 3.3, 17.123, 39.9}) {
    const auto fixed = static_cast<std::uint64_t>(y * 0x1p32);
    EXPECT_NEAR(static_cast<double>(Exp2MinusQ40(fixed)) / 0x1p40, std::exp2(-y), 0x1p-30) << y;
  }
  EXPECT_EQ(Exp2MinusQ40(0), 1ull << 40);
  EXPECT_EQ(Exp2MinusQ40(~0ull), 0u);
}

TEST(Draw, ASeedGivesTheSameNumbersOnEveryMachine) {
  Draws random(1);
  EXPECT_EQ(random.Next(), 0x910a'2dec'8902'5cc1u);
  EXPECT_EQ(random.Next(), 0xbeeb'8da1'658e'ec67u);
  Zipf zipf(1'000, 900);
  std::uint64_t mixed = 0;
  for (int i = 0; i < 1'000; ++i) mixed = mixed * 31 + zipf.Draw(random) + random.Exponential(1'000'000);
  EXPECT_EQ(mixed, 16'492'435'739'886'122'399u);
}

TEST(Draw, MeansAreMet) {
  Draws random(7);
  double uniform = 0;
  double exponential = 0;
  for (int i = 0; i < 200'000; ++i) {
    uniform += static_cast<double>(random.Below(1'001));
    exponential += static_cast<double>(random.Exponential(1'000));
  }
  EXPECT_NEAR(uniform / 200'000, 500, 5);
  EXPECT_NEAR(exponential / 200'000, 999.5, 10);
  EXPECT_EQ(random.Below(1), 0u);
  EXPECT_EQ(random.Exponential(0), 0u);
}

// The slope of log(count) over log(rank), over ranks that have many draws each.
double Slope(std::uint64_t milli_exponent) {
  constexpr int kRanks = 50;
  Draws random(milli_exponent + 1);
  const Zipf zipf(kRanks, milli_exponent);
  std::vector<double> counts(kRanks);
  for (int i = 0; i < 400'000; ++i) counts[zipf.Draw(random)] += 1;
  double sx = 0, sy = 0, sxx = 0, sxy = 0;
  const int used = 20;
  for (int rank = 1; rank <= used; ++rank) {
    const double x = std::log(rank);
    const double y = std::log(counts[static_cast<std::size_t>(rank - 1)]);
    sx += x, sy += y, sxx += x * x, sxy += x * y;
  }
  return (used * sxy - sx * sy) / (used * sxx - sx * sx);
}

TEST(Draw, ZipfHasItsSlope) {
  EXPECT_NEAR(Slope(0), 0, 0.02);
  EXPECT_NEAR(Slope(700), -0.7, 0.02);
  EXPECT_NEAR(Slope(1'000), -1.0, 0.02);
  EXPECT_NEAR(Slope(1'500), -1.5, 0.03);
}

TEST(Draw, ZipfDrawsOnlyItsRanks) {
  Draws random(3);
  const Zipf one(1, 4'000);
  EXPECT_EQ(one.Draw(random), 0u);
  const Zipf steep(Zipf::kMaxRanks, Zipf::kMaxMilliExponent);
  for (int i = 0; i < 10'000; ++i) ASSERT_LT(steep.Draw(random), Zipf::kMaxRanks);
}

}  // namespace
}  // namespace cistern::workload
