// SPDX-License-Identifier: Apache-2.0
#include "residency/removal.h"

namespace cistern::residency {

void Removal::Remove(catalog::RecordId record) {
  const catalog::BlockId block = context_.forest.record(record).block;
  EraseRecord(record);
  Settle(block);
}

void Removal::Lose(catalog::BlockId block, std::uint16_t group, const catalog::Forest::Copy& copy) {
  context_.counters.lost_below.Add();
  if (copy.record != catalog::kNoId) partial_copies_.EndIfIdle(copy.record);
  const bool leased = copy.record != catalog::kNoId && context_.forest.record(copy.record).references > 0;
  if (leased || context_.forest.block(block).first_child != catalog::kNoId) {
    owner_.Lose(block, LossReason::kBad);
  } else {
    context_.catalog.gone().Note(context_.forest.block(block).key_hash(), catalog::WentBy::kBad);
    Remove(context_.forest.Take(block, group));
  }
}

void Removal::RemoveRecordsOf(catalog::BlockId block) {
  if (context_.forest.block(block).folded()) {
    context_.steps.Count();
    const catalog::TreeId tree = context_.forest.block(block).tree;
    lower_.Forget(tree, context_.forest.ForgetFolded(block));
  }
  while (!context_.forest.block(block).placeholder()) EraseRecord(context_.forest.block(block).first_record);
}

void Removal::Settle(catalog::BlockId block) {
  for (int levels = 0; block != catalog::kNoId; ++levels) {
    // A home of orphans without any goes as well: its tree may have nothing in it then.
    const bool home = EmptyHome(block);
    if (!home && (!context_.forest.Empty(block) || context_.forest.block(block).is(catalog::Block::kCut))) {
      if (context_.forest.block(block).first_child == catalog::kNoId) Unpark(block);
      return;
    }
    if (!home && levels >= 32) {
      if (!context_.forest.block(block).is(catalog::Block::kReaping)) reap_.push_back(block);
      context_.forest.block(block).flags |= catalog::Block::kReaping;
      return;
    }
    if (context_.forest.block(block).is(catalog::Block::kReaping)) return;
    context_.steps.Count();
    NoteWaitingChildren(block);
    if (home) context_.forest.EndHome(block);
    const catalog::BlockId parent = context_.forest.Free(block);
    owner_.Freed(block, parent);
    block = parent;
  }
}

bool Removal::EmptyHome(catalog::BlockId block) const {
  const catalog::Block& b = context_.forest.block(block);
  return b.is(catalog::Block::kHome) && !b.is(catalog::Block::kCut) && b.first_child == catalog::kNoId;
}

// Only below a lower tier is it asked what was there when a put was made (Publisher::CheckDrops).
void Removal::NoteWaitingChildren(catalog::BlockId block) {
  const catalog::Block& b = context_.forest.block(block);
  if (!lower_.present() || context_.pending.size() == 0 || !b.has_key()) return;
  context_.steps.Count();
  if (context_.pending.NextChildOf(b.tree, b.key_hash(), catalog::kNoId) != catalog::kNoId)
    context_.forest.NoteParentLeft(b.tree, context_.catalog.NextEvent());
}

void Removal::Unpark(catalog::BlockId block) {
  if (context_.forest.block(block).folded()) return;
  for (catalog::RecordId r = context_.forest.block(block).first_record; r != catalog::kNoId;
       r = context_.forest.record(r).next) {
    context_.steps.Count();
    residents_.Unpark(r);
  }
}

void Removal::Reap() {
  while (!reap_.empty() && !context_.steps.Spent()) {
    const catalog::BlockId block = reap_.back();
    reap_.pop_back();
    context_.forest.block(block).flags &= static_cast<std::uint16_t>(~catalog::Block::kReaping);
    Settle(block);
  }
}

void Removal::EraseRecord(catalog::RecordId record) {
  partial_copies_.End(record);
  residents_.Leave(record);
  const catalog::Record& r = context_.forest.record(record);
  if (r.in_lower_tier())
    lower_.Forget(context_.forest.block(r.block).tree, catalog::Forest::CopyOf(record, r));
  context_.forest.RemoveRecord(record);
}

}  // namespace cistern::residency
