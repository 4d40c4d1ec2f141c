// SPDX-License-Identifier: Apache-2.0
#include "residency/tombstones.h"

namespace cistern::residency {

Task<void> Tombstones::End() {
  if (ending_) co_return;
  ending_ = true;
  // Repeats if a device left service during the write: the oldest sequence is read in the same step in which
  // the journal is right.
  while (lower_.present() && lower_->media_ids() != journaled_media_) {
    std::vector<std::uint64_t> ids = lower_->media_ids();
    const Status status = co_await context_.journal.PutDevices(ids);
    if (!status.ok()) {
      ending_ = false;
      co_return;
    }
    journaled_media_ = std::move(ids);
  }
  const std::uint64_t oldest = !lower_.present() ? UINT64_MAX : lower_->oldest_sequence();
  while (!collected_.empty() && *collected_.begin() < oldest) {
    if (context_.steps.Spent()) co_await Yield();
    context_.steps.Count();
    context_.journal.EndTombstone(*collected_.begin());
    collected_.erase(collected_.begin());
  }
  ending_ = false;
}

}  // namespace cistern::residency
