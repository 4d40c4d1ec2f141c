// SPDX-License-Identifier: Apache-2.0
// Task<T>: a coroutine of the core thread, and the one idiom of asynchrony.
//
//   Task<Status> Append(Loop& loop, std::span<const std::byte> record) {   // an argument with executor()
//     Result<std::uint32_t> written = co_await file_.Write(record, end_);
//     ...
//     co_return Status();
//   }
//
// - It starts at once, runs until it first has to wait, and goes on from the executor's ready queue, or, if
//   it waited for a task, in the step in which that ends. Ending or waking never runs another task on top of
//   this one's stack.
// - It runs in the lane that its executor is in when it is made (base/executor.h).
// - Its executor is that of its first argument that is one or has `executor()`, where `this` is the first
//   argument of a member function. Arguments taken by reference must outlive the task.
// - Whoever holds a Task either awaits it, or gives it to a TaskGroup, or drops it: a dropped task ends where
//   it waits, its locals are destroyed and so is everything that it awaits. A task that waits for an I/O must
//   not be dropped (asserted by the loop; a simulated loop that crashed lets go first).
// - At most one task awaits a task. Tasks do not throw.
#pragma once

#include <concepts>
#include <coroutine>
#include <exception>
#include <optional>
#include <utility>

#include "base/executor.h"

namespace cistern {

template <class T>
concept HasExecutor = requires(T& t) {
  { t.executor() } -> std::convertible_to<Executor&>;
};

class TaskGroup;

// What all tasks' promises share. As Work, it resumes its coroutine. An awaitable for tasks takes it in
// await_suspend, from any std::coroutine_handle<P> of theirs, and posts it to its executor to wake the task.
class PromiseBase : public Work, public ListNode<PromiseBase> {
 public:
  Executor& executor() const { return *executor_; }
  bool finished() const { return finished_; }
  void Wake() { lane_ != nullptr ? lane_->Post(*this) : executor_->Post(*this); }
  // Wakes what waited for the task that runs now and ends: in the same step, where it has the same lane.
  void GoOn() {
    if (lane_ != executor_->lane() || !executor_->GoOn(*this)) Wake();
  }
  void Run() override;

  struct FinalAwaiter {
    bool await_ready() const noexcept { return false; }
    template <std::derived_from<PromiseBase> P>
    void await_suspend(std::coroutine_handle<P> handle) noexcept {
      PromiseBase& promise = handle.promise();
      promise.Finish();
    }
    void await_resume() const noexcept {}
  };

  std::suspend_never initial_suspend() const noexcept { return {}; }
  FinalAwaiter final_suspend() const noexcept { return {}; }
  [[noreturn]] void unhandled_exception() noexcept { std::terminate(); }

 protected:
  template <class... Args>
  PromiseBase(std::coroutine_handle<> self, Args&... args)
      : self_(self), executor_(&FindExecutor(args...)), lane_(executor_->lane()) {
    if (lane_ != nullptr) lane_->Join();
  }
  ~PromiseBase() override {
    ListNode<Work>::Unlink();  // the lane may go
    if (lane_ != nullptr) lane_->Leave();
  }

 private:
  template <class T>
  friend class Task;
  friend class TaskGroup;

  template <class First, class... Rest>
  static Executor& FindExecutor(First& first, Rest&... rest) {
    if constexpr (HasExecutor<First>) {
      return first.executor();
    } else {
      static_assert(sizeof...(Rest) > 0, "a task needs an argument that is an Executor or has executor()");
      return FindExecutor(rest...);
    }
  }
  void Finish() {
    finished_ = true;
    if (waiter_ != nullptr) {
      waiter_->GoOn();
    } else if (group_ != nullptr && !executor_->GoOn(*this)) {
      // The frame cannot go while it is on the stack: Run gives it to the group. That is nobody's turn: it
      // waits for none of its lane.
      executor_->Post(*this);
    }
  }

  std::coroutine_handle<> self_;
  Executor* executor_;
  Lane* lane_;
  PromiseBase* waiter_ = nullptr;
  TaskGroup* group_ = nullptr;
  bool finished_ = false;
};

template <class T>
class TaskResult {
 public:
  template <std::convertible_to<T> U>
  void return_value(U&& value) {
    value_.emplace(std::forward<U>(value));
  }
  T Take() { return std::move(*value_); }

 private:
  std::optional<T> value_;
};

template <>
class TaskResult<void> {
 public:
  void return_void() {}
  void Take() {}
};

template <class T = void>
class [[nodiscard]] Task {
 public:
  class promise_type final : public PromiseBase, public TaskResult<T> {
   public:
    template <class... Args>
    explicit promise_type(Args&... args)
        : PromiseBase(std::coroutine_handle<promise_type>::from_promise(*this), args...) {}
    Task get_return_object() { return Task(std::coroutine_handle<promise_type>::from_promise(*this)); }
  };

  Task() = default;
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    Task old(std::move(*this));
    handle_ = std::exchange(other.handle_, nullptr);
    return *this;
  }
  ~Task() {
    if (handle_) handle_.destroy();
  }

  bool valid() const { return static_cast<bool>(handle_); }
  bool done() const { return handle_.promise().finished(); }
  // The result of a task that is done, once.
  T Take() {
    CISTERN_ASSERT(done());
    return handle_.promise().Take();
  }

  class Awaiter {
   public:
    explicit Awaiter(promise_type& task) : task_(&task) {}
    Awaiter(const Awaiter&) = delete;
    Awaiter& operator=(const Awaiter&) = delete;
    // Only a drop destroys it between suspend and resume.
    ~Awaiter() {
      if (waiting_) static_cast<PromiseBase*>(task_)->waiter_ = nullptr;
    }
    bool await_ready() const { return task_->finished(); }
    template <std::derived_from<PromiseBase> P>
    void await_suspend(std::coroutine_handle<P> handle) {
      PromiseBase* task = task_;
      CISTERN_ASSERT(task->waiter_ == nullptr && task->group_ == nullptr);
      task->waiter_ = &handle.promise();
      waiting_ = true;
    }
    T await_resume() {
      waiting_ = false;
      return task_->Take();
    }

   private:
    promise_type* task_;
    bool waiting_ = false;
  };
  // Waits for its end and gives its result, once.
  Awaiter operator co_await() { return Awaiter(handle_.promise()); }

 private:
  friend class TaskGroup;
  explicit Task(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

// The task that `make` makes, outside of all lanes: what others than who asks for it may come to wait for.
template <class F>
auto OutOfLanes(Executor& executor, F&& make) {
  const Executor::InLane in(executor, nullptr);
  return make();
}

// co_await Yield(): to the back of the ready queue, so that a long piece of work lets others run.
class Yield {
 public:
  bool await_ready() const { return false; }
  template <std::derived_from<PromiseBase> P>
  void await_suspend(std::coroutine_handle<P> handle) {
    handle.promise().Wake();
  }
  void await_resume() const {}
};

}  // namespace cistern
