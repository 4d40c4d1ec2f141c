// SPDX-License-Identifier: Apache-2.0
#include "memory/node_movers.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "arena/test_arena.h"
#include "base/clock.h"
#include "base/remote_queue.h"
#include "io/loop.h"

namespace cistern::memory {
namespace {

class OnThread final : public AwaitedJob {
 public:
  OnThread(Movers& movers, const std::byte* at) : AwaitedJob(movers), at_(at) {}
  void Move(arena::Words&) override { ran_on = std::this_thread::get_id(); }
  const std::byte* WorksOn() const override { return at_; }
  std::thread::id ran_on;

 private:
  const std::byte* at_;
};

class NodeMoversTest : public testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<io::Loop>> loop = io::MakeLoop(clock_, {.kind = io::LoopKind::kEpoll});
    ASSERT_TRUE(loop) << loop.error().ToString();
    loop_ = std::move(*loop);
    movers_ =
        std::make_unique<NodeMovers>(NodeMovers::Parts{words_, clock_, node_.arena, plan_, nodes_},
                                     ThreadMoversOptions{}, [this](Work& job) { loop_->PostRemote(job); });
  }
  const std::byte* SlotsOf(std::uint32_t header) const {
    return node_.arena.slot(node_.arena.geometry().place(header * arena::kHeaderSpanBytes));
  }
  Task<std::thread::id> Run(Executor&, const std::byte* at) {
    OnThread job(*movers_, at);
    co_await job;
    co_return job.ran_on;
  }

  SystemClock clock_;
  arena::RealWords words_;
  arena::TestArena<arena::RealWords> node_{words_, 72u << 12, {4096, 8}};
  // Of a host with two; that they cannot run there hinders nothing.
  const std::vector<MemoryNode> nodes_ = {{.number = 0, .processors = {5000}},
                                          {.number = 1, .processors = {5001}}};
  const NodePlan plan_{2, 8};
  std::unique_ptr<io::Loop> loop_;
  std::unique_ptr<NodeMovers> movers_;
};

TEST_F(NodeMoversTest, AJobOnFarMemoryIsDoneByAnyOfThoseThatRunNear) {
  const NodePlan plan(std::vector<std::uint32_t>{1, 1, 1}, 2, 8);
  const std::vector<MemoryNode> nodes = {nodes_[0], nodes_[1], {.number = 2}};
  movers_ =
      std::make_unique<NodeMovers>(NodeMovers::Parts{words_, clock_, node_.arena, plan, nodes},
                                   ThreadMoversOptions{}, [this](Work& job) { loop_->PostRemote(job); });
  ASSERT_EQ(plan.Of(2), 2);
  std::set<std::thread::id> on;
  for (int i = 0; i < 4; ++i) on.insert(loop_->BlockOn(Run(loop_->executor(), SlotsOf(2))));
  EXPECT_EQ(on.size(), 2u);
}

TEST_F(NodeMoversTest, AJobIsDoneByAMoverOfTheNodeWhoseMemoryItWorksOn) {
  ASSERT_EQ(plan_.run(), 2u);
  std::set<std::thread::id> on[2];
  for (std::uint32_t header = 0; header < 8; ++header) {
    const std::byte* const first = SlotsOf(header);
    for (const std::byte* at : {first, first + arena::kHeaderSpanBytes - 1})
      on[header / 2 % 2].insert(loop_->BlockOn(Run(loop_->executor(), at)));
  }
  ASSERT_EQ(on[0].size(), 1u);
  ASSERT_EQ(on[1].size(), 1u);
  EXPECT_NE(*on[0].begin(), *on[1].begin());
}

TEST_F(NodeMoversTest, WhatWorksOnNoMemoryOfTheArenaIsDoneByEachInTurn) {
  std::set<std::thread::id> on;
  for (int i = 0; i < 2; ++i) on.insert(loop_->BlockOn(Run(loop_->executor(), nullptr)));
  EXPECT_EQ(on.size(), 2u);
  const std::byte elsewhere{};
  for (const std::byte* at : {&elsewhere, SlotsOf(7) + arena::kHeaderSpanBytes, SlotsOf(0) - 1})
    EXPECT_TRUE(on.contains(loop_->BlockOn(Run(loop_->executor(), at))));
}

}  // namespace
}  // namespace cistern::memory
