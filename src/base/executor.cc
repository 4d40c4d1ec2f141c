// SPDX-License-Identifier: Apache-2.0
#include "base/executor.h"

#include <utility>

#include "base/limits.h"

namespace cistern {
namespace {

class PostedCallback final : public Work {
 public:
  explicit PostedCallback(Callback callback) : callback_(std::move(callback)) {}
  ~PostedCallback() override = default;
  void Run() override {
    callback_();
    delete this;
  }

 private:
  Callback callback_;
};

}  // namespace

Executor::~Executor() {
  CISTERN_ASSERT(timers_.empty());
  while (Work* work = ready_.PopFront()) {
    CISTERN_ASSERT(work->owned_by_queue_);
    delete work;
  }
}

Executor::OwnedWork Executor::MakeWork(Callback callback) {
  OwnedWork work(new PostedCallback(std::move(callback)));
  work->owned_by_queue_ = true;
  return work;
}

void Executor::Post(Callback callback) { Post(*MakeWork(std::move(callback)).release()); }

std::size_t Executor::RunReady(std::size_t max) {
  std::size_t ran = 0;
  while (ran < max) {
    Work* work = ready_.PopFront();
    if (work == nullptr) break;
    ++ran;
    ++steps_;
    step_began_ = work_;
    in_step_ = true;
    RunInStep(*work);
    in_step_ = false;
  }
  return ran;
}

void Executor::RunInStep(Work& work) {
  for (Work* now = &work; now != nullptr; now = std::exchange(next_, nullptr)) now->Run();
}

bool Executor::GoOn(Work& work) {
  if (!in_step_ || next_ != nullptr || work_ - step_began_ >= kSpentTouches) return false;
  next_ = &work;
  return true;
}

std::size_t Executor::FireTimers() {
  if (timers_.empty()) return 0;
  Instant now = clock_.Now();
  // A timer armed by one that fires waits for the next call, else two that arm each other never end.
  std::uint64_t armed_before = timer_order_;
  std::size_t fired = 0;
  while (fired < kTimersATurn && !timers_.empty() && timers_.front()->when_ <= now &&
         timers_.front()->order_ < armed_before) {
    TimerNode& timer = *timers_.front();
    timer.Disarm();
    ++fired;
    ++steps_;
    timer.Fire();
  }
  return fired;
}

void TimerNode::Arm(Executor& executor, Instant when) {
  Disarm();
  if (!when.IsNever()) executor.AddTimer(*this, when);
}

void TimerNode::Disarm() {
  if (executor_ != nullptr) executor_->RemoveTimer(*this);
}

void Executor::AddTimer(TimerNode& timer, Instant when) {
  timer.executor_ = this;
  timer.when_ = when;
  timer.order_ = timer_order_++;
  timer.at_ = timers_.size();
  timers_.push_back(&timer);
  SiftUp(timer.at_);
}

void Executor::RemoveTimer(TimerNode& timer) {
  std::size_t at = timer.at_;
  CISTERN_ASSERT(at < timers_.size() && timers_[at] == &timer);
  SwapTimers(at, timers_.size() - 1);
  timers_.pop_back();
  if (at < timers_.size()) {
    SiftUp(at);
    SiftDown(at);
  }
  timer.executor_ = nullptr;
}

bool Executor::Earlier(std::size_t a, std::size_t b) const {
  return std::pair(timers_[a]->when_, timers_[a]->order_) < std::pair(timers_[b]->when_, timers_[b]->order_);
}

void Executor::SiftUp(std::size_t at) {
  for (; at > 0 && Earlier(at, (at - 1) / 2); at = (at - 1) / 2) SwapTimers(at, (at - 1) / 2);
}

void Executor::SiftDown(std::size_t at) {
  for (;;) {
    std::size_t least = at;
    for (std::size_t child = 2 * at + 1; child <= 2 * at + 2; ++child) {
      if (child < timers_.size() && Earlier(child, least)) least = child;
    }
    if (least == at) return;
    SwapTimers(at, least);
    at = least;
  }
}

void Executor::SwapTimers(std::size_t a, std::size_t b) {
  std::swap(timers_[a], timers_[b]);
  timers_[a]->at_ = a;
  timers_[b]->at_ = b;
}

}  // namespace cistern
