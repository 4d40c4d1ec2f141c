// SPDX-License-Identifier: Apache-2.0
#include "store/whole_chains.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "policy/hand_over.h"
#include "store/block_store_fixture.h"
#include "tier/simulated_tier.h"

namespace cistern::store {
namespace {

class WholeChainsTest : public BlockStoreTest {
 protected:
  static Task<Result<std::unique_ptr<tier::Tier>>> Open(Executor& on, tier::SimulatedMedia& media,
                                                        tier::JournalView journal) {
    const tier::SimulatedTierOptions with{.unit = 4096, .room_bytes = 8u << 20};
    co_return std::make_unique<tier::SimulatedTier>(tier::SimulatedTier::Parts{on, media, 1}, with, journal);
  }
  // Memory for so many blocks, and below it a tier for all.
  void MakeWithTier(std::uint32_t memory_blocks) {
    TestStoreOptions options;
    options.store.max_blocks = memory_blocks;
    options.store.max_lower_blocks = 4'000;
    options.tier = [this](TestStore& store, tier::JournalView journal) {
      return Open(store.loop->executor(), media_, std::move(journal));
    };
    Make(options);
  }
  ~WholeChainsTest() override { t.reset(); }

  void Walk(bool lower_tier = false, std::int64_t us = 60'000'000) {
    walk = t->store->WalkChains(
        {.wanted = {true}, .lower_tier = lower_tier, .deadline = t->clock.Now().PlusUs(us)});
  }
  std::optional<WholeChain> Next() { return t->Run(walk->Next()); }
  // Block n, at the end of a chain that begins with `first`, as far as the walk is concerned.
  static std::uint64_t NumberOf(const BlockKey& key) {
    static const std::map<BlockKey, std::uint64_t> numbers = [] {
      std::map<BlockKey, std::uint64_t> all;
      for (std::uint64_t n = 0; n < 5'000; ++n) all[Key(n)] = n;
      return all;
    }();
    const auto found = numbers.find(key);
    return found == numbers.end() ? ~std::uint64_t{0} : found->second;
  }
  static std::vector<std::uint64_t> Numbers(const WholeChain& chain) {
    std::vector<std::uint64_t> numbers;
    for (const BlockKey& key : chain.keys) numbers.push_back(NumberOf(key));
    return numbers;
  }
  // Walks to the end; each block comes once, behind its parent, under its chain's own keys.
  std::vector<std::uint64_t> All(std::map<std::uint64_t, std::uint64_t>& parents) {
    std::vector<std::uint64_t> came;
    std::set<std::uint64_t> seen;
    while (const std::optional<WholeChain> chain = Next()) {
      const std::vector<std::uint64_t> numbers = Numbers(*chain);
      EXPECT_EQ(chain->blocks.size(), numbers.size() - chain->first);
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        const auto parent = parents.find(numbers[i]);
        EXPECT_EQ(i == 0, parent == parents.end());
        if (i > 0 && parent != parents.end()) {
          EXPECT_EQ(parent->second, numbers[i - 1]);
        }
        EXPECT_EQ(i >= chain->first, seen.insert(numbers[i]).second) << numbers[i];
        if (i >= chain->first) came.push_back(numbers[i]);
      }
    }
    return came;
  }
  static std::vector<std::uint64_t> Sorted(std::vector<std::uint64_t> numbers) {
    std::ranges::sort(numbers);
    return numbers;
  }

  std::unique_ptr<WholeChains> walk;

 private:
  tier::SimulatedMedia media_;
};

TEST_F(WholeChainsTest, EachBlockComesOnceAndBehindItsParent) {
  Make();
  Random random(5);
  std::map<std::uint64_t, std::uint64_t> parents;
  std::vector<std::uint64_t> all;
  for (std::uint64_t n = 0; n < 400; ++n) {
    const bool first = n == 0 || random.Chance(0.05);
    if (!first) parents[n] = random.Chance(0.6) ? n - 1 : random.Below(n);
    ASSERT_EQ(Put(n, first ? std::nullopt : std::optional(parents[n])), State::kPublished);
    all.push_back(n);
  }
  t->store->TakeLongestStep();
  Walk();
  EXPECT_EQ(Sorted(All(parents)), all);
  EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
}

TEST_F(WholeChainsTest, WhatWasUsedLatelyComesInAnEarlierHelping) {
  Make();
  for (std::uint64_t n = 0; n < 200; ++n) ASSERT_EQ(Put(n, std::nullopt), State::kPublished);
  std::vector<BlockKey> used;
  for (std::uint64_t n = 0; n < 40; ++n) used.push_back(Key(n));
  EXPECT_EQ(t->Run(t->store->Touch(ns.slot, used)), 40u);
  Walk();
  std::map<std::uint64_t, std::uint64_t> none;
  const std::vector<std::uint64_t> came = All(none);
  ASSERT_EQ(came.size(), 200u);
  // A quarter of all is the first helping.
  for (std::size_t i = 0; i < 50; ++i) EXPECT_TRUE(came[i] < 40 || came[i] >= 190) << came[i];
}

TEST_F(WholeChainsTest, BranchesBeginAtTheFirstBlockAndBelowManyChildren) {
  Make();
  PutChain(0, 2);
  for (std::uint64_t user = 0; user < policy::kManyChildren; ++user) {
    ASSERT_EQ(Put(100 + 10 * user, 2), State::kPublished);
    ASSERT_EQ(Put(101 + 10 * user, 100 + 10 * user), State::kPublished);
  }
  Walk();
  std::size_t chains = 0;
  while (const std::optional<WholeChain> chain = Next()) {
    ++chains;
    EXPECT_EQ(chain->branches, (std::vector<std::size_t>{0, 3}));
    EXPECT_EQ(chain->keys.size(), 5u);
  }
  EXPECT_EQ(chains, policy::kManyChildren);
}

// Ids of blocks that left are used again, so they need not rise along a chain.
TEST_F(WholeChainsTest, ChainComesInOnePieceWhateverTheIdsOfItsBlocks) {
  Make();
  for (std::uint64_t n = 0; n < 40; ++n) ASSERT_EQ(Put(n, std::nullopt), State::kPublished);
  Random random(7);
  std::vector<std::uint64_t> gone(40);
  std::iota(gone.begin(), gone.end(), 0);
  for (std::size_t i = gone.size(); i-- > 1;) std::swap(gone[i], gone[random.Below(i + 1)]);
  for (const std::uint64_t n : gone) ASSERT_TRUE(Drop(n).has_value());
  for (std::uint64_t first : {100, 200}) PutChain(first, first + 19);
  Walk();
  std::size_t chains = 0;
  while (const std::optional<WholeChain> chain = Next()) {
    EXPECT_EQ(chain->blocks.size(), 20u);
    ++chains;
  }
  EXPECT_EQ(chains, 2u);
}

// What has cooled is what leaves next.
TEST_F(WholeChainsTest, BlockComesThoughTheOneThatStandsOnItLeavesMeanwhile) {
  TestStoreOptions options;
  options.store.max_blocks = 40;
  Make(options);
  for (std::uint64_t n = 0; n < 40; ++n) ASSERT_EQ(Put(n, std::nullopt), State::kPublished);
  // Whichever way ids are used again, one of the chains has its first block's above the second's.
  for (const std::uint64_t n : {5, 30, 31, 6}) ASSERT_TRUE(Drop(n).has_value());
  PutChain(100, 101);
  PutChain(200, 201);
  ASSERT_EQ(Put(300, std::nullopt), State::kPublished);
  ASSERT_GT(t->store->counters().evicted.value(), 0u);
  const std::vector<BlockKey> used = {Key(300), Key(39)};
  for (int time = 0; time < 30; ++time) EXPECT_EQ(t->Run(t->store->Touch(ns.slot, used)), 2u);
  ASSERT_TRUE(t->store->TakeCooled());
  walk = t->store->WalkChains({.wanted = {true}, .cooled = true});
  std::set<std::uint64_t> came;
  std::size_t chains = 0;
  while (const std::optional<WholeChain> chain = Next()) {
    for (const std::uint64_t n : Numbers(*chain)) came.insert(n);
    if (++chains != 10) continue;
    for (const std::uint64_t n : {101, 201}) ASSERT_TRUE(Drop(n).has_value());
  }
  EXPECT_TRUE(came.contains(100) && came.contains(200));
  EXPECT_FALSE(came.contains(300));
  EXPECT_GE(came.size(), 30u);
}

TEST_F(WholeChainsTest, WhatWasNotGivenComesInAnotherRoundAndWhatWasDoesNot) {
  Make();
  PutChain(0, 9);
  PutChain(100, 109);
  Walk();
  std::vector<WholeChain> came;
  while (std::optional<WholeChain> chain = Next()) came.push_back(std::move(*chain));
  ASSERT_EQ(came.size(), 2u);
  EXPECT_FALSE(walk->BeginRound());
  for (const WholeChain& chain : came) walk->NoteGiven(chain, 0, Numbers(chain).front() == 0 ? 4 : 10);
  for (const WholeChain& chain : came) walk->Again(chain, 0, 10);
  EXPECT_TRUE(walk->BeginRound());
  const std::optional<WholeChain> again = Next();
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(NumberOf(again->keys.front()), 0u);
  EXPECT_EQ(again->first, 4u);
  EXPECT_EQ(again->blocks.size(), 6u);
  EXPECT_FALSE(Next().has_value());
  EXPECT_FALSE(walk->BeginRound());
}

TEST_F(WholeChainsTest, DropMeanwhileTakesAlongWhatStandsOnItAndNothingElse) {
  Make();
  PutChain(0, 9);
  PutChain(100, 109);
  Walk();
  const std::optional<WholeChain> first = Next();
  ASSERT_TRUE(first.has_value());
  const bool is_second = NumberOf(first->keys.front()) == 100;
  ASSERT_TRUE(Drop(is_second ? 4 : 104).has_value());
  const std::optional<WholeChain> rest = Next();
  ASSERT_TRUE(rest.has_value());
  EXPECT_EQ(rest->keys.size(), 4u);
  EXPECT_EQ(NumberOf(rest->keys.back()), is_second ? 3u : 103u);
  EXPECT_FALSE(Next().has_value());
}

TEST_F(WholeChainsTest, NamespaceThatIsNotWantedDoesNotComeAndItsBlocksAreLeft) {
  Make();
  PutChain(0, 4);
  Attach(OneGroup("other"));
  PutChain(10, 14);
  Walk();
  const std::optional<WholeChain> chain = Next();
  ASSERT_TRUE(chain.has_value());
  EXPECT_EQ(Numbers(*chain), (std::vector<std::uint64_t>{0, 1, 2, 3, 4}));
  EXPECT_FALSE(Next().has_value());
  EXPECT_EQ(t->Run(walk->CountLeft()), 10u);
  walk->NoteGiven(*chain, 0, 3);
  EXPECT_EQ(t->Run(walk->CountLeft()), 7u);
}

// ---- what lies in the lower tier -------------------------------------------------------------------------

TEST_F(WholeChainsTest, ChainOfWhichSomeIsNotInMemoryComesOnlyWhereItIsAskedFor) {
  MakeWithTier(16);
  std::map<std::uint64_t, std::uint64_t> parents;
  for (std::uint64_t n = 0; n < 48; ++n) {
    if (n % 8 != 0) parents[n] = n - 1;
    ASSERT_EQ(Put(n, n % 8 == 0 ? std::nullopt : std::optional(n - 1)), State::kPublished);
    t->Settle();
  }
  std::size_t in_memory = 0;
  for (std::uint64_t n = 0; n < 48; ++n) in_memory += Here(n) ? 1 : 0;
  ASSERT_LE(in_memory, 16u);
  Walk();
  const std::vector<std::uint64_t> of_memory = All(parents);
  EXPECT_LE(of_memory.size(), in_memory);
  // All of it, and first what memory had.
  Walk(true);
  const std::vector<std::uint64_t> came = All(parents);
  ASSERT_EQ(came.size(), 48u);
  EXPECT_TRUE(std::ranges::equal(std::span(came).first(of_memory.size()), of_memory));
  EXPECT_EQ(t->Run(walk->CountLeft()), 48u);
}

TEST_F(WholeChainsTest, LongChainOfTheLowerTierComesInPiecesParentsFirst) {
  MakeWithTier(16);
  std::map<std::uint64_t, std::uint64_t> parents;
  constexpr std::uint64_t kBlocks = 100;
  for (std::uint64_t n = 0; n < kBlocks; ++n) {
    if (n > 0) parents[n] = n - 1;
    ASSERT_EQ(Put(n, n == 0 ? std::nullopt : std::optional(n - 1), 256u << 10), State::kPublished);
    t->Settle();
  }
  Walk(true);
  std::size_t pieces = 0, until = 0;
  while (const std::optional<WholeChain> chain = Next()) {
    ++pieces;
    EXPECT_EQ(chain->first, until);
    EXPECT_EQ(chain->branches, std::vector<std::size_t>{0});
    EXPECT_LE(chain->blocks.size() * (256u << 10), WholeChains::kPieceBytes + WholeChains::kFetchBytes);
    until = chain->keys.size();
    for (std::uint64_t n = 0; n < until; ++n) ASSERT_EQ(chain->keys[n], Key(n));
  }
  EXPECT_EQ(until, kBlocks);
  EXPECT_GE(pieces, 3u);
  EXPECT_EQ(Occupied().fetches, 0u);
}

TEST_F(WholeChainsTest, WhatLiesInTheLowerTierAloneIsAsOldAsTheOldestInMemory) {
  MakeWithTier(8);
  for (std::uint64_t n = 0; n < 24; ++n) {
    ASSERT_EQ(Put(n, std::nullopt), State::kPublished);
    t->Settle();
  }
  Walk(true);
  std::uint32_t most_of_memory = 0, least_of_rest = UINT32_MAX;
  while (const std::optional<WholeChain> chain = Next()) {
    const std::uint32_t age = chain->blocks[0].age;
    if (NumberOf(chain->keys[0]) >= 16) {
      most_of_memory = std::max(most_of_memory, age);
    } else {
      least_of_rest = std::min(least_of_rest, age);
    }
  }
  EXPECT_GE(least_of_rest, 8u);
  EXPECT_GE(least_of_rest, most_of_memory);
}

TEST_F(WholeChainsTest, StoreSettlesWithMoreInMemoryThanAStepLooksAt) {
  MakeWithTier(2 * kStepTouches);
  for (std::uint64_t n = 0; n < 2 * kStepTouches; ++n) ASSERT_EQ(Put(n, std::nullopt), State::kPublished);
  t->Settle();
  EXPECT_EQ(t->store->counters().written_down.value(), 2 * kStepTouches);
  Walk(true);
  std::map<std::uint64_t, std::uint64_t> parents;
  EXPECT_EQ(All(parents).size(), 2 * kStepTouches);
}

TEST_F(WholeChainsTest, DeadlineEndsAWalkOverTheLowerTier) {
  MakeWithTier(8);
  for (std::uint64_t n = 0; n < 40; ++n) {
    ASSERT_EQ(Put(n, std::nullopt), State::kPublished);
    t->Settle();
  }
  Walk(true, 0);
  std::size_t came = 0;
  while (Next()) ++came;
  EXPECT_LE(came, 8u);
}

}  // namespace
}  // namespace cistern::store
