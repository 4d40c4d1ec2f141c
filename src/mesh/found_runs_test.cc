// SPDX-License-Identifier: Apache-2.0
#include "mesh/found_runs.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <utility>

#include "base/random.h"

namespace cistern::mesh {
namespace {

BlockKey KeyOf(std::uint64_t number) {
  BlockKey key;
  key.length = 16;
  const std::array<std::uint64_t, 2> words = {SplitMix(number), number};
  std::memcpy(key.bytes.data(), words.data(), sizeof(words));
  return key;
}

// Of blocks `from` to `end`, all but the first `local` at the peer.
std::shared_ptr<const PeerRun> PeerRunOf(std::uint64_t from, std::uint64_t end, std::size_t local = 0,
                                         std::uint64_t incarnation = 1) {
  auto run = std::make_shared<PeerRun>();
  run->incarnation = incarnation;
  for (std::uint64_t n = from; n < end; ++n) run->chain.push_back(KeyOf(n));
  run->first = local;
  run->count = run->chain.size() - local;
  return run;
}

class FoundRunsTest : public ::testing::Test {
 protected:
  std::shared_ptr<FoundRuns::Kept> Note(std::shared_ptr<const PeerRun> run) {
    auto kept = runs.Begin(std::move(run), 7, now);
    runs.Add(*kept, kept->run->first, kept->run->first + kept->run->count);
    return kept;
  }
  std::size_t TrimAll() {
    std::size_t steps = 0;
    for (; runs.Trim(now, 64); ++steps) {
    }
    return steps;
  }
  const FoundRuns::Kept* RunOf(std::uint64_t number, std::uint64_t incarnation = 1) const {
    const auto found = runs.Find(incarnation, KeyOf(number), now);
    if (!found) return nullptr;
    EXPECT_EQ(found->kept->run->chain[found->block], KeyOf(number));
    return found->kept.get();
  }

  FoundRuns runs{5};
  Instant now{1'000'000'000};
};

TEST_F(FoundRunsTest, BlocksAreFoundUnderTheNewestRunThatHasThem) {
  EXPECT_EQ(RunOf(1), nullptr);
  const auto older = Note(PeerRunOf(0, 100, 10)), newer = Note(PeerRunOf(0, 50, 20));
  EXPECT_EQ(RunOf(9), nullptr) << "it was here, not at the peer";
  EXPECT_EQ(RunOf(15), older.get());
  EXPECT_EQ(RunOf(30), newer.get());
  EXPECT_EQ(RunOf(70), older.get());
  EXPECT_EQ(RunOf(100), nullptr);
  EXPECT_EQ(RunOf(30, 2), nullptr) << "of another incarnation";
  EXPECT_EQ(runs.blocks(), 90u);
  // An earlier match that is noted later takes nothing from it.
  runs.Add(*older, 10, 100);
  EXPECT_EQ(RunOf(30), newer.get());
}

TEST_F(FoundRunsTest, WhatIsOldIsNotFoundAndItsPlacesAreFreeAgain) {
  (void)Note(PeerRunOf(0, 1'000));
  now = now.PlusUs(FoundRuns::kGoodUs / 2);
  const auto later = Note(PeerRunOf(500, 1'500));
  now = now.PlusUs(FoundRuns::kGoodUs / 2);
  EXPECT_EQ(RunOf(100), nullptr);
  EXPECT_EQ(RunOf(700), later.get());
  EXPECT_GE(TrimAll(), 1'000 / 64u) << "in steps";
  EXPECT_EQ(runs.blocks(), 1'000u);
  EXPECT_EQ(RunOf(700), later.get());
  now = now.PlusUs(FoundRuns::kGoodUs);
  TrimAll();
  EXPECT_TRUE(runs.empty());
}

TEST_F(FoundRunsTest, P5PastTheBoundTheOldestIsForgottenAndTheRestIsFound) {
  constexpr std::size_t kRuns = 100, kBlocks = 10'000;
  for (std::size_t i = 0; i < kRuns; ++i) {
    (void)Note(PeerRunOf(i * kBlocks, (i + 1) * kBlocks));
    TrimAll();
    EXPECT_LE(runs.blocks(), FoundRuns::kKeys);
  }
  EXPECT_EQ(RunOf(0), nullptr);
  constexpr std::size_t kLeft = FoundRuns::kKeys / kBlocks;
  for (std::size_t n = (kRuns - kLeft) * kBlocks; n < kRuns * kBlocks; ++n) ASSERT_NE(RunOf(n), nullptr) << n;
}

// Between its Begin and its Trim a match yields: any number of them may be there.
TEST_F(FoundRunsTest, P5MatchesOfOneMomentFillNoMoreThanTheTable) {
  constexpr std::size_t kRuns = 60, kBlocks = 20'000;
  std::vector<std::shared_ptr<FoundRuns::Kept>> all;
  for (std::size_t i = 0; i < kRuns; ++i) all.push_back(Note(PeerRunOf(i * kBlocks, (i + 1) * kBlocks)));
  EXPECT_LT(runs.blocks(), 2 * FoundRuns::kKeys) << "a search ends at a free place";
  EXPECT_EQ(RunOf(5), all.front().get());
  EXPECT_EQ(RunOf(kRuns * kBlocks), nullptr);
  TrimAll();
  EXPECT_LE(runs.blocks(), FoundRuns::kKeys);
  // What was forgotten meanwhile is not noted behind it.
  runs.Add(*all.front(), 0, kBlocks);
  EXPECT_EQ(RunOf(5), nullptr);
}

TEST_F(FoundRunsTest, WhateverComesAndGoesTheNewestRunIsFound) {
  Random random(3);
  std::map<std::uint64_t, std::pair<std::shared_ptr<FoundRuns::Kept>, std::size_t>> model;
  std::deque<std::shared_ptr<FoundRuns::Kept>> noted;
  for (int round = 0; round < 400; ++round) {
    const std::uint64_t from = random.Below(20'000);
    const auto kept = runs.Begin(PeerRunOf(from, from + 1 + random.Below(2'000)), 7, now);
    noted.push_back(kept);
    const std::size_t count = kept->run->count;
    // Half of it, then others go, then the rest.
    runs.Add(*kept, 0, count / 2);
    if (random.Below(3) == 0) now = now.PlusUs(FoundRuns::kGoodUs / 8);
    (void)runs.Trim(now, random.Below(4'000));
    runs.Add(*kept, count / 2, count);
    for (std::size_t i = 0; i < count; ++i) model[from + i] = {kept, i};
    for (int i = 0; i < 200; ++i) {
      const std::uint64_t number = random.Below(22'000);
      const auto at = model.find(number);
      const bool good = at != model.end() && now.UsSince(at->second.first->found_at) < FoundRuns::kGoodUs;
      ASSERT_EQ(RunOf(number), good ? at->second.first.get() : nullptr) << number;
    }
  }
  now = now.PlusUs(FoundRuns::kGoodUs);
  TrimAll();
  EXPECT_TRUE(runs.empty()) << "no block is left behind by a run that went";
}

}  // namespace
}  // namespace cistern::mesh
