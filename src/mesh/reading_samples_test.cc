// SPDX-License-Identifier: Apache-2.0
// What members tell each other of what they have, and which of it is not told.
#include "mesh/test_reading.h"

namespace cistern::mesh {
namespace {

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

TEST_F(ReadingTest, OtherHistoryBeginsAllSamplesAnew) {
  StartNodes(2);
  PutAndTell(0, 8);
  for (const std::size_t i : {0, 1}) node(i).rule.history = 99;
  RunFor(500'000);
  ASSERT_TRUE(Told(0));
  EXPECT_EQ(node(1).index->entries(), 3u);
  EXPECT_EQ(FindAndRead(1, 8), 8u);
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

}  // namespace
}  // namespace cistern::mesh
