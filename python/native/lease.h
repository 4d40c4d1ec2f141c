// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "cistern/lease.h"

namespace cistern::python {

namespace nb = nanobind;

// A lease and the mapping that its views point into, which outlives it. Used with the GIL.
class HeldLease final : public std::enable_shared_from_this<HeldLease> {
 public:
  // `views` counts what was asked for; an empty lease has that many misses.
  HeldLease(Lease lease, std::size_t views)
      : mapping_(lease.mapping()),
        views_(lease.views().begin(), lease.views().end()),
        lease_(std::move(lease)) {
    views_.resize(views);
  }

  // A lease of nothing stays good: nothing was read through it.
  bool good() const { return lease_ ? lease_.still_good() : mapping_ == nullptr; }
  bool good(std::size_t view) const { return lease_ && lease_.still_good(view); }
  void Release() { lease_.Release(); }
  std::span<const View> views() const { return views_; }

 private:
  const std::shared_ptr<const void> mapping_;
  std::vector<View> views_;
  Lease lease_;
};

// One block's bytes; a buffer that is refused once the lease ended.
struct LeasedView {
  std::shared_ptr<HeldLease> lease;
  std::size_t at = 0;
  const View& view() const { return lease->views()[at]; }
};

struct LeaseHandle {
  std::shared_ptr<HeldLease> lease;
};

void BindLease(nb::module_& m);

}  // namespace cistern::python
