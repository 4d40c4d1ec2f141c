// SPDX-License-Identifier: Apache-2.0
#include "server/lanes.h"

#include "base/assert.h"

namespace cistern::server {

void ServedLane::Post(Work& work) {
  ready_.PushBack(work);
  if (!waits_) lanes_.Wait(*this);
}

void ServedLane::Leave() {
  CISTERN_ASSERT(users_ > 0);
  if (--users_ == 0 && ended_) lanes_.lanes_.erase(self_);
}

void ServedLane::Charge(std::uint64_t work) { lanes_.order_.Charge(*this, weight_ * work); }

void ServedLane::End() {
  ended_ = true;
  Join();
  Leave();
}

Lanes::~Lanes() {
  // A loop may end between a task's wish for a turn and the turn.
  for (const ServedLane& lane : lanes_)
    CISTERN_ASSERT(lane.ended_ && lane.ready_.empty() && lane.users_ == (lane.waits_ ? 1u : 0u));
  while (unused_.PopFront() != nullptr) continue;
}

ServedLane& Lanes::Make(std::uint64_t weight) {
  ServedLane& lane = lanes_.emplace_back(*this, weight);
  lane.self_ = std::prev(lanes_.end());
  return lane;
}

void Lanes::Wait(ServedLane& lane) {
  lane.Join();
  lane.waits_ = true;
  order_.Wait(lane);
  Work* turn = unused_.PopFront();
  if (turn == nullptr) turn = &turns_.emplace_back(*this);
  executor_.Post(*turn);
}

void Lanes::Serve(Turn& turn) {
  ServedLane& lane = *static_cast<ServedLane*>(order_.Next());
  // None where the task was dropped meanwhile.
  if (Work* work = lane.ready_.PopFront()) {
    const std::uint64_t before = executor_.work();
    {
      const Executor::InLane in(executor_, &lane);
      executor_.RunInStep(*work);
    }
    lane.Charge(kStepWork + executor_.work() - before);
  }
  if (lane.ready_.empty()) {
    lane.waits_ = false;
    unused_.PushBack(turn);
    lane.Leave();
  } else {
    order_.Wait(lane);
    executor_.Post(turn);
  }
}

}  // namespace cistern::server
