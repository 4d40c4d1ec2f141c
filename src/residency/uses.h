// SPDX-License-Identifier: Apache-2.0
// Uses of blocks: a used block moves to the warm end of the order, and its write-back may become due.
#pragma once

#include <cstdint>

#include "residency/context.h"
#include "residency/evictor.h"
#include "residency/far_uses.h"
#include "residency/partial_copies.h"
#include "residency/residents.h"
#include "residency/write_back.h"

namespace cistern::residency {

class Uses final {
 public:
  Uses(const StoreContext& context, Residents& residents, PartialCopies& partial_copies, Evictor& evictor,
       WriteBack& write_back, FarUses& far_uses)
      : context_(context),
        residents_(residents),
        partial_copies_(partial_copies),
        evictor_(evictor),
        write_back_(write_back),
        far_uses_(far_uses) {}
  Uses(const Uses&) = delete;
  Uses& operator=(const Uses&) = delete;

  // Uses all records of the block.
  void UseBlock(catalog::BlockId block);
  void UseRecord(catalog::RecordId record);
  // Slot used by a client, from a reader's lossy ring: range-checked, ignored unless the generation matches.
  void UseSlot(arena::Place place, std::uint32_t generation_low);

 private:
  void MoveInOrder(catalog::RecordId record, catalog::KeyHash key_hash);

  const StoreContext context_;
  Residents& residents_;
  PartialCopies& partial_copies_;
  Evictor& evictor_;
  WriteBack& write_back_;
  FarUses& far_uses_;
};

}  // namespace cistern::residency
