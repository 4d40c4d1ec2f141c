// SPDX-License-Identifier: Apache-2.0
// Nodes with real stores that hand over what they have, over a simulated network.
#include <gtest/gtest.h>

#include "mesh/shared_names.h"
#include "mesh/test_mesh.h"
#include "mesh/test_peer_message.h"

namespace cistern::mesh {
namespace {

constexpr std::int64_t kSecond = 1'000'000;

class HandOverTest : public MeshTest {
 protected:
  // Node `i` drains and hands over what it has.
  store::HandedOver Give(std::size_t i, std::int64_t us = 10 * kSecond, bool lower_tier = false) {
    node(i).SetDraining(true);
    store::GiveOrder order{.deadline = After(us), .lower_tier = lower_tier};
    if (lower_tier) order.offered_bytes = node(i).memory_bytes() / 4;
    return loop->BlockOn(node(i).giver->Give(order));
  }
  // The same, which the test goes on beside.
  void BeginToGive(std::size_t i, std::int64_t us = 10 * kSecond) {
    node(i).SetDraining(true);
    giving_ = Giving(*loop, i, After(us));
  }
  bool given() const { return handed.has_value(); }
  // The first has a chain of forty; the second has room for twelve blocks, and ten that were used after all
  // uses of the first's, counted back from each node's last.
  void AddGiverAndFullTaker() {
    AddNode();
    TestNodeOptions small;
    small.store.max_blocks = 12;
    AddNode(Blocks(), small);
    ASSERT_TRUE(RunUntil([&] { return Know(); }));
    PutChain(0, 1, 40);
    for (std::uint64_t n = 101; n <= 110; ++n) Put(1, n, std::nullopt);
  }
  // Nodes but the first that have the block, exactly.
  std::size_t OthersHave(std::uint64_t n, std::size_t bytes = 4096) {
    std::size_t have = 0;
    for (std::size_t i = 1; i < nodes.size(); ++i) have += Exact(i, n, bytes) ? 1 : 0;
    return have;
  }
  ~HandOverTest() override {
    giving_.reset();
    while (!nodes.empty()) nodes.pop_back();
  }

  std::optional<store::HandedOver> handed;

 private:
  Task<void> Giving(io::Loop&, std::size_t i, Instant deadline) {
    handed = co_await node(i).giver->Give({.deadline = deadline});
  }
  std::optional<Task<void>> giving_;
};

TEST_F(HandOverTest, WhatANodeHasAnotherTakesExactly) {
  StartNodes(2);
  PutChain(0, 1, 200);
  const store::HandedOver given = Give(0);
  EXPECT_EQ(given.members, 1u);
  EXPECT_EQ(given.blocks, 200u);
  EXPECT_EQ(given.bytes, 200u * 4096);
  EXPECT_EQ(given.left, 0u);
  for (std::uint64_t n = 1; n <= 200; ++n) ASSERT_TRUE(Exact(1, n)) << n;
  EXPECT_EQ(node(1).taker->counters().blocks.value(), 200u);
  EXPECT_EQ(node(1).taker->counters().bytes.value(), 200u * 4096);
  EXPECT_EQ(node(0).store->occupancy().leases + node(1).store->occupancy().leases, 0u);
  // And its own copies are there until it ends.
  for (std::uint64_t n = 1; n <= 200; ++n) ASSERT_TRUE(Exact(0, n)) << n;
}

TEST_F(HandOverTest, TakenBytesAreThoseOfAllGroupsOfTheBlocks) {
  NamespaceSpec spec = Blocks();
  spec.groups = {{.name = "full", .part_bytes = {4096}},
                 {.name = "fixed", .reach = Reach::kWindow, .window_tokens = 2, .part_bytes = {2048}},
                 {.name = "free", .reach = Reach::kWindow, .window_tokens = 2}};
  StartNodes(2, spec);
  PutChain(0, 1, 5);
  const std::vector<std::byte> body(2048);
  for (std::uint64_t n = 1; n <= 5; ++n) {
    for (const std::uint16_t group : {1, 2}) {
      store::PartWrite part{.key = store::Key(n), .put_id = {2, 2 * n + group}};
      if (n > 1) part.parent = store::Key(n - 1);
      part.group = group;
      part.from = std::span(body).first(group == 1 ? 2048 : 1000);
      const auto outcomes =
          loop->BlockOn(node(0).store->Write({1, {std::byte{1}}}, slot, {part}, After(kSecond)));
      ASSERT_EQ(outcomes[0].state, store::PartOutcome::State::kPublished) << outcomes[0].status.ToString();
    }
  }
  Give(0);
  EXPECT_EQ(node(1).taker->counters().blocks.value(), 5u);
  EXPECT_EQ(node(1).taker->counters().bytes.value(), 5u * (4096 + 2048 + 1000));
}

TEST_F(HandOverTest, ChainsSpreadAndEachIsWholeAtOneMember) {
  StartNodes(4);
  for (std::uint64_t chain = 0; chain < 60; ++chain) PutChain(0, 100 * chain + 1, 100 * chain + 5);
  const store::HandedOver given = Give(0);
  EXPECT_EQ(given.blocks, 300u);
  EXPECT_EQ(given.left, 0u);
  for (std::uint64_t chain = 0; chain < 60; ++chain) {
    for (std::uint64_t n = 1; n <= 5; ++n) EXPECT_EQ(OthersHave(100 * chain + n), 1u);
  }
  for (std::size_t i = 1; i < 4; ++i) EXPECT_GE(node(i).taker->counters().blocks.value(), 50u) << i;
}

TEST_F(HandOverTest, UsersOfOneSystemPromptSpreadAndItComesToEachOfTheirMembers) {
  StartNodes(3);
  PutChain(0, 1, 3);
  for (std::uint64_t user = 1; user <= 40; ++user) {
    Put(0, 100 * user, 3);
    Put(0, 100 * user + 1, 100 * user);
  }
  const store::HandedOver given = Give(0);
  EXPECT_EQ(given.blocks, 83u);
  for (std::uint64_t n = 1; n <= 3; ++n) EXPECT_EQ(OthersHave(n), 2u);
  for (std::uint64_t user = 1; user <= 40; ++user) {
    EXPECT_EQ(OthersHave(100 * user), 1u);
    EXPECT_EQ(Exact(1, 100 * user), Exact(1, 100 * user + 1));
    EXPECT_EQ(OthersHave(100 * user + 1), 1u);
  }
  EXPECT_GE(node(1).taker->counters().blocks.value(), 20u);
  EXPECT_GE(node(2).taker->counters().blocks.value(), 20u);
}

TEST_F(HandOverTest, OfAChainThatIsThereInPartTheRestComes) {
  StartNodes(2);
  PutChain(0, 1, 40);
  PutChain(1, 1, 25);
  const store::HandedOver given = Give(0);
  EXPECT_EQ(given.blocks, 40u);
  EXPECT_EQ(node(1).taker->counters().blocks.value(), 15u);
  for (std::uint64_t n = 1; n <= 40; ++n) EXPECT_TRUE(Exact(1, n)) << n;
}

// ---- drops ---------------------------------------------------------------------------------------------

TEST_F(HandOverTest, DropThatTheTakerHasSeenIsNotUndoneByAGiverThatIsBehind) {
  StartNodes(2);
  PutChain(0, 1, 40);
  See(1, Drop({11}));
  const store::HandedOver given = Give(0);
  EXPECT_EQ(given.blocks, 10u);
  EXPECT_EQ(given.left, 30u);
  for (std::uint64_t n = 1; n <= 10; ++n) EXPECT_TRUE(Exact(1, n)) << n;
  for (std::uint64_t n = 11; n <= 40; ++n) EXPECT_FALSE(Here(1, n)) << n;
}

TEST_F(HandOverTest, DropThatIsSeenWhileBodiesAreOnTheirWayHolds) {
  StartNodes(2);
  PutChain(0, 1, 40);
  const std::int64_t drop = Drop({11});
  // The taker sees the drop, not durable yet, while a body is asked for.
  int asked = 0;
  Event seen;
  node(0).before_find = [&](Executor&) -> Task<void> {
    if (++asked >= 20) co_await seen.Wait();
  };
  BeginToGive(0);
  ASSERT_TRUE(RunUntil([&] { return asked >= 20; }));
  See(1, drop, /*apply=*/false);
  seen.Set();
  ASSERT_TRUE(RunUntil([&] { return given(); }));
  for (std::uint64_t n = 11; n <= 40; ++n) EXPECT_FALSE(Here(1, n)) << n;
}

TEST_F(HandOverTest, ACellWhoseDropsWereTrimmedHandsOver) {
  StartNodes(2);
  for (std::size_t i = 0; i < 2; ++i) {
    node(i).rule.trimmed = 5;
    node(i).rule.applied = 9;
  }
  PutChain(0, 1, 40);
  const store::HandedOver given = Give(0);
  EXPECT_EQ(given.blocks, 40u);
  EXPECT_EQ(given.left, 0u);
  for (std::uint64_t n = 1; n <= 40; ++n) EXPECT_TRUE(Exact(1, n)) << n;
}

TEST_F(HandOverTest, DropAtTheGiverLeavesWhatStandsBeforeItToBeGiven) {
  StartNodes(2);
  PutChain(0, 1, 40);
  const std::int64_t drop = Drop({11});
  See(0, drop);
  See(1, drop);
  const store::HandedOver given = Give(0);
  EXPECT_EQ(given.blocks, 10u);
  EXPECT_EQ(given.left, 0u);
  for (std::uint64_t n = 1; n <= 10; ++n) EXPECT_TRUE(Exact(1, n)) << n;
}

TEST_F(HandOverTest, TimeToLiveTravelsShortened) {
  StartNodes(2);
  Put(0, 1, std::nullopt, 4096, 100);
  RunFor(40 * kSecond);
  EXPECT_EQ(Give(0).blocks, 1u);
  ASSERT_TRUE(Exact(1, 1));
  RunFor(61 * kSecond);
  EXPECT_FALSE(Here(1, 1));
}

TEST_F(HandOverTest, ConversationsNoteTravels) {
  StartNodes(2);
  Put(0, 1, std::nullopt, 4096, 0, 77);
  EXPECT_EQ(Give(0).blocks, 1u);
  ASSERT_TRUE(Exact(1, 1));
  EXPECT_EQ(loop->BlockOn(node(1).store->EndConversation(slot, 77)).value_or(0), 1u);
  EXPECT_FALSE(Here(1, 1));
}

TEST_F(HandOverTest, ChainOnOfferStaysUntilItsTakerHasAnswered) {
  TestNodeOptions small;
  small.store.max_blocks = 20;
  AddNode(Blocks(), small);
  AddNode();
  ASSERT_TRUE(RunUntil([&] { return Know(); }));
  PutChain(0, 1, 10);
  int asked = 0;
  Event goes_on;
  node(0).before_find = [&](Executor&) -> Task<void> {
    if (++asked > 2) co_await goes_on.Wait();
  };
  BeginToGive(0);
  ASSERT_TRUE(RunUntil([&] { return asked > 2; }));
  // Everything that may leave does.
  for (std::uint64_t n = 101; n <= 140; ++n) Put(0, n, std::nullopt);
  for (std::uint64_t n = 1; n <= 10; ++n) EXPECT_TRUE(Exact(0, n)) << n;
  goes_on.Set();
  ASSERT_TRUE(RunUntil([&] { return given(); }));
  for (std::uint64_t n = 1; n <= 10; ++n) EXPECT_TRUE(Exact(1, n)) << n;
}

// ---- who takes -----------------------------------------------------------------------------------------

TEST_F(HandOverTest, WithoutAnotherMemberItGoesOnAlone) {
  StartNodes(1);
  PutChain(0, 1, 5);
  const store::HandedOver given = Give(0);
  EXPECT_EQ(given.members, 0u);
  EXPECT_EQ(given.blocks, 0u);
  EXPECT_EQ(given.left, 5u);
}

TEST_F(HandOverTest, WhoDrainsIsOfferedNothingAndRefuses) {
  StartNodes(3);
  PutChain(0, 1, 5);
  node(1).SetDraining(true);
  ASSERT_TRUE(RunUntil([&] { return node(0).peers.Of(node(1).process_number).drains; }));
  EXPECT_EQ(Give(0).blocks, 5u);
  EXPECT_EQ(node(1).links->questions[kOfferQuestion], 0);
  for (std::uint64_t n = 1; n <= 5; ++n) EXPECT_TRUE(Exact(2, n)) << n;
  // Who has not heard of it offers, is refused, and knows it then.
  PutChain(2, 101, 105);
  node(2).peers.Of(node(0).process_number).drains = false;
  node(2).peers.Of(node(1).process_number).drains = false;
  EXPECT_EQ(Give(2).blocks, 0u);
  EXPECT_TRUE(node(2).peers.Of(node(1).process_number).drains);
  EXPECT_FALSE(Here(0, 101) || Here(1, 101));
}

TEST_F(HandOverTest, WhoHasNotSaidThatItTakesIsOfferedNothing) {
  StartNodes(2);
  PutChain(0, 1, 5);
  node(0).peers.Of(node(1).process_number).room_bytes = 0;
  EXPECT_EQ(Give(0).members, 0u);
  EXPECT_FALSE(Here(1, 1));
}

TEST_F(HandOverTest, WhoDoesNotAnswerIsFollowedByTheNext) {
  StartNodes(3);
  for (std::uint64_t chain = 0; chain < 20; ++chain) PutChain(0, 100 * chain + 1, 100 * chain + 3);
  node(1).stopped = true;
  const store::HandedOver given = Give(0, 60 * kSecond);
  EXPECT_EQ(given.members, 2u);
  EXPECT_EQ(given.blocks, 60u);
  for (std::uint64_t chain = 0; chain < 20; ++chain) EXPECT_TRUE(Exact(2, 100 * chain + 3)) << chain;
  EXPECT_LE(node(0).giver->counters().failed.value(), HandOverLimits::kOffers);
}

TEST_F(HandOverTest, WhatTheOnlyOtherMemberLetPassComesWhenItAnswers) {
  StartNodes(2);
  for (std::uint64_t chain = 0; chain < 20; ++chain) PutChain(0, 100 * chain + 1, 100 * chain + 3);
  node(1).stopped = true;
  BeginToGive(0, 120 * kSecond);
  ASSERT_TRUE(RunUntil([&] { return node(0).giver->counters().failed.value() > 0; }, 30 * kSecond));
  node(1).stopped = false;
  ASSERT_TRUE(RunUntil([&] { return given(); }, 121 * kSecond));
  EXPECT_EQ(handed->members, 1u);
  EXPECT_EQ(handed->blocks, 60u);
  EXPECT_EQ(handed->left, 0u);
}

TEST_F(HandOverTest, WhoDidNotAnswerJustBeforeIsOfferedWhatThereIs) {
  StartNodes(2);
  PutChain(0, 1, 5);
  node(0).peers.Of(node(1).process_number).breaker.Failed(clock.Now(), true);
  const store::HandedOver given = Give(0);
  EXPECT_EQ(given.members, 1u);
  EXPECT_EQ(given.blocks, 5u);
  EXPECT_EQ(given.left, 0u);
}

// Too busy to send is another thing at the giver than no room at the taker.
TEST_F(HandOverTest, WhatCouldNotBeReadIsGivenWhenItCan) {
  StartNodes(2);
  std::uint64_t first = 1;
  for (const Code code : {Code::kIoError, Code::kBusy}) {
    PutChain(0, first, first + 19);
    int lies = 3;
    node(0).lie = [&](net::RailSource::Answer& answer) {
      if (lies > 0 && lies-- > 0) answer.status = Status(code, "unreadable for now");
    };
    const store::HandedOver given = Give(0, 60 * kSecond);
    EXPECT_EQ(given.left, 0u) << CodeName(code);
    EXPECT_TRUE(Exact(1, first + 19)) << CodeName(code);
    first += 100;
  }
}

// Why it was refused before says nothing of why it does not come now.
TEST_F(HandOverTest, WhatIsMerelyLateIsOfferedAgainThoughThereWasNoRoomForItBefore) {
  AddGiverAndFullTaker();
  const std::uint64_t taken = Give(0).blocks;
  ASSERT_LT(taken, 10u);
  const Refusal* refusal =
      node(1).reader->RefusalOf(node(1).store->NamespaceAt(slot)->incarnation, store::Key(taken + 1));
  ASSERT_TRUE(refusal != nullptr && refusal->own && refusal->why.code() == Code::kBusy);
  // Now there is room for all that is left of the chain.
  ASSERT_TRUE(loop->BlockOn(node(0).store->Drop(slot, Chain(11, 11))).has_value());
  ASSERT_TRUE(loop->BlockOn(node(1).store->Drop(slot, Chain(101, 110))).has_value());
  bool slow = true;
  node(0).before_find = [&](Executor& on) -> Task<void> {
    if (slow) (void)co_await SleepUntil(on.Now().PlusUs(60 * kSecond));
  };
  const std::uint64_t refused = node(0).giver->counters().refused.value();
  BeginToGive(0, 600 * kSecond);
  ASSERT_TRUE(RunUntil([&] { return node(0).giver->counters().refused.value() > refused; }, 60 * kSecond));
  slow = false;
  ASSERT_TRUE(RunUntil([&] { return given(); }, 600 * kSecond));
  EXPECT_EQ(handed->left, 0u);
  EXPECT_TRUE(Exact(1, 10));
}

TEST_F(HandOverTest, NamespaceWhoseReadsAreOffIsNotOffered) {
  StartNodes(2);
  PutChain(0, 1, 20);
  ASSERT_TRUE(loop->BlockOn(node(0).store->Turn(store::Switch::kReads, false, "")).has_value());
  const store::HandedOver given = Give(0, 60 * kSecond);
  EXPECT_EQ(given.blocks, 0u);
  EXPECT_EQ(given.left, 20u);
  EXPECT_EQ(node(0).giver->counters().refused.value(), 0u);
}

// What came before its time has passed counts, and it is read from as before.
TEST_F(HandOverTest, MemberThatReadsSlowlyAnswersInTimeHowFarItHasCome) {
  constexpr std::size_t kBlock = 512u << 10;
  StartNodes(2);
  PutChain(0, 1, 40, kBlock);
  node(0).before_find = [](Executor& on) -> Task<void> {
    (void)co_await SleepUntil(on.Now().PlusUs(1'000'000));
  };
  const store::HandedOver given = Give(0, 300 * kSecond);
  EXPECT_EQ(given.blocks, 40u);
  EXPECT_EQ(given.bytes, 40 * kBlock);
  EXPECT_EQ(given.left, 0u);
  EXPECT_EQ(node(0).giver->counters().failed.value(), 0u);
}

TEST_F(HandOverTest, WhatCanNeverBeReadDoesNotHoldUpTheDrain) {
  StartNodes(2);
  PutChain(0, 1, 20);
  node(0).lie = [](net::RailSource::Answer& answer) {
    answer.status = Status(Code::kIoError, "unreadable for good");
  };
  BeginToGive(0, 3'600 * kSecond);
  ASSERT_TRUE(RunUntil([&] { return given(); }, 120 * kSecond));
  EXPECT_EQ(handed->blocks, 0u);
  EXPECT_EQ(handed->left, 20u);
}

TEST_F(HandOverTest, DeadlineEndsItAndWhatIsLeftIsCounted) {
  StartNodes(2);
  PutChain(0, 1, 5);
  node(1).stopped = true;
  const Instant began = clock.Now();
  const store::HandedOver given = Give(0, kSecond);
  EXPECT_LE(clock.Now().UsSince(began), kSecond + 100'000);
  EXPECT_EQ(given.blocks, 0u);
  EXPECT_EQ(given.left, 5u);
  EXPECT_EQ(node(0).giver->counters().left.value(), 5u);
}

TEST_F(HandOverTest, StopEndsItAtOnceThoughAnOfferIsNotAnswered) {
  StartNodes(2);
  PutChain(0, 1, 5);
  node(1).stopped = true;
  BeginToGive(0, 1'000 * kSecond);
  RunFor(100'000);
  EXPECT_FALSE(given());
  node(0).giver->Stop();
  EXPECT_TRUE(RunUntil([&] { return given(); }, 1'000));
}

// ---- namespaces that nobody has attached at the taker ----------------------------------------------------

TEST_F(HandOverTest, NamespaceThatNobodyAttachedAtTheTakerComesWithItsList) {
  NamespaceSpec spec = Blocks();
  spec.flash_write = WriteRule{WritePolicy::kSelective, 3};
  AddNode(spec);
  AddBareNode();
  ASSERT_TRUE(RunUntil([&] { return Know(); }));
  PutChain(0, 1, 40);
  EXPECT_EQ(Give(0).blocks, 40u);
  const auto at = node(1).names->SlotOf(*node(0).names->NameAt(slot));
  ASSERT_TRUE(at.has_value());
  for (std::uint64_t n = 1; n <= 40; ++n) EXPECT_TRUE(Exact(1, n)) << n;
  EXPECT_EQ(node(1).taker->counters().namespaces.value(), 1u);
  const catalog::NamespaceEntry& entry = *node(1).store->NamespaceAt(*at);
  EXPECT_EQ(catalog::NamespaceTable::ListOf(entry),
            catalog::NamespaceTable::ListOf(*node(0).store->NamespaceAt(slot)));
  EXPECT_EQ(entry.block_tokens, 64u);
  EXPECT_EQ(entry.lower.write, spec.flash_write);
  EXPECT_TRUE(entry.names.empty());
  // Nobody uses it, so that it goes when nothing of it is left and room is wanted; an engine finds it there.
  auto attached = loop->BlockOn(node(1).store->Attach(spec, {}, store::IfNew::kRefuse));
  ASSERT_TRUE(attached.has_value());
  EXPECT_EQ(attached->slot, *at);
}

TEST_F(HandOverTest, NamespaceThatCameCountsForTheQuotaOfItsNameAtTheGiver) {
  TestNodeOptions with;
  with.store.quotas =
      policy::QuotaTable({{.pattern = "other"}, {.pattern = "te*", .memory_bytes = 10 * 4096}});
  AddNode();
  AddBareNode(with);
  ASSERT_TRUE(RunUntil([&] { return Know(); }));
  for (std::uint64_t n = 1; n <= 40; ++n) Put(0, n, std::nullopt);
  const store::HandedOver given = Give(0);
  RunFor(kSecond);
  const std::uint64_t used = node(1).store->used()[2];
  EXPECT_GE(used, 9u * 4096) << "the next would not fit with its trailer";
  EXPECT_LE(used, 10u * 4096);
  EXPECT_EQ(node(1).store->used()[0], 0u);
  // And what was answered as taken is there: nothing is trimmed afterwards.
  EXPECT_EQ(given.blocks, used / 4096);
  EXPECT_EQ(given.left, 40 - used / 4096);
  EXPECT_EQ(node(1).store->counters().evicted_over_quota.value(), 0u);
  // Whoever attaches it there by another name says what it counts for.
  NamespaceSpec renamed = Blocks();
  renamed.name = "mine";
  ASSERT_TRUE(loop->BlockOn(node(1).store->Attach(renamed)).has_value());
  EXPECT_EQ(node(1).store->used()[2], 0u);
  EXPECT_EQ(node(1).store->used()[0], used);
}

TEST_F(HandOverTest, NamespaceThatCameCountsForTheQuotaOfItsLabelAtTheGiver) {
  TestNodeOptions with;
  with.store.quotas = policy::QuotaTable({{.pattern = "model=lla*", .memory_bytes = 10 * 4096}});
  NamespaceSpec spec = Blocks();
  spec.name.clear();
  spec.labels = {{"model", "llama"}};
  AddNode(spec);
  AddBareNode(with);
  ASSERT_TRUE(RunUntil([&] { return Know(); }));
  for (std::uint64_t n = 1; n <= 40; ++n) Put(0, n, std::nullopt);
  EXPECT_GT(Give(0).blocks, 0u);
  RunFor(kSecond);
  EXPECT_GE(node(1).store->used()[1], 9u * 4096);
  EXPECT_EQ(node(1).store->used()[0], 0u);
  const auto at = node(1).names->SlotOf(*node(0).names->NameAt(slot));
  ASSERT_TRUE(at.has_value());
  EXPECT_TRUE(node(1).store->NamespaceAt(*at)->labels.empty()) << "each node's users say their own";
  // Whoever attaches it there under another label says what it counts for.
  spec.labels = {{"model", "qwen"}};
  ASSERT_TRUE(loop->BlockOn(node(1).store->Attach(spec)).has_value());
  EXPECT_EQ(node(1).store->used()[1], 0u);
}

TEST_F(HandOverTest, NamespaceThatCameCountsForTheQuotaOfItsLabelWhateverItsNamesAre) {
  TestNodeOptions with;
  with.store.quotas = policy::QuotaTable({{.pattern = "model=lla*", .memory_bytes = 10 * 4096}});
  NamespaceSpec spec = Blocks();
  spec.labels = {{"model", "llama"}};
  AddNode(spec);
  AddBareNode(with);
  for (std::size_t n = 1; n < catalog::kMaxNamesOfList; ++n) {
    spec.name = Text("name", n);
    ASSERT_TRUE(loop->BlockOn(node(0).store->Attach(spec)).has_value());
  }
  ASSERT_TRUE(RunUntil([&] { return Know(); }));
  for (std::uint64_t n = 1; n <= 40; ++n) Put(0, n, std::nullopt);
  EXPECT_GT(Give(0).blocks, 0u);
  EXPECT_GE(node(1).store->used()[1], 9u * 4096);
  EXPECT_EQ(node(1).store->used()[0], 0u);
}

TEST_F(HandOverTest, NamespaceThatCameWithItsListMakesRoomWhenNothingOfItIsLeft) {
  AddNode();
  AddBareNode();
  ASSERT_TRUE(RunUntil([&] { return Know(); }));
  Put(0, 1, std::nullopt);
  EXPECT_EQ(Give(0).blocks, 1u);
  const BlockKey key = store::Key(1);
  ASSERT_TRUE(loop->BlockOn(node(1).store->Drop(slot, std::span(&key, 1))).has_value());
  // As many more as there may be: those of one owner are bounded, so that each has its own.
  std::uint64_t attached = 0;
  for (std::uint64_t i = 0; i < 2 * arena::kMaxNamespaces; ++i) {
    catalog::Caller caller{1000 + i, {}};
    std::memcpy(caller.owner.data(), &caller.session, sizeof(caller.session));
    NamespaceSpec spec = store::OneGroup(std::to_string(i));
    if (!loop->BlockOn(node(1).store->Attach(spec, caller)).has_value()) break;
    ++attached;
  }
  EXPECT_EQ(attached, arena::kMaxNamespaces);
}

TEST_F(HandOverTest, ListOfAnotherNamespaceThanTheOffersIsRefused) {
  AddNode();
  AddBareNode();
  ASSERT_TRUE(RunUntil([&] { return Know(); }));
  const catalog::NamespaceEntry entry = *node(0).store->NamespaceAt(slot);
  const auto answer = [&](std::vector<std::byte> list) {
    Offer offer{.chain = {.history = 7, .name = *node(0).names->NameAt(slot), .keys = {store::Key(1)}},
                .body_bytes = {4096},
                .ages = {0},
                .list = std::move(list)};
    auto reply = loop->BlockOn(node(1).taker->Answer(node(0).process_number, Encode(offer), After(kSecond)));
    EXPECT_TRUE(reply.has_value());
    return DecodeOfferReply(*reply)->refusal;
  };
  catalog::NamespaceEntry other = entry;
  other.fields[0].second = "other";
  EXPECT_EQ(answer(EncodeNamespace(other)), OfferReply::Refusal::kUnknownNamespace);
  catalog::NamespaceEntry named = entry;
  named.slot = 0;
  ASSERT_FALSE(named.names.empty());
  EXPECT_EQ(answer(catalog::NamespaceTable::Encode(named)), OfferReply::Refusal::kUnknownNamespace);
  std::vector<std::byte> cut = EncodeNamespace(entry);
  cut.pop_back();
  EXPECT_EQ(answer(std::move(cut)), OfferReply::Refusal::kUnknownNamespace);
  catalog::NamespaceEntry wrong = entry;  // of which nothing could be attached
  wrong.groups.push_back(wrong.groups[0]);
  EXPECT_EQ(answer(EncodeNamespace(wrong)), OfferReply::Refusal::kUnknownNamespace);
  EXPECT_EQ(node(1).store->occupancy().namespaces, 0u);
  EXPECT_EQ(answer(EncodeNamespace(entry)), OfferReply::Refusal::kFailed);  // there is no such block
  EXPECT_EQ(node(1).store->occupancy().namespaces, 1u);
}

// ---- what lies on flash alone
// ------------------------------------------------------------------------------

TEST_F(HandOverTest, WhatLiesOnFlashAloneIsGivenByANodeThatLeaves) {
  TestNodeOptions small{.lower_tier = true};
  small.store.max_blocks = 24;
  small.store.max_lower_blocks = 1'000;
  AddNode(Blocks(), small);
  AddNode();
  ASSERT_TRUE(RunUntil([&] { return Know(); }));
  for (std::uint64_t n = 1; n <= 60; ++n) {
    Put(0, n, n % 10 == 1 ? std::nullopt : std::optional(n - 1));
    RunFor(20'000);
  }
  std::size_t in_memory = 0;
  for (std::uint64_t n = 1; n <= 60; ++n) in_memory += Here(0, n) ? 1 : 0;
  ASSERT_LE(in_memory, 24u);
  EXPECT_LE(Give(0).blocks, in_memory);
  const store::HandedOver given = Give(0, 10 * kSecond, true);
  EXPECT_EQ(given.blocks, 60u);
  EXPECT_EQ(given.left, 0u);
  for (std::uint64_t n = 1; n <= 60; ++n) EXPECT_TRUE(Exact(1, n)) << n;
  EXPECT_EQ(node(0).store->occupancy().leases, 0u);
}

// What they take is held in memory until it is sent, which may be less than all that is on offer.
TEST_F(HandOverTest, ANodeThatLeavesOffersNoMoreFromItsFlashThanItsMemoryHasRoomFor) {
  constexpr std::size_t kBlock = 1u << 20;
  TestNodeOptions small{.headers = 1, .lower_tier = true, .tier_room_bytes = 32u << 20};
  small.store.max_lower_blocks = 1'000;
  small.store.lower.write = {WritePolicy::kThrough};
  AddNode(Blocks(), small);
  for (int i = 0; i < 2; ++i) AddNode(Blocks(), {.headers = 8});
  ASSERT_TRUE(RunUntil([&] { return Know(); }));
  std::uint64_t written = 0;
  for (std::uint64_t chain = 0; chain < 8; ++chain) {
    for (std::uint64_t n = 100 * chain + 1; n <= 100 * chain + 10; ++n) {
      Put(0, n, n % 100 == 1 ? std::nullopt : std::optional(n - 1), kBlock);
      ++written;
      ASSERT_TRUE(RunUntil([&] { return node(0).store->counters().written_down.value() == written; }));
    }
  }
  const auto leased = Chain(701, 710);
  std::vector<catalog::BlockName> names;
  for (const BlockKey& key : leased) names.push_back({key, 0});
  const auto lease = loop->BlockOn(
      node(0).store->Acquire({1, {std::byte{1}}}, slot, names, 600 * kSecond, After(kSecond), kNoWorthLimit));
  ASSERT_TRUE(lease.has_value() && lease->lease != 0);
  node(0).before_sent = [](Executor& on) -> Task<void> {
    (void)co_await SleepUntil(on.Now().PlusUs(100'000));
  };
  const store::HandedOver given = Give(0, 60 * kSecond, true);
  EXPECT_EQ(given.blocks, 80u);
  EXPECT_EQ(given.left, 0u);
  EXPECT_EQ(node(0).giver->counters().refused.value(), 0u);
}

// ---- room ----------------------------------------------------------------------------------------------

TEST_F(HandOverTest, TakerGivesFreeRoomAndThatOfWhatWasUsedLongerAgo) {
  AddGiverAndFullTaker();
  const store::HandedOver given = Give(0);
  EXPECT_EQ(given.blocks, OthersHave(1) + OthersHave(2) + OthersHave(3) + OthersHave(4) + OthersHave(5));
  EXPECT_GE(given.blocks, 2u);
  EXPECT_LT(given.blocks, 12u);
  EXPECT_EQ(given.left, 40u - given.blocks);
  // The last used of its own stays.
  EXPECT_TRUE(Exact(1, 110));
  EXPECT_GE(node(0).giver->counters().refused.value(), 1u);
}

}  // namespace
}  // namespace cistern::mesh
