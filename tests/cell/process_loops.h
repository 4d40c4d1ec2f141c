// SPDX-License-Identifier: Apache-2.0
// Simulated loops of processes that share one clock. Time moves when none of them has anything left to do;
// one that is held does nothing meanwhile, as a process that is stopped, and finds then what has come.
#pragma once

#include <algorithm>
#include <map>

#include "base/assert.h"
#include "base/task.h"
#include "io/simulated_loop.h"

namespace cistern::mesh {

class ProcessLoops final {
 public:
  // The clock is borrowed.
  explicit ProcessLoops(SimulatedClock& clock) : clock_(clock) {}
  ProcessLoops(const ProcessLoops&) = delete;
  ProcessLoops& operator=(const ProcessLoops&) = delete;

  // In whose order they turn. Borrowed until it is removed.
  void Add(io::SimulatedLoop& loop) { loops_[++last_] = {&loop}; }
  void Remove(const io::SimulatedLoop& loop) {
    std::erase_if(loops_, [&loop](const auto& one) { return one.second.loop == &loop; });
  }
  void Hold(const io::SimulatedLoop& loop, bool held) {
    for (auto& [number, one] : loops_) {
      if (one.loop == &loop) one.held = held;
    }
  }

  // Not from within a task, as BlockOn.
  void Turn() {
    bool any = false;
    Instant next = Instant::Never();
    for (const auto& [number, one] : loops_) {
      if (one.held) continue;
      next = std::min(next, one.loop->next());
      if (one.loop->next() <= clock_.Now()) any = one.loop->PollOnce() || any;
    }
    if (any) return;
    CISTERN_ASSERT(!next.IsNever());
    clock_.AdvanceTo(next);
  }
  template <class T>
  T BlockOn(Task<T> task) {
    while (!task.done()) Turn();
    return task.Take();
  }

 private:
  struct One {
    io::SimulatedLoop* loop = nullptr;
    bool held = false;
  };
  SimulatedClock& clock_;
  std::map<std::uint64_t, One> loops_;
  std::uint64_t last_ = 0;
};

}  // namespace cistern::mesh
