// SPDX-License-Identifier: Apache-2.0
// Nodes in service with real stores that offer each other blocks in the background, over a simulated network.
#include <gtest/gtest.h>

#include "mesh/test_mesh.h"

namespace cistern::mesh {
namespace {

constexpr std::int64_t kSecond = 1'000'000;

class SpreadTest : public MeshTest {
 protected:
  static TestNodeOptions Spreads(std::uint32_t copies = 1) { return {.spreads = true, .copies = copies}; }
  std::size_t Have(std::uint64_t n) {
    std::size_t have = 0;
    for (std::size_t i = 0; i < nodes.size(); ++i) have += Exact(i, n) ? 1 : 0;
    return have;
  }
  std::uint64_t Taken() {
    std::uint64_t taken = 0;
    for (const auto& node : nodes) taken += node->taker->counters().blocks.value();
    return taken;
  }
  std::uint64_t Offers() {
    std::uint64_t offers = 0;
    for (const auto& node : nodes)
      offers += static_cast<std::uint64_t>(node->links->questions[kOfferQuestion]);
    return offers;
  }
  void Touch(std::size_t i, std::uint64_t n) {
    const BlockKey key = store::Key(n);
    EXPECT_EQ(loop->BlockOn(node(i).store->Touch(slot, std::span(&key, 1))), 1u);
  }
  static void Unreadable(net::RailSource::Answer& answer) {
    answer.status = Status(Code::kIoError, "unreadable for now");
  }
  // So many nodes of engines, with room for 40 blocks each, and behind them one that stores.
  void StartBesideOneThatStores(std::size_t engines) {
    TestNodeOptions engine = Spreads();
    engine.store.max_blocks = 40;
    StartNodes(engines, Blocks(), engine);
    TestNodeOptions stores = Spreads();
    stores.role = Role::kStore;
    AddNode(Blocks(), stores);
    ASSERT_TRUE(RunUntil([&] { return Know(); }));
  }
  // Blocks 1 to 4 cool at the first node, behind others of which some have left.
  void CoolFour() {
    for (std::uint64_t n = 101; n <= 160; ++n) Put(0, n, std::nullopt);
    PutChain(0, 1, 4);
    RunFor(10 * kSecond);
    ASSERT_FALSE(Exact(1, 1));
    ASSERT_GT(node(0).store->counters().evicted.value(), 0u);
    for (int time = 0; time < 4; ++time) {
      for (std::uint64_t n = 141; n <= 160; ++n) Touch(0, n);
    }
  }
  bool FourAreAt(std::size_t i) { return Exact(i, 1) && Exact(i, 2) && Exact(i, 3) && Exact(i, 4); }
  ~SpreadTest() override {
    while (!nodes.empty()) nodes.pop_back();
  }
};

// ---- copies
// ------------------------------------------------------------------------------------------------

TEST_F(SpreadTest, BlockComesToAsManyMembersAsAreToHaveIt) {
  StartNodes(5, Blocks(), Spreads(3));
  for (std::uint64_t chain = 0; chain < 20; ++chain) PutChain(chain % 5, 100 * chain + 1, 100 * chain + 4);
  ASSERT_TRUE(RunUntil([&] { return Taken() == 160; }, 60 * kSecond));
  for (std::uint64_t chain = 0; chain < 20; ++chain) {
    for (std::uint64_t n = 1; n <= 4; ++n) EXPECT_EQ(Have(100 * chain + n), 3u) << 100 * chain + n;
  }
  // Each once: whoever has taken it does not hand it on.
  const std::uint64_t offers = Offers();
  RunFor(60 * kSecond);
  EXPECT_EQ(Taken(), 160u);
  EXPECT_EQ(Offers(), offers);
  std::uint64_t copied = 0;
  for (std::size_t i = 0; i < 5; ++i) copied += node(i).spreader->counters().copied_blocks.value();
  EXPECT_EQ(copied, 160u);
}

TEST_F(SpreadTest, BlockIsOfferedOnceUnlessItIsUsedSince) {
  StartNodes(2, Blocks(), Spreads(2));
  PutChain(0, 1, 8);
  ASSERT_TRUE(RunUntil([&] { return Taken() == 8; }, 60 * kSecond));
  RunFor(30 * kSecond);
  const std::uint64_t offers = Offers();
  // It went there meanwhile.
  const BlockKey key = store::Key(5);
  ASSERT_TRUE(loop->BlockOn(node(1).store->Drop(slot, std::span(&key, 1))).has_value());
  RunFor(30 * kSecond);
  EXPECT_EQ(Offers(), offers);
  Touch(0, 7);
  Touch(0, 8);
  ASSERT_TRUE(RunUntil([&] { return Offers() == offers + 1; }, 60 * kSecond));
}

TEST_F(SpreadTest, BlockThatCouldNotBeReadIsOfferedAgain) {
  StartNodes(2, Blocks(), Spreads(2));
  node(0).lie = Unreadable;
  PutChain(0, 1, 8);
  ASSERT_TRUE(RunUntil([&] { return node(0).spreader->counters().refused.value() >= 2; }, 60 * kSecond));
  EXPECT_EQ(Taken(), 0u);
  node(0).lie = nullptr;
  EXPECT_TRUE(RunUntil([&] { return Taken() == 8; }, 120 * kSecond));
}

// What is left of a chain is refused like one of which nothing was taken.
TEST_F(SpreadTest, ChainOfWhichThereIsRoomForAPartIsOfferedOnce) {
  constexpr std::size_t kBlock = 1u << 20;
  TestNodeOptions large = Spreads(2);
  large.headers = 8;
  StartNodes(1, Blocks(), large);
  AddNode(Blocks(), Spreads(1));
  ASSERT_TRUE(RunUntil([&] { return Know(); }));
  PutChain(0, 1, 90, kBlock);
  ASSERT_TRUE(RunUntil([&] { return node(0).spreader->counters().refused.value() > 0; }, 600 * kSecond));
  RunFor(60 * kSecond);
  ASSERT_GT(Taken(), 5u);
  ASSERT_LT(Taken(), 90u);
  const Refusal* refusal =
      node(1).reader->RefusalOf(node(1).store->NamespaceAt(slot)->incarnation, store::Key(Taken() + 1));
  ASSERT_NE(refusal, nullptr) << "it would count as one that passes";
  EXPECT_EQ(refusal->why.code(), Code::kBusy);
  const std::uint64_t offers = Offers();
  RunFor(60 * kSecond);
  EXPECT_EQ(Offers(), offers);
}

TEST_F(SpreadTest, MemberThatDidNotAnswerLatelyHasItsCopyAfterwards) {
  StartNodes(3, Blocks(), Spreads(3));
  // For eight seconds.
  Breaker& breaker = node(0).peers.Of(node(2).process_number).breaker;
  for (const std::int64_t us : {1'000'000, 2'000'000, 4'000'000, 0}) {
    breaker.Failed(clock.Now(), true);
    RunFor(us);
    if (us > 0) breaker.Asked(clock.Now());
  }
  PutChain(0, 1, 8);
  ASSERT_TRUE(RunUntil([&] { return Taken() == 8; }, 60 * kSecond));
  ASSERT_FALSE(breaker.Allows(clock.Now()));
  EXPECT_TRUE(RunUntil([&] { return Taken() == 16; }, 120 * kSecond)) << Taken();
  // And that is all.
  RunFor(10 * kSecond);
  const std::uint64_t offers = Offers();
  RunFor(60 * kSecond);
  EXPECT_EQ(Offers(), offers);
}

TEST_F(SpreadTest, MemberWhoseConnectionIsLostForAWhileHasItsCopyAfterwards) {
  StartNodes(3, Blocks(), Spreads(3));
  network.Cut("a", "c");
  network.Cut("c", "a");
  ASSERT_TRUE(RunUntil([&] { return node(0).links->Reachable().size() == 1; }, 60 * kSecond));
  PutChain(0, 1, 8);
  ASSERT_TRUE(RunUntil([&] { return Taken() == 8; }, 60 * kSecond));
  network.Heal("a", "c");
  network.Heal("c", "a");
  EXPECT_TRUE(RunUntil([&] { return Taken() == 16; }, 300 * kSecond)) << Taken();
}

// It costs the others little, and one day it ends.
TEST_F(SpreadTest, BlockThatCanNeverBeReadIsOfferedSeldomAndThenNoMore) {
  StartNodes(2, Blocks(), Spreads(2));
  node(0).lie = Unreadable;
  PutChain(0, 1, 8);
  RunFor(60 * kSecond);
  const std::uint64_t offers = Offers();
  EXPECT_LE(offers, 8u);
  RunFor(3'600 * kSecond);
  EXPECT_LE(Offers(), 2u * SpreadLimits::kPasses);
  const std::uint64_t all = Offers();
  RunFor(600 * kSecond);
  EXPECT_EQ(Offers(), all);
  // What comes then is not held up.
  node(0).lie = nullptr;
  Put(0, 101, std::nullopt);
  EXPECT_TRUE(RunUntil([&] { return Taken() == 1; }, 10 * kSecond));
}

TEST_F(SpreadTest, RestOfAChainIsOfferedAgainThoughWhatStoodOnItHasLeft) {
  StartNodes(2, Blocks(), Spreads(2));
  node(0).lie = Unreadable;
  PutChain(0, 1, 8);
  ASSERT_TRUE(RunUntil([&] { return node(0).spreader->counters().refused.value() == 1; }, 60 * kSecond));
  RunFor(100'000);
  See(0, Drop({8}));
  ASSERT_TRUE(RunUntil([&] { return node(0).spreader->counters().refused.value() == 2; }, 60 * kSecond));
  node(0).lie = nullptr;
  EXPECT_TRUE(RunUntil([&] { return Taken() == 7; }, 120 * kSecond)) << Taken();
}

// Of a member that drains the others hear a moment later, and it may be in service again.
TEST_F(SpreadTest, BlockThatAMemberRefusedAsItDrainedIsOfferedAgain) {
  StartNodes(2, Blocks(), Spreads(2));
  node(1).taker->SetDraining(true);
  PutChain(0, 1, 8);
  ASSERT_TRUE(RunUntil([&] { return node(0).spreader->counters().refused.value() == 1; }, 60 * kSecond));
  node(1).SetDraining(false);
  EXPECT_TRUE(RunUntil([&] { return Taken() == 8; }, 120 * kSecond));
}

TEST_F(SpreadTest, BlocksThatCameWhileNobodyWasThereAreOfferedWhenSomebodyIs) {
  StartNodes(1, Blocks(), Spreads(2));
  PutChain(0, 1, 8);
  RunFor(30 * kSecond);
  node(0).peers.Of(101).greeted = true;  // no newcomer
  AddNode(Blocks(), Spreads(2));
  ASSERT_EQ(node(1).process_number, 101u);
  EXPECT_TRUE(RunUntil([&] { return Taken() == 8; }, 120 * kSecond));
}

// What a pass does not come to, as the node drains, is looked for at the next one.
TEST_F(SpreadTest, BlockThatAPassDidNotComeToIsOfferedByTheNext) {
  StartNodes(2, Blocks(), Spreads(2));
  for (std::uint64_t n = 1; n <= 30; ++n) Put(0, n, std::nullopt);
  ASSERT_TRUE(RunUntil([&] { return Taken() == 5; }, 60 * kSecond));
  node(0).SetDraining(true);
  RunFor(30 * kSecond);
  ASSERT_LT(Taken(), 10u);
  node(0).SetDraining(false);
  node(1).SetDraining(false);
  EXPECT_TRUE(RunUntil([&] { return Taken() >= 29; }, 600 * kSecond)) << Taken();
}

// The node's setting is for those of which nobody says it.
TEST_F(SpreadTest, WhatANamespacesUsersSayOfCopiesHolds) {
  StartNodes(4, Blocks(), Spreads(1));
  PutChain(0, 1, 4);
  RunFor(10 * kSecond);
  EXPECT_EQ(Offers(), 0u);
  NamespaceSpec said = Blocks();
  said.copies = 3;
  for (std::size_t i = 0; i < 4; ++i) Attach(i, said);
  // What is here as well.
  ASSERT_TRUE(RunUntil([&] { return Taken() == 8; }, 60 * kSecond));
  PutChain(0, 11, 14);
  ASSERT_TRUE(RunUntil([&] { return Taken() == 16; }, 60 * kSecond));
  for (const std::uint64_t n : {4, 14}) EXPECT_EQ(Have(n), 3u) << n;
  said.copies = 1;
  for (std::size_t i = 0; i < 4; ++i) Attach(i, said);
  RunFor(10 * kSecond);
  const std::uint64_t offers = Offers();
  PutChain(0, 21, 24);
  RunFor(30 * kSecond);
  EXPECT_EQ(Offers(), offers);
}

TEST_F(SpreadTest, OneCopyIsNoneBesideItself) {
  StartNodes(3, Blocks(), Spreads(1));
  PutChain(0, 1, 8);
  RunFor(60 * kSecond);
  EXPECT_EQ(Offers(), 0u);
}

TEST_F(SpreadTest, DropThatTheTakerHasSeenIsNotUndoneByACopy) {
  StartNodes(2, Blocks(), Spreads(2));
  See(1, [&] {
    PutChain(0, 1, 20);
    return Drop({11});
  }());
  ASSERT_TRUE(RunUntil([&] { return Taken() >= 10; }, 60 * kSecond));
  RunFor(30 * kSecond);
  for (std::uint64_t n = 1; n <= 10; ++n) EXPECT_TRUE(Exact(1, n)) << n;
  for (std::uint64_t n = 11; n <= 20; ++n) EXPECT_FALSE(Here(1, n)) << n;
}

TEST_F(SpreadTest, WhatItOffersTakesATwentiethOfTheRails) {
  StartNodes(2, Blocks(), Spreads(2));
  constexpr std::int64_t kOfBodyUs = 50'000;
  node(0).before_find = [](Executor& on) -> Task<void> {
    (void)co_await SleepUntil(on.Now().PlusUs(kOfBodyUs));
  };
  for (std::uint64_t n = 1; n <= 40; ++n) Put(0, n, std::nullopt);
  const Instant began = clock.Now();
  ASSERT_TRUE(RunUntil([&] { return Taken() == 40; }, 3'600 * kSecond));
  EXPECT_GE(clock.Now().UsSince(began), 39 * 20 * kOfBodyUs);
}

TEST_F(SpreadTest, NodeThatDrainsOffersNoCopies) {
  StartNodes(2, Blocks(), Spreads(2));
  node(0).SetDraining(true);
  PutChain(0, 1, 8);
  RunFor(30 * kSecond);
  EXPECT_EQ(Offers(), 0u);
  node(0).SetDraining(false);
  EXPECT_TRUE(RunUntil([&] { return Taken() == 8; }, 60 * kSecond));
}

// ---- a member that joins
// -----------------------------------------------------------------------------------

TEST_F(SpreadTest, NewcomerIsOfferedTheBranchesThatAreItsHottestFirst) {
  StartNodes(2, Blocks(), Spreads());
  for (std::uint64_t chain = 0; chain < 60; ++chain) PutChain(chain % 2, 100 * chain + 1, 100 * chain + 3);
  RunFor(10 * kSecond);
  EXPECT_EQ(Offers(), 0u);
  AddNode(Blocks(), Spreads());
  RunFor(120 * kSecond);
  std::size_t chains = 0;
  for (std::uint64_t chain = 0; chain < 60; ++chain) {
    chains += Exact(2, 100 * chain + 1) ? 1 : 0;
    EXPECT_EQ(Exact(2, 100 * chain + 1), Exact(2, 100 * chain + 3));
  }
  // A third of all, by rendezvous.
  EXPECT_GE(chains, 10u);
  EXPECT_LE(chains, 30u);
  EXPECT_EQ(Taken(), 3 * chains);
  EXPECT_EQ(node(0).spreader->newcomers() + node(1).spreader->newcomers(), 0u);
  EXPECT_EQ(
      node(0).spreader->counters().warmed_blocks.value() + node(1).spreader->counters().warmed_blocks.value(),
      3 * chains);
}

TEST_F(SpreadTest, WarmingEndsWhenTheNewcomersFreeRoomIsUsed) {
  StartNodes(1, Blocks(), Spreads());
  for (std::uint64_t n = 1; n <= 60; ++n) Put(0, n, std::nullopt);
  TestNodeOptions small = Spreads();
  small.store.max_blocks = 8;
  AddNode(Blocks(), small);
  RunFor(120 * kSecond);
  EXPECT_EQ(Taken(), 8u);
  EXPECT_EQ(node(0).spreader->newcomers(), 0u);
  EXPECT_EQ(node(0).spreader->counters().refused.value(), 1u);
  // The hottest, of what rendezvous gives it.
  for (std::uint64_t n = 1; n <= 30; ++n) EXPECT_FALSE(Here(1, n)) << n;
}

TEST_F(SpreadTest, NewcomerThatDoesNotAnswerForAWhileIsOfferedWhatIsItsWhenItDoes) {
  StartNodes(1, Blocks(), Spreads());
  for (std::uint64_t n = 1; n <= 20; ++n) Put(0, n, std::nullopt);
  AddNode(Blocks(), Spreads());
  node(1).stopped = true;
  ASSERT_TRUE(RunUntil([&] { return node(0).spreader->counters().failed.value() > 0; }, 60 * kSecond));
  EXPECT_LT(Taken(), 5u);
  node(1).stopped = false;
  EXPECT_TRUE(RunUntil([&] { return Taken() >= 5; }, 600 * kSecond)) << Taken();
  EXPECT_TRUE(RunUntil([&] { return node(0).spreader->newcomers() == 0; }, 600 * kSecond));
}

TEST_F(SpreadTest, NewcomerThatNeverAnswersIsGivenUp) {
  StartNodes(1, Blocks(), Spreads());
  for (std::uint64_t n = 1; n <= 20; ++n) Put(0, n, std::nullopt);
  AddNode(Blocks(), Spreads());
  node(1).stopped = true;
  EXPECT_TRUE(RunUntil([&] { return node(0).spreader->newcomers() == 1; }, 60 * kSecond));
  EXPECT_TRUE(RunUntil([&] { return node(0).spreader->newcomers() == 0; }, 20'000 * kSecond));
  EXPECT_LE(Offers(), 2u * SpreadLimits::kPasses);
}

TEST_F(SpreadTest, NewcomerIsWarmedByANodeThatHasDrainedMeanwhile) {
  StartNodes(1, Blocks(), Spreads());
  for (std::uint64_t n = 1; n <= 40; ++n) Put(0, n, std::nullopt);
  AddNode(Blocks(), Spreads());
  ASSERT_TRUE(RunUntil([&] { return Taken() == 3; }, 60 * kSecond));
  node(0).SetDraining(true);
  RunFor(10 * kSecond);
  ASSERT_LT(Taken(), 6u);
  node(0).SetDraining(false);
  EXPECT_TRUE(RunUntil([&] { return Taken() >= 12; }, 600 * kSecond)) << Taken();
}

TEST_F(SpreadTest, MemberThatJoinsWithoutRoomIsOfferedNothing) {
  StartNodes(2, Blocks(), Spreads());
  for (std::uint64_t n = 1; n <= 20; ++n) Put(0, n, std::nullopt);
  const std::uint64_t other = node(1).process_number;
  node(0).peers.Of(other).greeted = false;
  node(0).spreader->Heard(other, {.memory_bytes = 1'000, .free_bytes = 499});
  RunFor(60 * kSecond);
  EXPECT_EQ(Offers(), 0u);
  node(0).peers.Of(other).greeted = false;
  node(0).spreader->Heard(other, {.memory_bytes = 1'000, .free_bytes = 500});
  EXPECT_TRUE(RunUntil([&] { return Offers() > 0; }, 60 * kSecond));
  // And that once.
  RunFor(60 * kSecond);
  const std::uint64_t offers = Offers();
  node(0).spreader->Heard(other, {.memory_bytes = 1'000, .free_bytes = 1'000});
  RunFor(60 * kSecond);
  EXPECT_EQ(Offers(), offers);
}

// ---- members whose role is to store
// ------------------------------------------------------------------------

TEST_F(SpreadTest, WhatCoolsGoesToTheMemberThatStoresBeforeItLeaves) {
  StartBesideOneThatStores(2);
  for (std::uint64_t chain = 0; chain < 30; ++chain) {
    PutChain(chain % 2, 100 * chain + 1, 100 * chain + 4);
    RunFor(10 * kSecond);
  }
  // What has left the node that computed it is where it is kept: but for the first chain that left each, with
  // which the handing on begins.
  std::size_t lost = 0;
  for (std::uint64_t chain = 0; chain < 30; ++chain) {
    for (std::uint64_t n = 1; n <= 4; ++n) lost += Have(100 * chain + n) == 0 ? 1 : 0;
  }
  EXPECT_LE(lost, 8u);
  EXPECT_GE(Taken(), 40u);
  EXPECT_EQ(node(0).taker->counters().blocks.value() + node(1).taker->counters().blocks.value(), 0u);
}

// The room that one eviction made is enough for what comes, and the next burst takes all of it at once.
TEST_F(SpreadTest, WhatCoolsIsHandedOnThoughNothingHasLeftSince) {
  StartBesideOneThatStores(1);
  CoolFour();
  const std::uint64_t evicted = node(0).store->counters().evicted.value();
  EXPECT_TRUE(RunUntil([&] { return FourAreAt(1); }));
  EXPECT_EQ(node(0).store->counters().evicted.value(), evicted);
}

TEST_F(SpreadTest, WhatCooledAndCouldNotBeReadIsHandedOnWhenItCan) {
  StartBesideOneThatStores(1);
  CoolFour();
  const std::uint64_t refused = node(0).spreader->counters().refused.value();
  node(0).lie = Unreadable;
  ASSERT_TRUE(
      RunUntil([&] { return node(0).spreader->counters().refused.value() >= refused + 2; }, 60 * kSecond));
  RunFor(20 * kSecond);  // all of a pass
  EXPECT_FALSE(Exact(1, 1));
  node(0).lie = nullptr;
  EXPECT_TRUE(RunUntil([&] { return FourAreAt(1); }, 120 * kSecond));
}

TEST_F(SpreadTest, NothingIsHandedOnWhereNothingLeaves) {
  StartNodes(1, Blocks(), Spreads());
  TestNodeOptions stores = Spreads();
  stores.role = Role::kStore;
  stores.store.max_blocks = 4;
  AddNode(Blocks(), stores);
  for (std::uint64_t n = 101; n <= 104; ++n) Put(1, n, std::nullopt);
  ASSERT_TRUE(RunUntil([&] { return Know(); }));
  RunFor(30 * kSecond);
  const std::uint64_t offers = Offers();
  PutChain(0, 1, 20);
  RunFor(60 * kSecond);
  EXPECT_EQ(Offers(), offers);
}

TEST_F(SpreadTest, MemberThatStoresHandsOnNothing) {
  TestNodeOptions stores = Spreads(2);
  stores.role = Role::kStore;
  stores.store.max_blocks = 20;
  AddNode(Blocks(), stores);
  AddNode(Blocks(), stores);
  ASSERT_TRUE(RunUntil([&] { return Know(); }));
  for (std::uint64_t n = 1; n <= 60; ++n) Put(0, n, std::nullopt);
  AddNode(Blocks(), Spreads());
  RunFor(120 * kSecond);
  EXPECT_EQ(node(0).links->questions[kOfferQuestion], 0);
}

}  // namespace
}  // namespace cistern::mesh
