// SPDX-License-Identifier: Apache-2.0
#include "base/task.h"

#include "base/task_group.h"

namespace cistern {

void PromiseBase::Run() {
  if (finished_) {
    group_->Reap(*this);
  } else {
    self_.resume();
  }
}

void TaskGroup::Spawn(Task<void> task) {
  CISTERN_ASSERT(!closed_);
  if (task.done()) return;
  PromiseBase& promise = std::exchange(task.handle_, nullptr).promise();
  CISTERN_ASSERT(promise.waiter_ == nullptr);
  promise.group_ = this;
  tasks_.PushBack(promise);
  ++size_;
}

void TaskGroup::Reap(PromiseBase& finished) {
  finished.self_.destroy();
  if (--size_ == 0) empty_.Pulse();
}

Task<void> TaskGroup::Close() {
  closed_ = true;
  while (size_ > 0) co_await empty_.Wait();
}

void TaskGroup::Drop() {
  closed_ = true;
  while (PromiseBase* task = tasks_.PopFront()) {
    task->self_.destroy();
    --size_;
  }
  empty_.Pulse();
}

}  // namespace cistern
