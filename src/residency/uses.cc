// SPDX-License-Identifier: Apache-2.0
#include "residency/uses.h"

#include "policy/lower_tier.h"

namespace cistern {

void Uses::UseBlock(BlockId block) {
  Block& b = forest_.block(block);
  if (b.folded()) {
    b.flags |= Block::kTouched;
    return;
  }
  for (RecordId r = b.first_record; r != kNoId; r = forest_.record(r).next) UseRecord(r);
}

void Uses::UseRecord(RecordId record) {
  Record& r = forest_.record(record);
  steps_.Count();
  r.flags |= Record::kTouched;
  if (r.uses < UINT8_MAX) ++r.uses;
  if (!r.in_memory()) return;
  if (!r.is(Record::kTransient)) residents_.order().Touch(record);
  if (lower_.present() && WrittenAtUse(catalog_.LowerPolicyOf(r), r.uses)) write_back_.Want(record);
}

void Uses::UseSlot(Place place, std::uint32_t generation_low) {
  steps_.Count();
  if (const PartialCopyPtr copy = partial_copies_.At(place); copy != nullptr) {
    partial_copies_.Asked(copy->handle.record);  // its use was counted when it was acquired
    return;
  }
  const RecordId record = forest_.At(place);
  if (record == kNoId || static_cast<std::uint32_t>(forest_.record(record).generation) != generation_low) {
    counters_.touches_refused.Add();
    return;
  }
  UseRecord(record);
  counters_.touches_applied.Add();
}

}  // namespace cistern
