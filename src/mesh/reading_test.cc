// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <deque>
#include <limits>

#include "mesh/test_mesh.h"

namespace cistern::mesh {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kSecond = 1'000'000;
constexpr std::uint64_t kWindowBytes = 2u << 20;  // of room for what lands, where it is to be scarce

class ReadingTest : public MeshTest {
 protected:
  // Node `i` has blocks 1 to `last`, and the others have heard of it.
  void PutAndTell(std::size_t i, std::uint64_t last, std::size_t bytes = 4096) {
    PutChain(i, 1, last, bytes);
    ASSERT_TRUE(Told(i));
  }
  bool Told(std::size_t i) {
    return RunUntil([&] {
      for (std::size_t j = 0; j < nodes.size(); ++j) {
        if (j != i && node(j).streams->SamplesOf(node(i).process_number) != node(i).feed->samples())
          return false;
      }
      return true;
    });
  }
  // Blocks 1 to `last` from wherever the index says; how many came.
  std::size_t FindAndRead(std::size_t i, std::uint64_t last, std::size_t local = 0) {
    const PeerMatch match = Find(i, 1, last, local);
    if (match.run == nullptr) return 0;
    return Read(i, match).value_or(0);
  }
  Task<void> ReadInto(Executor&, std::size_t i, std::shared_ptr<const PeerRun> run, Instant deadline,
                      Result<std::size_t>* outcome, int* ended) {
    *outcome = co_await node(i).reader->Read(run, run->first, run->count, 0, deadline);
    ++*ended;
  }
  // Of node 1: block 1 at node 0 and block 2 at node 2. What is on its way of the one leaves no room for the
  // other.
  void FindTwoThatFitOneByOne(PeerMatch* one, PeerMatch* other) {
    constexpr std::uint64_t kBlock = 2u << 20;
    StartNodes(3, Blocks(), {.headers = 2});
    node(1).reader->SetMemory(PeerReadLimits::kMemoryShare * kWindowBytes);
    Put(0, 1, std::nullopt, kBlock);
    Put(2, 2, std::nullopt, kBlock);
    ASSERT_TRUE(Told(0) && Told(2));
    *one = Find(1, 1, 1);
    *other = Find(1, 2, 2);
    ASSERT_TRUE(one->run != nullptr && other->run != nullptr);
  }
  // Reads of node 1, the second begun while node 0 holds back what it answers to the first.
  struct TwoReads {
    TwoReads(ReadingTest& with, const PeerMatch& first, const PeerMatch& second)
        : test(with), readers(with.executor()) {
      test.node(0).before_find = [this](Executor&) -> Task<void> { co_await goes_on.Wait(); };
      for (const PeerMatch* match : {&first, &second}) {
        Result<std::size_t>& outcome = outcomes[match == &first ? 0 : 1];
        readers.Spawn(
            test.ReadInto(test.executor(), 1, match->run, test.After(5 * kSecond), &outcome, &ended));
        test.RunFor(1'000);
      }
    }
    void End() {
      goes_on.Set();
      ASSERT_TRUE(test.RunUntil([this] { return ended == 2; }));
      test.loop->BlockOn(readers.Close());
    }

    ReadingTest& test;
    Event goes_on;
    std::vector<Result<std::size_t>> outcomes = std::vector<Result<std::size_t>>(2, Result<std::size_t>(0));
    int ended = 0;
    TaskGroup readers;
  };
};

TEST_F(ReadingTest, WhatOneNodeHasAnotherFindsAndReadsExactly) {
  StartNodes(2);
  PutAndTell(0, 9);
  const PeerMatch match = Find(1, 1, 20);
  ASSERT_NE(match.run, nullptr);
  // The sample at block 8 and four more were asked for.
  EXPECT_EQ(BlocksOf(match), 9u);
  EXPECT_EQ(match.runs[0].where, Where::kPeer);
  EXPECT_GT(match.runs[0].ready_in_us, 0);
  const auto read = Read(1, match);
  ASSERT_TRUE(read.has_value()) << read.error().ToString();
  EXPECT_EQ(*read, 9u);
  for (std::uint64_t n = 1; n <= 9; ++n) EXPECT_TRUE(Exact(1, n)) << n;
  EXPECT_EQ(node(1).reader->counters().batch_ns.count(), 1u) << "nine small blocks are one batch";
  EXPECT_GT(node(1).reader->counters().batch_ns.sum(), 0u);
  EXPECT_EQ(node(0).reader->counters().batch_ns.count(), 0u);
  // And now it tells of them itself.
  EXPECT_TRUE(RunUntil([&] { return node(0).streams->SamplesOf(node(1).process_number) == 3; }));
}

TEST_F(ReadingTest, PromptThatNobodyKnowsCostsNoMessage) {
  StartNodes(3);
  PutAndTell(0, 9);
  EXPECT_EQ(Find(1, 1000, 1999).run, nullptr);
  EXPECT_EQ(node(1).links->questions[kMatchQuestion], 0);
  EXPECT_EQ(node(1).finder->counters().unknown, 1u);
}

TEST_F(ReadingTest, WhatOthersAskAboutIsNeitherAHitNorAMissOfAMembersClients) {
  StartNodes(2);
  PutAndTell(0, 9);
  EXPECT_EQ(BlocksOf(Find(1, 1, 20)), 9u);
  const catalog::StoreCounters& counters = node(0).store->counters();
  EXPECT_EQ(counters.found_below.value(), 0u);
  EXPECT_EQ(counters.miss_unknown.value(), 0u) << "of what was asked for behind its blocks";
}

TEST_F(ReadingTest, RestOfAChainComesBehindWhatIsHere) {
  StartNodes(2);
  PutAndTell(0, 16);
  PutChain(1, 1, 5);
  const PeerMatch match = Find(1, 1, 16, 5);
  ASSERT_NE(match.run, nullptr);
  EXPECT_EQ(match.run->first, 5u);
  EXPECT_EQ(Read(1, match).value_or(0), 11u);
  for (std::uint64_t n = 1; n <= 16; ++n) EXPECT_TRUE(Exact(1, n)) << n;
}

TEST_F(ReadingTest, WhatWasHereAlreadyIsNoBlockThatCame) {
  StartNodes(2);
  PutAndTell(0, 8);
  PutChain(1, 1, 3);
  EXPECT_EQ(FindAndRead(1, 8), 8u);
  EXPECT_EQ(node(1).reader->counters().blocks.value(), 5u);
}

TEST_F(ReadingTest, MeshOffKeepsANamespaceToItsNode) {
  NamespaceSpec kept = Blocks();
  kept.mesh = false;
  AddNode(kept);
  AddNode();
  ASSERT_TRUE(RunUntil([&] { return Know(); }));
  PutChain(0, 1, 9);
  PutChain(1, 101, 109);
  RunFor(2'000'000);
  EXPECT_EQ(node(1).streams->SamplesOf(node(0).process_number), 0u) << "it is in no sample";
  EXPECT_EQ(node(0).streams->SamplesOf(node(1).process_number), 3u);
  // It asks nobody, and answers nobody who asks all the same.
  EXPECT_EQ(Find(0, 101, 109).run, nullptr);
  EXPECT_EQ(node(0).links->questions[kMatchQuestion], 0);
  const std::vector<BlockKey> chain = Chain(1, 9);
  const auto all = loop->BlockOn(node(1).finder->AskAll(slot, chain, 0, true, After(kSecond)));
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].how, Holding::How::kAnswered);
  EXPECT_EQ(all[0].blocks(), 0u);
  EXPECT_FALSE(node(0).served->Find(TestNameOf(*node(0).store->NamespaceAt(slot))).has_value());
  // Nothing is handed over, in neither way.
  for (const std::size_t giver : {0u, 1u})
    EXPECT_EQ(loop->BlockOn(node(giver).giver->Give({.deadline = After(5 * kSecond)})).blocks, 0u);
  EXPECT_FALSE(Here(0, 101) || Here(1, 1));
}

TEST_F(ReadingTest, MeshOffSaidLaterTakesTheSamplesBackAndOnTellsThemAnew) {
  StartNodes(2);
  PutAndTell(0, 9);
  const PeerMatch before = Find(1, 1, 9);
  ASSERT_NE(before.run, nullptr);
  NamespaceSpec said = Blocks();
  said.mesh = false;
  ASSERT_TRUE(loop->BlockOn(node(0).store->Attach(said)).has_value());
  EXPECT_TRUE(RunUntil([&] { return node(1).streams->SamplesOf(node(0).process_number) == 0; }));
  EXPECT_EQ(Find(1, 1, 9).run, nullptr);
  // What was found before is not sent any more.
  EXPECT_FALSE(Read(1, before).has_value());
  EXPECT_FALSE(Here(1, 1));
  said.mesh = true;
  ASSERT_TRUE(loop->BlockOn(node(0).store->Attach(said)).has_value());
  EXPECT_TRUE(RunUntil([&] { return node(1).streams->SamplesOf(node(0).process_number) == 3; }));
  EXPECT_EQ(FindAndRead(1, 9), 9u);
  EXPECT_TRUE(Exact(1, 9));
}

TEST_F(ReadingTest, BlocksOfManySegmentsAndPartsComeWhole) {
  NamespaceSpec spec = store::TwoParts();
  spec.block_tokens = 256;
  StartNodes(2, spec);
  for (std::uint64_t n = 1; n <= 12; ++n) {
    const std::vector<std::byte> body = store::Body(n, 75'000);
    std::vector<store::PartWrite> parts(2);
    for (std::uint16_t part = 0; part < 2; ++part) {
      parts[part].key = store::Key(n);
      if (n > 1) parts[part].parent = store::Key(n - 1);
      parts[part].part = part;
      parts[part].put_id = {5, n};
      parts[part].from = part == 0 ? std::span(body).first(70'000) : std::span(body).subspan(70'000);
    }
    const catalog::Caller caller{1, {std::byte{1}}};
    (void)loop->BlockOn(node(0).store->Write(caller, slot, std::move(parts), After(kSecond)));
  }
  ASSERT_TRUE(Told(0));
  EXPECT_EQ(FindAndRead(1, 12), 12u);
  for (std::uint64_t n = 1; n <= 12; ++n) {
    EXPECT_TRUE(Exact(1, n, 75'000)) << n;
  }
}

TEST_F(ReadingTest, WhatLiesOnAPeersFlashComesAsItIsReady) {
  TestNodeOptions options{.lower_tier = true};
  options.store.max_blocks = 24;
  options.store.max_lower_blocks = 1'000;
  AddNode(Blocks(), options);
  AddNode();
  ASSERT_TRUE(RunUntil([&] { return Know(); }));
  for (std::uint64_t n = 1; n <= 48; ++n) {
    Put(0, n, n == 1 ? std::nullopt : std::optional(n - 1), 64u << 10);
    RunFor(20'000);
  }
  std::size_t in_memory = 0;
  for (std::uint64_t n = 1; n <= 48; ++n) in_memory += Here(0, n) ? 1 : 0;
  EXPECT_LE(in_memory, 24u);
  ASSERT_TRUE(Told(0));
  EXPECT_EQ(node(0).feed->samples(), 13u);
  // What it reads from its flash it keeps in memory until it is sent: of a small one it is asked for little.
  node(1).peers.Of(node(0).process_number).room_bytes = 2u << 20;
  std::uint64_t most = 0;
  node(0).lie = [&](net::RailSource::Answer&) {
    most = std::max(most, node(1).peers.Of(node(0).process_number).landing_from_flash_bytes);
  };
  EXPECT_EQ(FindAndRead(1, 48), 48u);
  EXPECT_GT(most, 0u);
  EXPECT_LE(most, 256u << 10);
  for (std::uint64_t n = 1; n <= 48; ++n) EXPECT_TRUE(Exact(1, n, 64u << 10)) << n;
  EXPECT_EQ(node(0).store->occupancy().leases, 0u);
}

TEST_F(ReadingTest, OfWindowsWhatTheRunsEndNeedsComesToo) {
  NamespaceSpec spec = store::FullAndWindow();
  spec.block_tokens = 64;
  StartNodes(2, spec);
  PutChain(0, 1, 8);
  for (std::uint64_t n = 1; n <= 8; ++n) {
    const std::vector<std::byte> body = store::Body(100 + n, 2048);
    store::PartWrite part;
    part.key = store::Key(n);
    if (n > 1) part.parent = store::Key(n - 1);
    part.group = 1;
    part.put_id = {6, n};
    part.from = body;
    const catalog::Caller caller{1, {std::byte{1}}};
    (void)loop->BlockOn(node(0).store->Write(caller, slot, {part}, After(kSecond)));
  }
  ASSERT_TRUE(Told(0));
  const PeerMatch match = Find(1, 1, 8);
  ASSERT_NE(match.run, nullptr);
  EXPECT_EQ(Read(1, match).value_or(0), 8u);
  EXPECT_EQ(node(1).ReadBody(slot, store::Key(8), 1), store::Body(108, 2048));
  EXPECT_FALSE(node(1).ReadBody(slot, store::Key(7), 1).has_value());
  for (std::uint64_t n = 1; n <= 8; ++n) EXPECT_TRUE(Exact(1, n)) << n;
}

TEST_F(ReadingTest, RecordTakesThisNodesSealAndItsSourcesPutId) {
  StartNodes(2);
  // The namespace has another incarnation here, and what is born here another number.
  ASSERT_TRUE(loop->BlockOn(node(1).store->DropNamespace(slot)).has_value());
  ASSERT_TRUE(loop->BlockOn(node(1).store->DropNamespace(slot)).has_value());
  PutAndTell(0, 4);
  EXPECT_NE(node(0).store->NamespaceAt(slot)->incarnation, node(1).store->NamespaceAt(slot)->incarnation);
  ASSERT_EQ(FindAndRead(1, 4), 4u);
  for (std::uint64_t n = 1; n <= 4; ++n) ASSERT_TRUE(Exact(1, n));
  EXPECT_EQ(node(1).last_put_id, (PutId{1, 4}));
}

// ---- drops ---------------------------------------------------------------------------------------------

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
  node(1).rule.list.Restart(5, 5);
  EXPECT_EQ(Read(1, match).value_or(0), 0u);
  node(0).rule.applied = 5;
  EXPECT_EQ(Read(1, match).value_or(0), 8u);
  const PeerMatch more = Find(1, 1, 8);
  node(0).rule.history = 8;
  EXPECT_FALSE(Here(1, 9));
  EXPECT_EQ(Find(1, 1, 8).run, nullptr);
}

// ---- time ----------------------------------------------------------------------------------------------

TEST_F(ReadingTest, TimeToLiveCountsFromTheQuestion) {
  StartNodes(2);
  for (std::uint64_t n = 1; n <= 4; ++n) Put(0, n, n == 1 ? std::nullopt : std::optional(n - 1), 4096, 100);
  ASSERT_TRUE(Told(0));
  RunFor(30 * kSecond + 300'000);
  const PeerMatch match = Find(1, 1, 4);
  ASSERT_NE(match.run, nullptr);
  // What stands behind the first has been found when that is looked for, and waits for it.
  node(0).before_find = [&, finds = 0](Executor&) mutable { return Pass(finds++ == 0 ? 2 * kSecond : 0); };
  ASSERT_EQ(Read(1, match, 20 * kSecond).value_or(0), 4u);
  for (std::uint64_t n = 1; n <= 4; ++n) {
    ASSERT_TRUE(Exact(0, n));
    const std::uint32_t there = node(0).last_stamp.expiry;
    ASSERT_TRUE(Exact(1, n));
    EXPECT_LE(node(1).last_stamp.expiry, there);
    EXPECT_GE(node(1).last_stamp.expiry + 10, there);
  }
}

TEST_F(ReadingTest, BlockThatIsNearlyOverIsAMiss) {
  StartNodes(2);
  for (std::uint64_t n = 1; n <= 4; ++n)
    Put(0, n, n == 1 ? std::nullopt : std::optional(n - 1), 4096, n == 2 ? 10 : 0);
  ASSERT_TRUE(Told(0));
  const PeerMatch match = Find(1, 1, 4);
  RunFor(9'100'000);
  EXPECT_EQ(Read(1, match).value_or(0), 1u);
}

TEST_F(ReadingTest, CallsEndByTheirDeadlineWhateverThePeerDoes) {
  StartNodes(2);
  PutAndTell(0, 8);
  const PeerMatch match = Find(1, 1, 8);
  node(0).stopped = true;
  Instant began = clock.Now();
  const auto read = Read(1, match, 50'000);
  EXPECT_EQ(read.error().code(), Code::kTooLate);
  EXPECT_LE(clock.Now().UsSince(began), 50'000);
  // It is not asked again for a while.
  began = clock.Now();
  EXPECT_EQ(Find(1, 1, 8, 0, 50'000).run, nullptr);
  EXPECT_EQ(node(1).links->questions[kMatchQuestion], 1);
  // One question tries.
  RunFor(1'100'000);
  EXPECT_EQ(Find(1, 1, 8, 0, 50'000).run, nullptr);
  EXPECT_EQ(node(1).links->questions[kMatchQuestion], 2);
  node(0).stopped = false;
  node(0).forever.Set();
  RunFor(2'200'000);
  EXPECT_NE(Find(1, 1, 8, 0, 50'000).run, nullptr);
  EXPECT_TRUE(RunUntil([&] { return node(1).reader->landing_bytes() == 0; }));
  EXPECT_EQ(node(1).store->occupancy().pending, 0u);
}

TEST_F(ReadingTest, ReadOverACutWayEndsByItsDeadlineAndLeavesNothing) {
  StartNodes(2);
  PutAndTell(0, 8, 200'000);
  const PeerMatch match = Find(1, 1, 8);
  bool cut = false;
  node(0).lie = [&](net::RailSource::Answer&) {
    if (!std::exchange(cut, true)) network.Cut("a", "b");
  };
  const Instant began = clock.Now();
  EXPECT_EQ(Read(1, match, 100'000).value_or(0), 0u);
  EXPECT_LE(clock.Now().UsSince(began), 100'000);
  ASSERT_TRUE(RunUntil([&] { return node(1).reader->landing_bytes() == 0; }));
  EXPECT_EQ(node(1).store->occupancy().pending, 0u);
  network.Heal("a", "b");
  node(0).lie = nullptr;
  ASSERT_TRUE(RunUntil([&] { return Know(); }));
  RunFor(2 * kSecond);
  EXPECT_EQ(FindAndRead(1, 8), 8u);
  for (std::uint64_t n = 1; n <= 8; ++n) EXPECT_TRUE(Exact(1, n, 200'000)) << n;
}

// ---- whom --------------------------------------------------------------------------------------------

TEST_F(ReadingTest, WhereTheFirstDoesNotAnswerOneMoreIsAsked) {
  StartNodes(4);
  PutAndTell(0, 8);
  PutAndTell(1, 8);
  node(2).links->near[node(0).process_number] = true;
  node(0).stopped = true;
  const Instant began = clock.Now();
  const PeerMatch match = Find(2, 1, 8, 0, 200'000);
  ASSERT_NE(match.run, nullptr);
  EXPECT_EQ(match.run->peer, node(1).process_number);
  EXPECT_LE(clock.Now().UsSince(began), 200'000);
}

TEST_F(ReadingTest, MembersOfTheOwnZoneComeFirst) {
  StartNodes(4);
  for (const std::size_t i : {0, 1, 2}) PutAndTell(i, 8);
  node(3).links->near[node(1).process_number] = true;
  for (int i = 0; i < 8; ++i) EXPECT_EQ(Find(3, 1, 8).run->peer, node(1).process_number);
}

TEST_F(ReadingTest, ManyReadersWaitForOneTransfer) {
  StartNodes(2);
  PutAndTell(0, 8);
  const PeerMatch match = Find(1, 1, 8);
  int answers = 0;
  node(0).lie = [&](net::RailSource::Answer&) { ++answers; };
  std::vector<Result<std::size_t>> outcomes(20, Result<std::size_t>(0));
  int ended = 0;
  TaskGroup readers(executor());
  for (auto& outcome : outcomes)
    readers.Spawn(ReadInto(executor(), 1, match.run, After(kSecond), &outcome, &ended));
  ASSERT_TRUE(RunUntil([&] { return ended == 20; }));
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.value_or(0), 8u);
  EXPECT_EQ(answers, 8);
  loop->BlockOn(readers.Close());
}

TEST_F(ReadingTest, WhatLandsFromAPeerIsBounded) {
  StartNodes(2, Blocks(), {.headers = 8});
  PutAndTell(0, 32, 1u << 20);
  const PeerMatch match = Find(1, 1, 32);
  ASSERT_NE(match.run, nullptr);
  std::uint64_t most = 0;
  node(0).lie = [&](net::RailSource::Answer&) { most = std::max(most, node(1).reader->landing_bytes()); };
  EXPECT_EQ(Read(1, match, 10 * kSecond).value_or(0), 32u);
  EXPECT_GT(most, 2u << 20);
  EXPECT_LE(most, PeerReadLimits::kBatches << 20);
  for (std::uint64_t n = 1; n <= 32; ++n) EXPECT_TRUE(Exact(1, n, 1u << 20)) << n;
}

// All who wait for room are woken together by what has landed.
TEST_F(ReadingTest, P5WhatLandsForManyReadersOfAPeerIsBounded) {
  constexpr int kReaders = 24;
  // The share of the memory is more than one peer's bound.
  StartNodes(2, Blocks(), {.headers = 20});
  std::vector<std::shared_ptr<const PeerRun>> runs;
  for (std::uint64_t n = 1; n <= std::uint64_t{kReaders}; ++n) Put(0, n, std::nullopt, 1u << 20);
  ASSERT_TRUE(Told(0));
  for (std::uint64_t n = 1; n <= std::uint64_t{kReaders}; ++n) {
    runs.push_back(Find(1, n, n).run);
    ASSERT_NE(runs.back(), nullptr) << n;
  }
  std::uint64_t most = 0;
  node(0).lie = [&](net::RailSource::Answer&) { most = std::max(most, node(1).reader->landing_bytes()); };
  std::vector<Result<std::size_t>> outcomes(kReaders, Result<std::size_t>(0));
  int ended = 0;
  TaskGroup readers(executor());
  for (std::size_t i = 0; i < std::size_t{kReaders}; ++i)
    readers.Spawn(ReadInto(executor(), 1, runs[i], After(10 * kSecond), &outcomes[i], &ended));
  ASSERT_TRUE(RunUntil([&] { return ended == kReaders; }));
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.value_or(0), 1u);
  EXPECT_GT(most, 2u << 20);
  EXPECT_LE(most, PeerReadLimits::kPeerBytes);
  loop->BlockOn(readers.Close());
}

// Each that comes later needs less room than it.
TEST_F(ReadingTest, P5LargeBlockIsReadThoughSmallOnesOfItsPeerNeverEnd) {
  constexpr std::uint64_t kReaders = 20, kLarge = 10'000;
  StartNodes(2, Blocks(), {.headers = 20});
  Put(0, kLarge, std::nullopt, 12u << 20);
  std::vector<std::shared_ptr<const PeerRun>> runs;
  for (std::uint64_t n = 1; n <= 8 * kReaders; ++n) Put(0, n, std::nullopt, 1u << 20);
  ASSERT_TRUE(Told(0));
  for (std::uint64_t n = 1; n <= 8 * kReaders; ++n) {
    runs.push_back(Find(1, n, n).run);
    ASSERT_NE(runs.back(), nullptr) << n;
  }
  const PeerMatch large = Find(1, kLarge, kLarge);
  ASSERT_NE(large.run, nullptr);
  std::vector<Result<std::size_t>> outcomes(runs.size() + 1, Result<std::size_t>(0));
  int ended = 0, large_ended = 0;
  TaskGroup readers(executor());
  std::size_t begun = 0;
  const auto begin = [&] {
    while (begun < runs.size() && begun < static_cast<std::size_t>(ended) + kReaders) {
      readers.Spawn(ReadInto(executor(), 1, runs[begun], After(10 * kSecond), &outcomes[begun], &ended));
      ++begun;
    }
  };
  begin();
  readers.Spawn(ReadInto(executor(), 1, large.run, After(10 * kSecond), &outcomes.back(), &large_ended));
  int ended_before = 0;
  const auto all = [&] {
    begin();
    if (large_ended == 0) ended_before = ended;
    return large_ended == 1 && ended == static_cast<int>(runs.size());
  };
  ASSERT_TRUE(RunUntil(all));
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.value_or(0), 1u);
  EXPECT_LE(ended_before, static_cast<int>(3 * kReaders));
  loop->BlockOn(readers.Close());
}

TEST_F(ReadingTest, RecordThatGaveWayWhileItWasSentIsAskedForOnceMore) {
  StartNodes(2);
  PutAndTell(0, 9);
  node(0).tears = 3;
  EXPECT_EQ(FindAndRead(1, 9), 9u);
  for (std::uint64_t n = 1; n <= 9; ++n) EXPECT_TRUE(Exact(1, n)) << n;
}

TEST_F(ReadingTest, RecordThatGivesWayTwiceIsAMiss) {
  StartNodes(2);
  PutAndTell(0, 1);
  node(0).tears = 2;
  EXPECT_EQ(FindAndRead(1, 1), 0u);
  EXPECT_EQ(node(0).tears, 0);
  EXPECT_EQ(node(1).reader->landing_bytes(), 0u);
  EXPECT_EQ(FindAndRead(1, 1), 1u);
}

// A batch takes as long as those beside it let it: the rate is that of all of them.
TEST_F(ReadingTest, ExpectedTimeOfARunIsThatOfItsBatchesSideBySide) {
  constexpr std::uint64_t kBlock = 1u << 20;
  StartNodes(2, Blocks(), {.headers = 8});
  PutAndTell(0, 32, kBlock);
  ASSERT_EQ(FindAndRead(1, 32), 32u);
  PutChain(0, 101, 132, kBlock);
  ASSERT_TRUE(Told(0));
  const PeerMatch match = Find(1, 101, 132);
  ASSERT_NE(match.run, nullptr);
  const Instant began = clock.Now();
  ASSERT_EQ(Read(1, match).value_or(0), 32u);
  const auto took_us = static_cast<double>(clock.Now().UsSince(began));
  EXPECT_GT(static_cast<double>(match.runs.back().ready_in_us), 0.7 * took_us);
  EXPECT_LT(static_cast<double>(match.runs.back().ready_in_us), 1.5 * took_us);
}

TEST_F(ReadingTest, WhatIsReadASecondIsBoundedAndWhatWouldBeLateIsNotAskedFor) {
  constexpr std::uint64_t kBlock = 1u << 20, kASecond = 64u << 20;
  StartNodes(2, Blocks(), {.headers = 8, .bytes_a_second = kASecond});
  PutAndTell(0, 32, kBlock);
  const PeerMatch match = Find(1, 1, 32);
  ASSERT_NE(match.run, nullptr);
  // The match says so before: 32 MiB take half a second.
  EXPECT_GT(match.runs.back().ready_in_us, 400'000);
  const Instant began = clock.Now();
  EXPECT_EQ(Read(1, match, 10 * kSecond).value_or(0), 32u);
  // The last block goes when its turn comes, and so does what was kept.
  const double least_us = 31.0 * kBlock / kASecond * 1e6 - net::Bandwidth::kKeptNs / 1e3;
  EXPECT_GE(static_cast<double>(clock.Now().UsSince(began)), least_us);
  EXPECT_GT(node(1).peers.bandwidth().waits().value(), 0u);
  for (std::uint64_t n = 1; n <= 32; ++n) EXPECT_TRUE(Exact(1, n, kBlock)) << n;
}

// A transfer has the deadline of the call that began it.
TEST_F(ReadingTest, PeerThatIsNotAskedTakesNoTurnOfWhatIsReadASecond) {
  StartNodes(2, Blocks(), {.bytes_a_second = 1u << 20});
  Put(0, 1, std::nullopt, 1u << 20);
  ASSERT_TRUE(Told(0));
  const PeerMatch match = Find(1, 1, 1);
  ASSERT_NE(match.run, nullptr);
  node(1).peers.Of(node(0).process_number).breaker.Failed(clock.Now(), true);
  EXPECT_FALSE(Read(1, match, 10 * kSecond).has_value());
  EXPECT_EQ(node(1).peers.bandwidth().BeginAt(clock.Now()), clock.Now());
}

TEST_F(ReadingTest, EndOfTheNodeWaitsForNoTurn) {
  StartNodes(2, Blocks(), {.bytes_a_second = 1u << 20});
  PutAndTell(0, 16, 512u << 10);
  const PeerMatch match = Find(1, 1, 16, 0, 60 * kSecond);
  ASSERT_NE(match.run, nullptr);
  Result<std::size_t> outcome(0);
  int ended = 0;
  TaskGroup readers(executor());
  readers.Spawn(ReadInto(executor(), 1, match.run, After(60 * kSecond), &outcome, &ended));
  RunFor(100'000);
  const Instant began = clock.Now();
  loop->BlockOn(node(1).reader->Close());
  EXPECT_LT(clock.Now().UsSince(began), kSecond);  // of simulated time
  ASSERT_TRUE(RunUntil([&] { return ended == 1; }, kSecond));
  EXPECT_LT(outcome.value_or(0), 4u);
  loop->BlockOn(readers.Close());
}

// Whoever stood: this node, its rail, the way there.
TEST(PeerPace, BatchThatWasHeldUpSaysLittleOfItsPeer) {
  constexpr std::uint64_t kBatch = 512u << 10;
  Peer peer;
  Instant now = Instant().PlusUs(100 * kSecond);
  const auto land = [&](std::int64_t us) {
    const Instant asked = now;
    now = now.PlusUs(us);
    peer.NoteLanded(kBatch, asked, now);
  };
  for (int batch = 0; batch < 64; ++batch) land(250);
  const double before = peer.bytes_per_us(now);
  EXPECT_NEAR(before, kBatch / 250.0, 20);
  land(3 * kSecond);
  EXPECT_GT(peer.bytes_per_us(now), before / 2);
}

// Nobody reads from who is slow, so nothing would tell that it no longer is.
TEST(PeerPace, PeerThatWasSlowIsReadFromAgainAfterAMinute) {
  Peer peer;
  Instant now = Instant().PlusUs(100 * kSecond);
  for (int batch = 0; batch < 64; ++batch) {
    now = now.PlusUs(kSecond);
    peer.NoteLanded(512u << 10, now.PlusUs(-kSecond), now);
  }
  EXPECT_LT(peer.bytes_per_us(now.PlusUs(59 * kSecond)), 1);
  const double unknown = Peer().bytes_per_us(now);
  EXPECT_EQ(peer.bytes_per_us(now.PlusUs(61 * kSecond)), unknown);
  now = now.PlusUs(61 * kSecond);
  peer.NoteLanded(512u << 10, now.PlusUs(-300), now);
  EXPECT_GT(peer.bytes_per_us(now), unknown);
}

TEST_F(ReadingTest, PeerThatHasNothingOfWhatItIsAskedForIsNoFastOne) {
  StartNodes(2);
  PutAndTell(0, 8);
  const PeerMatch match = Find(1, 1, 8);
  for (std::uint64_t n = 1; n <= 8; ++n) {
    const BlockKey key = store::Key(n);
    ASSERT_TRUE(loop->BlockOn(node(0).store->Drop(slot, std::span(&key, 1))).has_value());
  }
  const double before = node(1).peers.Of(match.run->peer).bytes_per_us(clock.Now());
  EXPECT_FALSE(Read(1, match).has_value());
  EXPECT_EQ(node(1).reader->counters().batch_ns.count(), 0u);
  EXPECT_EQ(node(1).peers.Of(match.run->peer).bytes_per_us(clock.Now()), before);
}

TEST_F(ReadingTest, CallerReadsFromItsOwnPeerWhatAnothersPeerDidNotHave) {
  StartNodes(3);
  PutAndTell(0, 1);
  const PeerMatch one = Find(1, 1, 1);
  ASSERT_NE(one.run, nullptr);
  Put(2, 1, std::nullopt);
  ASSERT_TRUE(Told(2));
  PeerMatch other = one;
  for (int asked = 0; asked < 100 && (!other.run || other.run->peer == one.run->peer); ++asked)
    other = Find(1, 1, 1);
  ASSERT_TRUE(other.run && other.run->peer != one.run->peer);
  TwoReads reads(*this, one, other);
  const BlockKey key = store::Key(1);
  ASSERT_TRUE(loop->BlockOn(node(0).store->Drop(slot, std::span(&key, 1))).has_value());
  ASSERT_NO_FATAL_FAILURE(reads.End());
  EXPECT_FALSE(reads.outcomes[0].has_value());
  EXPECT_EQ(reads.outcomes[1].value_or(0), 1u);
  EXPECT_TRUE(Here(1, 1));
}

TEST_F(ReadingTest, CallerWithMoreTimeReadsWhatAnotherHadTooLittleTimeFor) {
  constexpr std::uint64_t kBlock = 1u << 20;
  StartNodes(2, Blocks(), {.headers = 8, .bytes_a_second = 2u << 20});
  PutAndTell(0, 8, kBlock);
  for (std::uint64_t n = 101; n <= 108; ++n) Put(0, n, std::nullopt, kBlock);
  ASSERT_TRUE(Told(0));
  const PeerMatch match = Find(1, 1, 8);
  ASSERT_NE(match.run, nullptr);
  std::vector<Result<std::size_t>> outcomes(2, Result<std::size_t>(0));
  int ended = 0;
  TaskGroup readers(executor());
  readers.Spawn(ReadInto(executor(), 1, match.run, After(kSecond / 2), &outcomes[0], &ended));
  readers.Spawn(ReadInto(executor(), 1, match.run, After(60 * kSecond), &outcomes[1], &ended));
  ASSERT_TRUE(RunUntil([&] { return ended == 2; }, 61 * kSecond));
  EXPECT_LT(outcomes[0].value_or(0), 8u);
  EXPECT_EQ(outcomes[1].value_or(0), 8u);
  EXPECT_EQ(node(1).reader->landing_bytes(), 0u);
  loop->BlockOn(readers.Close());
}

// The rail is opened for all who read of the peer.
TEST_F(ReadingTest, CallerWithTimeToCatchUpReadsWhatAnotherHadNoneFor) {
  StartNodes(2);
  PutAndTell(0, 1);
  const PeerMatch match = Find(1, 1, 1);
  ASSERT_NE(match.run, nullptr);
  node(0).rule.last.revision = 1;
  std::vector<Result<std::size_t>> outcomes(2, Result<std::size_t>(0));
  int ended = 0;
  TaskGroup readers(executor());
  for (const std::int64_t us : {PeerReadLimits::kCatchUpUs / 2, kSecond})
    readers.Spawn(ReadInto(executor(), 1, match.run, After(us), &outcomes[us == kSecond ? 1 : 0], &ended));
  ASSERT_TRUE(RunUntil([&] { return ended == 1; }));
  EXPECT_EQ(outcomes[0].error().code(), Code::kTooLate);
  node(1).rule.last.revision = 1;
  node(1).rule.changed.Pulse();
  ASSERT_TRUE(RunUntil([&] { return ended == 2; }));
  EXPECT_EQ(outcomes[1].value_or(0), 1u);
  loop->BlockOn(readers.Close());
}

TEST_F(ReadingTest, RailThatOneWithLittleTimeBeganToOpenIsThereForWhoHasMore) {
  StartNodes(2);
  PutChain(0, 1, 8);
  PutChain(0, 101, 108);
  ASSERT_TRUE(Told(0));
  const PeerMatch match = Find(1, 1, 8), other = Find(1, 101, 108);
  ASSERT_NE(match.run, nullptr);
  ASSERT_NE(other.run, nullptr);
  auto hasty = node(1).reader->Read(match.run, 0, 8, 0, After(40));
  auto patient = node(1).reader->Read(other.run, 0, 8, 0, After(kSecond));
  const auto late = loop->BlockOn(std::move(hasty));
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code(), Code::kTooLate);
  EXPECT_EQ(loop->BlockOn(std::move(patient)).value_or(0), 8u);
}

TEST_F(ReadingTest, QuestionThatNeverWentOutSaysNothingOfThePeer) {
  StartNodes(2);
  for (std::uint64_t n = 1; n <= 40; ++n) Put(0, n, std::nullopt);
  ASSERT_TRUE(Told(0));
  std::vector<PeerMatch> matches;
  for (std::uint64_t n = 1; n <= 40; ++n) matches.push_back(Find(1, n, n));
  Event goes_on;
  node(0).before_find = [&](Executor&) -> Task<void> { co_await goes_on.Wait(); };
  std::vector<Result<std::size_t>> outcomes(40, Result<std::size_t>(0));
  int ended = 0;
  TaskGroup readers(executor());
  // As many as the rails take, and one more that has little time.
  for (std::size_t i = 0; i < 40; ++i) {
    ASSERT_NE(matches[i].run, nullptr);
    readers.Spawn(
        ReadInto(executor(), 1, matches[i].run, After(i == 39 ? 50'000 : kSecond), &outcomes[i], &ended));
  }
  ASSERT_TRUE(RunUntil([&] { return ended == 1; }));
  EXPECT_FALSE(outcomes[39].has_value());
  EXPECT_FALSE(node(1).peers.Of(node(0).process_number).breaker.open());
  goes_on.Set();
  ASSERT_TRUE(RunUntil([&] { return ended == 40; }));
  for (std::size_t i = 0; i < 39; ++i) EXPECT_EQ(outcomes[i].value_or(0), 1u) << i;
  loop->BlockOn(readers.Close());
}

TEST_F(ReadingTest, PlaceThatIsFreedByAnAnswerNobodyWaitsForIsTaken) {
  StartNodes(2);
  for (std::uint64_t n = 1; n <= 35; ++n) Put(0, n, std::nullopt);
  ASSERT_TRUE(Told(0));
  std::vector<PeerMatch> matches;
  for (std::uint64_t n = 1; n <= 35; ++n) matches.push_back(Find(1, n, n));
  std::vector<Result<std::size_t>> outcomes(35, Result<std::size_t>(0));
  int ended = 0;
  TaskGroup readers(executor());
  const auto read = [&](std::size_t i, std::int64_t us) {
    readers.Spawn(ReadInto(executor(), 1, matches[i].run, After(us), &outcomes[i], &ended));
  };
  for (const std::size_t i : {33u, 34u}) read(i, kSecond);  // both rails are open then
  ASSERT_TRUE(RunUntil([&] { return ended == 2; }));
  RunFor(kSecond);
  Event goes_on;
  node(0).before_find = [&](Executor&) -> Task<void> { co_await goes_on.Wait(); };
  // As many as the rails take, which have little time, and one more.
  for (std::size_t i = 0; i < 33; ++i) read(i, i == 32 ? 10 * kSecond : 50'000);
  ASSERT_TRUE(RunUntil([&] { return ended == 34; }));
  RunFor(50'000);
  goes_on.Set();
  EXPECT_TRUE(RunUntil([&] { return ended == 35; }, kSecond));
  EXPECT_EQ(outcomes[32].value_or(0), 1u);
  loop->BlockOn(readers.Close());
}

TEST_F(ReadingTest, WhatLiesInMemoryHasAPlaceBesideWhatIsReadFromFlash) {
  StartNodes(2);
  for (std::uint64_t n = 1; n <= 41; ++n) Put(0, n, std::nullopt);
  ASSERT_TRUE(Told(0));
  node(0).match_lie = [](MatchReply& reply) {
    for (MatchRun& run : reply.runs) run.where = Where::kFlash;
  };
  std::vector<PeerMatch> matches;
  for (std::uint64_t n = 1; n <= 41; ++n) {
    if (n == 41) node(0).match_lie = nullptr;
    matches.push_back(Find(1, n, n));
  }
  node(1).peers.Of(node(0).process_number).room_bytes = 1u << 30;
  Event goes_on;
  bool held = true;
  node(0).before_find = [&](Executor&) -> Task<void> {
    if (held) co_await goes_on.Wait();
  };
  std::vector<Result<std::size_t>> outcomes(41, Result<std::size_t>(0));
  int ended = 0;
  TaskGroup readers(executor());
  const auto read = [&](std::size_t i) {
    readers.Spawn(ReadInto(executor(), 1, matches[i].run, After(10 * kSecond), &outcomes[i], &ended));
  };
  for (std::size_t i = 0; i < 40; ++i) read(i);
  RunFor(100'000);
  held = false;
  read(40);
  EXPECT_TRUE(RunUntil([&] { return ended == 1; }, kSecond));
  EXPECT_EQ(outcomes[40].value_or(0), 1u);
  goes_on.Set();
  ASSERT_TRUE(RunUntil([&] { return ended == 41; }));
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.value_or(0), 1u);
  loop->BlockOn(readers.Close());
}

TEST_F(ReadingTest, MemberThatABatchWaitsForIsForgottenWhenItHasEnded) {
  PeerMatch one, other;
  ASSERT_NO_FATAL_FAILURE(FindTwoThatFitOneByOne(&one, &other));
  TwoReads reads(*this, one, other);
  PeerTable& peers = node(1).peers;
  const std::uint64_t number = node(2).process_number;
  EXPECT_EQ(peers.Of(number).landing_bytes, 0u);
  peers.Forget(number);
  EXPECT_NE(peers.Find(number), nullptr) << "a batch knows it by its address";
  ASSERT_NO_FATAL_FAILURE(reads.End());
  EXPECT_EQ(reads.outcomes[1].value_or(0), 1u);
  const auto is_forgotten = [&] {
    peers.ForgetEnded();
    return peers.Find(number) == nullptr;
  };
  EXPECT_TRUE(RunUntil(is_forgotten, kSecond));
}

// What waits for room is begun in the namespace that it was found in, or not at all.
TEST_F(ReadingTest, WhatWasFoundAtAMemberThatIsNoMoreMakesItNotKnownAgain) {
  StartNodes(2);
  PutAndTell(0, 8);
  const PeerMatch match = Find(1, 1, 8);
  ASSERT_NE(match.run, nullptr);
  const std::uint64_t gone = node(0).process_number;
  node(1).peers.Forget(gone);
  for (int i = 0; i < Breaker::kFailures; ++i) {
    const auto read = Read(1, match);
    ASSERT_FALSE(read.has_value());
    EXPECT_EQ(read.error().code(), Code::kGone);
  }
  EXPECT_EQ(node(1).peers.Find(gone), nullptr);
  EXPECT_EQ(node(1).peers.Open(), 0u);
  EXPECT_EQ(node(1).reader->counters().failed.value(), 0u) << "it was not asked";
}

TEST_F(ReadingTest, NothingComesIntoTheNamespaceThatTookItsSlotMeanwhile) {
  PeerMatch one, other;
  ASSERT_NO_FATAL_FAILURE(FindTwoThatFitOneByOne(&one, &other));
  TwoReads reads(*this, one, other);
  ASSERT_TRUE(loop->BlockOn(node(1).store->DropNamespace(slot)).has_value());
  ASSERT_NO_FATAL_FAILURE(reads.End());
  for (const auto& outcome : reads.outcomes) EXPECT_EQ(outcome.error().code(), Code::kMiss);
  EXPECT_FALSE(Here(1, 1) || Here(1, 2));
}

TEST(RefusalsTest, WhatWasNotedAnewIsAmongTheLast) {
  Refusals refusals;
  const Refusal refusal{.peer = 1, .why = Status(Code::kBusy, "no room")};
  refusals.Note(1, store::Key(0), refusal);
  refusals.Forget(1, store::Key(0));
  for (std::uint64_t n = 1; n < Refusals::kMost; ++n) refusals.Note(1, store::Key(n), refusal);
  refusals.Note(1, store::Key(0), refusal);
  EXPECT_NE(refusals.Find(1, store::Key(0)), nullptr);
  EXPECT_NE(refusals.Find(1, store::Key(1)), nullptr);
  refusals.Note(1, store::Key(Refusals::kMost), refusal);
  EXPECT_EQ(refusals.Find(1, store::Key(1)), nullptr);
}

TEST_F(ReadingTest, WhatWasEvictedAtThePeerIsAMiss) {
  StartNodes(2);
  PutAndTell(0, 8);
  const PeerMatch match = Find(1, 1, 8);
  const BlockKey key = store::Key(5);
  ASSERT_TRUE(loop->BlockOn(node(0).store->Drop(slot, std::span(&key, 1))).has_value());
  EXPECT_EQ(Read(1, match).value_or(0), 4u);
  EXPECT_FALSE(Here(1, 5));
  EXPECT_EQ(node(1).reader->counters().batch_ns.count(), 0u) << "it did not come whole";
  // It told so: only what is left is asked for.
  ASSERT_TRUE(Told(0));
  EXPECT_EQ(Find(1, 1, 8, 4).run, nullptr);
}

// ---- lies ----------------------------------------------------------------------------------------------

class LiarTest : public ReadingTest {
 protected:
  // What node 0 answers from then on; how many of 8 blocks node 1 takes.
  std::size_t TakenWith(MeshNode::Lie lie) {
    StartNodes(2);
    PutAndTell(0, 8, 70'000);
    const PeerMatch match = Find(1, 1, 8);
    node(0).lie = std::move(lie);
    const std::size_t taken = Read(1, match).value_or(0);
    for (std::uint64_t n = 1; n <= 8; ++n) EXPECT_EQ(Here(1, n), Exact(1, n, 70'000)) << n;
    EXPECT_TRUE(RunUntil([&] { return node(1).reader->landing_bytes() == 0; }));
    EXPECT_EQ(node(1).store->occupancy().pending, 0u);
    return taken;
  }
  static void Change(net::RailSource::Answer& answer, const std::function<void(BlockHead&)>& change) {
    auto head = DecodeBlockHead(answer.head);
    ASSERT_TRUE(head.has_value());
    change(*head);
    answer.head = Encode(*head);
  }
};

TEST_F(LiarTest, TimeThatNobodyWaitsForIsNoneInThePast) {
  StartNodes(2);
  PutAndTell(0, 8);
  node(0).match_lie = [](MatchReply& reply) {
    for (MatchRun& run : reply.runs) run.ready_in_us = std::numeric_limits<std::int64_t>::max();
  };
  const PeerMatch match = Find(1, 1, 8);
  ASSERT_FALSE(match.runs.empty());
  for (const MatchRun& run : match.runs) EXPECT_GT(run.ready_in_us, 60 * kSecond);
}

TEST_F(LiarTest, FlippedByteIsAMiss) {
  std::vector<std::byte> other;
  int answers = 0;
  EXPECT_EQ(TakenWith([&](net::RailSource::Answer& answer) {
              if (++answers != 4) return;
              other.assign(answer.body[0].begin(), answer.body[0].end());
              other[69'999] ^= std::byte{1};
              answer.body = {net::ConstPiece(other)};
            }),
            3u);
}

TEST_F(LiarTest, AnotherBlocksBodyOrNameIsAMiss) {
  EXPECT_EQ(TakenWith([](net::RailSource::Answer& answer) {
              Change(answer, [](BlockHead& head) { head.key = store::Key(77); });
            }),
            0u);
}

TEST_F(LiarTest, AnotherParentIsAMiss) {
  EXPECT_EQ(TakenWith([](net::RailSource::Answer& answer) {
              Change(answer, [](BlockHead& head) { head.parent = store::Key(77); });
            }),
            0u);
}

TEST_F(LiarTest, PartsThatAreNotTheBodysAreAMiss) {
  EXPECT_EQ(TakenWith([](net::RailSource::Answer& answer) {
              Change(answer, [](BlockHead& head) { head.part_bytes = {69'000, 1'000}; });
            }),
            0u);
}

TEST_F(LiarTest, ShorterBodyIsAMiss) {
  EXPECT_EQ(TakenWith([](net::RailSource::Answer& answer) {
              answer.body[0] = answer.body[0].first(60'000);
              Change(answer, [](BlockHead& head) {
                head.part_bytes = {60'000};
                head.segment_crcs.resize(1);
              });
            }),
            0u);
}

TEST_F(LiarTest, GarbageIsAMiss) {
  Random random(4);
  EXPECT_EQ(TakenWith([&](net::RailSource::Answer& answer) {
              for (std::byte& byte : answer.head) byte = static_cast<std::byte>(random.Next());
            }),
            0u);
}

// ---- samples -------------------------------------------------------------------------------------------

TEST_F(ReadingTest, ChainThatIsNoneIsNoFaultOfThePeers) {
  StartNodes(2);
  Put(0, 1, std::nullopt);
  for (std::uint64_t n = 2; n <= 5; ++n) Put(0, n, 1);
  ASSERT_TRUE(Told(0));
  const PeerMatch match = Find(1, 1, 5);
  ASSERT_NE(match.run, nullptr);
  ASSERT_EQ(match.run->count, 5u);
  for (int i = 0; i < Breaker::kFailures; ++i) EXPECT_EQ(Read(1, match).value_or(0), 2u);
  EXPECT_FALSE(node(1).peers.Of(node(0).process_number).breaker.open());
}

TEST_F(ReadingTest, SamplesGoWithTheirBlocks) {
  StartNodes(2);
  PutAndTell(0, 16);
  const BlockKey key = store::Key(6);
  ASSERT_TRUE(loop->BlockOn(node(0).store->Drop(slot, std::span(&key, 1))).has_value());
  EXPECT_EQ(node(0).feed->samples(), 2u);
  ASSERT_TRUE(Told(0));
  EXPECT_EQ(BlocksOf(Find(1, 1, 16)), 5u);
  EXPECT_EQ(node(1).index->entries(), 2u);
  ASSERT_TRUE(loop->BlockOn(node(0).store->DropNamespace(slot)).has_value());
  EXPECT_TRUE(RunUntil([&] { return node(1).index->entries() == 0; }));
  EXPECT_EQ(node(0).feed->samples(), 0u);
}

TEST_F(ReadingTest, GapInWhatIsToldIsFilledByASnapshot) {
  StartNodes(2);
  node(0).links->lose_notices = true;
  PutChain(0, 1, 8);
  RunFor(100'000);
  EXPECT_EQ(node(1).index->entries(), 0u);
  node(0).links->lose_notices = false;
  const std::uint64_t snapshots = node(1).streams->snapshots();
  PutChain(0, 101, 104);
  EXPECT_TRUE(Told(0));
  EXPECT_EQ(node(1).index->entries(), 5u);
  EXPECT_EQ(node(1).streams->snapshots(), snapshots + 1);
}

TEST_F(ReadingTest, ChangesDuringASnapshotAreNotLost) {
  StartNodes(1);
  for (std::uint64_t chain = 0; chain < 30; ++chain) PutChain(0, 1 + 100 * chain, 40 + 100 * chain, 512);
  AddNode();
  // While it is on its way, chains come and go.
  for (int i = 0; i < 40; ++i) {
    RunFor(100);
    const BlockKey key = store::Key(1 + 100 * static_cast<std::uint64_t>(i % 20) + 3);
    (void)loop->BlockOn(node(0).store->Drop(slot, std::span(&key, 1)));
    PutChain(0, 10'001 + 100 * static_cast<std::uint64_t>(i), 10'008 + 100 * static_cast<std::uint64_t>(i),
             512);
  }
  ASSERT_TRUE(RunUntil([&] { return Know(); }));
  ASSERT_TRUE(Told(0));
  EXPECT_EQ(node(1).index->entries(), node(0).feed->samples());
  EXPECT_EQ(BlocksOf(Find(1, 1, 40)), 3u);
  EXPECT_EQ(BlocksOf(Find(1, 2'501, 2'540)), 40u);
}

TEST_F(ReadingTest, MemberThatIsGoneIsNotAskedAndForgotten) {
  StartNodes(3);
  PutAndTell(0, 8);
  const std::uint64_t gone = node(0).process_number;
  network.Cut("a", "b");
  network.Cut("b", "a");
  EXPECT_TRUE(RunUntil([&] { return node(1).links->Reachable().size() == 1; }, kSecond));
  EXPECT_EQ(Find(1, 1, 8).run, nullptr);
  EXPECT_EQ(node(1).links->questions[kMatchQuestion], 0);
  EXPECT_TRUE(RunUntil([&] { return node(1).index->entries() == 0; }, 20 * kSecond));
  EXPECT_EQ(node(1).streams->SamplesOf(gone), 0u);
  EXPECT_EQ(node(1).streams->Askable().count(), 1u);
  network.Heal("a", "b");
  network.Heal("b", "a");
  EXPECT_TRUE(RunUntil([&] { return Know(); }));
  EXPECT_NE(Find(1, 1, 8).run, nullptr);
}

TEST_F(ReadingTest, MemberThatConnectsAgainIsAskedWithoutASnapshot) {
  StartNodes(2);
  PutAndTell(0, 8);
  const std::uint64_t snapshots = node(1).streams->snapshots();
  network.Reset("a", "b");
  EXPECT_TRUE(RunUntil([&] { return node(1).links->Reachable().empty(); }));
  EXPECT_EQ(Find(1, 1, 8).run, nullptr);
  EXPECT_TRUE(RunUntil([&] { return node(1).links->Reachable().size() == 1; }));
  EXPECT_NE(Find(1, 1, 8).run, nullptr);
  EXPECT_EQ(node(1).streams->snapshots(), snapshots);
}

TEST_F(ReadingTest, MemberThatDidNotAnswerHidesNoOtherThatHasLess) {
  StartNodes(3);
  PutAndTell(0, 16);
  PutAndTell(1, 8);
  ASSERT_EQ(Find(2, 1, 16).run->peer, node(0).process_number);
  node(2).peers.Of(node(0).process_number).breaker.Failed(clock.Now(), true);
  const PeerMatch match = Find(2, 1, 16);
  ASSERT_NE(match.run, nullptr);
  EXPECT_EQ(match.run->peer, node(1).process_number);
  EXPECT_EQ(match.run->count, 8u);
}

TEST_F(ReadingTest, OtherHistoryBeginsAllSamplesAnew) {
  StartNodes(2);
  PutAndTell(0, 8);
  for (const std::size_t i : {0, 1}) node(i).rule.history = 99;
  RunFor(500'000);
  ASSERT_TRUE(Told(0));
  EXPECT_EQ(node(1).index->entries(), 3u);
  EXPECT_EQ(FindAndRead(1, 8), 8u);
}

TEST_F(ReadingTest, ChainOfMoreKeysThanAStepCopiesIsMatchedWhole) {
  StartNodes(2);
  PutChain(0, 1, 2'500, 512);
  ASSERT_TRUE(RunUntil([&] { return BlocksOf(Find(1, 1, 2'500)) == 2'500; }));
  const PeerMatch match = Find(1, 1, 2'500);
  EXPECT_EQ(match.run->chain, Chain(1, 2'500));
  EXPECT_EQ(match.run->count, 2'500u);
}

// A thirty-second of memory is room for 20 of their blocks: two windows' worth is not.
TEST_F(ReadingTest, WindowsOfAChainThatAreReadBesideEachOtherDoNotWaitForEachOthersRoom) {
  StartNodes(2);
  node(1).reader->SetMemory(PeerReadLimits::kMemoryShare * kWindowBytes);
  PutChain(0, 1, 60, 100'000);
  ASSERT_TRUE(RunUntil([&] { return BlocksOf(Find(1, 1, 60)) == 60; }));
  const PeerMatch match = Find(1, 1, 60);
  const Instant began = clock.Now();
  std::vector<Task<Result<std::size_t>>> reads;
  for (const std::size_t end : {20, 40, 60})
    reads.push_back(node(1).reader->Read(match.run, 0, end, 0, After(10'000'000)));
  for (std::size_t i = 0; i < reads.size(); ++i) {
    const Result<std::size_t> here = loop->BlockOn(std::move(reads[i]));
    ASSERT_TRUE(here.has_value()) << here.error().ToString();
    EXPECT_EQ(*here, 20 * (i + 1));
  }
  EXPECT_LT(clock.Now().UsSince(began), 5'000'000);
  for (std::uint64_t n = 1; n <= 60; ++n) EXPECT_TRUE(Exact(1, n, 100'000)) << n;
  EXPECT_EQ(node(1).reader->landing_bytes(), 0u);
}

// Node 1's memory is leased but for a few slots of the blocks that it reads from node 0.
class FullMemoryReadingTest : public ReadingTest {
 protected:
  void StartFull(const NamespaceSpec& spec, std::size_t bytes, std::uint64_t slots) {
    StartNodes(2, spec, {.headers = 1, .store = {.core_copy_bytes = 0}});
    const std::uint64_t all = memory::Slots::Capacity({4096, 1}, bytes + 4096);
    for (std::uint64_t n = kLeased; n < kLeased + all - slots; ++n) {
      Put(1, n, std::nullopt, bytes);
      const catalog::BlockName name{store::Key(n), 0};
      catalog::Caller caller{n, {}};
      std::memcpy(caller.owner.data(), &n, sizeof(n));
      auto grant = loop->BlockOn(
          node(1).store->Acquire(caller, slot, std::span(&name, 1), 60 * kSecond, After(kSecond)));
      ASSERT_TRUE(grant && grant->lease != 0) << n;
      leases_.push_back({caller, grant->lease});
    }
  }
  void EndLeases(std::size_t count) {
    for (; count > 0; --count, leases_.pop_back())
      ASSERT_TRUE(node(1).store->Release(leases_.back().first, leases_.back().second).ok());
  }

 private:
  static constexpr std::uint64_t kLeased = 1000;
  std::vector<std::pair<catalog::Caller, catalog::LeaseId>> leases_;
};

TEST_F(FullMemoryReadingTest, WhatHasLandedIsVisibleWhileTheNextBlockWaitsForASlot) {
  constexpr std::size_t kBytes = 1u << 20;  // a batch
  StartFull(Blocks(), kBytes, 3);
  PutAndTell(0, 4, kBytes);
  const PeerMatch match = Find(1, 1, 4);
  ASSERT_NE(match.run, nullptr);
  // A save of a block that fills a slot for as long as its mover takes.
  node(1).movers.paused = true;
  const std::vector<std::byte> body = store::Body(500, kBytes);
  const store::PartWrite part{.key = store::Key(500), .put_id = {9, 1}, .from = body};
  auto saving = node(1).store->Write({1, {std::byte{1}}}, slot, {part}, After(60 * kSecond));
  Status why;
  auto reading = node(1).reader->Read(match.run, 0, 4, 0, After(30 * kSecond), &why);
  EXPECT_TRUE(RunUntil([&] { return Here(1, 1) && Here(1, 2); }));
  EXPECT_FALSE(reading.done());
  node(1).movers.MoveOne(0);
  node(1).movers.paused = false;
  EXPECT_EQ(loop->BlockOn(std::move(saving))[0].state, store::PartOutcome::State::kPublished);
  EXPECT_EQ(loop->BlockOn(std::move(reading)).value_or(0), 3u);
  EXPECT_EQ(why.code(), Code::kBusy);
  EXPECT_FALSE(Here(1, 500)) << "its slot is what the third block has";
}

TEST_F(FullMemoryReadingTest, BlockOfWhichOneGroupHasNoSlotIsNotAskedForInTheOther) {
  constexpr std::size_t kBytes = 60'000;
  NamespaceSpec spec = Blocks();
  spec.groups = {{.name = "one"}, {.name = "other"}};
  StartFull(spec, kBytes, 3);
  for (std::uint64_t n = 1; n <= 2; ++n) {
    for (std::uint16_t group = 0; group < 2; ++group) {
      const std::vector<std::byte> body = store::Body(n + 10 * group, kBytes);
      store::PartWrite part{
          .key = store::Key(n), .group = group, .put_id = {5, n + 10 * group}, .from = body};
      if (n > 1) part.parent = store::Key(n - 1);
      (void)loop->BlockOn(node(0).store->Write({1, {std::byte{1}}}, slot, {part}, After(kSecond)));
    }
  }
  ASSERT_TRUE(Told(0));
  const PeerMatch match = Find(1, 1, 2);
  ASSERT_NE(match.run, nullptr);
  ASSERT_EQ(match.run->count, 2u);
  int asked = 0;
  node(0).before_find = [&](Executor&) -> Task<void> {
    ++asked;
    co_return;
  };
  EXPECT_EQ(Read(1, match).value_or(0), 1u);
  EXPECT_EQ(asked, 2);
  EndLeases(1);
  EXPECT_EQ(Read(1, match).value_or(0), 2u);
  EXPECT_EQ(asked, 4);
  EXPECT_EQ(node(1).ReadBody(slot, store::Key(2), 1), store::Body(12, kBytes));
}

// The list of keys is the client's: a key that it names twice is not what it itself stands on.
TEST_F(ReadingTest, RunThatNamesAKeyTwiceDoesNotWaitForItself) {
  StartNodes(2);
  PutAndTell(0, 3);
  const PeerMatch match = Find(1, 1, 3);
  ASSERT_NE(match.run, nullptr);
  ASSERT_EQ(loop->BlockOn(node(1).reader->Read(match.run, 0, 2, 0, After(kSecond))).value_or(0), 2u);
  auto twice = std::make_shared<PeerRun>(*match.run);
  twice->chain.push_back(twice->chain[1]);
  twice->count = 4;
  EXPECT_GE(loop->BlockOn(node(1).reader->Read(twice, 2, 2, 0, After(kSecond))).value_or(0), 1u);
  EXPECT_TRUE(Exact(1, 3));
}

TEST_F(ReadingTest, WindowThatFailedIsFetchedAnewThoughTheNextOneHasTheRoom) {
  StartNodes(2);
  node(1).reader->SetMemory(PeerReadLimits::kMemoryShare * kWindowBytes);
  PutChain(0, 1, 60, 100'000);
  ASSERT_TRUE(RunUntil([&] { return BlocksOf(Find(1, 1, 60)) == 60; }));
  const PeerMatch match = Find(1, 1, 60);
  int asked = 0;
  Event go_on;
  node(0).before_find = [&](Executor&) -> Task<void> {
    if (++asked > 20) co_await go_on.Wait();
  };
  node(0).lie = [first = true](net::RailSource::Answer& answer) mutable {
    if (std::exchange(first, false)) answer.status = Status(Code::kMiss, "a lie");
  };
  const auto read = [&](std::size_t end) {
    return node(1).reader->Read(match.run, 0, end, 0, After(20'000'000));
  };
  Task<Result<std::size_t>> failing = read(20), next = read(40);
  EXPECT_FALSE(loop->BlockOn(std::move(failing)).has_value());
  ASSERT_TRUE(RunUntil([&] { return node(1).reader->transfers() == 20 && asked > 20; }));
  const Instant began = clock.Now();
  Task<Result<std::size_t>> anew = read(60);
  go_on.Set();
  (void)loop->BlockOn(std::move(next));
  EXPECT_EQ(loop->BlockOn(std::move(anew)).value_or(0), 20u);
  // Blocks that are here take no room of those that are not.
  ASSERT_TRUE(RunUntil([&] { return node(1).reader->transfers() == 0; }, 5'000'000));
  EXPECT_EQ(loop->BlockOn(read(60)).value_or(0), 60u);
  EXPECT_LT(clock.Now().UsSince(began), 5'000'000);
  for (std::uint64_t n = 1; n <= 60; ++n) EXPECT_TRUE(Exact(1, n, 100'000)) << n;
}

TEST_F(ReadingTest, WindowsUnderWayFromAPeerThatDiesEndLongBeforeTheirDeadline) {
  StartNodes(2);
  node(1).reader->SetMemory(PeerReadLimits::kMemoryShare * kWindowBytes);
  PutChain(0, 1, 100, 100'000);
  ASSERT_TRUE(RunUntil([&] { return BlocksOf(Find(1, 1, 100)) == 100; }));
  const PeerMatch match = Find(1, 1, 100);
  int asked = 0;
  node(0).before_find = [&](Executor& on) -> Task<void> {
    (void)on;
    if (++asked != 8) co_return;
    network.Reset("a", "b");
    network.Stop("a");
  };
  const Instant began = clock.Now();
  std::deque<Task<Result<std::size_t>>> reads;
  // Each that ends is followed by the next one, as the windows of a client's read are.
  for (const std::size_t end : {20, 40, 60, 80, 100}) {
    if (reads.size() == 2) {
      (void)loop->BlockOn(std::move(reads.front()));
      reads.pop_front();
    }
    reads.push_back(node(1).reader->Read(match.run, 0, end, 0, After(20'000'000)));
  }
  for (Task<Result<std::size_t>>& read : reads) (void)loop->BlockOn(std::move(read));
  EXPECT_GE(asked, 8);
  EXPECT_LT(clock.Now().UsSince(began), 10'000'000);
  EXPECT_EQ(node(1).reader->landing_bytes(), 0u);
}

// ---- over a fabric

TEST_F(ReadingTest, BodiesAreReadFromAPeersMemory) {
  net::SimulatedFabric::Members members;
  StartNodes(2, Blocks(), {.fabric = &members});
  Put(0, 1, std::nullopt, 150'000);
  Put(0, 2, 1);
  ASSERT_TRUE(RunUntil([&] { return Find(1, 1, 2).run != nullptr; }));
  // The rail's first batch may be asked before the other side has said what it has.
  (void)Read(1, Find(1, 1, 1));
  for (std::uint64_t n = 3; n <= 5; ++n) Put(0, n, n - 1, 150'000);
  ASSERT_TRUE(RunUntil([&] { return BlocksOf(Find(1, 1, 5)) >= 5; }));
  EXPECT_GE(Read(1, Find(1, 1, 5)).value_or(0), 3u);
  for (const std::uint64_t n : {1u, 3u, 4u, 5u}) EXPECT_TRUE(Exact(1, n, 150'000)) << n;
  EXPECT_TRUE(Exact(1, 2));
  EXPECT_GE(node(1).fabric->landed, 3u);
  while (!nodes.empty()) nodes.pop_back();
}

// R1: the holder's slot is another record's while the device reads it.
TEST_F(ReadingTest, ARecordThatGoesUnderTheDevicesReadIsAMiss) {
  net::SimulatedFabric::Members members;
  StartNodes(2, Blocks(), {.fabric = &members});
  Put(0, 1, std::nullopt);
  ASSERT_TRUE(RunUntil([&] { return Find(1, 1, 1).run != nullptr; }));
  (void)Read(1, Find(1, 1, 1));
  Put(0, 2, 1, 150'000);
  ASSERT_TRUE(RunUntil([&] { return BlocksOf(Find(1, 1, 2)) >= 2; }));
  node(1).fabric->faults.read_us = 20'000;
  const PeerMatch match = Find(1, 1, 2);
  const int before = node(1).fabric->reads;
  auto read = node(1).reader->Read(match.run, match.run->first, match.run->count, 0, After(1'000'000));
  ASSERT_TRUE(RunUntil([&] { return node(1).fabric->reads > before; }));
  const BlockKey key = store::Key(2);
  ASSERT_TRUE(loop->BlockOn(node(0).store->Drop(slot, std::span(&key, 1))).has_value());
  (void)loop->BlockOn(std::move(read));
  EXPECT_FALSE(Here(1, 2));
  while (!nodes.empty()) nodes.pop_back();
}

}  // namespace
}  // namespace cistern::mesh
