// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"

#include <gtest/gtest.h>

#include <limits>

namespace cistern {
namespace {

std::string Refusal(const Result<std::uint64_t>& result) {
  if (result) return "accepted";
  EXPECT_EQ(result.error().code(), Code::kInvalid);
  return std::string(result.error().message());
}

TEST(Units, SizesAreReadInEveryUnit) {
  EXPECT_EQ(ParseSize("memory", "256MiB").value(), 256ull << 20);
  EXPECT_EQ(ParseSize("memory", "64kib").value(), 64ull << 10);
  EXPECT_EQ(ParseSize("memory", "1GB").value(), 1'000'000'000u);
  EXPECT_EQ(ParseSize("memory", "1 TiB").value(), 1ull << 40);
  EXPECT_EQ(ParseSize("memory", "0B").value(), 0u);
  EXPECT_EQ(ParseSize("memory", "18446744073709551615B").value(), std::numeric_limits<std::uint64_t>::max());
}

TEST(BadInput, SizeIsRefusedByNameWithTheWayOut) {
  EXPECT_EQ(Refusal(ParseSize("memory", "256")),
            "memory: 256 has no unit: write 256MiB (units: B, KiB, MiB, GiB, TiB, KB, MB, GB, TB)");
  EXPECT_EQ(Refusal(ParseSize("memory", "4X")),
            "memory: 4X has the unknown unit X: known are B, KiB, MiB, GiB, TiB, KB, MB, GB, TB");
  EXPECT_EQ(Refusal(ParseSize("memory", "-1MiB")),
            "memory: -1MiB is negative: a size is a whole number and a unit, such as 256MiB");
  EXPECT_EQ(Refusal(ParseSize("memory", "1.5GiB")),
            "memory: 1.5GiB is not whole: write a whole number of a smaller unit, such as 256MiB");
  EXPECT_EQ(Refusal(ParseSize("memory", "")),
            "memory: is empty: a size is a whole number and a unit, such as 256MiB");
  EXPECT_EQ(Refusal(ParseSize("memory", "much")),
            "memory: much does not begin with a digit: a size is a whole number and a unit, such as 256MiB");
  EXPECT_EQ(Refusal(ParseSize("memory", "99999999TiB")),
            "memory: 99999999TiB is too large: the limit is 16777215TiB");
  EXPECT_EQ(Refusal(ParseSize("memory", "99999999999999999999B")),
            "memory: 99999999999999999999B is more than the largest number, 18446744073709551615");
  EXPECT_EQ(Refusal(ParseSize("memory", "1MiB ")),
            "memory: 1MiB  has the unknown unit MiB : known are B, KiB, MiB, GiB, TiB, KB, MB, GB, TB");
}

TEST(Units, DurationsAreReadInMicroseconds) {
  EXPECT_EQ(ParseDurationUs("poll", "50us").value(), 50u);
  EXPECT_EQ(ParseDurationUs("poll", "500ms").value(), 500'000u);
  EXPECT_EQ(ParseDurationUs("poll", "10s").value(), 10'000'000u);
  EXPECT_EQ(ParseDurationUs("poll", "2min").value(), 120'000'000u);
  EXPECT_EQ(ParseDurationUs("poll", "1h").value(), 3'600'000'000u);
  EXPECT_EQ(Refusal(ParseDurationUs("poll", "50")),
            "poll: 50 has no unit: write 50ms (units: us, ms, s, min, h)");
  EXPECT_EQ(ParseDurationUs("linger", "9223372036854775807us").value(), 9'223'372'036'854'775'807u);
  EXPECT_EQ(Refusal(ParseDurationUs("linger", "9223372036854775808us")),
            "linger: 9223372036854775808us is too large: the limit is 9223372036854775807us");
  EXPECT_EQ(Refusal(ParseDurationUs("linger", "5000000000h")),
            "linger: 5000000000h is too large: the limit is 2562047788h");
}

TEST(Units, CountsAreReadInTheirRange) {
  EXPECT_EQ(ParseCount("blocks", "1000", 1, 5000).value(), 1000u);
  EXPECT_EQ(Refusal(ParseCount("blocks", "0", 1, 5000)),
            "blocks: 0 is out of range: it must be from 1 to 5000");
  EXPECT_EQ(Refusal(ParseCount("blocks", "10k", 1, 5000)),
            "blocks: 10k is not a whole number: it takes digits only, such as 1000");
  EXPECT_EQ(Refusal(ParseCount("blocks", "2.5", 1, 5000)),
            "blocks: 2.5 is not whole: a count is a whole number, such as 1000");
}

TEST(Units, WhatIsPrintedReadsBack) {
  EXPECT_EQ(SizeText(256ull << 20), "256MiB");
  EXPECT_EQ(SizeText(1'000'001), "1000001B");
  EXPECT_EQ(SizeText(0), "0B");
  EXPECT_EQ(DurationText(500'000), "500ms");
  EXPECT_EQ(DurationText(90'000'000), "90s");
  EXPECT_EQ(RoughSizeText(1'567'000'000), "1.45GiB");
  EXPECT_EQ(RoughSizeText(3ull << 29), "1.5GiB");
  EXPECT_EQ(RoughSizeText(1023), "1023B");
  EXPECT_EQ(RoughSizeText((1ull << 30) + (1ull << 24)), "1.01GiB");
  for (std::uint64_t value = 1; value != 0; value <<= 1) {
    for (std::uint64_t near : {value - 1, value, value + 1, value * 3}) {
      EXPECT_EQ(ParseSize("x", SizeText(near)).value(), near);
      EXPECT_EQ(ParseDurationUs("x", DurationText(near / 2)).value(), near / 2);
    }
  }
}

}  // namespace
}  // namespace cistern
