// SPDX-License-Identifier: Apache-2.0
// What one node has and another reads: that it is found, comes whole, exact and under its own name and time.
#include "mesh/test_reading.h"

namespace cistern::mesh {
namespace {

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

TEST_F(ReadingTest, ChainOfMoreKeysThanAStepCopiesIsMatchedWhole) {
  StartNodes(2);
  PutChain(0, 1, 2'500, 512);
  ASSERT_TRUE(RunUntil([&] { return BlocksOf(Find(1, 1, 2'500)) == 2'500; }));
  const PeerMatch match = Find(1, 1, 2'500);
  EXPECT_EQ(match.run->chain, Chain(1, 2'500));
  EXPECT_EQ(match.run->count, 2'500u);
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
