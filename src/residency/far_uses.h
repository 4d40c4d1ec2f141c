// SPDX-License-Identifier: Apache-2.0
// Records that were used in far memory. Each moves near when nobody holds it any more, unless it is worth
// less than what would move far for it (policy::MovesNear). Readers do not wait for it.
#pragma once

#include <cstddef>
#include <deque>

#include "base/task.h"
#include "policy/far_memory.h"
#include "residency/context.h"
#include "residency/lower_tier.h"
#include "residency/residents.h"
#include "residency/room.h"

namespace cistern::residency {

class FarUses final {
 public:
  FarUses(const StoreContext& context, LowerTier& lower, Residents& residents, Room& room)
      : context_(context),
        far_memory_(context.slots.first_far_kind()),
        lower_(lower),
        residents_(residents),
        room_(room) {}
  FarUses(const FarUses&) = delete;
  FarUses& operator=(const FarUses&) = delete;

  Executor& executor() { return context_.executor; }

  // A record in memory was used, wherever it lies. Past kMost that wait it stays where it is until it is used
  // again.
  void Note(catalog::RecordId record);
  // What waits, and is not held, moves now.
  void Start();

  static constexpr std::size_t kMost = 4'096;

 private:
  Task<void> MoveNear();

  const StoreContext context_;
  const policy::FarMemory far_memory_;
  LowerTier& lower_;
  Residents& residents_;
  Room& room_;
  std::deque<catalog::RecordHandle> waiting_;  // each record once: Record::kUsedFar
  bool running_ = false;
};

}  // namespace cistern::residency
