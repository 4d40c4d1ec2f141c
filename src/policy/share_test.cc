// SPDX-License-Identifier: Apache-2.0
#include "policy/share.h"

#include <gtest/gtest.h>

#include <array>

namespace cistern::policy {
namespace {

// One owner after the other takes all that it may.
TEST(Share, P5WhoTakesAllThatItMayLeavesSomethingForEachThatComesLater) {
  constexpr std::uint64_t kLimit = 4096;
  std::uint64_t used = 0;
  std::uint64_t last = kLimit;
  for (int owner = 0; owner < 4; ++owner) {
    std::uint64_t mine = 0;
    while (MayTakeOne(kLimit, used, mine)) {
      mine++;
      used++;
    }
    EXPECT_GT(mine, 0u) << owner;
    EXPECT_LT(mine, last) << owner;
    last = mine;
    if (owner == 0) {
      EXPECT_EQ(mine, 3277u);
    }
  }
  EXPECT_LT(used, kLimit);
}

TEST(Share, SmallThingsAreTakenToTheLast) {
  for (std::uint64_t limit = 1; limit <= 4; ++limit)
    EXPECT_TRUE(MayTakeOne(limit, limit - 1, limit - 1)) << limit;
  EXPECT_FALSE(MayTakeOne(4, 4, 0));
}

TEST(Share, WhatIsKeptIsJudgedAsWhatIsTaken) {
  for (std::uint64_t used = 0; used <= 100; ++used) {
    for (std::uint64_t mine = 0; mine < 100 - used; ++mine)
      EXPECT_EQ(MayKeep(100, used + 1, mine + 1), MayTake(100, used, mine, 1)) << used << " " << mine;
  }
  EXPECT_FALSE(MayKeep(100, 101, 0));
}

TEST(Share, WhatIsTakenAtOnceCountsAsWell) {
  EXPECT_TRUE(MayTake(100, 0, 0, 80));
  EXPECT_FALSE(MayTake(100, 0, 0, 81));
  EXPECT_TRUE(MayTake(100, 80, 0, 16));
  EXPECT_FALSE(MayTake(100, 80, 80, 1));
  EXPECT_FALSE(MayTake(100, 100, 0, 1));
}

TEST(Share, P5TheMostThatMayBeTakenMayBeTakenAndNoMore) {
  for (std::uint64_t used = 0; used <= 60; ++used) {
    for (std::uint64_t mine = 0; mine <= used; ++mine) {
      const std::uint64_t most = MostMore(60, used, mine);
      if (most > 0) {
        EXPECT_TRUE(MayTake(60, used, mine, most)) << used << " " << mine;
      }
      EXPECT_FALSE(MayTake(60, used, mine, most + 1)) << used << " " << mine;
    }
  }
  EXPECT_EQ(MostMore(100, 0, 0), 80u);
  EXPECT_EQ(MostMore(100, 101, 0), 0u);
}

}  // namespace
}  // namespace cistern::policy
