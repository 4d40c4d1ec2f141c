// SPDX-License-Identifier: Apache-2.0
// The one way into a core thread from other threads: any number of them push, the core drains, in order of
// pushing. Pushing Work allocates nothing, so a mover reports back through the job that it was given.
#pragma once

#include <atomic>

#include "base/executor.h"

namespace cistern {

class RemoteQueue {
 public:
  RemoteQueue() = default;
  ~RemoteQueue();  // callbacks never drained are destroyed unrun; pushed Work must be gone by then
  RemoteQueue(const RemoteQueue&) = delete;
  RemoteQueue& operator=(const RemoteQueue&) = delete;

  // From any thread. The work stays the pusher's and must live until it has run. Sequentially consistent:
  // a sleeper that says so and then finds the queue empty is seen by every later pusher.
  void Push(Work& work);
  void Push(Callback callback);

  bool empty() const { return head_.load() == nullptr; }
  // From the core: everything pushed so far goes to the back of the ready queue. Returns whether there was
  // any.
  bool DrainTo(Executor& executor);

 private:
  Work* TakeInOrder();
  std::atomic<Work*> head_{nullptr};  // newest first
};

}  // namespace cistern
