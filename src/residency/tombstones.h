// SPDX-License-Identifier: Apache-2.0
// Life of drops' tombstones: each stays while the media of the lower tier may hold older records. None is
// kept for a device that left service, which the journal has to say first (R10).
#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "base/task.h"
#include "residency/context.h"
#include "residency/lower_tier.h"

namespace cistern::residency {

class Tombstones final {
 public:
  Tombstones(const StoreContext& context, LowerTier& lower) : context_(context), lower_(lower) {}
  Tombstones(const Tombstones&) = delete;
  Tombstones& operator=(const Tombstones&) = delete;

  Executor& executor() { return context_.executor; }

  // Ends all tombstones that are not needed any more.
  Task<void> End();
  // No record older than the drop is left in memory: every generation has changed.
  void Collected(std::uint64_t sequence) { collected_.insert(sequence); }
  // Media that the journal names, after a start.
  void Start(std::vector<std::uint64_t> media) { journaled_media_ = std::move(media); }
  const std::vector<std::uint64_t>& journaled_media() const { return journaled_media_; }
  // True: a tick should start End.
  bool due() const {
    return !ending_ && lower_.present() &&
           ((!collected_.empty() && *collected_.begin() < lower_->oldest_sequence()) ||
            lower_->media_ids() != journaled_media_);
  }

 private:
  const StoreContext context_;
  LowerTier& lower_;
  std::set<std::uint64_t> collected_;  // sequences of drops that are collected from memory
  std::vector<std::uint64_t> journaled_media_;
  bool ending_ = false;
};

}  // namespace cistern::residency
