// SPDX-License-Identifier: Apache-2.0
#include "flash/turn.h"

#include <gtest/gtest.h>

namespace cistern::flash {
namespace {

constexpr std::uint64_t kCapacity = 6'400;

Instant At(std::int64_t seconds) { return Instant().PlusUs(seconds * 1'000'000); }

TEST(Turn, IsUnknownBeforeAnythingWasAppendedToSpeakOf) {
  Turn turn(At(0));
  EXPECT_EQ(turn.Ms(kCapacity, At(100)), 0);
  turn.Append(99, kCapacity, At(100));
  EXPECT_EQ(turn.Ms(kCapacity, At(100)), 0);
}

TEST(Turn, IsByHowFastItIsFilledUntilItWasFilledOnce) {
  Turn turn(At(0));
  for (std::int64_t s = 1; s <= 16; ++s) turn.Append(100, kCapacity, At(s));
  EXPECT_EQ(turn.Ms(kCapacity, At(16)), 64'000);
  EXPECT_EQ(turn.Ms(kCapacity, At(32)), 128'000) << "nothing came meanwhile";
}

TEST(Turn, IsTheTimeSinceAsManyBytesWereAppendedAsItHolds) {
  Turn turn(At(0));
  for (std::int64_t s = 1; s <= 64; ++s) turn.Append(100, kCapacity, At(s));
  for (std::int64_t s = 1; s <= 64; ++s) turn.Append(100, kCapacity, At(64 + 10 * s));
  EXPECT_EQ(turn.Ms(kCapacity, At(704)), 640'000);
  EXPECT_EQ(turn.Ms(kCapacity, At(10'704)), 10'640'000) << "and grows while nothing comes";
}

TEST(Turn, OfALogThatHoldsLessFromNowOnIsShorter) {
  Turn turn(At(0));
  for (std::int64_t s = 1; s <= 200; ++s) turn.Append(100, kCapacity, At(s));
  turn.Append(100, kCapacity / 2, At(201));
  EXPECT_EQ(turn.Ms(kCapacity / 2, At(201)), 32'000);
}

}  // namespace
}  // namespace cistern::flash
