// SPDX-License-Identifier: Apache-2.0
// What becomes visible, and when: whole, its parent reachable, and room for it (R7).
#include <algorithm>
#include <array>

#include "store/impl.h"

namespace cistern {

BlockStore::Impl::Step BlockStore::Impl::FindParent(PutSlot put, const NamespaceEntry& entry,
                                                    BlockId* parent) {
  const Put& p = pending_[put];
  *parent = kNoId;
  if (p.parent.none()) {
    *parent = tree_.realm(p.name.realm)->root;
    return Step::kDone;
  }
  bool unsure = false;
  *parent = Find(p.name.realm, p.parent, &unsure);
  if (unsure) return WaitUntilSure(put);
  const std::uint16_t needed = entry.ParentGroup(p.name.group);
  if (needed == kNoGroup) return Step::kDone;
  if (*parent == kNoId || !Readable(*parent, needed, NowS())) return Step::kWaits;
  return Step::kDone;
}

// Not ready meanwhile: others below the same parent may be, and are not kept waiting.
BlockStore::Impl::Step BlockStore::Impl::WaitUntilSure(PutSlot put) {
  Put& p = pending_[put];
  pending_.SetReady(put, false);
  if (!std::exchange(p.unsure, true)) unsure_.push_back({put, p.made});
  return Step::kWaits;
}

// A drop ends the puts below it that it finds, parent by parent. A put whose parent was neither here nor on
// its way then may have been below it all the same: it is given up when there was a drop between it and its
// parent.
bool BlockStore::Impl::MayBeBelowDropped(const Put& put, BlockId parent, const NamespaceEntry& entry) const {
  if (put.parent.none()) return false;
  const std::uint16_t needed = entry.ParentGroup(put.name.group);
  // What came from flash has forgotten which drop it came after.
  const RecordId above = needed == kNoGroup ? kNoId : tree_.FindRecord(parent, needed);
  std::uint64_t drop = above == kNoId ? Record::kDropUnknown : tree_.record(above).after_drop;
  if (drop == Record::kDropUnknown) drop = tree_.realm(put.name.realm)->last_drop;
  return drop > put.made;
}

Tree::Answer BlockStore::Impl::HangsBelow(BlockId block, BlockId top) {
  for (std::uint32_t looks = 0; looks < kStandingLooks; ++looks, block = tree_.block(block).parent) {
    if (block == kNoId) return Tree::Answer::kNo;
    Count();
    if (block == top) return Tree::Answer::kYes;
  }
  return Tree::Answer::kUnknown;
}

BlockStore::Impl::Step BlockStore::Impl::FindPresent(PutSlot put, BlockId parent, BlockId* block) {
  const Put& p = pending_[put];
  bool unsure = false;
  *block = Find(p.name.realm, p.name.key, &unsure);
  if (unsure) return WaitUntilSure(put);
  if (*block == kNoId) return Step::kDone;
  if (const auto copy = tree_.See(*block, p.name.group)) {
    if (!Expired(copy->expiry, NowS())) {
      if (p.conversation != 0) conversations_.Uses(p.name.realm, p.name.key, p.conversation);
      EndPut(put, Code::kOk);
      return Step::kWaits;
    }
    Cut(*block, Reason::kExpired);
    *block = kNoId;
    return Step::kDone;
  }
  const Block& b = tree_.block(*block);
  if (b.is(Block::kOrphan)) {
    const Tree::Answer below = parent == kNoId ? Tree::Answer::kNo : HangsBelow(parent, *block);
    if (below == Tree::Answer::kNo) return Step::kDone;
    if (below == Tree::Answer::kUnknown) {
      // Adopted it might close a circle. It came after its children, deep in a chain: that is not served.
      EndPut(put, Code::kBusy);
      return Step::kWaits;
    }
  } else if (parent != kNoId ? b.parent == parent
                             : tree_.block(b.parent).tag() == TagOf(p.name.realm, p.parent)) {
    return Step::kDone;
  }
  // A chained hash has one parent: this key is no block of the chain that it was put into.
  EndPut(put, Code::kInvalid);
  return Step::kWaits;
}

bool BlockStore::Impl::EnterIndex(const Fingerprint& fingerprint, const Found& found, BlockId block,
                                  std::uint32_t* number) {
  auto entry = index_.Insert(fingerprint, found);
  Count(2);
  if (!entry) {
    // R3: both buckets full evicts.
    std::array<Place, 2 * kEntriesPerBucket> places;
    const std::size_t count = index_.OccupantsOf(fingerprint, places);
    Count(static_cast<std::uint32_t>(count));
    for (std::size_t i = 0; i < count; ++i) {
      const RecordId record = tree_.At(places[i]);
      if (record == kNoId || tree_.record(record).block == block || !MayGo(record)) continue;
      Evict(record);
      entry = index_.Insert(fingerprint, found);
      break;
    }
  }
  if (!entry) return false;
  *number = static_cast<std::uint32_t>(*entry);
  return true;
}

// The block that the put's record will belong to, made if it is not here; kNoId past the tree's bound.
// Nothing that stands in its way is alive: FindPresent said so in this step.
BlockId BlockStore::Impl::BlockFor(PutSlot put) {
  const Put& p = pending_[put];
  const RealmId realm = p.name.realm;
  BlockId parent = tree_.realm(realm)->root;
  if (!p.parent.none()) {
    parent = Find(realm, p.parent);
    if (parent == kNoId) {
      // Only where no group is full: the block may come before its parent.
      if (const BlockId old = tree_.Find(realm, p.parent); old != kNoId) Disown(old);
      parent = AddBlock(realm, TagOf(realm, p.parent), tree_.OrphansOf(realm));
      if (parent == kNoId) return kNoId;
      tree_.block(parent).flags |= Block::kOrphan;
    }
  }
  BlockId block = Find(realm, p.name.key);
  if (block == kNoId) {
    if (const BlockId old = tree_.Find(realm, p.name.key); old != kNoId) Disown(old);
    block = AddBlock(realm, TagOf(realm, p.name.key), parent);
    if (block == kNoId) Settle(parent);
  } else if (tree_.block(block).is(Block::kOrphan)) {
    tree_.block(block).flags &= static_cast<std::uint16_t>(~Block::kOrphan);
    tree_.Adopt(parent, block);
  }
  return block;
}

BlockStore::Impl::Step BlockStore::Impl::TryPublish(PutSlot put) {
  ++pending_[put].users;
  const Step step = TryPublishOpen(put);
  Leave(put);
  return step;
}

Task<void> BlockStore::Impl::ReserveSequences() {
  if (reserving_) co_return;
  reserving_ = true;
  const std::uint64_t below = sequence_ + kSequencesReserved;
  // A failure is tried again with the next write; long before, nothing is published any more.
  if ((co_await journal_.ReserveSequences(below)).ok()) sequences_below_ = below;
  reserving_ = false;
}

BlockStore::Impl::Step BlockStore::Impl::TryPublishOpen(PutSlot put) {
  for (;;) {
    if (Spent()) return Step::kSpent;
    Put& p = pending_[put];
    Count();
    const NamespaceEntry* entry = EntryOf(p.name.realm);
    if (entry == nullptr) {
      EndPut(put, Code::kMiss);
      return Step::kDone;
    }
    if (!p.whole() || p.held) return Step::kWaits;
    pending_.SetReady(put, true);
    BlockId parent = kNoId, block = kNoId;
    if (const Step step = FindParent(put, *entry, &parent); step != Step::kDone) return step;
    if (MayBeBelowDropped(p, parent, *entry)) {
      EndPut(put, Code::kMiss);
      return Step::kDone;
    }
    if (const Step step = FindPresent(put, parent, &block); step != Step::kDone) {
      return p.state == Put::State::kOpen ? step : Step::kDone;
    }
    // Moves, drops and namespaces take from the rest.
    if (sequence_ + (kSequencesReserved >> 4) >= sequences_below_) {
      EndPut(put, Code::kBusy);
      return Step::kDone;
    }
    if (options_.max_blocks > 0 && resident_ >= options_.max_blocks) {
      const Step step = EvictOne();
      if (step == Step::kDone) continue;
      if (step == Step::kSpent) return step;
      EndPut(put, Code::kBusy);
      return Step::kDone;
    }
    block = BlockFor(put);
    if (block == kNoId) {
      // The tree is full, of ghosts: each chain that goes takes its own along.
      if (!reap_.empty()) {
        Reap();
        continue;
      }
      // What leaves memory for flash leaves its block where it is.
      const Step step = tier_ == nullptr ? EvictOne() : Step::kWaits;
      if (step == Step::kDone) continue;
      if (step == Step::kSpent) return step;
      EndPut(put, Code::kBusy);
      return Step::kDone;
    }
    // Last: nobody finds what then has no place in the tree.
    std::uint32_t number = 0;
    const Found found{.place = p.place,
                      .body_bytes = static_cast<std::uint32_t>(p.body_bytes),
                      .expiry = p.expiry,
                      .generation_low = static_cast<std::uint32_t>(p.generation) & kGenerationLowMask};
    if (!EnterIndex(FingerprintOf(entry->incarnation, p.name.group, p.name.key), found, block, &number)) {
      Settle(block);
      EndPut(put, Code::kBusy);
      return Step::kDone;
    }
    MakeVisible(put, block, number, *entry);
    return Step::kDone;
  }
}

void BlockStore::Impl::MakeVisible(PutSlot put, BlockId block, std::uint32_t index_number,
                                   const NamespaceEntry& entry) {
  Put& p = pending_[put];
  const std::uint64_t born = sequence_++;
  const Seal seal{.incarnation = entry.incarnation,
                  .group = p.name.group,
                  .key = p.name.key,
                  .parent = p.parent,
                  .put_id = p.name.id,
                  .part_bytes = p.part_bytes,
                  .segment_crcs = p.crcs};
  cistern::Publish(
      words_, slots_.arena(), p.place, p.generation,
      {.seal = seal, .sequence = born, .born = born, .expiry = p.expiry, .conversation = p.conversation});
  Count(8);
  if (tree_.Empty(block)) {
    conversations_.Began(p.name.realm, p.name.key, p.parent, p.conversation);
  } else if (p.conversation != 0) {
    conversations_.Wrote(p.name.realm, p.name.key, p.parent, p.conversation);
  }
  Count(p.conversation != 0 ? 4 : 1);
  const RecordId record = tree_.AddRecord(block, p.name.group);
  CISTERN_ASSERT(record < max_record_ids_);
  Record& r = tree_.record(record);
  r.key = p.name.key;
  r.place = p.place;
  r.body_bytes = static_cast<std::uint32_t>(p.body_bytes);
  r.expiry = p.expiry;
  r.parts = static_cast<std::uint8_t>(p.part_bytes.size() - 1);
  r.flags = Record::kVerified;
  r.entry = index_number;
  r.born = born;
  r.after_drop = p.after_drop;
  r.generation = p.generation;
  tree_.SetAt(p.place, record);
  order_.Insert(record, slots_.SizeNumber(p.place));
  if (p.expiry != 0) expiry_.Set(record, p.expiry);
  bytes_ += p.body_bytes;
  ++resident_;
  slots_.Unpin(p.place);
  p.has_slot = false;
  p.state = Put::State::kPublished;
  counters_.published.Add();
  pending_.Close(put);
  MarkBehind(block, p.name.group, entry);
  if (tier_ != nullptr && WrittenAtUse(entry.lower.Over(options_.lower), 0)) WantBelow(record);
  std::uint32_t below = 0;
  for (std::uint16_t g = 0; g < entry.groups.size(); ++g) {
    if (entry.ParentGroup(g) == p.name.group) below |= 1u << g;
  }
  if (pending_.size() > 0 && below != 0)
    cascade_.push_back({p.name.realm, TagOf(p.name.realm, p.name.key), below});
}

// The record that fell a whole window behind this new one goes before others: no continuation of this chain
// needs it.
void BlockStore::Impl::MarkBehind(BlockId block, std::uint16_t group, const NamespaceEntry& entry) {
  const std::uint32_t window = entry.groups[group].window_blocks;
  if (window == 0 || window > kMaxWindowLooks) return;
  BlockId at = block;
  for (std::uint32_t back = 0; back < window && at != kNoId; ++back) {
    Count();
    at = tree_.block(at).parent;
  }
  if (at == kNoId) return;
  if (Block& b = tree_.block(at); b.folded() && b.group == group) b.flags |= Block::kBehind;
  const RecordId record = tree_.FindRecord(at, group);
  if (record == kNoId) return;
  tree_.record(record).flags |= Record::kBehind;
  if (!tree_.record(record).in_memory()) return;
  if (order_.Parked(record)) {
    order_.Unpark(record);
  } else {
    order_.InsertCold(record);
  }
}

bool BlockStore::Impl::CascadeSlice() {
  while (!tree_.collecting() && !unsure_.empty()) {
    if (Spent()) return true;
    const Unsure unsure = unsure_.back();
    unsure_.pop_back();
    Count();
    Put& p = pending_[unsure.put];
    if (p.made != unsure.made) continue;
    p.unsure = false;
    if (p.state != Put::State::kOpen || TryPublish(unsure.put) != Step::kSpent) continue;
    pending_[unsure.put].unsure = true;
    unsure_.push_back(unsure);
    return true;
  }
  while (!cascade_.empty()) {
    if (Spent()) return true;
    Below& below = cascade_.front();
    Count();
    const PutSlot put = pending_.ReadyBelow(below.realm, below.tag, below.groups);
    if (put == kNoId) {
      cascade_.pop_front();
      continue;
    }
    const std::uint16_t group = pending_[put].name.group;
    const Step step = TryPublish(put);
    if (step == Step::kSpent) return true;
    const NamespaceEntry* entry = EntryOf(below.realm);
    if (step == Step::kDone || entry == nullptr ||
        pending_.ReadyBelow(below.realm, below.tag, 1u << group) != put) {
      continue;
    }
    // It waits for its parent in the group that it needs, and so do all that need the same.
    for (std::uint16_t g = 0; g < entry->groups.size(); ++g) {
      if (entry->ParentGroup(g) == entry->ParentGroup(group)) below.groups &= ~(1u << g);
    }
  }
  return false;
}

Task<void> BlockStore::Impl::Cascade() {
  while (CascadeSlice()) co_await Yield();
}

}  // namespace cistern
