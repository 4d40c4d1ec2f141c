// SPDX-License-Identifier: Apache-2.0
// Removal of a record or a block from every tier. A block without records and without children is freed,
// after which its parent may leave too.
#pragma once

#include <cstdint>
#include <vector>

#include "residency/block_owner.h"
#include "residency/context.h"
#include "residency/lower_tier.h"
#include "residency/partial_copies.h"
#include "residency/residents.h"

namespace cistern::residency {

class Removal final {
 public:
  Removal(const StoreContext& context, BlockOwner& owner, LowerTier& lower, Residents& residents,
          PartialCopies& partial_copies)
      : context_(context),
        owner_(owner),
        lower_(lower),
        residents_(residents),
        partial_copies_(partial_copies) {}
  Removal(const Removal&) = delete;
  Removal& operator=(const Removal&) = delete;

  // Ends a record: index entry, generation, slot, and its room in the lower tier. Its block may be freed
  // with it.
  void Remove(catalog::RecordId record);
  // The lower tier has lost the block's record of the group, and memory has none: it ends, and all below it.
  void Lose(catalog::BlockId block, std::uint16_t group, const catalog::Forest::Copy& copy);
  // Whether a device that left service alone has it.
  bool Gone(const catalog::Forest::Copy& copy) const { return !copy.in_memory && lower_.Gone(copy.location); }
  // Loses the block's record of the group where it is gone so; true: it was.
  bool LoseGone(catalog::BlockId block, std::uint16_t group, const catalog::Forest::Copy& copy) {
    const bool gone = Gone(copy);
    if (gone) Lose(block, group, copy);
    return gone;
  }
  // The block becomes a placeholder.
  void RemoveRecordsOf(catalog::BlockId block);
  // The block lost a record or a child: it is freed if empty, or becomes evictable again if it may leave
  // now.
  void Settle(catalog::BlockId block);
  void Unpark(catalog::BlockId block);
  // Frees the blocks that Settle deferred: past 32 levels, a chain of empty blocks is freed in slices.
  void Reap();
  bool to_reap() const { return !reap_.empty(); }
  // A block that waits to be freed is freed by another caller.
  void LeaveToOther(catalog::BlockId block) { std::erase(reap_, block); }

 private:
  void EraseRecord(catalog::RecordId record);
  bool EmptyHome(catalog::BlockId block) const;
  void NoteWaitingChildren(catalog::BlockId block);

  const StoreContext context_;
  BlockOwner& owner_;
  LowerTier& lower_;
  Residents& residents_;
  PartialCopies& partial_copies_;
  std::vector<catalog::BlockId> reap_;
};

}  // namespace cistern::residency
