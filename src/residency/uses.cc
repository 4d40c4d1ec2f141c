// SPDX-License-Identifier: Apache-2.0
#include "residency/uses.h"

namespace cistern::residency {

void Uses::UseBlock(catalog::BlockId block) {
  catalog::Block& b = context_.forest.block(block);
  if (b.folded()) {
    b.flags |= catalog::Block::kTouched;
    context_.catalog.counted().Use(b.tree);
    return;
  }
  for (catalog::RecordId r = b.first_record; r != catalog::kNoId; r = context_.forest.record(r).next)
    UseRecord(r);
}

void Uses::UseRecord(catalog::RecordId record) {
  catalog::Record& r = context_.forest.record(record);
  const catalog::Block& block = context_.forest.block(r.block);
  __builtin_prefetch(&block);
  context_.steps.Count();
  r.flags |= catalog::Record::kTouched;
  r.flags &= static_cast<std::uint8_t>(~catalog::Record::kTaken);
  if (r.uses < UINT8_MAX) ++r.uses;
  if (r.in_memory()) {
    MoveInOrder(record, block.key_hash());
    residents_.fresh().Note(record, r);
    far_uses_.Note(record);
  }
  context_.catalog.counted().Use(block.tree);
  if (r.in_memory()) write_back_.NoteUse(record);
}

// One that was read to pass, or ahead, may be worth its place now.
void Uses::MoveInOrder(catalog::RecordId record, catalog::KeyHash key_hash) {
  catalog::Record& r = context_.forest.record(record);
  const bool by_worth =
      r.is(catalog::Record::kTransient) && context_.options.lower.promote == Promotion::kWorth;
  if (by_worth && !evictor_.Passes(record, residents_.order().StandingOf(record)))
    r.flags &= static_cast<std::uint8_t>(~catalog::Record::kTransient);
  if (!r.is(catalog::Record::kTransient)) {
    residents_.order().Touch(record, key_hash);
  } else if (by_worth && r.references == 0) {
    residents_.MakeColdest(record);
  }
}

void Uses::UseSlot(arena::Place place, std::uint32_t generation_low) {
  context_.steps.Count();
  if (const PartialCopyPtr copy = partial_copies_.At(place); copy != nullptr) {
    partial_copies_.Asked(copy->handle.record);  // its use was counted when it was acquired
    return;
  }
  const catalog::RecordId record = context_.forest.At(place);
  if (record == catalog::kNoId ||
      static_cast<std::uint32_t>(context_.forest.record(record).generation) != generation_low) {
    context_.counters.touches_refused.Add();
    return;
  }
  UseRecord(record);
  context_.counters.touches_applied.Add();
}

}  // namespace cistern::residency
