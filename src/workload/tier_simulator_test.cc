// SPDX-License-Identifier: Apache-2.0
#include "workload/tier_simulator.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "workload/test_shapes.h"

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

// ---- a lower tier that is a log ----

constexpr SimAdmission kAdmissions[] = {SimAdmission::kWorth, SimAdmission::kAll, SimAdmission::kSecondHit,
                                        SimAdmission::kRejectFirst};

TierSimResult Play(std::string_view workload, const TierSimOptions& options) {
  const auto requests = OpenRequests(workload);
  const Result<TierSimResult> result = SimulateTiers(**requests, options);
  EXPECT_TRUE(result.has_value());
  return result.value_or(TierSimResult());
}

std::uint64_t Hits(const TierSimResult& result) { return result.memory_hits + result.lower_hits; }

TEST(TierSimulator, WithRoomForAllWorthIsAll) {
  for (const Shape& shape : kShapes) {
    const TierSimResult all = Play(shape.options, {.blocks = 300, .admit = SimAdmission::kAll});
    EXPECT_EQ(Play(shape.options, {.blocks = 300, .admit = SimAdmission::kWorth}), all) << shape.name;
    EXPECT_EQ(all.moved, 0u);
    EXPECT_EQ(all.written, all.accesses - Hits(all)) << shape.name;
  }
}

TEST(TierSimulator, WhatWasWrittenLongestAgoIsLostUnlessItWasUsed) {
  TierSimulator simulator({.blocks = 4, .admit = SimAdmission::kAll, .lower_blocks = 64});
  for (std::uint64_t i = 0; i < 64; ++i) simulator.Submit(Prompt(i, i, 1));
  simulator.Submit(Prompt(100, 3, 1));  // used since it was written
  EXPECT_EQ(Hits(simulator.result()), 1u);
  for (std::uint64_t i = 0; i < 8; ++i) simulator.Submit(Prompt(200 + i, 1'000 + i, 1));
  EXPECT_EQ(simulator.result().moved, 1u) << "of the oldest sixteen";
  simulator.Submit(Prompt(300, 3, 1));
  EXPECT_EQ(Hits(simulator.result()), 2u);
  simulator.Submit(Prompt(301, 20, 1));
  EXPECT_EQ(Hits(simulator.result()), 3u) << "of the next sixteen";
  simulator.Submit(Prompt(302, 4, 1));
  EXPECT_EQ(Hits(simulator.result()), 3u) << "was not used";
}

TEST(TierSimulator, WhatIsLostTakesAlongWhatExtendsIt) {
  TierSimulator simulator({.blocks = 20, .admit = SimAdmission::kSecondHit, .lower_blocks = 64});
  simulator.Submit(Prompt(0, 0, 10));
  simulator.Submit(Prompt(1, 0, 10));  // all ten are below now
  EXPECT_EQ(simulator.result().written, 10u);
  for (std::uint64_t i = 1; i < 20; ++i) {
    simulator.Submit(Prompt(10 * i, 100 * i, 10));
    simulator.Submit(Prompt(10 * i + 1, 100 * i, 10));
  }
  const std::uint64_t before = Hits(simulator.result());
  simulator.Submit(Prompt(1'000, 0, 11));
  EXPECT_EQ(Hits(simulator.result()), before) << "its first block is gone, and so is the rest";
}

// Else a region that memory holds all of is written again whole, and the log never has room.
TEST(TierSimulator, FlashSmallerThanMemoryKeepsGivingUpRegions) {
  for (const SimAdmission admit : kAdmissions) {
    TierSimulator simulator({.blocks = 200, .admit = admit, .lower_blocks = 64});
    for (std::uint64_t i = 0; i < 450; ++i) simulator.Submit(Prompt(i, i % 150, 1));
    const TierSimResult& result = simulator.result();
    EXPECT_EQ(result.memory_hits, 300u) << ToString(admit);
    EXPECT_GE(result.written, 150u) << ToString(admit);
    EXPECT_LE(result.moved, 7 * result.written) << ToString(admit) << ": seven of eight at most stay";
  }
}

TEST(TierSimulator, SecondHitWritesWhatIsAskedForAgainAndRejectFirstWhatIsPutAgain) {
  const auto written = [](SimAdmission admit) {
    TierSimulator simulator({.blocks = 4, .admit = admit});
    std::vector<std::uint64_t> counts;
    const auto ask = [&](std::uint64_t first) {
      simulator.Submit(Prompt(counts.size(), first, 2));
      counts.push_back(simulator.result().written);
    };
    for (const std::uint64_t first : {0, 0, 10, 20, 30, 10}) ask(first);
    return counts;
  };
  EXPECT_EQ(written(SimAdmission::kSecondHit), (std::vector<std::uint64_t>{0, 2, 2, 2, 2, 2}));
  EXPECT_EQ(written(SimAdmission::kRejectFirst), (std::vector<std::uint64_t>{0, 2, 2, 2, 2, 4}));
  EXPECT_EQ(written(SimAdmission::kAll), (std::vector<std::uint64_t>{2, 2, 4, 6, 8, 8}));
}

TEST(TierSimulator, BudgetBoundsWhatIsWritten) {
  for (const SimAdmission admit : kAdmissions) {
    const TierSimResult result = Play("generated:sessions=2000,turns=2,span=30min",
                                      {.blocks = 300, .admit = admit, .lower_budget = 1'000});
    EXPECT_LE(result.written, 1'000u + 1'000u)
        << ToString(admit);  // an hour's worth, and what an hour brings
    EXPECT_GT(Hits(result), 0u);
  }
}

// Of chats, documents and agents, in room for a small part of what is written: what is worth its write hits
// as often as all that is written does, and of most shapes more often, for fewer writes.
TEST(TierSimulator, WorthHitsAsOftenAsAllForFewerWrites) {
  std::uint64_t all_written = 0, worth_written = 0;
  for (const Shape& shape : kShapes) {
    for (const std::uint64_t lower : {1'000u, 4'000u}) {
      TierSimOptions options{.blocks = 300, .admit = SimAdmission::kAll, .lower_blocks = lower};
      const TierSimResult all = Play(shape.options, options);
      options.admit = SimAdmission::kWorth;
      const TierSimResult worth = Play(shape.options, options);
      EXPECT_GE(Hits(worth) * 1'000 + 3 * all.accesses, Hits(all) * 1'000) << shape.name << ", " << lower;
      all_written += all.written + all.moved;
      worth_written += worth.written + worth.moved;
    }
  }
  EXPECT_LT(worth_written, all_written);
}

}  // namespace
}  // namespace cistern::workload
