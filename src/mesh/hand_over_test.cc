// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "mesh/test_mesh.h"

namespace cistern::mesh {
namespace {

class HandOverTest : public MeshTest {
 protected:
  // Node `i` drains and hands over what it has.
  store::HandedOver Give(std::size_t i, std::int64_t us = 10'000'000) {
    node(i).SetDraining(true);
    return loop->BlockOn(node(i).giver->Give(After(us)));
  }
  // Nodes but `but` that have the block, exactly.
  std::size_t HaveExactly(std::uint64_t n, std::size_t but, std::size_t bytes = 4096) {
    std::size_t have = 0;
    for (std::size_t i = 0; i < nodes.size(); ++i) have += i != but && Exact(i, n, bytes) ? 1 : 0;
    return have;
  }
};

TEST_F(HandOverTest, WhatANodeHasAnotherTakesExactly) {
  StartNodes(2);
  PutChain(0, 1, 200);
  const store::HandedOver handed = Give(0);
  EXPECT_EQ(handed.members, 1u);
  EXPECT_EQ(handed.blocks, 200u);
  EXPECT_EQ(handed.bytes, 200u * 4096);
  EXPECT_EQ(handed.left, 0u);
  for (std::uint64_t n = 1; n <= 200; ++n) ASSERT_TRUE(Exact(1, n)) << n;
  EXPECT_EQ(node(1).taker->counters().blocks.value(), 200u);
  EXPECT_EQ(node(0).store->occupancy().leases + node(1).store->occupancy().leases, 0u);
}

}  // namespace
}  // namespace cistern::mesh
