// SPDX-License-Identifier: Apache-2.0
#include "base/cancel.h"

#include <algorithm>

namespace cistern {

CancelToken::CancelToken(Executor& executor, Instant deadline) : executor_(executor), deadline_(deadline) {
  TimerNode::Arm(executor_, deadline);
}

CancelToken::CancelToken(CancelToken& parent, Instant deadline)
    : executor_(parent.executor_), deadline_(std::min(deadline, parent.deadline_)) {
  if (parent.cancelled_) {
    Cancel(parent.why_);
    return;
  }
  parent.Tell(*this);
  if (deadline_ < parent.deadline_) TimerNode::Arm(executor_, deadline_);
}

void CancelToken::Tell(CancelHook& hook) {
  CISTERN_ASSERT(!cancelled_);
  hooks_.PushBack(hook);
}

void CancelToken::Cancel(Status why) {
  CISTERN_ASSERT(!why.ok());
  if (cancelled_) return;
  cancelled_ = true;
  why_ = std::move(why);
  Disarm();
  CancelHook::Unlink();
  while (CancelHook* hook = hooks_.PopFront()) hook->OnCancel(why_);
}

void CancelToken::Fire() { Cancel(Status(Code::kTooLate, "the deadline passed")); }

}  // namespace cistern
