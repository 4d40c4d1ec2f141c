// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "cistern/status.h"

namespace cistern {

// A block's bytes in the shared arena, read-only: body of one group, all parts in order. `data` is null
// where there is none, and `code` says why: kMiss; of a block below memory also kBusy, where there was no
// room to fetch it into, or kTooLate, where it would not be, or was not, here in time: `ready_in_us` is then
// when it would have been, as far as that was known (else 0).
struct View {
  const std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  Code code = Code::kMiss;
  std::int64_t ready_in_us = 0;
};

namespace internal {
class LeaseState {
 public:
  virtual ~LeaseState() = default;  // releases
  virtual bool StillGood() const = 0;
  virtual bool StillGood(std::size_t view) const = 0;
  virtual std::span<const View> views() const = 0;
  virtual std::shared_ptr<const void> mapping() const = 0;
};
}  // namespace internal

// A right to find blocks unmoved until a deadline (at most 60 s), kept by the node. It ends with Release(),
// its deadline, a drop of what it covers, or the session that took it. A node that ends in order ends all
// leases; those of one that was killed end when its successor starts, before that touches anything: until
// then nothing moves. Views were checked when their record entered memory. Whoever used a view asks
// still_good() afterwards: if false, what was read through it must be discarded (kLapsed).
class Lease {
 public:
  Lease() = default;
  explicit Lease(std::shared_ptr<internal::LeaseState> state) : state_(std::move(state)) {}

  explicit operator bool() const { return state_ != nullptr; }
  bool still_good() const { return state_ && state_->StillGood(); }
  // The same of one view alone, in constant time. `view` < views().size().
  bool still_good(std::size_t view) const { return state_ && state_->StillGood(view); }
  // One for each block asked for, in that order; empty for a hold.
  std::span<const View> views() const { return state_ ? state_->views() : std::span<const View>(); }
  // While this is held, what the views point into stays mapped, beyond the lease and its store: reading there
  // gives wrong bytes at worst. Null where there is no lease.
  std::shared_ptr<const void> mapping() const { return state_ ? state_->mapping() : nullptr; }
  void Release() { state_.reset(); }

 private:
  std::shared_ptr<internal::LeaseState> state_;
};

}  // namespace cistern
