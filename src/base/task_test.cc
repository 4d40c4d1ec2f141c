// SPDX-License-Identifier: Apache-2.0
#include "base/task.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/event.h"
#include "base/limits.h"
#include "base/task_group.h"
#include "cistern/status.h"

namespace cistern {
namespace {

constexpr int kMillion = 1'000'000;

class TaskTest : public testing::Test {
 protected:
  void RunAll() {
    while (executor_.RunReady(1000) > 0) {
    }
  }
  void AdvanceUs(std::int64_t us) {
    clock_.AdvanceUs(us);
    executor_.FireTimers();
    RunAll();
  }

  SimulatedClock clock_;
  Executor executor_{clock_};
};

Task<int> Ready(Executor&, int value) { co_return value; }

Task<std::int64_t> SumOfReady(Executor& executor, int count) {
  std::int64_t sum = 0;
  for (int i = 0; i < count; ++i) sum += co_await Ready(executor, i);
  co_return sum;
}

// The first test: whatever a task awaits, the stack stays flat, in every build.
TEST_F(TaskTest, AwaitsAMillionReadyTasksOnAFlatStack) {
  Task<std::int64_t> task = SumOfReady(executor_, kMillion);
  ASSERT_TRUE(task.done());
  EXPECT_EQ(task.Take(), std::int64_t{kMillion} * (kMillion - 1) / 2);
}

Task<int> YieldThen(Executor&, int value) {
  co_await Yield();
  co_return value;
}

Task<int> Around(Executor& executor, int depth, std::uint64_t work) {
  if (depth > 0) co_return 1 + co_await Around(executor, depth - 1, work);
  co_await Yield();
  executor.AddWork(work);
  co_return 0;
}

TEST_F(TaskTest, P5WhatWaitsForATaskGoesOnInTheStepInWhichThatEnds) {
  bool other = false;
  Task<int> task = Around(executor_, 10, kSpentTouches - 1);
  executor_.Post([&other] { other = true; });
  EXPECT_EQ(executor_.RunReady(1), 1u);
  ASSERT_TRUE(task.done());
  EXPECT_EQ(task.Take(), 10);
  EXPECT_FALSE(other);
  RunAll();
}

TEST_F(TaskTest, R16AStepThatHasDoneItsShareLeavesTheRestToTheNext) {
  bool other = false;
  Task<int> task = Around(executor_, 10, kSpentTouches);
  executor_.Post([&other] { other = true; });
  EXPECT_EQ(executor_.RunReady(2), 2u);
  EXPECT_TRUE(other);
  EXPECT_FALSE(task.done());
  EXPECT_EQ(executor_.RunReady(10), 1u);
  EXPECT_TRUE(task.done());
}

Task<std::int64_t> SumOfYielding(Executor& executor, int count) {
  std::int64_t sum = 0;
  for (int i = 0; i < count; ++i) sum += co_await YieldThen(executor, 1);
  co_return sum;
}

TEST_F(TaskTest, AwaitsAMillionYieldingTasksOnAFlatStack) {
  Task<std::int64_t> task = SumOfYielding(executor_, kMillion);
  RunAll();
  ASSERT_TRUE(task.done());
  EXPECT_EQ(task.Take(), kMillion);
}

Task<int> Nested(Executor& executor, int depth) {
  co_await Yield();
  if (depth == 0) co_return 0;
  co_return 1 + co_await Nested(executor, depth - 1);
}

TEST_F(TaskTest, EndsAMillionNestedTasksOnAFlatStack) {
  Task<int> task = Nested(executor_, kMillion);
  RunAll();
  ASSERT_TRUE(task.done());
  EXPECT_EQ(task.Take(), kMillion);
}

TEST_F(TaskTest, StartsAtOnceAndGoesOnFromTheReadyQueue) {
  std::string order;
  auto coroutine = [](Executor&, std::string& out) -> Task<> {
    out += "a";
    co_await Yield();
    out += "c";
  };
  Task<> task = coroutine(executor_, order);
  order += "b";
  EXPECT_EQ(order, "ab");
  RunAll();
  EXPECT_EQ(order, "abc");
  EXPECT_TRUE(task.done());
}

class Counting {
 public:
  explicit Counting(Executor& executor) : executor_(executor) {}
  Executor& executor() { return executor_; }
  Task<std::unique_ptr<int>> Next() {
    co_await Yield();
    co_return std::make_unique<int>(++count_);
  }

 private:
  Executor& executor_;
  int count_ = 0;
};

TEST_F(TaskTest, AMemberFindsItsExecutorInThisAndResultsMove) {
  Counting counting(executor_);
  Task<std::unique_ptr<int>> first = counting.Next();
  Task<std::unique_ptr<int>> second = counting.Next();
  RunAll();
  EXPECT_EQ(*first.Take(), 1);
  EXPECT_EQ(*second.Take(), 2);
}

TEST_F(TaskTest, AResultCarriesAStatus) {
  auto coroutine = [](Executor&, bool good) -> Task<Result<int>> {
    co_await Yield();
    if (!good) co_return Error(Code::kBusy, "queue: 3 wait and the limit is 3");
    co_return 7;
  };
  Task<Result<int>> good = coroutine(executor_, true);
  Task<Result<int>> bad = coroutine(executor_, false);
  RunAll();
  EXPECT_EQ(*good.Take(), 7);
  EXPECT_EQ(bad.Take().error().code(), Code::kBusy);
}

struct Noted {
  std::string& out;
  ~Noted() { out += "gone "; }
};

Task<> WaitForever(Executor&, Event& event, std::string& out) {
  Noted noted{out};
  co_await event.Wait();
  out += "never ";
}

Task<> AwaitWaitForever(Executor& executor, Event& event, std::string& out) {
  Noted noted{out};
  co_await WaitForever(executor, event, out);
}

TEST_F(TaskTest, ADroppedTaskEndsWhereItWaitsWithAllThatItAwaits) {
  Event event;
  std::string out;
  {
    Task<> task = AwaitWaitForever(executor_, event, out);
    EXPECT_FALSE(task.done());
  }
  event.Set();  // nobody is told
  RunAll();
  EXPECT_EQ(out, "gone gone ");
}

TEST_F(TaskTest, ATaskDroppedWhileReadyDoesNotRun) {
  Event event;
  std::string out;
  {
    Task<> task = WaitForever(executor_, event, out);
    event.Set();
  }
  RunAll();
  EXPECT_EQ(out, "gone ");
}

TEST_F(TaskTest, ATaskOutlivesTheOneThatWaitedForIt) {
  Event event;
  std::string out;
  Task<> inner = WaitForever(executor_, event, out);
  {
    auto wait = [](Executor&, Task<>& task) -> Task<> { co_await task; };
    Task<> outer = wait(executor_, inner);
  }
  event.Set();
  RunAll();
  EXPECT_TRUE(inner.done());
}

TEST_F(TaskTest, EventWakesInOrderOfWaiting) {
  Event event;
  std::vector<int> order;
  auto wait = [](Executor&, Event& on, std::vector<int>& out, int id) -> Task<> {
    co_await on.Wait();
    out.push_back(id);
  };
  Task<> first = wait(executor_, event, order, 1);
  Task<> second = wait(executor_, event, order, 2);
  event.Pulse();
  Task<> third = wait(executor_, event, order, 3);  // a pulse is not kept
  RunAll();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  event.Set();
  Task<> fourth = wait(executor_, event, order, 4);  // a set event lets pass
  EXPECT_TRUE(fourth.done());
  RunAll();
  EXPECT_EQ(order, (std::vector<int>{1, 2, 4, 3}));
}

Task<Status> WaitUntil(Executor&, Event& event, Instant deadline) { co_return co_await event.Wait(deadline); }

TEST_F(TaskTest, NoWaitOutlivesItsDeadline) {
  Event event;
  Instant deadline = executor_.Now().PlusUs(100);
  Task<Status> late = WaitUntil(executor_, event, deadline);
  AdvanceUs(99);
  EXPECT_FALSE(late.done());
  AdvanceUs(1);
  ASSERT_TRUE(late.done());
  EXPECT_EQ(late.Take().code(), Code::kTooLate);
  // A deadline in the past does not wait at all, unless there is nothing to wait for.
  Task<Status> past = WaitUntil(executor_, event, deadline);
  ASSERT_TRUE(past.done());
  EXPECT_EQ(past.Take().code(), Code::kTooLate);
  event.Set();
  Task<Status> set = WaitUntil(executor_, event, deadline);
  EXPECT_TRUE(set.Take().ok());
}

TEST_F(TaskTest, WhatComesFirstDecidesAWait) {
  Event event;
  Task<Status> task = WaitUntil(executor_, event, executor_.Now().PlusUs(10));
  event.Pulse();
  AdvanceUs(20);
  ASSERT_TRUE(task.done());
  EXPECT_TRUE(task.Take().ok());
  EXPECT_TRUE(executor_.next_timer().IsNever());
}

Task<> Sleep(Executor&, Instant when, std::string& out, char name) {
  co_await SleepUntil(when);
  out += name;
}

TEST_F(TaskTest, SleepersWakeInOrderOfTimeThenOfSleeping) {
  std::string out;
  Instant now = executor_.Now();
  Task<> c = Sleep(executor_, now.PlusUs(30), out, 'c');
  Task<> a = Sleep(executor_, now.PlusUs(10), out, 'a');
  Task<> b = Sleep(executor_, now.PlusUs(10), out, 'b');
  Task<> d = Sleep(executor_, now.PlusUs(99), out, 'd');
  AdvanceUs(30);
  EXPECT_EQ(out, "abc");
  Task<> past = Sleep(executor_, now, out, 'e');
  EXPECT_TRUE(past.done());
  EXPECT_EQ(out, "abce");
}

TEST_F(TaskTest, AGroupWaitsForItsWork) {
  Event event;
  std::string out;
  TaskGroup group(executor_);
  auto wait = [](Executor&, Event& on, std::string& order) -> Task<> {
    Noted noted{order};
    co_await on.Wait();
    co_await Yield();
    order += "done ";
  };
  group.Spawn(wait(executor_, event, out));
  group.Spawn(wait(executor_, event, out));
  EXPECT_EQ(group.size(), 2u);
  Task<> close = group.Close();
  RunAll();
  EXPECT_FALSE(close.done());
  event.Set();
  RunAll();
  EXPECT_TRUE(close.done());
  EXPECT_EQ(group.size(), 0u);
  EXPECT_EQ(out, "done gone done gone ");
}

TEST_F(TaskTest, AGroupKeepsNothingOfATaskThatEndedAtOnce) {
  TaskGroup group(executor_);
  auto nothing = [](Executor&) -> Task<> { co_return; };
  group.Spawn(nothing(executor_));
  EXPECT_EQ(group.size(), 0u);
}

TEST_F(TaskTest, DroppingAGroupEndsItsTasksWhereTheyWait) {
  Event event;
  std::string out;
  TaskGroup group(executor_);
  group.Spawn(AwaitWaitForever(executor_, event, out));
  group.Spawn(WaitForever(executor_, event, out));
  group.Drop();
  EXPECT_EQ(out, "gone gone gone ");
  EXPECT_EQ(group.size(), 0u);
}

TEST(TaskDeathTest, AGroupIsNotDestroyedWithWorkInIt) {
  SimulatedClock clock;
  EXPECT_DEATH(
      {
        Executor executor(clock);
        Event event;
        std::string out;
        TaskGroup group(executor);
        group.Spawn(WaitForever(executor, event, out));
      },
      "size_ == 0");
}

}  // namespace
}  // namespace cistern
