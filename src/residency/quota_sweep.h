// SPDX-License-Identifier: Apache-2.0
// Keeps a sixteenth free of what a quota gives namespaces of the lower tier, so that what they put next is
// written there. A hand goes round over all blocks: of namespaces whose quota is full it gives up what lies
// in the lower tier alone, has no descendants, and was not used since the hand came by last. The tier's room
// is free when it gives up the region, as of anything that was forgotten.
#pragma once

#include <cstdint>

#include "residency/context.h"
#include "residency/lower_tier.h"
#include "residency/partial_copies.h"
#include "residency/removal.h"

namespace cistern::residency {

class QuotaSweep final {
 public:
  QuotaSweep(const StoreContext& context, LowerTier& lower, PartialCopies& partial_copies, Removal& removal)
      : context_(context), lower_(lower), partial_copies_(partial_copies), removal_(removal) {}
  QuotaSweep(const QuotaSweep&) = delete;
  QuotaSweep& operator=(const QuotaSweep&) = delete;

  // A step of its looks; true: it goes on at once.
  bool Sweep();

 private:
  bool AnyFull() const;
  // Whether the block's records went.
  bool GiveUp(catalog::BlockId block);
  // In memory, or used since the hand came by last; then it counts as unused from now on.
  bool WasUsed(catalog::Block& block);
  // False where somebody has a right to find it.
  bool LetGo(const catalog::Block& block);

  const StoreContext context_;
  LowerTier& lower_;
  PartialCopies& partial_copies_;
  Removal& removal_;
  catalog::BlockId hand_ = 0;
  std::uint32_t looks_ = 0;    // since it rested
  std::uint32_t in_vain_ = 0;  // looks since one gave something up
  Instant rests_until_;
};

}  // namespace cistern::residency
