// SPDX-License-Identifier: Apache-2.0
// Blocks of an arena that is divided among memory nodes.
#include <gtest/gtest.h>

#include <vector>

#include "store/block_store_fixture.h"

namespace cistern::store {
namespace {

constexpr std::size_t kBytes = 1'000'000;

class MemoryNodesTest : public BlockStoreTest {
 protected:
  void SetUp() override { Make({.headers = 8, .nodes = 2}); }

  State PutFrom(std::uint8_t node, std::uint64_t n, std::optional<std::uint64_t> parent = std::nullopt) {
    catalog::Caller caller = Me();
    caller.memory_node = node;
    const PartOutcome outcome = Write({Part(n, parent, kBytes)}, caller)[0];
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.ToString();
    return outcome.state;
  }
  // Not in turn, as blocks of any node would lie.
  static std::uint8_t Of(std::uint64_t n) { return n % 3 == 0 ? 1 : 0; }
  // kAnyNode: it is not in memory.
  memory::NodeIndex NodeOf(std::uint64_t n) {
    const AcquireGrant grant = Acquire({n}, Me());
    if (grant.lease == 0) return memory::kAnyNode;
    EXPECT_TRUE(t->store->Release(Me(), grant.lease).ok());
    return t->slots->NodeOf(grant.views[0].place);
  }
  // How many fit on a node.
  std::uint64_t Fit() const { return memory::Slots::Capacity({4096, 4}, record::RecordBytes(kBytes, 4096)); }
};

TEST_F(MemoryNodesTest, ABlockLandsWhereItsEngineRuns) {
  for (std::uint64_t n = 0; n < 40; ++n) ASSERT_EQ(PutFrom(Of(n), n), State::kPublished);
  for (std::uint64_t n = 0; n < 40; ++n) {
    EXPECT_EQ(NodeOf(n), Of(n)) << n;
    EXPECT_TRUE(Exact(n, kBytes));
  }
}

TEST_F(MemoryNodesTest, WhatItsNodeHasNoRoomForLandsOnAnotherBeforeAnythingLeaves) {
  for (std::uint64_t n = 0; n < 2 * Fit(); ++n) ASSERT_EQ(PutFrom(0, n), State::kPublished);
  EXPECT_EQ(t->store->counters().evicted.value(), 0u);
  EXPECT_EQ(NodeOf(0), 0);
  EXPECT_EQ(NodeOf(2 * Fit() - 1), 1);
}

TEST_F(MemoryNodesTest, AFullNodeGivesUpItsOwnColdestUnlessTheOthersIsLeftForTwiceAsLong) {
  const std::uint64_t fit = Fit();
  // Both are full, and their blocks about as old.
  for (std::uint64_t n = 0; n < 2 * fit; ++n) ASSERT_EQ(PutFrom(n % 2, n), State::kPublished);
  for (std::uint64_t n = 0; n < fit / 4; ++n) {
    ASSERT_EQ(PutFrom(1, 1000 + n), State::kPublished);
    EXPECT_EQ(NodeOf(1000 + n), 1) << n;
    EXPECT_EQ(NodeOf(2 * n + 1), memory::kAnyNode) << "its own coldest";
    EXPECT_EQ(NodeOf(2 * n), 0) << "not the other's";
  }
  // An engine alone has all of the memory in the end, and not its node's only.
  for (std::uint64_t n = 0; n < 6 * fit; ++n) ASSERT_EQ(PutFrom(1, 2000 + n), State::kPublished);
  std::uint64_t here = 0, on_other = 0;
  for (std::uint64_t n = 0; n < 6 * fit; ++n) {
    const memory::NodeIndex node = NodeOf(2000 + n);
    here += node != memory::kAnyNode;
    on_other += node == 0;
  }
  EXPECT_GT(here, fit + fit / 2);
  EXPECT_GT(on_other, fit / 2);
}

TEST_F(MemoryNodesTest, P7ARestartFindsEachBlockOnItsNode) {
  for (std::uint64_t n = 0; n < 40; ++n) ASSERT_EQ(PutFrom(Of(n), n), State::kPublished);
  t->Restart();
  ASSERT_TRUE(t->recovered.ok());
  for (std::uint64_t n = 0; n < 40; ++n) {
    EXPECT_EQ(NodeOf(n), Of(n)) << n;
    EXPECT_TRUE(Exact(n, kBytes));
  }
}

}  // namespace
}  // namespace cistern::store
