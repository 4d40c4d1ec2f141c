// SPDX-License-Identifier: Apache-2.0
// A call in flight. What can be answered from shared memory is answered before the call returns and its
// ticket is ready at once; the rest is answered by the node. A read of blocks below memory is copied to where
// it goes by the thread that waits for its ticket.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "cistern/status.h"

namespace cistern {

namespace internal {
// A call that the node answers; owned by its ticket and, until it is answered, by the client.
template <class T>
class PendingCall {
 public:
  virtual ~PendingCall() = default;
  virtual bool Ready() = 0;      // looks for completions once, does not block
  virtual Result<T> Wait() = 0;  // blocks until answered; called once
  virtual std::uint64_t id() const = 0;
};
}  // namespace internal

// Move-only. A ticket that goes away before its answer gives up the answer, not the call: what was written
// stays written, a lease that was granted is released.
template <class T>
class [[nodiscard]] Ticket {
 public:
  explicit Ticket(Result<T> value) : value_(std::move(value)) {}
  explicit Ticket(std::shared_ptr<internal::PendingCall<T>> call) : call_(std::move(call)) {}
  Ticket(Ticket&&) noexcept = default;
  Ticket& operator=(Ticket&&) noexcept = default;

  bool ready() { return value_.has_value() || call_->Ready(); }
  // The answer; blocks at most until the call's deadline (kTooLate), for a write from the caller's own
  // Staging two seconds longer. To be called once.
  Result<T> Wait() { return value_ ? std::move(*value_) : call_->Wait(); }
  // As Store::Poll reports it; 0 for what was answered at once.
  std::uint64_t id() const { return call_ ? call_->id() : 0; }

 private:
  std::optional<Result<T>> value_;
  std::shared_ptr<internal::PendingCall<T>> call_;
};

}  // namespace cistern
