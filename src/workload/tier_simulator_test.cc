// SPDX-License-Identifier: Apache-2.0
#include "workload/tier_simulator.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace cistern::workload {
namespace {

// So many whole blocks from `first` on.
Request Prompt(std::uint64_t at_ms, std::uint64_t first, std::uint32_t blocks) {
  Request request{.timestamp_ms = at_ms, .input_tokens = blocks * kTraceBlockTokens};
  for (std::uint32_t i = 0; i < blocks; ++i) request.hash_ids.push_back(first + i);
  return request;
}
constexpr PromptHints kInAMinute{.next_turn_ms = 60'000};

// Memory of 40 blocks: a turn of 10 tells of the next, and 50 others pass by before it comes.
TierSimResult OneTurn(bool ahead, std::uint64_t comes_at_ms) {
  TierSimulator simulator({.blocks = 40, .ahead = ahead});
  simulator.Submit(Prompt(0, 0, 10), kInAMinute);
  for (std::uint64_t i = 0; i < 5; ++i) simulator.Submit(Prompt(10'000 + i, 1'000 + 10 * i, 10));
  const std::uint64_t before = simulator.result().memory_hits;
  EXPECT_EQ(before, 0u);
  simulator.Submit(Prompt(comes_at_ms, 0, 11));
  return simulator.result();
}

TEST(TierSimulator, TurnThatComesAsToldFindsItsBlocksInMemory) {
  const TierSimResult without = OneTurn(false, 60'000);
  EXPECT_EQ(without.memory_hits, 0u);
  EXPECT_EQ(without.lower_hits, 10u);
  EXPECT_EQ(without.ahead, 0u);
  const TierSimResult with = OneTurn(true, 60'000);
  EXPECT_EQ(with.memory_hits, 10u);
  EXPECT_EQ(with.lower_hits, 0u);
  EXPECT_EQ(with.ahead, 10u);
  EXPECT_EQ(with.ahead_used, 10u);
}

TEST(TierSimulator, TurnThatComesLongBeforeItWasToldIsFetchedForWhenItComes) {
  const TierSimResult result = OneTurn(true, 20'000);
  EXPECT_EQ(result.lower_hits, 10u);
  EXPECT_EQ(result.ahead, 0u);
}

TEST(TierSimulator, WhatWasFetchedForATurnThatDoesNotComeLeavesFirst) {
  TierSimulator simulator({.blocks = 40, .ahead = true});
  simulator.Submit(Prompt(0, 0, 10), kInAMinute);
  for (std::uint64_t i = 0; i < 4; ++i) simulator.Submit(Prompt(10'000 + i, 1'000 + 10 * i, 10));
  simulator.Submit(Prompt(100'000, 2'000, 10));  // in place of the ten, though these came last
  EXPECT_EQ(simulator.result().ahead, 10u);
  EXPECT_EQ(simulator.result().memory_hits, 0u);
  simulator.Submit(Prompt(100'001, 1'010, 30));
  EXPECT_EQ(simulator.result().memory_hits, 30u);
  EXPECT_EQ(simulator.result().ahead_used, 0u);
}

TEST(TierSimulator, WhatIsHeldStaysHoweverMuchPassesBy) {
  TierSimulator simulator({.blocks = 40, .ahead = true});
  simulator.Submit(Prompt(0, 0, 10), kInAMinute);
  simulator.Submit(Prompt(10'000, 1'000, 40));
  for (std::uint64_t i = 0; i < 10; ++i) simulator.Submit(Prompt(55'000 + i, 2'000 + 40 * i, 40));
  simulator.Submit(Prompt(60'000, 0, 11));
  EXPECT_EQ(simulator.result().memory_hits, 10u);
}

TEST(TierSimulator, HalfOfMemoryIsHeldAtMost) {
  TierSimulator simulator({.blocks = 40, .ahead = true});
  simulator.Submit(Prompt(0, 0, 100), kInAMinute);
  simulator.Submit(Prompt(1, 500, 100), kInAMinute);
  simulator.Submit(Prompt(59'500, 1'000, 40));
  EXPECT_EQ(simulator.result().ahead, 20u);
}

TEST(TierSimulator, TimesThatAreNeverTrueAreNotFetchedForAnyMore) {
  TierSimulator simulator({.blocks = 40, .ahead = true});
  std::uint64_t after_half = 0;
  for (std::uint64_t i = 0; i < 100; ++i) {
    simulator.Submit(Prompt(i * 100'000, 1'000 * i, 10), kInAMinute);
    simulator.Submit(Prompt(i * 100'000 + 10'000, 1'000 * i + 500, 40));
    if (i == 50) after_half = simulator.result().ahead;
  }
  EXPECT_GT(after_half, 0u);
  EXPECT_EQ(simulator.result().ahead, after_half);
}

}  // namespace
}  // namespace cistern::workload
