// SPDX-License-Identifier: Apache-2.0
#include "catalog/forward_time.h"

#include <gtest/gtest.h>

namespace cistern::catalog {
namespace {

class ForwardTimeTest : public testing::Test {
 protected:
  std::uint64_t Now() { return time.Seconds(clock.Now(), clock.Wall().seconds); }

  SimulatedClock clock{{1'700'000'000}};
  ForwardTime time;
};

TEST_F(ForwardTimeTest, IsTheWallClockWhereThatGoesOn) {
  for (int i = 0; i < 10'000; ++i) {
    ASSERT_EQ(Now(), clock.Wall().seconds);
    clock.AdvanceUs(77'777);
  }
}

TEST_F(ForwardTimeTest, R10GoesOnThoughTheWallClockWentBack) {
  const std::uint64_t before = Now();
  clock.StepWall(-3600);
  EXPECT_EQ(Now(), before);
  for (int i = 0; i < 400; ++i) {
    clock.AdvanceUs(50'000);
    Now();
  }
  EXPECT_EQ(Now(), before + 20);
}

TEST_F(ForwardTimeTest, R10GoesOnThoughTheWallClockWasAheadOnce) {
  Now();
  clock.StepWall(3600);
  const std::uint64_t ahead = Now();
  clock.StepWall(-3600);
  clock.AdvanceUs(20'000'000);
  EXPECT_EQ(Now(), ahead + 20);
  clock.AdvanceUs(3'700'000'000);
  EXPECT_EQ(Now(), ahead + 3720);
}

TEST_F(ForwardTimeTest, IsTheLaterWhereTheWallClockGoesAhead) {
  Now();
  clock.StepWall(3600);
  EXPECT_EQ(Now(), clock.Wall().seconds);
}

}  // namespace
}  // namespace cistern::catalog
