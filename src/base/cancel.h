// SPDX-License-Identifier: Apache-2.0
// The right to go on waiting. A CancelToken is made for one operation, with its deadline, and handed down to
// everything that waits on its behalf; it fires once, by the deadline (kTooLate) or by Cancel, and then every
// wait that was given it ends with its status. It interrupts waiting, never an I/O: who holds a buffer that a
// device may still write to waits until the device let go (R6).
#pragma once

#include "base/executor.h"
#include "cistern/status.h"

namespace cistern {

// Something that is told when a token fires. Told at most once, and no more after its destruction.
class CancelHook : public ListNode<CancelHook> {
 protected:
  virtual ~CancelHook() = default;

 private:
  friend class CancelToken;
  virtual void OnCancel(const Status& why) = 0;
};

class CancelToken final : private TimerNode, private CancelHook {
 public:
  explicit CancelToken(Executor& executor, Instant deadline = Instant::Never());
  // Fires also when `parent` does, which must outlive it.
  explicit CancelToken(CancelToken& parent, Instant deadline = Instant::Never());
  // Nobody may still wait on it.
  ~CancelToken() override = default;

  Executor& executor() const { return executor_; }
  // The earlier of its own deadline and its parent's.
  Instant deadline() const { return deadline_; }
  bool cancelled() const { return cancelled_; }
  // Why it fired; ok while it has not.
  const Status& status() const { return why_; }

  // `why` must not be ok. Does nothing when it has fired already.
  void Cancel(Status why);
  // `hook` is told when it fires. It must not have fired yet.
  void Tell(CancelHook& hook);

 private:
  void Fire() override;
  void OnCancel(const Status& why) override { Cancel(why); }

  Executor& executor_;
  Instant deadline_;
  bool cancelled_ = false;
  Status why_;
  List<CancelHook> hooks_;
};

}  // namespace cistern
