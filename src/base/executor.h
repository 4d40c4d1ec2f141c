// SPDX-License-Identifier: Apache-2.0
// The executor of one thread: what is ready, in order, and what waits for a time. It does no I/O and never
// blocks; a Loop (io/loop.h) drives it. Everything here belongs to the thread that runs it; other threads
// reach it through Loop::PostRemote.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/list.h"

namespace cistern {

using Callback = std::move_only_function<void()>;

// Something to run once, linked into the ready queue through itself. Owned by whoever embeds it; destroying
// it takes it out of the queue.
class Work : public ListNode<Work> {
 public:
  virtual void Run() = 0;

 protected:
  Work() = default;
  virtual ~Work() = default;

 private:
  friend class Executor;
  friend class RemoteQueue;
  Work* remote_next_ = nullptr;
  bool owned_by_queue_ = false;
};

class Executor;

// Tasks of one customer, such as a session: their ready work waits together, and whoever owns the lane
// decides when its turn comes. A task belongs to the lane that its executor was in when it was made, for
// good; outside of all lanes it goes to the executor's own queue.
class Lane {
 public:
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  virtual void Post(Work& work) = 0;
  // A task of it is made, and gone. The lane stays as long as there is one.
  virtual void Join() = 0;
  virtual void Leave() = 0;
  // Work for the customer, in touches, that was done outside of its tasks.
  virtual void Charge(std::uint64_t work) = 0;

 protected:
  Lane() = default;
  ~Lane() = default;
};

// A time to be told of. Fires at most once per Arm, from Executor::FireTimers, in order of time and, for
// equal times, of arming. Destroying or disarming it means that it will not fire.
class TimerNode {
 public:
  TimerNode() = default;
  TimerNode(const TimerNode&) = delete;
  TimerNode& operator=(const TimerNode&) = delete;

  void Arm(Executor& executor, Instant when);  // moves it if it is already armed; Never disarms it
  void Disarm();
  bool armed() const { return executor_ != nullptr; }
  Instant when() const { return when_; }

 protected:
  virtual ~TimerNode() { Disarm(); }
  virtual void Fire() = 0;

 private:
  friend class Executor;
  Executor* executor_ = nullptr;
  Instant when_;
  std::uint64_t order_ = 0;
  std::size_t at_ = 0;  // its place in the heap
};

// A timer that calls back.
class Timer final : public TimerNode {
 public:
  Timer(Executor& executor, Callback callback) : runs_on_(executor), callback_(std::move(callback)) {}
  ~Timer() override { Disarm(); }
  void Arm(Instant when) { TimerNode::Arm(runs_on_, when); }

 private:
  void Fire() override { callback_(); }
  Executor& runs_on_;
  Callback callback_;
};

class Executor final {
 public:
  // The clock is borrowed.
  explicit Executor(const Clock& clock) : clock_(clock) {}
  // Posted callbacks that never ran are destroyed unrun. No task and no timer may be left.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  Executor& executor() { return *this; }
  const Clock& clock() const { return clock_; }
  Instant Now() const { return clock_.Now(); }

  // To the back of the ready queue.
  void Post(Work& work) { ready_.PushBack(work); }
  void Post(Callback callback);

  bool has_ready() const { return !ready_.empty(); }
  // Runs up to `max` pieces of ready work, none that became ready meanwhile before what was ready earlier.
  // Returns how many ran.
  std::size_t RunReady(std::size_t max);

  // Runs `work`, a piece of a step, and what goes on in that step behind it.
  void RunInStep(Work& work);
  // `work` runs in the step that is under way, next. False where that has done its share or there is none:
  // then it is to be posted.
  bool GoOn(Work& work);

  // Fires the timers that are due now, the earliest first, kTimersATurn at most: after a pause all are due,
  // and what came meanwhile is looked at between them. Returns how many.
  static constexpr std::size_t kTimersATurn = 64;
  std::size_t FireTimers();
  // When the next timer is due; Never if none is armed.
  Instant next_timer() const { return timers_.empty() ? Instant::Never() : timers_.front()->when_; }

  // `callback` as work that deletes itself when it has run.
  struct DeleteWork {
    void operator()(Work* work) const { delete work; }
  };
  using OwnedWork = std::unique_ptr<Work, DeleteWork>;
  static OwnedWork MakeWork(Callback callback);

  // How many pieces of work and timers have run: two observations with the same count are one step of the
  // core.
  std::uint64_t steps() const { return steps_; }
  // A step that is no piece of work here (io::Visit).
  void BeginStep() { ++steps_; }

  // What the steps have done so far, in touches (StepBudget).
  std::uint64_t work() const { return work_; }
  void AddWork(std::uint64_t touches) { work_ += touches; }

  // The lane of tasks made now; null: none.
  Lane* lane() const { return lane_; }
  // Makes it so until it goes. Null for what several customers wait for.
  class InLane {
   public:
    InLane(Executor& executor, Lane* lane)
        : executor_(executor), before_(std::exchange(executor.lane_, lane)) {}
    ~InLane() { executor_.lane_ = before_; }
    InLane(const InLane&) = delete;
    InLane& operator=(const InLane&) = delete;

   private:
    Executor& executor_;
    Lane* before_;
  };

 private:
  friend class TimerNode;
  void AddTimer(TimerNode& timer, Instant when);
  void RemoveTimer(TimerNode& timer);
  bool Earlier(std::size_t a, std::size_t b) const;
  void SiftUp(std::size_t at);
  void SiftDown(std::size_t at);
  void SwapTimers(std::size_t a, std::size_t b);

  const Clock& clock_;
  List<Work> ready_;
  std::vector<TimerNode*> timers_;  // a binary heap whose members know their place
  std::uint64_t timer_order_ = 0;
  std::uint64_t steps_ = 0;
  std::uint64_t work_ = 0;
  bool in_step_ = false;
  std::uint64_t step_began_ = 0;  // work_, when the step began
  Work* next_ = nullptr;          // of the step
  Lane* lane_ = nullptr;
};

}  // namespace cistern
