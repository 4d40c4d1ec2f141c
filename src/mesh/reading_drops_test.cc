// SPDX-License-Identifier: Apache-2.0
// Reads beside drops, ends of conversations and changes of history: what is covered is not taken, the rest
// is.
#include "mesh/test_reading.h"

namespace cistern::mesh {
namespace {

TEST_F(ReadingTest, RecordThatADropCoversIsNotTakenFromAMemberThatIsBehind) {
  StartNodes(2);
  PutAndTell(0, 8);
  See(1, Drop({3}));
  EXPECT_EQ(FindAndRead(1, 8), 2u);
  EXPECT_TRUE(Exact(1, 2));
  EXPECT_FALSE(Here(1, 3));
  EXPECT_FALSE(Here(1, 4));
}

TEST_F(ReadingTest, MemberThatIsOneDropBehindCostsALookAtEachKeyOfAChain) {
  constexpr std::uint64_t kBlocks = 1'000;
  StartNodes(2);
  PutChain(0, 1, kBlocks, 512);
  ASSERT_TRUE(Told(0));
  const PeerMatch match = Find(1, 1, kBlocks);
  ASSERT_EQ(BlocksOf(match), kBlocks);
  See(1, Drop({kBlocks + 1}));
  const std::uint64_t before = executor().work();
  EXPECT_EQ(Read(1, match).value_or(0), kBlocks);
  // A stretch of the chain begins anew.
  constexpr std::uint64_t kLooks = kBlocks * (kBlocks / PeerReadLimits::kStretch + 1) / 2;
  EXPECT_LT(executor().work() - before, 40 * kBlocks + kLooks);
}

TEST_F(ReadingTest, DropCountsFromWhenItIsSeenNotWhenItIsDurable) {
  StartNodes(2);
  PutAndTell(0, 8);
  See(1, Drop({3}), /*apply=*/false);
  EXPECT_EQ(FindAndRead(1, 8), 2u);
  EXPECT_FALSE(Here(1, 3));
}

TEST_F(ReadingTest, AncestorThatIsHereAnewDoesNotVouchForWhatWasBelowTheOldOne) {
  StartNodes(2);
  PutAndTell(0, 8);
  PutChain(1, 1, 3);
  See(1, Drop({3}));
  Put(1, 3, 2);
  EXPECT_EQ(FindAndRead(1, 8, 3), 0u);
  EXPECT_FALSE(Here(1, 4));
}

// The chain is what the client names, and the drop is of a block that it leaves out.
TEST_F(ReadingTest, R10ChainThatIsNoneHereVouchesForNothing) {
  StartNodes(2);
  PutAndTell(0, 8);
  PutChain(1, 1, 3);
  See(1, Drop({2}));
  Put(1, 2, 1);
  Put(1, 3, 2);
  std::vector<BlockKey> chain = Chain(3, 8);
  chain.insert(chain.begin(), {store::Key(98), store::Key(99)});
  for (const std::size_t local : {2, 3}) {
    const PeerMatch match = loop->BlockOn(node(1).finder->Find(slot, chain, local, After(kSecond)));
    ASSERT_NE(match.run, nullptr);
    (void)Read(1, match);
    EXPECT_TRUE(Exact(1, 3));
    EXPECT_FALSE(Here(1, 4)) << local;
  }
}

TEST_F(ReadingTest, WhatWasPutAgainAfterADropIsTaken) {
  StartNodes(2);
  PutAndTell(0, 8);
  const std::int64_t drop = Drop({3});
  See(0, drop);
  See(1, drop);
  for (std::uint64_t n = 3; n <= 8; ++n) Put(0, n, n - 1);
  ASSERT_TRUE(Told(0));
  EXPECT_EQ(FindAndRead(1, 8), 8u);
}

TEST_F(ReadingTest, DropThatIsSeenWhileABlockIsOnItsWayEndsItForAllWhoWait) {
  StartNodes(2);
  PutAndTell(0, 8);
  const PeerMatch match = Find(1, 1, 8);
  ASSERT_NE(match.run, nullptr);
  bool asked = false;
  Event go_on;
  node(0).before_find = [&](Executor&) -> Task<void> {
    struct Waits {
      static Task<void> Run(Executor&, bool& asked, Event& go_on) {
        asked = true;
        co_await go_on.Wait();
      }
    };
    return Waits::Run(executor(), asked, go_on);
  };
  std::vector<Result<std::size_t>> outcomes(3, Result<std::size_t>(0));
  int ended = 0;
  TaskGroup readers(executor());
  for (auto& outcome : outcomes)
    readers.Spawn(ReadInto(executor(), 1, match.run, After(kSecond), &outcome, &ended));
  ASSERT_TRUE(RunUntil([&] { return asked; }));
  See(1, Drop({2}));
  go_on.Set();
  ASSERT_TRUE(RunUntil([&] { return ended == 3; }));
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.value_or(0), 1u);
  EXPECT_FALSE(Here(1, 2));
  EXPECT_FALSE(Here(1, 3));
  loop->BlockOn(readers.Close());
}

TEST_F(ReadingTest, DropOfThisNodeAloneEndsAPutOnItsWay) {
  StartNodes(2);
  PutAndTell(0, 8);
  const PeerMatch match = Find(1, 1, 8);
  bool dropped = false;
  node(0).lie = [&](net::RailSource::Answer&) {
    if (std::exchange(dropped, true)) return;
    struct Dropping {
      static Task<void> Run(MeshNode& to, std::uint32_t slot) {
        const BlockKey key = store::Key(2);
        (void)co_await to.store->Drop(slot, std::span(&key, 1));
      }
    };
    node(1).tasks.Spawn(Dropping::Run(node(1), slot));
  };
  EXPECT_EQ(Read(1, match).value_or(0), 1u);
  EXPECT_FALSE(Here(1, 2));
}

TEST_F(ReadingTest, EndOfAConversationRefusesWhatItAloneWrote) {
  StartNodes(2);
  Put(0, 1, std::nullopt);
  Put(0, 2, 1, 4096, 0, 71);
  Put(0, 3, 2, 4096, 0, 72);
  Put(0, 4, 3, 4096, 0, 71);
  ASSERT_TRUE(Told(0));
  node(1).rule.list.Add(
      1, {.what = CellDrop::What::kConversation, .name = *node(1).names->NameAt(slot), .conversation = 71});
  EXPECT_EQ(FindAndRead(1, 4), 3u) << "72 has used all but the last";
  EXPECT_FALSE(Here(1, 4));
}

// What others have used as well goes on without it.
TEST_F(ReadingTest, R10EndTakesItsNoteFromWhatIsReadAndTheLastOneTheBlock) {
  StartNodes(3);
  for (std::uint64_t n = 1; n <= 4; ++n) Put(0, n, n == 1 ? std::nullopt : std::optional(n - 1), 4096, 0, 71);
  const std::vector<BlockKey> used = Chain(1, 4);
  for (const std::uint64_t other : {72u, 73u})
    loop->BlockOn(node(0).store->Touch(slot, std::span(used).first(other == 72 ? 4 : 2), other));
  ASSERT_TRUE(Told(0));
  const auto users_at = [&](std::size_t i, std::uint64_t n) {
    return node(i).store->source_puts().NotesOf(slot, store::Key(n)).value_or(std::vector<std::uint64_t>{0});
  };
  const auto ends = [&](std::size_t i, std::int64_t revision, std::uint64_t conversation) {
    node(i).rule.list.Add(revision, {.what = CellDrop::What::kConversation,
                                     .name = *node(i).names->NameAt(slot),
                                     .conversation = conversation});
  };
  // 72 has ended here, which the source has not heard of.
  ends(1, 1, 72);
  ASSERT_EQ(FindAndRead(1, 4), 4u);
  EXPECT_EQ(users_at(1, 2), (std::vector<std::uint64_t>{71, 73}));
  EXPECT_EQ(users_at(1, 4), std::vector<std::uint64_t>{71});
  EXPECT_EQ(loop->BlockOn(node(1).store->EndConversation(slot, 71)).value_or(0), 2u);
  EXPECT_TRUE(Exact(1, 2));
  EXPECT_FALSE(Here(1, 3));
  EXPECT_EQ(loop->BlockOn(node(1).store->EndConversation(slot, 73)).value_or(0), 2u);
  // At the source who wrote it ends: its stamps still say 71, and the blocks are not 71's any more.
  EXPECT_EQ(loop->BlockOn(node(0).store->EndConversation(slot, 71)).value_or(9), 0u);
  const PeerMatch match = Find(2, 1, 4);
  ASSERT_NE(match.run, nullptr);
  ASSERT_EQ(Read(2, match, kSecond, 74).value_or(0), 4u);
  EXPECT_EQ(users_at(2, 2), (std::vector<std::uint64_t>{72, 73, 74})) << "who reads it is noted";
  EXPECT_EQ(users_at(2, 4), (std::vector<std::uint64_t>{72, 74}));
}

TEST_F(ReadingTest, ConversationThatReadsSharesWhatAnotherWrote) {
  StartNodes(2);
  Put(0, 1, std::nullopt, 4096, 0, 71);
  for (std::uint64_t n = 2; n <= 4; ++n) Put(0, n, n - 1, 4096, 0, 71);
  ASSERT_TRUE(Told(0));
  const PeerMatch match = Find(1, 1, 4);
  ASSERT_NE(match.run, nullptr);
  ASSERT_EQ(Read(1, match, kSecond, 71).value_or(0), 4u);
  ASSERT_TRUE(Exact(1, 1));
  EXPECT_EQ(node(1).last_stamp.conversation, 71u);
  StartNodes(0);
  AddNode();
  ASSERT_TRUE(RunUntil([&] { return Know(); }));
  const PeerMatch other = Find(2, 1, 4);
  ASSERT_NE(other.run, nullptr);
  ASSERT_EQ(Read(2, other, kSecond, 72).value_or(0), 4u);
  ASSERT_TRUE(Exact(2, 1));
  EXPECT_EQ(node(2).store->source_puts().NotesOf(slot, store::Key(1)), (std::vector<std::uint64_t>{71, 72}));
}

TEST_F(ReadingTest, NothingIsTakenUnderAnotherHistoryOrFromBehindTheList) {
  StartNodes(2);
  PutAndTell(0, 8);
  const PeerMatch match = Find(1, 1, 8);
  node(1).rule.list.Restart(5);
  EXPECT_EQ(Read(1, match).value_or(0), 0u);
  node(0).rule.applied = 5;
  EXPECT_EQ(Read(1, match).value_or(0), 8u);
  const PeerMatch more = Find(1, 1, 8);
  node(0).rule.history = 8;
  EXPECT_FALSE(Here(1, 9));
  EXPECT_EQ(Find(1, 1, 8).run, nullptr);
}

}  // namespace
}  // namespace cistern::mesh
