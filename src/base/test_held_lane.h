// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/executor.h"

namespace cistern {

// A lane for tests: what is posted runs once it is let.
class HeldLane final : public Lane {
 public:
  explicit HeldLane(Executor& executor) : executor_(executor) {}
  void Post(Work& work) override {
    if (held_) {
      waiting_.PushBack(work);
    } else {
      executor_.Post(work);
    }
  }
  void Join() override { ++users; }
  void Leave() override { --users; }
  void Charge(std::uint64_t work) override { charged += work; }

  bool waits() const { return !waiting_.empty(); }
  // The first that waits.
  void LetOneGo() { executor_.Post(*waiting_.PopFront()); }
  void LetGo() {
    held_ = false;
    while (Work* work = waiting_.PopFront()) executor_.Post(*work);
  }

  int users = 0;
  std::uint64_t charged = 0;

 private:
  Executor& executor_;
  List<Work> waiting_;
  bool held_ = true;
};

}  // namespace cistern
