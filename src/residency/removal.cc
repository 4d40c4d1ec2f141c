// SPDX-License-Identifier: Apache-2.0
#include "residency/removal.h"

namespace cistern::residency {

void Removal::Remove(catalog::RecordId record) {
  const catalog::BlockId block = forest_.record(record).block;
  EraseRecord(record);
  Settle(block);
}

void Removal::RemoveRecordsOf(catalog::BlockId block) {
  if (forest_.block(block).folded()) {
    steps_.Count();
    const catalog::TreeId tree = forest_.block(block).tree;
    lower_.Forget(tree, forest_.ForgetFolded(block));
  }
  while (!forest_.block(block).placeholder()) EraseRecord(forest_.block(block).first_record);
}

void Removal::Settle(catalog::BlockId block) {
  for (int levels = 0; block != catalog::kNoId; ++levels) {
    if (!forest_.Empty(block) || forest_.block(block).is(catalog::Block::kCut)) {
      if (forest_.block(block).first_child == catalog::kNoId) Unpark(block);
      return;
    }
    if (levels == 32) {
      if (!forest_.block(block).is(catalog::Block::kReaping)) reap_.push_back(block);
      forest_.block(block).flags |= catalog::Block::kReaping;
      return;
    }
    if (forest_.block(block).is(catalog::Block::kReaping)) return;
    steps_.Count();
    const catalog::BlockId parent = forest_.Free(block);
    owner_.Freed(block, parent);
    block = parent;
  }
}

void Removal::Unpark(catalog::BlockId block) {
  if (forest_.block(block).folded()) return;
  for (catalog::RecordId r = forest_.block(block).first_record; r != catalog::kNoId;
       r = forest_.record(r).next) {
    steps_.Count();
    residents_.Unpark(r);
  }
}

void Removal::Reap() {
  while (!reap_.empty() && !steps_.Spent()) {
    const catalog::BlockId block = reap_.back();
    reap_.pop_back();
    forest_.block(block).flags &= static_cast<std::uint16_t>(~catalog::Block::kReaping);
    Settle(block);
  }
}

void Removal::EraseRecord(catalog::RecordId record) {
  partial_copies_.End(record);
  residents_.Leave(record);
  const catalog::Record& r = forest_.record(record);
  if (r.in_lower_tier()) lower_.Forget(forest_.block(r.block).tree, catalog::Forest::CopyOf(record, r));
  forest_.RemoveRecord(record);
}

}  // namespace cistern::residency
