// SPDX-License-Identifier: Apache-2.0
#include "policy/rewrite.h"

#include <gtest/gtest.h>

namespace cistern::policy {
namespace {

constexpr std::uint64_t kMemory = 400;

TEST(RewriteAllowance, EachBytePutPaysForOneThatIsWrittenAgain) {
  RewriteAllowance rewrites;
  EXPECT_FALSE(rewrites.ForLeaving(0));
  rewrites.NotePut(10, kMemory);
  EXPECT_TRUE(rewrites.ForLeaving(0));
  rewrites.Take(10);
  EXPECT_FALSE(rewrites.ForLeaving(0));
}

TEST(RewriteAllowance, HalfIsKeptForWhatLeavesMemory) {
  RewriteAllowance rewrites;
  rewrites.NotePut(50, kMemory);
  EXPECT_TRUE(rewrites.ForLeaving(0));
  EXPECT_FALSE(rewrites.ForStaying(0));
  rewrites.NotePut(1, kMemory);
  EXPECT_TRUE(rewrites.ForStaying(0));
}

TEST(RewriteAllowance, NoMoreThanAQuarterOfMemoryIsSavedUpOrOwed) {
  RewriteAllowance rewrites;
  rewrites.NotePut(10'000, kMemory);
  rewrites.Take(99);
  EXPECT_TRUE(rewrites.ForLeaving(0));
  rewrites.Take(10'000);
  rewrites.NotePut(100, kMemory);
  EXPECT_FALSE(rewrites.ForLeaving(0));
  rewrites.NotePut(1, kMemory);
  EXPECT_TRUE(rewrites.ForLeaving(0));
}

TEST(RewriteAllowance, WhatIsToBeWrittenAlreadyIsNotPromisedTwice) {
  RewriteAllowance rewrites;
  rewrites.NotePut(80, kMemory);
  EXPECT_TRUE(rewrites.ForLeaving(79));
  EXPECT_FALSE(rewrites.ForLeaving(80));
  EXPECT_TRUE(rewrites.ForStaying(29));
  EXPECT_FALSE(rewrites.ForStaying(30));
}

}  // namespace
}  // namespace cistern::policy
