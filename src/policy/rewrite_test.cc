// SPDX-License-Identifier: Apache-2.0
#include "policy/rewrite.h"

#include <gtest/gtest.h>

namespace cistern::policy {
namespace {

constexpr std::uint64_t kMemory = 400;

TEST(RewriteAllowance, EachBytePutPaysForOneThatIsWrittenAgain) {
  RewriteAllowance rewrites;
  EXPECT_FALSE(rewrites.ForLeaving());
  rewrites.NotePut(10, kMemory);
  EXPECT_TRUE(rewrites.ForLeaving());
  rewrites.Take(10);
  EXPECT_FALSE(rewrites.ForLeaving());
}

TEST(RewriteAllowance, HalfIsKeptForWhatLeavesMemory) {
  RewriteAllowance rewrites;
  rewrites.NotePut(50, kMemory);
  EXPECT_TRUE(rewrites.ForLeaving());
  EXPECT_FALSE(rewrites.ForStaying());
  rewrites.NotePut(1, kMemory);
  EXPECT_TRUE(rewrites.ForStaying());
}

TEST(RewriteAllowance, NoMoreThanAQuarterOfMemoryIsSavedUpOrOwed) {
  RewriteAllowance rewrites;
  rewrites.NotePut(10'000, kMemory);
  rewrites.Take(99);
  EXPECT_TRUE(rewrites.ForLeaving());
  rewrites.Take(10'000);
  rewrites.NotePut(100, kMemory);
  EXPECT_FALSE(rewrites.ForLeaving());
  rewrites.NotePut(1, kMemory);
  EXPECT_TRUE(rewrites.ForLeaving());
}

}  // namespace
}  // namespace cistern::policy
