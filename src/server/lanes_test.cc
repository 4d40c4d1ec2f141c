// SPDX-License-Identifier: Apache-2.0
#include "server/lanes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/event.h"
#include "base/task.h"
#include "base/task_group.h"

namespace cistern::server {
namespace {

class LanesTest : public ::testing::Test {
 protected:
  // A call of so many steps that touch so much each.
  Task<void> Call(Executor& on, int steps, std::uint64_t work, std::string name) {
    co_await Yield();
    for (int i = 0; i < steps; ++i) {
      order += name;
      on.AddWork(work);
      co_await Part(on);
    }
  }
  // What a call awaits is in its lane too.
  Task<void> Part(Executor&) { co_await Yield(); }

  void Start(ServedLane& lane, int steps, std::uint64_t work, std::string name) {
    const Executor::InLane in(executor, &lane);
    tasks.Spawn(Call(executor, steps, work, std::move(name)));
  }
  void Finish() {
    while (executor.RunReady(1000) > 0) continue;
  }

  SimulatedClock clock;
  Executor executor{clock};
  std::string order;
  Lanes lanes{executor};
  TaskGroup tasks{executor};
};

TEST_F(LanesTest, P5ACallOfFewStepsIsNotBehindTheManyOfAnother) {
  ServedLane& greedy = lanes.Make();
  ServedLane& other = lanes.Make();
  for (int i = 0; i < 100; ++i) Start(greedy, 100, 300, "g");
  executor.RunReady(1000);
  order.clear();
  Start(other, 3, 1, "o");
  while (std::ranges::count(order, 'o') < 3) ASSERT_EQ(executor.RunReady(1), 1u);
  // One step before its first, and one that had been cheap until then.
  EXPECT_LE(std::ranges::count(order, 'g'), 2) << order;
  Finish();
  greedy.End();
  other.End();
}

// A node that ends drops what its peers' connections still have to do.
TEST(LanesEnd, TurnThatNeverCameGoesWithItsLane) {
  SimulatedClock clock;
  Executor executor(clock);
  TaskGroup tasks(executor);
  bool ran = false;
  {
    Lanes lanes(executor);
    ServedLane& lane = lanes.Make(kPeersWeight);
    const auto answer = [&ran](Executor&) -> Task<void> {
      co_await Yield();
      ran = true;
    };
    {
      const Executor::InLane in(executor, &lane);
      tasks.Spawn(answer(executor));
    }
    tasks.Drop();
    lane.End();
  }
  executor.RunReady(10);
  EXPECT_FALSE(ran);
}

// Whoever waits for a task of another lane goes on in its own.
TEST_F(LanesTest, P5WhatATaskMakesWhenItGoesOnIsInItsLane) {
  ServedLane& lane = lanes.Make();
  ServedLane& other = lanes.Make();
  Task<void> part;
  {
    const Executor::InLane in(executor, &other);
    part = Part(executor);
  }
  Lane* own = nullptr;
  Lane* foreign = nullptr;
  const auto waits = [](Executor& on, Task<void>& awaited, Lane*& seen) -> Task<void> {
    co_await awaited;
    seen = on.lane();
  };
  const auto twice = [&waits](Executor& on, auto& part_of, Lane*& seen) -> Task<void> {
    Task<void> inner = part_of(on);
    co_await waits(on, inner, seen);
    seen = on.lane() == seen ? seen : nullptr;
  };
  const auto part_of = [this](Executor& on) { return Part(on); };
  {
    const Executor::InLane in(executor, &lane);
    tasks.Spawn(waits(executor, part, foreign));
    tasks.Spawn(twice(executor, part_of, own));
  }
  Finish();
  EXPECT_EQ(foreign, &lane);
  EXPECT_EQ(own, &lane);
  lane.End();
  other.End();
}

TEST_F(LanesTest, WhatIsInNoLaneRunsBesideThem) {
  ServedLane& greedy = lanes.Make();
  for (int i = 0; i < 100; ++i) Start(greedy, 10, 300, "g");
  executor.RunReady(50);
  order.clear();
  executor.Post([this] { order += "x"; });
  executor.RunReady(2);
  EXPECT_NE(order.find('x'), std::string::npos) << order;
  Finish();
  greedy.End();
}

// What members of a cell ask, beside one session and beside several: counted steps of the same work each.
TEST_F(LanesTest, P5PeersHaveAQuarterOfTheStepsAtMostWhileASessionHasSomethingToRun) {
  for (const std::size_t sessions : {1u, 2u, 4u}) {
    order.clear();
    ServedLane& peers = lanes.Make(kPeersWeight);
    std::vector<ServedLane*> local;
    for (int i = 0; i < 64; ++i) Start(peers, 100, 128, "p");
    for (std::size_t i = 0; i < sessions; ++i) {
      local.push_back(&lanes.Make());
      Start(*local.back(), 1000, 128, "l");
    }
    executor.RunReady(100);
    order.clear();
    executor.RunReady(800);
    EXPECT_LE(std::ranges::count(order, 'p'), 201) << sessions;
    EXPECT_GT(std::ranges::count(order, 'p'), 20) << sessions;
    peers.End();
    for (ServedLane* one : local) one->End();
    Finish();
  }
}

TEST_F(LanesTest, P5WorkBesideTheStepsOfALaneCountsAsItsOwn) {
  ServedLane& peers = lanes.Make(kPeersWeight);
  ServedLane& local = lanes.Make();
  Start(peers, 1000, 1, "p");
  Start(local, 1000, 1, "l");
  executor.RunReady(10);
  peers.Charge(1000);
  order.clear();
  executor.RunReady(300);
  EXPECT_LE(std::ranges::count(order, 'p'), 1);
  peers.End();
  local.End();
  Finish();
}

TEST_F(LanesTest, PeersHaveAllStepsWhereNoSessionHasSomethingToRun) {
  ServedLane& peers = lanes.Make(kPeersWeight);
  Start(peers, 50, 128, "p");
  EXPECT_LE(executor.RunReady(60), 52u);
  EXPECT_EQ(std::ranges::count(order, 'p'), 50);
  peers.End();
}

TEST_F(LanesTest, ALaneThatHasEndedGoesWithItsLastTask) {
  Event event;
  ServedLane& lane = lanes.Make();
  {
    const Executor::InLane in(executor, &lane);
    tasks.Spawn([](Executor&, Event& waits) -> Task<void> { co_await waits.Wait(); }(executor, event));
  }
  lane.End();
  Finish();
  event.Pulse();
  Finish();
  EXPECT_EQ(tasks.size(), 0u);
}

TEST_F(LanesTest, ATaskThatIsDroppedLeavesItsTurnToOthers) {
  ServedLane& lane = lanes.Make();
  ServedLane& other = lanes.Make();
  {
    const Executor::InLane in(executor, &lane);
    const Task<void> dropped = Call(executor, 1, 1, "d");
  }
  Start(other, 1, 1, "o");
  EXPECT_FALSE(lane.HasReady(1));
  EXPECT_TRUE(other.HasReady(1));
  lane.End();
  Finish();
  EXPECT_EQ(order, "o");
  other.End();
}

TEST_F(LanesTest, WhatAllMayWaitForIsInNone) {
  ServedLane& lane = lanes.Make();
  bool in_none = false;
  {
    const Executor::InLane in(executor, &lane);
    tasks.Spawn(OutOfLanes(executor, [&] {
      in_none = executor.lane() == nullptr;
      return Call(executor, 1, 1, "a");
    }));
    EXPECT_EQ(executor.lane(), &lane);
  }
  EXPECT_TRUE(in_none);
  EXPECT_FALSE(lane.HasReady(1));
  Finish();
  lane.End();
}

}  // namespace
}  // namespace cistern::server
