// SPDX-License-Identifier: Apache-2.0
// Turns that callers tell of: what is fetched for them from a lower tier, held, and let go.
#include "residency/awaited_turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "store/block_store_fixture.h"
#include "tier/simulated_tier.h"

namespace cistern {
namespace {

using Chain = std::vector<std::uint64_t>;

// A node with so many blocks of memory over a lower tier that holds everything.
class AwaitedTurnsTest : public store::BlockStoreTest {
 protected:
  static constexpr std::size_t kBytes = 512;
  static constexpr PromptHints kInAMinute{.next_turn_ms = 60'000};

  void Begin(std::uint64_t blocks, std::int64_t read_us = 1, std::uint32_t headers = 4) {
    tier_us_ = read_us;
    store::TestStoreOptions options;
    options.headers = headers;
    options.alignment = 512;
    options.store.max_blocks = blocks;
    options.store.max_lower_blocks = 1u << 17;
    options.store.read_ahead_bytes = 0;
    options.store.eviction = EvictionPolicy::kReuse;
    options.tier = [this, read_us](store::TestStore& store, const tier::JournalView& journal) {
      return Open(store.loop->executor(), read_us, journal);
    };
    Make(options);
  }
  Task<Result<std::unique_ptr<tier::Tier>>> Open(Executor& on, std::int64_t us, tier::JournalView journal) {
    tier::SimulatedTierOptions with;
    with.rooms = 64;
    with.room_bytes = 4u << 20;
    with.least_us = with.most_us = us;
    co_return std::make_unique<tier::SimulatedTier>(tier::SimulatedTier::Parts{on, media_, 1}, with, journal);
  }
  static Task<void> Sleep(Executor& executor, Instant until) {
    co_await SleepUntil(until);
    (void)executor;
  }
  void PassUs(std::int64_t us) {
    t->Run(Sleep(t->loop->executor(), t->clock.Now().PlusUs(us)));
    t->Tick();
  }
  void PassMs(std::int64_t ms) { PassUs(ms * 1'000); }
  static Chain Of(std::uint64_t first, std::uint64_t count) {
    Chain chain;
    for (std::uint64_t n = first; n < first + count; ++n) chain.push_back(n);
    return chain;
  }
  std::uint64_t Resident(const Chain& chain) {
    return static_cast<std::uint64_t>(std::ranges::count_if(chain, [&](std::uint64_t n) { return Here(n); }));
  }
  // As a client's match tells it.
  void Name(const Chain& chain, const PromptHints& hints) {
    std::size_t in_memory = 0;
    while (in_memory < chain.size() && Here(chain[in_memory])) ++in_memory;
    std::vector<BlockKey> keys;
    for (const std::uint64_t n : chain) keys.push_back(store::Key(n));
    const auto runs = t->Run(t->store->MatchRest(ns.slot, 0, keys));
    std::size_t known = 0;
    for (const MatchRun& run : *runs) known += run.blocks;
    t->store->NotePrompt(ns.slot, {.keys = std::move(keys),
                                   .first_new = known,
                                   .first_asked = in_memory,
                                   .matched = known,
                                   .hints = hints});
    in_memory_ = in_memory;
    known_ = known;
  }
  void Read(std::uint64_t n) { ReadLeased(n, kBytes); }
  // One request: its match, the reads of what lies below, its puts, its touches.
  void Ask(const Chain& chain, const PromptHints& hints = {}, std::uint64_t conversation = 0) {
    Name(chain, hints);
    for (std::size_t i = 0; i < known_; ++i) {
      if (!Here(chain[i])) Read(chain[i]);
    }
    const Counter& written = t->store->counters().written_down;
    for (std::size_t i = known_; i < chain.size(); ++i) {
      store::PartWrite part = Part(chain[i], i == 0 ? std::nullopt : std::optional(chain[i - 1]), kBytes);
      part.conversation = conversation;
      const std::uint64_t before = written.value();
      ASSERT_EQ(WriteOne(std::move(part)).state, store::State::kPublished);
      bodies_.clear();
      for (int round = 0; written.value() == before && round < 1'000; ++round) PassUs(10 + tier_us_ / 100);
    }
    std::vector<BlockKey> keys;
    for (std::size_t i = chain.size(); i-- > 0;) keys.push_back(store::Key(chain[i]));
    t->Run(t->store->Touch(ns.slot, keys));
  }
  // Ten seconds later so many others come, in prompts of ten.
  void PushOut(std::uint64_t first, std::uint64_t count) {
    PassMs(10'000);
    for (std::uint64_t n = first; n < first + count; n += 10) Ask(Of(n, 10));
  }
  // Ten blocks whose next turn is told for in a minute, which others have pushed out of memory.
  void TellAndPushOut() {
    Ask(Of(1, 10), kInAMinute);
    PushOut(1'000, 40);
    ASSERT_EQ(Resident(Of(1, 10)), 0u);
    ASSERT_EQ(Occupied().awaited_turns, 1u);
  }
  const catalog::StoreCounters& Counters() { return t->store->counters(); }
  void TearDown() override { t.reset(); }  // before its media

  tier::SimulatedMedia media_;
  std::int64_t tier_us_ = 0;
  std::size_t in_memory_ = 0, known_ = 0;  // of the prompt that was named last
};

TEST_F(AwaitedTurnsTest, TurnThatComesAsToldFindsItsChainInMemory) {
  Begin(40);
  TellAndPushOut();
  PassMs(40'000);
  EXPECT_EQ(Counters().fetched_ahead.value(), 0u) << "it is not due yet";
  PassMs(9'000);
  EXPECT_EQ(Resident(Of(1, 10)), 10u);
  EXPECT_GT(Occupied().held_bytes, 0u);
  Ask(Of(1, 11));
  EXPECT_EQ(in_memory_, 10u);
  EXPECT_EQ(Counters().fetched_ahead.value(), 10u);
  EXPECT_EQ(Counters().ahead_used.value(), 10u);
  EXPECT_EQ(Counters().fetched.value(), 10u) << "all of them ahead";
  EXPECT_EQ(Counters().turns_told.value(), 1u);
  EXPECT_EQ(Counters().turns_missed.value(), 0u);
  EXPECT_EQ(Counters().ahead_too_late.value(), 0u);
  EXPECT_EQ(Occupied().awaited_turns, 0u);
  EXPECT_EQ(Occupied().held_bytes, 0u);
  EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
}

TEST_F(AwaitedTurnsTest, PromptWithoutATimeIsNotAwaited) {
  Begin(40);
  Ask(Of(1, 10), {.outlook = Outlook::kExtended});
  PushOut(1'000, 40);
  EXPECT_EQ(Occupied().awaited_turns, 0u);
  PassMs(200'000);
  EXPECT_EQ(Counters().fetched_ahead.value(), 0u);
}

TEST_F(AwaitedTurnsTest, PromptThatIsAskedForAgainAtOnceIsAwaitedAllTheSame) {
  Begin(40);
  Ask(Of(1, 10), kInAMinute);
  PassMs(300);
  Ask(Of(1, 10));
  EXPECT_EQ(Occupied().awaited_turns, 1u);
  PushOut(1'000, 40);
  PassMs(49'000);
  EXPECT_EQ(Resident(Of(1, 10)), 10u);
}

TEST_F(AwaitedTurnsTest, WhatIsHeldStaysHoweverMuchPassesBy) {
  Begin(40);
  TellAndPushOut();
  PassMs(45'000);
  for (std::uint64_t i = 0; i < 5; ++i) Ask(Of(2'000 + 100 * i, 40));
  EXPECT_EQ(Resident(Of(1, 10)), 10u);
}

TEST_F(AwaitedTurnsTest, WhatWasFetchedForATurnThatDoesNotComeLeavesFirst) {
  Begin(40);
  TellAndPushOut();
  PassMs(100'000);
  EXPECT_EQ(Counters().fetched_ahead.value(), 10u);
  EXPECT_EQ(Counters().turns_missed.value(), 1u);
  EXPECT_EQ(Occupied().awaited_turns, 0u);
  EXPECT_EQ(Occupied().held_bytes, 0u);
  ASSERT_EQ(Resident(Of(1, 10)), 10u) << "nothing has taken their place yet";
  Ask(Of(2'000, 10));  // in place of the ten, though these came to memory last
  EXPECT_EQ(Resident(Of(1, 10)), 0u);
  EXPECT_EQ(Resident(Of(1'000, 40)), 30u);
  EXPECT_EQ(Counters().ahead_used.value(), 0u);
}

TEST_F(AwaitedTurnsTest, TurnThatComesWhileItsChainIsOnItsWayIsCountedAsTooLate) {
  Begin(40, 1'000);
  TellAndPushOut();
  while (Counters().fetched_ahead.value() < 3) PassUs(500);
  EXPECT_EQ(Occupied().fetches, 1u);
  Ask(Of(1, 11));
  EXPECT_EQ(Counters().ahead_too_late.value(), 1u);
  EXPECT_EQ(Counters().ahead_used.value(), 3u);
  PassMs(200'000);
  EXPECT_LE(Counters().fetched_ahead.value(), 4u) << "the turn reads the rest by itself";
  EXPECT_EQ(Occupied().held_bytes, 0u);
}

// The window begins 52.5 s after the first turn was told of, and 52.6 s after the second, since the first
// came in time. A read takes a tenth of a second at least: without a lead four would have ended by 53 s.
TEST_F(AwaitedTurnsTest, FetchBeginsAsMuchSoonerAsTheReadsBeforeSayThatItTakes) {
  Begin(40, 100'000);
  const Instant first = t->clock.Now();
  TellAndPushOut();
  PassUs(52'400'000 - t->clock.Now().UsSince(first));
  EXPECT_EQ(Counters().fetched_ahead.value(), 0u) << "nothing is known of reads before";
  PassUs(60'000'000 - t->clock.Now().UsSince(first));
  ASSERT_EQ(Counters().fetched_ahead.value(), 10u);
  const Instant second = t->clock.Now();
  Ask(Of(1, 11), kInAMinute);
  PushOut(2'000, 40);
  ASSERT_EQ(Resident(Of(1, 11)), 0u);
  PassUs(48'000'000 - t->clock.Now().UsSince(second));
  EXPECT_EQ(Resident(Of(1, 11)), 0u) << "and no sooner than it has to be";
  PassUs(53'000'000 - t->clock.Now().UsSince(second));
  EXPECT_EQ(Resident(Of(1, 11)), 11u);
  EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
}

TEST_F(AwaitedTurnsTest, ReadOfAClientWaitsForOneTransferAtMost) {
  Begin(100, 1'000);
  Ask(Of(1, 30), kInAMinute);
  Ask(Of(100, 30), {.next_turn_ms = 60'500});
  PushOut(1'000, 100);
  std::uint64_t most = 0;
  ASSERT_EQ(Resident(Of(1, 30)) + Resident(Of(100, 30)), 0u);
  PassMs(30'000);
  for (int i = 0; i < 10'000 && Counters().fetched_ahead.value() < 50; ++i) {
    PassUs(1'000 + i % 7 * 100);
    most = std::max(most, Occupied().fetches);
  }
  EXPECT_EQ(Counters().fetched_ahead.value(), 50u) << "half of memory";
  EXPECT_EQ(most, 1u);
}

TEST_F(AwaitedTurnsTest, PromptThatIsDroppedBeforeItIsDueLeavesNothing) {
  Begin(40);
  TellAndPushOut();
  ASSERT_TRUE(Drop(1).has_value());
  PassMs(200'000);
  EXPECT_EQ(Counters().fetched_ahead.value(), 0u);
  EXPECT_EQ(Counters().turns_missed.value(), 0u) << "that says nothing of the times that are told";
  EXPECT_EQ(Occupied().awaited_turns, 0u);
  EXPECT_EQ(Resident(Of(1, 10)), 0u);
}

TEST_F(AwaitedTurnsTest, R10PromptThatIsDroppedOnItsWayLeavesNothing) {
  Begin(40, 1'000);
  TellAndPushOut();
  while (Counters().fetched_ahead.value() < 3) PassUs(500);
  ASSERT_EQ(Occupied().fetches, 1u);
  ASSERT_TRUE(Drop(2).has_value());
  EXPECT_EQ(Resident(Of(1, 10)), 1u);
  PassMs(5'000);
  EXPECT_EQ(Resident(Of(1, 10)), 1u);
  EXPECT_EQ(Counters().fetched_ahead.value(), 3u);
  EXPECT_EQ(Occupied().fetches, 0u);
  PassMs(200'000);
  EXPECT_EQ(Occupied().awaited_turns, 0u);
  EXPECT_EQ(Occupied().held_bytes, 0u);
}

TEST_F(AwaitedTurnsTest, R10NamespaceThatIsDroppedOnTheWayLeavesNothing) {
  Begin(40, 1'000);
  TellAndPushOut();
  while (Counters().fetched_ahead.value() < 3) PassUs(500);
  ASSERT_TRUE(t->Run(t->store->DropNamespace(ns.slot)).has_value());
  PassMs(5'000);
  EXPECT_EQ(Occupied().held_bytes, 0u);
  EXPECT_EQ(Occupied().records, 0u);
  EXPECT_EQ(Occupied().fetches, 0u);
  PassMs(200'000);
  EXPECT_EQ(Occupied().awaited_turns, 0u);
}

TEST_F(AwaitedTurnsTest, R10ConversationThatEndsOnTheWayLeavesNothing) {
  Begin(40, 1'000);
  Ask(Of(1, 10), kInAMinute, 7);
  PushOut(1'000, 40);
  while (Counters().fetched_ahead.value() < 3) PassUs(500);
  ASSERT_TRUE(t->Run(t->store->EndConversation(ns.slot, 7)).has_value());
  PassMs(5'000);
  EXPECT_EQ(Occupied().held_bytes, 0u);
  EXPECT_EQ(Resident(Of(1, 10)), 0u);
  EXPECT_EQ(Counters().fetched_ahead.value(), 3u);
}

TEST_F(AwaitedTurnsTest, P5HalfOfMemoryIsHeldAtMost) {
  Begin(40);
  Ask(Of(1, 30), kInAMinute);
  Ask(Of(100, 30), {.next_turn_ms = 61'000});
  PushOut(1'000, 40);
  PassMs(48'000);
  EXPECT_EQ(Counters().fetched_ahead.value(), 20u);
  EXPECT_EQ(Resident(Of(1, 20)), 20u) << "its first blocks, of which a read can go on";
}

TEST_F(AwaitedTurnsTest, P5WhatIsHeldRefusesNoPut) {
  Begin(40);
  TellAndPushOut();
  PassMs(45'000);
  ASSERT_EQ(Resident(Of(1, 10)), 10u);
  std::vector<std::uint64_t> leased;
  std::ranges::copy_if(Of(1'000, 40), std::back_inserter(leased), [&](std::uint64_t n) { return Here(n); });
  ASSERT_EQ(leased.size(), 30u);
  ASSERT_NE(Acquire(leased, Me()).lease, 0u);
  Ask(Of(2'000, 3));
  EXPECT_EQ(Resident(Of(1, 10)), 9u) << "of what is not held the first of the three left for the others";
}

TEST_F(AwaitedTurnsTest, P5PastTheBoundTheTurnThatIsDueLastIsGivenUp) {
  constexpr std::uint64_t kMost = residency::AwaitedTurns::kMost;
  Begin(8);
  Ask({1}, kInAMinute);
  Ask({2}, {.next_turn_ms = kMaxNextTurnMs});
  for (std::uint64_t n = 0; n < kMost; ++n) Ask({10 + n}, {.next_turn_ms = 3'600'000});
  EXPECT_EQ(Occupied().awaited_turns, kMost);
  PushOut(100'000, 10);
  while (Counters().fetched_ahead.value() == 0) PassMs(1'000);
  EXPECT_TRUE(Here(1)) << "it was due first";
  EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
}

TEST_F(AwaitedTurnsTest, P5MemoryThatShrinksHoldsNoMoreThanHalfOfIt) {
  Begin(0, 1, 2);
  constexpr std::uint64_t kBlocks = 600;
  constexpr std::size_t kLarge = 64'000;
  for (std::uint64_t n = 1; n <= kBlocks; ++n) {
    ASSERT_EQ(Put(n, n == 1 ? std::nullopt : std::optional(n - 1), kLarge), store::State::kPublished);
    bodies_.clear();
  }
  while (Counters().written_down.value() < kBlocks) PassMs(1);
  std::vector<BlockKey> keys;
  for (std::uint64_t n = kBlocks; n > 0; --n) keys.push_back(store::Key(n));
  Name(Of(1, kBlocks), {.next_turn_ms = 60'000});
  t->Run(t->store->Touch(ns.slot, keys));
  PassMs(10'000);
  for (std::uint64_t n = 10'000; n < 11'200; ++n) {
    ASSERT_EQ(Put(n, std::nullopt, kLarge), store::State::kPublished);
    bodies_.clear();
    if (n % 100 == 0) PassMs(1);
  }
  ASSERT_EQ(Resident(Of(1, kBlocks)), 0u);
  PassMs(46'000);
  const std::uint64_t before = Occupied().held_bytes;
  EXPECT_GT(before, arena::kHeaderSpanBytes * 3 / 4);
  EXPECT_LE(before, arena::kHeaderSpanBytes) << "half of two headers";
  t->slots->CloseHeader();
  t->Tick();
  EXPECT_LE(Occupied().held_bytes, arena::kHeaderSpanBytes / 2);
  EXPECT_GT(Occupied().held_bytes, 0u);
  EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
}

TEST_F(AwaitedTurnsTest, ChainThatWasReadWithoutAPromptHasCome) {
  Begin(40);
  TellAndPushOut();
  PassMs(49'000);
  // By who found all of it in the index, and told of what was read alone.
  for (std::uint64_t n = 1; n <= 10; ++n) {
    const BlockKey key = store::Key(n);
    t->Run(t->store->Touch(ns.slot, std::span(&key, 1)));
  }
  PassMs(100'000);
  EXPECT_EQ(Counters().turns_missed.value(), 0u);
  EXPECT_EQ(Counters().ahead_used.value(), 10u);
  Ask(Of(2'000, 30));
  EXPECT_EQ(Resident(Of(1, 10)), 10u) << "they leave in their turn, not first";
}

TEST_F(AwaitedTurnsTest, TimesThatAreOftenWrongAreNotFetchedFor) {
  Begin(40);
  for (std::uint64_t i = 0; i < 60; ++i) {
    Ask(Of(10'000 + 100 * i, 2), {.next_turn_ms = 20'000});
    PassMs(50'000);
  }
  EXPECT_EQ(Counters().turns_missed.value(), 60u);
  TellAndPushOut();
  PassMs(49'000);
  EXPECT_EQ(Resident(Of(1, 10)), 0u);
}

// All of them are over when it goes on, and what came for them meanwhile is taken behind that.
TEST_F(AwaitedTurnsTest, TurnsThatWentByWhileTheNodeStoodSayNothingOfTheirTimes) {
  Begin(400);
  for (std::uint64_t turn = 0; turn < 20; ++turn) Ask(Of(1 + 100 * turn, 10), kInAMinute);
  t->clock.AdvanceUs(120'000'000);
  PassMs(1);
  EXPECT_EQ(Occupied().awaited_turns, 0u);
  EXPECT_EQ(Counters().turns_missed.value(), 0u);
  Ask(Of(5'001, 10), kInAMinute);
  PushOut(6'000, 400);
  ASSERT_EQ(Resident(Of(5'001, 10)), 0u);
  PassMs(49'000);
  EXPECT_EQ(Resident(Of(5'001, 10)), 10u);
}

TEST_F(AwaitedTurnsTest, LongChainIsLookedForInSteps) {
  Begin(4'000);
  Ask(Of(1, 1'500), kInAMinute);
  PushOut(10'000, 4'000);
  ASSERT_EQ(Resident(Of(1, 1'500)), 0u);
  static_cast<void>(t->store->TakeLongestStep());
  PassMs(49'000);
  EXPECT_EQ(Resident(Of(1, 1'500)), 1'500u);
  Ask(Of(1, 1'501));
  EXPECT_EQ(Counters().ahead_used.value(), 1'500u);
  EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
}

TEST_F(AwaitedTurnsTest, EndOfTheNodeDoesNotWaitForATurn) {
  Begin(40);
  TellAndPushOut();
  const Instant before = t->clock.Now();
  t->Stop();
  EXPECT_LT(t->clock.Now().UsSince(before), 1'000'000);
}

TEST_F(AwaitedTurnsTest, P7KillOnTheWayLosesNothing) {
  Begin(40, 1'000);
  TellAndPushOut();
  while (Counters().fetched_ahead.value() < 3) PassUs(500);
  ASSERT_EQ(Occupied().fetches, 1u);
  t->Kill();
  ASSERT_TRUE(t->recovered.ok()) << t->recovered.ToString();
  Attach(store::OneGroup());
  EXPECT_EQ(Match(1, 10), 10u);
  EXPECT_EQ(Occupied().awaited_turns, 0u);
}

}  // namespace
}  // namespace cistern
