// SPDX-License-Identifier: Apache-2.0
#include "base/remote_queue.h"

#include <memory>
#include <utility>

namespace cistern {

RemoteQueue::~RemoteQueue() {
  for (Work* work = TakeInOrder(); work != nullptr;) {
    CISTERN_ASSERT(work->owned_by_queue_);
    delete std::exchange(work, work->remote_next_);
  }
}

void RemoteQueue::Push(Work& work) {
  Work* head = head_.load(std::memory_order_relaxed);
  do {
    work.remote_next_ = head;
  } while (!head_.compare_exchange_weak(head, &work));
}

void RemoteQueue::Push(Callback callback) { Push(*Executor::MakeWork(std::move(callback)).release()); }

bool RemoteQueue::DrainTo(Executor& executor) {
  Work* work = TakeInOrder();
  if (work == nullptr) return false;
  while (work != nullptr) executor.Post(*std::exchange(work, work->remote_next_));
  return true;
}

Work* RemoteQueue::TakeInOrder() {
  if (empty()) return nullptr;
  Work* newest = head_.exchange(nullptr);
  Work* oldest = nullptr;
  while (newest != nullptr) {
    Work* next = std::exchange(newest->remote_next_, oldest);
    oldest = std::exchange(newest, next);
  }
  return oldest;
}

}  // namespace cistern
