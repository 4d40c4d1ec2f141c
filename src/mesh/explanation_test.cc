// SPDX-License-Identifier: Apache-2.0
// Each finding, made to happen at nodes of a simulated cell.
#include "mesh/explanation.h"

#include <gtest/gtest.h>

#include "mesh/test_mesh.h"

namespace cistern::mesh {
namespace {

class ExplanationTest : public MeshTest {
 protected:
  // Of the chain's last block, at the node.
  Explanation Of(std::size_t i, std::uint64_t first, std::uint64_t last, std::int64_t us = 1'000'000) {
    const std::vector<BlockKey> chain = Chain(first, last);
    const FindingParts parts{loop->executor(), *node(i).store, *node(i).finder,
                             *node(i).reader,  node(i).rule,   *node(i).names};
    auto facts = loop->BlockOn(GatherFacts(parts, slot, chain, After(us)));
    if (!facts) return {Finding::kUnknown, facts.error().ToString(), {}};
    for (std::size_t n = 0; n < nodes.size(); ++n) facts->ids[node(n).process_number] = node(n).host;
    return Explain(*facts);
  }
  Finding FindingOf(std::size_t i, std::uint64_t first, std::uint64_t last) {
    return Of(i, first, last).finding;
  }
};

TEST_F(ExplanationTest, AtAPeerHereOnceReadAndUnknownWithoutItsChainToo) {
  StartNodes(3);
  PutChain(0, 1, 8);
  ASSERT_TRUE(RunUntil([&] { return Find(1, 1, 8).run != nullptr; }));
  const Explanation there = Of(1, 1, 8);
  EXPECT_EQ(there.finding, Finding::kAtPeer) << there.text;
  EXPECT_EQ(there.member, "a");
  EXPECT_EQ(FindingOf(1, 7, 7), Finding::kAtPeer) << "asked for alone, and no sample";
  EXPECT_EQ(FindingOf(1, 1, 9), Finding::kUnknown);
  ASSERT_TRUE(Read(1, Find(1, 1, 8)).has_value());
  EXPECT_EQ(FindingOf(1, 1, 8), Finding::kHere);
  EXPECT_EQ(FindingOf(0, 1, 8), Finding::kHere);
}

TEST_F(ExplanationTest, DroppedBeingDroppedAndRefusedWhereTheHolderHasNotAppliedIt) {
  StartNodes(2);
  PutChain(0, 1, 8);
  const std::int64_t revision = Drop({4});
  See(1, revision, false);
  const Explanation refused = Of(1, 1, 8);
  EXPECT_EQ(refused.finding, Finding::kRefused) << refused.text;
  EXPECT_EQ(refused.member, "a");
  EXPECT_NE(refused.text.find("revision 1 covers it"), std::string::npos) << refused.text;
  EXPECT_EQ(FindingOf(1, 1, 3), Finding::kAtPeer) << "above the drop";
  See(0, revision);
  EXPECT_EQ(FindingOf(1, 1, 8), Finding::kBeingDropped);
  EXPECT_EQ(FindingOf(0, 1, 8), Finding::kDropped);
}

TEST_F(ExplanationTest, RefusedFromBehindTheList) {
  StartNodes(2);
  PutChain(0, 1, 4);
  node(1).rule.list.Restart(5);
  node(1).rule.applied = 5;
  const Explanation refused = Of(1, 1, 4);
  EXPECT_EQ(refused.finding, Finding::kRefused) << refused.text;
  EXPECT_NE(refused.text.find("no longer all listed"), std::string::npos) << refused.text;
}

TEST_F(ExplanationTest, BadBytesOfAPeer) {
  StartNodes(2);
  PutChain(0, 1, 4);
  ASSERT_TRUE(RunUntil([&] { return Find(1, 1, 4).run != nullptr; }));
  // Of the last checksum.
  node(0).lie = [](net::RailSource::Answer& answer) { answer.head.rbegin()[16] ^= std::byte{1}; };
  EXPECT_FALSE(Read(1, Find(1, 1, 4)).has_value());
  const Explanation bad = Of(1, 1, 1);
  EXPECT_EQ(bad.finding, Finding::kBadBytes) << bad.text;
  EXPECT_EQ(bad.member, "a");
  node(0).lie = nullptr;
  ASSERT_TRUE(Read(1, Find(1, 1, 4)).has_value());
  EXPECT_EQ(FindingOf(1, 1, 1), Finding::kHere);
}

TEST_F(ExplanationTest, EvictedExpiredOrphanedAndPending) {
  TestNodeOptions options;
  options.store.max_blocks = 8;
  StartNodes(2, Blocks(), options);
  PutChain(0, 1, 2);
  for (std::uint64_t n = 100; n < 120; ++n) Put(0, n, std::nullopt);
  EXPECT_EQ(FindingOf(0, 1, 1), Finding::kEvicted);
  Put(1, 50, std::nullopt, 4096, 1);
  Put(1, 51, 50);
  RunFor(3'000'000);
  EXPECT_EQ(FindingOf(1, 50, 50), Finding::kExpired);
  EXPECT_EQ(FindingOf(1, 50, 51), Finding::kOrphaned);
  Put(1, 61, 60);
  EXPECT_EQ(FindingOf(1, 60, 61), Finding::kPending);
}

TEST_F(ExplanationTest, PeerThatDoesNotAnswerIsNamed) {
  StartNodes(3);
  node(0).stopped = true;
  const Explanation first = Of(1, 1, 1, 100'000);
  EXPECT_EQ(first.finding, Finding::kNotAsked) << first.text;
  const Explanation later = Of(1, 1, 1);
  EXPECT_EQ(later.finding, Finding::kNotAsked);
  EXPECT_EQ(later.text, "nobody has it of those who answered, and these did not: a (did not answer lately)");
}

TEST_F(ExplanationTest, NodeInNoCellAndReadsThatAreOff) {
  StartNodes(2);
  PutChain(0, 1, 4);
  node(1).rule.joined = false;
  EXPECT_EQ(FindingOf(1, 1, 4), Finding::kAlone);
  node(1).rule.joined = true;
  ASSERT_TRUE(loop->BlockOn(node(1).store->Turn(store::Switch::kReads, false, "")).has_value());
  EXPECT_EQ(FindingOf(1, 1, 4), Finding::kReadsOff);
}

TEST_F(ExplanationTest, NamespaceOfWindowsAloneIsNotShared) {
  NamespaceSpec spec = Blocks();
  spec.groups = {{.name = "window", .reach = Reach::kWindow, .window_tokens = 128}};
  StartNodes(2, spec);
  Put(0, 1, std::nullopt);
  EXPECT_EQ(FindingOf(0, 1, 1), Finding::kHere);
  EXPECT_EQ(FindingOf(1, 1, 1), Finding::kNotShared);
}

}  // namespace
}  // namespace cistern::mesh
