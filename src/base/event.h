// SPDX-License-Identifier: Apache-2.0
// What a task waits for when it is neither a task nor an I/O: an event or a time.
#pragma once

#include <concepts>
#include <coroutine>

#include "base/executor.h"
#include "base/task.h"
#include "cistern/status.h"

namespace cistern {

class EventHook : public ListNode<EventHook> {};

// One wait of one task: for an event or until a deadline, whatever comes first. It lives in the waiting
// frame, and dropping the frame ends the wait. It is no I/O: who holds a buffer that a device may still write
// to waits until the device let go (R6).
class Waiter : public EventHook, private TimerNode {
 public:
  void Wake(Status status);

 protected:
  Waiter() = default;
  ~Waiter() override = default;
  // False when the deadline is already over: the task goes on.
  bool Start(PromiseBase& promise, Instant deadline);
  Status TakeStatus() { return std::move(status_); }

 private:
  void Fire() override;
  PromiseBase* promise_ = nullptr;
  Status status_;
};

// Set wakes all who wait and lets later ones pass until Reset; Pulse wakes all who wait and nobody later.
// A woken task runs from the ready queue, so it looks again at what it waited for.
class Event {
 public:
  Event() = default;  // not set

  bool is_set() const { return set_; }
  void Set();
  void Reset() { set_ = false; }
  void Pulse();

  class Waiting;
  class WaitingUntil;
  // co_await event.Wait(): nothing.
  Waiting Wait();
  // co_await event.Wait(deadline): ok, or kTooLate. A set event wins over a passed deadline.
  WaitingUntil Wait(Instant deadline);

 private:
  List<EventHook> waiters_;
  bool set_ = false;
};

class [[nodiscard]] Event::WaitingUntil final : public Waiter {
 public:
  WaitingUntil(Event& event, Instant deadline) : event_(event), deadline_(deadline) {}
  bool await_ready() const { return event_.set_; }
  template <std::derived_from<PromiseBase> P>
  bool await_suspend(std::coroutine_handle<P> handle) {
    if (!Start(handle.promise(), deadline_)) return false;
    event_.waiters_.PushBack(*this);
    return true;
  }
  Status await_resume() { return TakeStatus(); }

 private:
  Event& event_;
  Instant deadline_;
};

class [[nodiscard]] Event::Waiting final : public Waiter {
 public:
  explicit Waiting(Event& event) : event_(event) {}
  bool await_ready() const { return event_.set_; }
  template <std::derived_from<PromiseBase> P>
  void await_suspend(std::coroutine_handle<P> handle) {
    Start(handle.promise(), Instant::Never());
    event_.waiters_.PushBack(*this);
  }
  void await_resume() const {}

 private:
  Event& event_;
};

inline Event::Waiting Event::Wait() { return Waiting(*this); }
inline Event::WaitingUntil Event::Wait(Instant deadline) { return {*this, deadline}; }

// co_await SleepUntil(instant): nothing, when it has come.
class [[nodiscard]] SleepUntil final : public Waiter {
 public:
  explicit SleepUntil(Instant when) : when_(when) {}
  bool await_ready() const { return false; }
  template <std::derived_from<PromiseBase> P>
  bool await_suspend(std::coroutine_handle<P> handle) {
    return Start(handle.promise(), when_);
  }
  void await_resume() const {}

 private:
  Instant when_;
};

}  // namespace cistern
