// SPDX-License-Identifier: Apache-2.0
// Nodes with real stores that hand over to each other what they have, one of which stores alone: at drains
// that begin and are given up, in the background, to members that join anew; under random puts and reads,
// drops that each sees and applies in its own time, evictions, times to live, cut ways and broken
// connections. What is read is exact, and what a drop covers that every node has applied is read by nobody.
#include "mesh/test_mesh_storm.h"

namespace cistern::mesh {
namespace {

class HandOverStormTest : public MeshStorm {
 protected:
  Task<void> DrainFor(Executor&, std::size_t i, std::int64_t us, bool lower_tier) {
    node(i).SetDraining(true);
    const Instant deadline = After(us);
    const store::HandedOver handed =
        co_await node(i).giver->Give({.deadline = deadline, .lower_tier = lower_tier});
    given_ += handed.blocks;
    // An offer ends by its deadline, and a fetch for it soon.
    late_ += clock.Now().UsSince(deadline) > 1'000'000 ? 1 : 0;
    node(i).SetDraining(false);
  }

  std::uint64_t given_ = 0;
};

TEST_P(HandOverStormTest, WhatIsHandedOverIsExactAndWhatIsDroppedStaysGone) {
  TestNodeOptions options{.spreads = true, .copies = 2};
  options.store.max_blocks = 60;
  options.lower_tier = GetParam() % 2 == 0;
  if (options.lower_tier) options.store.max_lower_blocks = 200;
  NamespaceSpec spec = Blocks();
  spec.block_tokens = 256;
  for (std::size_t i = 0; i < kNodes; ++i) {
    TestNodeOptions of = options;
    if (i + 1 == kNodes) of.role = Role::kStore;
    AddNode(spec, of);
  }
  ASSERT_TRUE(RunUntil([&] { return Know(); }));
  TaskGroup calls(executor()), follows(executor());
  for (std::size_t i = 0; i < kNodes; ++i) {
    follows.Spawn(FollowDrops(executor(), i));
    node(i).before_find = [this](Executor&) { return Pass(random_.Chance(0.3) ? Random(20'000) : 0); };
  }
  const char* const hosts[] = {"a", "b", "c"};
  for (int step = 0; step < 1'500 && !HasFatalFailure(); ++step) {
    const auto i = static_cast<std::size_t>(Random(kNodes));
    const auto n = static_cast<std::uint64_t>(1 + Random(kBlocks - 1));
    const std::int64_t what = Random(100);
    if (what < 40) {
      calls.Spawn(PutPath(executor(), i % (kNodes - 1), n));
    } else if (what < 60) {
      calls.Spawn(FindAndRead(executor(), i, n, 500 + Random(60'000)));
    } else if (what < 72) {
      IssueDrop(n);
    } else if (what < 78) {
      calls.Spawn(DrainFor(executor(), i % (kNodes - 1), Random(2'000'000), random_.Chance(0.5)));
    } else if (what < 80) {
      network.Cut(hosts[Random(kNodes)], hosts[Random(kNodes)]);
    } else if (what < 86) {
      for (const char* one : hosts) {
        for (const char* other : hosts) network.Heal(one, other);
      }
    } else if (what < 88) {
      network.Reset(hosts[Random(kNodes)], hosts[Random(kNodes)]);
    } else if (what < 90) {
      // As if it had joined anew.
      for (std::size_t other = 0; other < kNodes; ++other) {
        if (other != i) node(other).peers.Of(node(i).process_number).greeted = false;
        if (other != i) node(other).spreader->Heard(node(i).process_number, node(i).room);
      }
    }
    RunFor(Random(random_.Chance(0.1) ? 1'000'000 : 5'000));
    if (step % 25 == 0) Check();
  }
  for (const char* one : hosts) {
    for (const char* other : hosts) network.Heal(one, other);
  }
  loop->BlockOn(calls.Close());
  RunFor(30'000'000);
  Check();
  std::uint64_t taken = 0, copied = 0, refused = 0;
  for (auto& each : nodes) {
    EXPECT_EQ(each->reader->landing_bytes(), 0u);
    EXPECT_EQ(each->reader->transfers(), 0u);
    EXPECT_LE(each->store->TakeLongestStep(), kStepTouches);
    taken += each->taker->counters().blocks.value();
    copied += each->spreader->counters().copied_blocks.value();
    refused += each->taker->counters().refused.value();
  }
  EXPECT_EQ(node(kNodes - 1).spreader->counters().copied_blocks.value(), 0u);
  EXPECT_EQ(late_, 0u);
  EXPECT_GT(taken, 100u);
  EXPECT_GT(copied, 20u);
  EXPECT_GT(refused, 0u);
  EXPECT_GT(given_, 100u);
  EXPECT_GT(checked_, 1'000u);
  for (const DropOf& drop : issued_) EXPECT_EQ(drop.applied, kNodes);
  follows.Drop();
  while (!nodes.empty()) nodes.pop_back();
}

INSTANTIATE_TEST_SUITE_P(Seeds, HandOverStormTest, ::testing::Range(1, 5));

}  // namespace
}  // namespace cistern::mesh
