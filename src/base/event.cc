// SPDX-License-Identifier: Apache-2.0
#include "base/event.h"

namespace cistern {

bool Waiter::Start(PromiseBase& promise, Instant deadline) {
  promise_ = &promise;
  if (!deadline.IsNever()) {
    if (deadline <= promise.executor().Now()) {
      status_ = Status(Code::kTooLate, "the deadline passed before the wait began");
      return false;
    }
    TimerNode::Arm(promise.executor(), deadline);
  }
  return true;
}

void Waiter::Wake(Status status) {
  status_ = std::move(status);
  Disarm();
  EventHook::Unlink();
  promise_->Wake();
}

void Waiter::Fire() { Wake(Status(Code::kTooLate, "the deadline passed while waiting")); }

void Event::Pulse() {
  while (EventHook* hook = waiters_.front()) static_cast<Waiter*>(hook)->Wake(Status());
}

void Event::Set() {
  set_ = true;
  Pulse();
}

}  // namespace cistern
