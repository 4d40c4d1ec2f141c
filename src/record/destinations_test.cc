// SPDX-License-Identifier: Apache-2.0
#include "record/destinations.h"

#include <gtest/gtest.h>

namespace cistern::record {
namespace {

constexpr std::size_t kSegment = 64u << 10;

const void* At(std::uint64_t address) { return reinterpret_cast<const void*>(address); }

TEST(Destinations, AFreshOneIsNotAgain) {
  Destinations destinations;
  for (std::uint64_t i = 0; i < 10'000; ++i)
    EXPECT_FALSE(destinations.Again(At(i * kSegment), kSegment)) << i;
}

TEST(Destinations, TheSameOneAgainIs) {
  Destinations destinations;
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(destinations.Again(At(7 * kSegment), kSegment), i > 0);
}

TEST(Destinations, TwoMiBAgainAreAndWhatLiesLongAgoIsNot) {
  for (const auto& [segments, again] : {std::pair{32, true}, {64, true}, {65, false}, {128, false}}) {
    Destinations destinations;
    for (int round = 0; round < 3; ++round) {
      for (int i = 0; i < segments; ++i)
        EXPECT_EQ(destinations.Again(At(kSegment * i), kSegment), again && round > 0) << segments;
    }
  }
}

TEST(Destinations, PiecesOfOneCopyAreNotAgain) {
  Destinations destinations;
  for (std::uint64_t at = 0; at < (8u << 20); at += 4096)
    EXPECT_FALSE(destinations.Again(At(at), 4096)) << at;
  for (std::uint64_t at = 0; at < kSegment; at += 512)
    EXPECT_FALSE(destinations.Again(At((1u << 30) + at), 512)) << at;
}

}  // namespace
}  // namespace cistern::record
