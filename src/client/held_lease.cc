// SPDX-License-Identifier: Apache-2.0
#include "client/held_lease.h"

namespace cistern::client {

void HeldLease::Add(const wire::ViewItem& item) {
  const arena::ArenaView& arena = channel_->reader().arena();
  const std::uint64_t offset = arena.geometry().offset(item.place);
  const bool here = item.code == static_cast<std::uint32_t>(Code::kOk) &&
                    offset < arena.geometry().slots_bytes() &&
                    item.bytes <= arena.geometry().slots_bytes() - offset;
  if (!here) {
    const bool late = item.code == static_cast<std::uint32_t>(Code::kTooLate);
    const bool busy = item.code == static_cast<std::uint32_t>(Code::kBusy);
    views_.push_back(View{.code = late   ? Code::kTooLate
                                  : busy ? Code::kBusy
                                         : Code::kMiss,
                          .ready_in_us = late ? static_cast<std::int64_t>(item.bytes) : 0});
    slots_.push_back(Slot());
    return;
  }
  views_.push_back(View{.data = arena.slot(item.place), .bytes = item.bytes, .code = Code::kOk});
  slots_.push_back(Slot{item.place, item.generation});
}

// The slots are looked at last: a lease that ended after the first look has let go of none of them if they
// are all unchanged.
bool HeldLease::StillGood() const {
  if (!InForce()) return false;
  for (std::size_t view = 0; view < views_.size(); ++view) {
    if (!Unchanged(view)) return false;
  }
  return true;
}

bool HeldLease::StillGood(std::size_t view) const { return InForce() && Unchanged(view); }

}  // namespace cistern::client
