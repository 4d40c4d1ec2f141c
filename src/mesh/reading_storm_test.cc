// SPDX-License-Identifier: Apache-2.0
// Nodes with real stores under random puts, reads of each other, drops that each sees and applies in its own
// time, evictions, times to live, cut ways, broken connections, slow and lying members. What is read is
// exact, and what a drop covers that every node has applied is read by nobody.
#include "mesh/test_mesh_storm.h"

namespace cistern::mesh {
namespace {

constexpr net::SimulatedFabric::Faults kFabricFaults = {
    .read_us = 2'000, .refused = 0.005, .silent = 0.001, .late = 0.9, .late_us = 20'000};

class ReadingStormTest : public MeshStorm {
 protected:
  // Reads that have landed.
  std::uint64_t CheckFabrics() {
    std::uint64_t landed = 0;
    for (auto& each : nodes) {
      if (!each->fabric) continue;
      landed += each->fabric->landed;
      EXPECT_EQ(each->fabric->unsafe, 0u) << "no part of a reader's buffer is used again before it is closed";
    }
    return landed;
  }
};

TEST_P(ReadingStormTest, WhatIsReadIsExactAndWhatIsDroppedStaysGone) {
  TestNodeOptions options;
  options.store.max_blocks = 60;
  // Every second time bodies are read from the others' memory, which refuses some and is silent to others;
  // what was given up may land as long as its endpoint is open.
  net::SimulatedFabric::Members members;
  const bool fetched = GetParam() % 2 == 0;
  if (fetched) options.fabric = &members;
  options.fabric_seed = static_cast<std::uint64_t>(GetParam());
  NamespaceSpec spec = Blocks();
  spec.block_tokens = 256;
  StartNodes(kNodes, spec, options);
  TaskGroup calls(executor()), follows(executor());
  for (std::size_t i = 0; i < kNodes; ++i) {
    if (fetched) node(i).fabric->faults = kFabricFaults;
    follows.Spawn(FollowDrops(executor(), i));
    node(i).before_find = [this](Executor&) { return Pass(random_.Chance(0.3) ? Random(20'000) : 0); };
    node(i).lie = [this](net::RailSource::Answer& answer) {
      if (!random_.Chance(0.01)) return;
      answer.head[static_cast<std::size_t>(Random(static_cast<std::int64_t>(answer.head.size())))] ^=
          std::byte{4};
    };
  }
  const char* const hosts[] = {"a", "b", "c"};
  for (int step = 0; step < 1'500 && !HasFatalFailure(); ++step) {
    const auto i = static_cast<std::size_t>(Random(kNodes));
    const auto n = static_cast<std::uint64_t>(1 + Random(kBlocks - 1));
    const std::int64_t what = Random(100);
    if (what < 20) {
      calls.Spawn(PutPath(executor(), i, n));
    } else if (what < 80) {
      calls.Spawn(FindAndRead(executor(), i, n, 500 + Random(60'000)));
    } else if (what < 88) {
      IssueDrop(n);
    } else if (what < 90) {
      const char *one = hosts[Random(kNodes)], *other = hosts[Random(kNodes)];
      network.Cut(one, other);
    } else if (what < 94) {
      for (const char* one : hosts) {
        for (const char* other : hosts) network.Heal(one, other);
      }
    } else if (what < 95) {
      network.Reset(hosts[Random(kNodes)], hosts[Random(kNodes)]);
    }
    RunFor(Random(1'500));
    if (step % 25 == 0) Check();
  }
  for (const char* one : hosts) {
    for (const char* other : hosts) network.Heal(one, other);
  }
  loop->BlockOn(calls.Close());
  RunFor(200'000);
  Check();
  for (const DropOf& drop : issued_) EXPECT_EQ(drop.applied, kNodes);
  for (auto& each : nodes) {
    EXPECT_EQ(each->reader->landing_bytes(), 0u);
    EXPECT_EQ(each->reader->transfers(), 0u);
    EXPECT_LE(each->store->TakeLongestStep(), kStepTouches);
  }
  const std::uint64_t over_fabric = CheckFabrics();
  EXPECT_EQ(over_fabric > 50, fetched);
  EXPECT_EQ(late_, 0u);
  EXPECT_GT(taken_, 100u);
  EXPECT_GT(checked_, 1'000u);
  follows.Drop();
  RecordProperty("taken", static_cast<int>(taken_));
  RecordProperty("over_fabric", static_cast<int>(over_fabric));
  while (!nodes.empty()) nodes.pop_back();
}

INSTANTIATE_TEST_SUITE_P(Seeds, ReadingStormTest, ::testing::Range(1, 5));

}  // namespace
}  // namespace cistern::mesh
