// SPDX-License-Identifier: Apache-2.0
#include "base/log_limiter.h"

#include <gtest/gtest.h>

namespace cistern {
namespace {

constexpr Instant kBegin{.ns = 1'000'000'000'000};
const std::source_location kHere = std::source_location::current();
const std::source_location kThere = std::source_location::current();

TEST(LogLimiter, SomeAtOnceThenOneASecondWithTheCountOfTheRest) {
  LogLimiter limiter;
  for (std::uint32_t i = 0; i < LogLimiter::kAtOnce; ++i) EXPECT_EQ(limiter.Admit(kHere, kBegin), 0u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(limiter.Admit(kHere, kBegin.PlusUs(i)), std::nullopt);
  EXPECT_EQ(limiter.Admit(kHere, kBegin.PlusUs(1'000'000)), 1000u);
  EXPECT_EQ(limiter.Admit(kHere, kBegin.PlusUs(1'000'001)), std::nullopt);
  EXPECT_EQ(limiter.Admit(kHere, kBegin.PlusUs(2'000'000)), 1u);
}

TEST(LogLimiter, ASiteIsNotLimitedByAnother) {
  LogLimiter limiter;
  for (std::uint32_t i = 0; i <= LogLimiter::kAtOnce; ++i) limiter.Admit(kHere, kBegin);
  EXPECT_EQ(limiter.Admit(kHere, kBegin), std::nullopt);
  EXPECT_EQ(limiter.Admit(kThere, kBegin), 0u);
}

TEST(LogLimiter, WhatWasQuietForLongMaySayAsMuchAsAtFirst) {
  LogLimiter limiter;
  for (std::uint32_t i = 0; i < LogLimiter::kAtOnce; ++i) limiter.Admit(kHere, kBegin);
  const Instant later = kBegin.PlusUs(3'600'000'000);
  for (std::uint32_t i = 0; i < LogLimiter::kAtOnce; ++i) EXPECT_EQ(limiter.Admit(kHere, later), 0u);
  EXPECT_EQ(limiter.Admit(kHere, later), std::nullopt);
}

}  // namespace
}  // namespace cistern
