// SPDX-License-Identifier: Apache-2.0
// A scope that waits for its work: the owner of tasks that nobody awaits. Its owner closes it before what the
// tasks use goes away, so nothing outlives its owner.
#pragma once

#include <cstddef>

#include "base/event.h"
#include "base/task.h"

namespace cistern {

class TaskGroup {
 public:
  explicit TaskGroup(Executor& executor) : executor_(executor) {}
  // Must be empty: Close was awaited, or Drop called.
  ~TaskGroup() { CISTERN_ASSERT(size_ == 0); }
  TaskGroup(const TaskGroup&) = delete;
  TaskGroup& operator=(const TaskGroup&) = delete;

  Executor& executor() const { return executor_; }
  // Owns the task until it ends. Not after Close. The caller bounds how many there may be: size().
  void Spawn(Task<void> task);
  std::size_t size() const { return size_; }
  bool closed() const { return closed_; }

  // No Spawn from now on; waits until the last task has ended. Not from a task of this group.
  Task<void> Close();
  // Ends every task where it waits, as a crash does. Not from a task of this group.
  void Drop();

 private:
  friend class PromiseBase;
  void Reap(PromiseBase& finished);

  Executor& executor_;
  List<PromiseBase> tasks_;
  std::size_t size_ = 0;
  bool closed_ = false;
  Event empty_;
};

}  // namespace cistern
