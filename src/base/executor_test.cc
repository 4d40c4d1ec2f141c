// SPDX-License-Identifier: Apache-2.0
#include "base/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "base/remote_queue.h"

namespace cistern {
namespace {

TEST(Executor, RunsNoMoreThanAskedInOrderOfPosting) {
  SimulatedClock clock;
  Executor executor(clock);
  std::string order;
  for (char c : {'a', 'b', 'c'}) {
    executor.Post([&, c] {
      order += c;
      executor.Post([&order] { order += '.'; });
    });
  }
  EXPECT_EQ(executor.RunReady(2), 2u);
  EXPECT_EQ(order, "ab");
  EXPECT_TRUE(executor.has_ready());
  EXPECT_EQ(executor.RunReady(100), 4u);
  EXPECT_EQ(order, "abc...");
  EXPECT_EQ(executor.steps(), 6u);
}

TEST(Executor, DestroysWhatNeverRan) {
  SimulatedClock clock;
  auto held = std::make_shared<int>(1);
  {
    RemoteQueue remote;
    Executor executor(clock);
    executor.Post([held] {});
    remote.Push([held] {});
    EXPECT_EQ(held.use_count(), 3);
  }
  EXPECT_EQ(held.use_count(), 1);
}

TEST(Executor, TimersFireInOrderOfTimeWhateverTheOrderOfArming) {
  SimulatedClock clock;
  Executor executor(clock);
  Random random(1);
  std::vector<std::int64_t> fired;
  std::vector<std::unique_ptr<Timer>> timers;
  for (int i = 0; i < 1000; ++i) {
    timers.push_back(std::make_unique<Timer>(
        executor, [&fired, &timers, i] { fired.push_back(timers[static_cast<std::size_t>(i)]->when().ns); }));
  }
  std::size_t armed = 0;
  for (int round = 0; round < 10'000; ++round) {
    Timer& timer = *timers[random.Below(timers.size())];
    if (random.Chance(0.3)) {
      timer.Disarm();
    } else {
      timer.Arm(clock.Now().PlusUs(static_cast<std::int64_t>(random.Below(500))));
    }
  }
  for (auto& timer : timers) armed += timer->armed();
  Instant first = executor.next_timer();
  for (int us = 0; us < 500; ++us) {
    executor.FireTimers();
    clock.AdvanceUs(1);
  }
  EXPECT_EQ(fired.size(), armed);
  EXPECT_TRUE(std::is_sorted(fired.begin(), fired.end()));
  EXPECT_EQ(fired.front(), first.ns);
  EXPECT_TRUE(executor.next_timer().IsNever());
}

TEST(Executor, TimersThatArmEachOtherDoNotHoldTheCore) {
  SimulatedClock clock;
  Executor executor(clock);
  int fired = 0;
  Timer timer(executor, [&] {
    ++fired;
    timer.Arm(clock.Now());
  });
  timer.Arm(clock.Now());
  EXPECT_EQ(executor.FireTimers(), 1u);
  EXPECT_EQ(executor.FireTimers(), 1u);
  EXPECT_EQ(fired, 2);
}

TEST(Executor, P5AfterAPauseNoTurnFiresMoreTimersThanItsShare) {
  SimulatedClock clock;
  Executor executor(clock);
  constexpr std::size_t kTimers = 10'000;
  std::vector<std::size_t> fired;
  std::vector<std::unique_ptr<Timer>> timers;
  for (std::size_t i = 0; i < kTimers; ++i) {
    timers.push_back(std::make_unique<Timer>(executor, [&fired, i] { fired.push_back(i); }));
    timers.back()->Arm(executor.Now().PlusUs(static_cast<std::int64_t>(i)));
  }
  clock.AdvanceUs(1'000'000);
  while (fired.size() < kTimers) {
    const std::size_t before = fired.size();
    ASSERT_EQ(executor.FireTimers(), std::min(Executor::kTimersATurn, kTimers - before));
  }
  EXPECT_TRUE(std::ranges::is_sorted(fired));
}

TEST(Executor, P5ATimerThatFiresIsAStepOfItsOwn) {
  SimulatedClock clock;
  Executor executor(clock);
  std::vector<std::uint64_t> steps;
  Timer one(executor, [&] { steps.push_back(executor.steps()); });
  Timer two(executor, [&] { steps.push_back(executor.steps()); });
  one.Arm(executor.Now());
  two.Arm(executor.Now());
  EXPECT_EQ(executor.FireTimers(), 2u);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_NE(steps[0], steps[1]);
}

TEST(RemoteQueue, KeepsEachThreadsOrderAndLosesNothing) {
  constexpr int kThreads = 4;
  constexpr int kEach = 10'000;
  SimulatedClock clock;
  Executor executor(clock);
  RemoteQueue remote;
  std::vector<std::vector<int>> seen(kThreads);
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kEach; ++i) {
          remote.Push([&seen, t, i] { seen[static_cast<std::size_t>(t)].push_back(i); });
        }
      });
    }
    std::size_t ran = 0;
    while (ran < kThreads * kEach) {
      remote.DrainTo(executor);
      ran += executor.RunReady(1000);
    }
  }
  for (auto& list : seen) {
    ASSERT_EQ(list.size(), static_cast<std::size_t>(kEach));
    for (int i = 0; i < kEach; ++i) ASSERT_EQ(list[static_cast<std::size_t>(i)], i);
  }
  EXPECT_TRUE(remote.empty());
}

TEST(Clock, InstantsSaturateAndWallTimeStepsBack) {
  EXPECT_TRUE(Instant::Never().PlusUs(-5).IsNever());
  EXPECT_TRUE(Instant{1}.PlusUs(Instant::Never().ns).IsNever());
  EXPECT_EQ(Instant{5'000}.UsSince(Instant{2'000}), 3);
  SimulatedClock clock;
  WallTime before = clock.Wall();
  Instant then = clock.Now();
  clock.AdvanceUs(2'000'000);
  EXPECT_EQ(clock.Wall().seconds, before.seconds + 2);
  clock.StepWall(-10);
  EXPECT_LT(clock.Wall(), before);
  EXPECT_EQ(clock.Now().UsSince(then), 2'000'000);
  SystemClock system;
  Instant earlier = system.Now();
  EXPECT_LE(earlier, system.Now());
  EXPECT_GT(system.Wall(), WallTime{1'600'000'000});
}

TEST(Random, ASeedReplaysAndForksDoNotDisturb) {
  Random a(42), b(42), other(43);
  Random fork = a.Fork();
  EXPECT_EQ(fork.Next(), b.Fork().Next());
  for (int i = 0; i < 100; ++i) (void)fork.Next();
  bool differs = false;
  for (int i = 0; i < 100; ++i) {
    std::uint64_t x = a.Next();
    EXPECT_EQ(x, b.Next());
    differs |= x != other.Next();
  }
  EXPECT_TRUE(differs);
}

TEST(Random, BelowAndUnitCoverTheirRanges) {
  Random random(7);
  std::vector<int> hits(10);
  double sum = 0;
  for (int i = 0; i < 100'000; ++i) {
    ++hits[random.Below(10)];
    double u = random.Unit();
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
  }
  for (int n : hits) EXPECT_NEAR(n, 10'000, 500);
  EXPECT_NEAR(sum / 100'000, 0.5, 0.01);
  EXPECT_EQ(random.Between(3, 3), 3u);
}

}  // namespace
}  // namespace cistern
