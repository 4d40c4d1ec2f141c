// SPDX-License-Identifier: Apache-2.0
#include "store/publisher.h"

#include <utility>

#include "arena/protocol.h"
#include "base/assert.h"
#include "policy/lower_tier.h"

namespace cistern {

namespace {
// Windows of more blocks are ordered like full groups: finding the record that fell behind costs a look a
// block.
constexpr std::uint32_t kMaxWindowLooks = 64;
}  // namespace

Step Publisher::TryPublish(PutIndex put) {
  ++pending_[put].users;
  const Step step = TryPublishOpen(put);
  puts_.Leave(put);
  return step;
}

Task<void> Publisher::Cascade() {
  while (CascadeSlice()) co_await Yield();
}

bool Publisher::CascadeSlice() {
  while (!forest_.collecting() && !unsure_.empty()) {
    if (steps_.Spent()) return true;
    const Unsure unsure = unsure_.back();
    unsure_.pop_back();
    steps_.Count();
    Put& p = pending_[unsure.put];
    if (p.made != unsure.made) continue;
    p.unsure = false;
    if (p.state != Put::State::kOpen || TryPublish(unsure.put) != Step::kSpent) continue;
    pending_[unsure.put].unsure = true;
    unsure_.push_back(unsure);
    return true;
  }
  while (!cascade_.empty()) {
    if (steps_.Spent()) return true;
    WaitingChildren& children = cascade_.front();
    steps_.Count();
    const PutIndex put = pending_.ReadyChildOf(children.tree, children.key_hash, children.groups);
    if (put == kNoId) {
      cascade_.pop_front();
      continue;
    }
    const std::uint16_t group = pending_[put].name.group;
    const Step step = TryPublish(put);
    if (step == Step::kSpent) return true;
    const NamespaceEntry* entry = catalog_.EntryOf(children.tree);
    if (step == Step::kDone || entry == nullptr ||
        pending_.ReadyChildOf(children.tree, children.key_hash, 1u << group) != put) {
      continue;
    }
    // The put waits for its parent in the group that it needs, and so do all puts that need the same group.
    for (std::uint16_t g = 0; g < entry->groups.size(); ++g) {
      if (entry->ParentGroup(g) == entry->ParentGroup(group)) children.groups &= ~(1u << g);
    }
  }
  return false;
}

Step Publisher::TryPublishOpen(PutIndex put) {
  for (;;) {
    if (steps_.Spent()) return Step::kSpent;
    Put& p = pending_[put];
    steps_.Count();
    const NamespaceEntry* entry = catalog_.EntryOf(p.name.tree);
    if (entry == nullptr) {
      puts_.End(put, Code::kMiss);
      return Step::kDone;
    }
    if (!p.whole() || p.held) return Step::kWaits;
    pending_.SetReady(put, true);
    BlockId parent = kNoId, block = kNoId;
    if (const Step step = FindParent(put, *entry, &parent); step != Step::kDone) return step;
    if (MayDescendFromDropped(p, parent, *entry)) {
      puts_.End(put, Code::kMiss);
      return Step::kDone;
    }
    if (const Step step = FindPresent(put, parent, &block); step != Step::kDone) {
      return p.state == Put::State::kOpen ? step : Step::kDone;
    }
    if (sequences_.exhausted()) {
      puts_.End(put, Code::kBusy);
      return Step::kDone;
    }
    if (options_.max_blocks > 0 && residents_.count() >= options_.max_blocks) {
      const Step step = evictor_.EvictOne();
      if (step == Step::kDone) continue;
      if (step == Step::kSpent) return step;
      puts_.End(put, Code::kBusy);
      return Step::kDone;
    }
    block = BlockFor(put);
    if (block == kNoId) {
      // The forest is full of placeholders: a removed chain frees its placeholders too.
      if (removal_.to_reap()) {
        removal_.Reap();
        continue;
      }
      // A record that is evicted to the lower tier leaves its block in the forest, so eviction helps only
      // without one.
      const Step step = !lower_.present() ? evictor_.EvictOne() : Step::kWaits;
      if (step == Step::kDone) continue;
      if (step == Step::kSpent) return step;
      puts_.End(put, Code::kBusy);
      return Step::kDone;
    }
    // The index entry is made last, when the block has its place in the forest.
    const Found found{.place = p.place,
                      .body_bytes = static_cast<std::uint32_t>(p.body_bytes),
                      .expiry = p.expiry,
                      .generation_low = static_cast<std::uint32_t>(p.generation) & kGenerationLowMask};
    const auto number =
        evictor_.EnterIndex(FingerprintOf(entry->incarnation, p.name.group, p.name.key), found, block);
    if (!number) {
      removal_.Settle(block);
      puts_.End(put, Code::kBusy);
      return Step::kDone;
    }
    MakeVisible(put, block, *number, *entry);
    return Step::kDone;
  }
}

Step Publisher::FindParent(PutIndex put, const NamespaceEntry& entry, BlockId* parent) {
  const Put& p = pending_[put];
  *parent = kNoId;
  if (p.parent.none()) {
    *parent = forest_.tree(p.name.tree)->root;
    return Step::kDone;
  }
  bool unsure = false;
  *parent = catalog_.Find(p.name.tree, p.parent, &unsure);
  if (unsure) return WaitUntilSure(put);
  const std::uint16_t needed = entry.ParentGroup(p.name.group);
  if (needed == kNoGroup) return Step::kDone;
  if (*parent == kNoId || !catalog_.Readable(*parent, needed, catalog_.NowS())) return Step::kWaits;
  return Step::kDone;
}

Step Publisher::FindPresent(PutIndex put, BlockId parent, BlockId* block) {
  const Put& p = pending_[put];
  bool unsure = false;
  *block = catalog_.Find(p.name.tree, p.name.key, &unsure);
  if (unsure) return WaitUntilSure(put);
  if (*block == kNoId) return Step::kDone;
  if (const auto copy = forest_.See(*block, p.name.group)) {
    if (!Catalog::Expired(copy->expiry, catalog_.NowS())) {
      if (p.conversation != 0) conversations_.Uses(p.name.tree, p.name.key, p.conversation);
      puts_.End(put, Code::kOk);
      return Step::kWaits;
    }
    deletions_.Cut(*block, LossReason::kExpired);
    *block = kNoId;
    return Step::kDone;
  }
  const Block& b = forest_.block(*block);
  if (b.is(Block::kOrphan)) {
    const Forest::Answer descends = parent == kNoId ? Forest::Answer::kNo : DescendsFrom(parent, *block);
    if (descends == Forest::Answer::kNo) return Step::kDone;
    if (descends == Forest::Answer::kUnknown) {
      // An adoption might close a circle: the put came after its children, deep in a chain. Such a put is
      // refused.
      puts_.End(put, Code::kBusy);
      return Step::kWaits;
    }
  } else if (parent != kNoId ? b.parent == parent
                             : forest_.block(b.parent).key_hash() == KeyHashOf(p.name.tree, p.parent)) {
    return Step::kDone;
  }
  // A chained hash has one parent: this key is no block of the chain that the put names.
  puts_.End(put, Code::kInvalid);
  return Step::kWaits;
}

// The put is not ready while it waits: others with the same parent may be, and are not kept waiting.
Step Publisher::WaitUntilSure(PutIndex put) {
  Put& p = pending_[put];
  pending_.SetReady(put, false);
  if (!std::exchange(p.unsure, true)) unsure_.push_back({put, p.made});
  return Step::kWaits;
}

// A drop ends its descendants' puts parent by parent. A put whose parent was then neither present nor
// pending may have been a descendant all the same: it is given up when there was a drop between it and its
// parent.
bool Publisher::MayDescendFromDropped(const Put& put, BlockId parent, const NamespaceEntry& entry) const {
  if (put.parent.none()) return false;
  const std::uint16_t needed = entry.ParentGroup(put.name.group);
  // Records read from the lower tier have no after_drop.
  const RecordId above = needed == kNoGroup ? kNoId : forest_.FindRecord(parent, needed);
  std::uint64_t drop = above == kNoId ? Record::kDropUnknown : forest_.record(above).after_drop;
  if (drop == Record::kDropUnknown) drop = forest_.tree(put.name.tree)->last_drop;
  return drop > put.made;
}

Forest::Answer Publisher::DescendsFrom(BlockId block, BlockId top) {
  for (std::uint32_t looks = 0; looks < kStandingLooks; ++looks, block = forest_.block(block).parent) {
    if (block == kNoId) return Forest::Answer::kNo;
    steps_.Count();
    if (block == top) return Forest::Answer::kYes;
  }
  return Forest::Answer::kUnknown;
}

// The block of the put's record, made if the forest has none; kNoId past the forest's bound. An older block
// of its key in the table was cut with an ancestor: FindPresent said so in this step.
BlockId Publisher::BlockFor(PutIndex put) {
  const Put& p = pending_[put];
  const TreeId tree = p.name.tree;
  BlockId parent = forest_.tree(tree)->root;
  if (!p.parent.none()) {
    parent = catalog_.Find(tree, p.parent);
    if (parent == kNoId) {
      // Only namespaces without a full group get here: a block may be put before its parent.
      if (const BlockId old = forest_.Find(tree, p.parent); old != kNoId) deletions_.Detach(old);
      parent = catalog_.AddBlock(tree, KeyHashOf(tree, p.parent), forest_.OrphansOf(tree));
      if (parent == kNoId) return kNoId;
      forest_.block(parent).flags |= Block::kOrphan;
    }
  }
  BlockId block = catalog_.Find(tree, p.name.key);
  if (block == kNoId) {
    if (const BlockId old = forest_.Find(tree, p.name.key); old != kNoId) deletions_.Detach(old);
    block = catalog_.AddBlock(tree, KeyHashOf(tree, p.name.key), parent);
    if (block == kNoId) removal_.Settle(parent);
  } else if (forest_.block(block).is(Block::kOrphan)) {
    forest_.block(block).flags &= static_cast<std::uint16_t>(~Block::kOrphan);
    forest_.Adopt(parent, block);
  }
  return block;
}

void Publisher::MakeVisible(PutIndex put, BlockId block, std::uint32_t index_number,
                            const NamespaceEntry& entry) {
  Put& p = pending_[put];
  const std::uint64_t born = sequences_.Next();
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
  steps_.Count(8);
  if (forest_.Empty(block)) {
    conversations_.Began(p.name.tree, p.name.key, p.parent, p.conversation);
  } else if (p.conversation != 0) {
    conversations_.Wrote(p.name.tree, p.name.key, p.parent, p.conversation);
  }
  steps_.Count(p.conversation != 0 ? 4 : 1);
  const RecordId record = forest_.AddRecord(block, p.name.group);
  CISTERN_ASSERT(record < catalog_.max_records());
  Record& r = forest_.record(record);
  r.key = p.name.key;
  r.place = p.place;
  r.body_bytes = static_cast<std::uint32_t>(p.body_bytes);
  r.expiry = p.expiry;
  r.parts = static_cast<std::uint8_t>(p.part_bytes.size() - 1);
  r.flags = Record::kVerified;
  r.born = born;
  r.after_drop = p.after_drop;
  r.generation = p.generation;
  residents_.Enter(record, index_number);
  slots_.Unpin(p.place);
  p.has_slot = false;
  p.state = Put::State::kPublished;
  counters_.published.Add();
  pending_.Close(put);
  MarkBehind(block, p.name.group, entry);
  if (lower_.present() && WrittenAtUse(entry.lower.Over(options_.lower), 0)) write_back_.Want(record);
  std::uint32_t child_groups = 0;
  for (std::uint16_t g = 0; g < entry.groups.size(); ++g) {
    if (entry.ParentGroup(g) == p.name.group) child_groups |= 1u << g;
  }
  if (pending_.size() > 0 && child_groups != 0)
    cascade_.push_back({p.name.tree, KeyHashOf(p.name.tree, p.name.key), child_groups});
}

// The record that fell a whole window behind this new one goes before others: no continuation of this chain
// needs it.
void Publisher::MarkBehind(BlockId block, std::uint16_t group, const NamespaceEntry& entry) {
  const std::uint32_t window = entry.groups[group].window_blocks;
  if (window == 0 || window > kMaxWindowLooks) return;
  BlockId at = block;
  for (std::uint32_t back = 0; back < window && at != kNoId; ++back) {
    steps_.Count();
    at = forest_.block(at).parent;
  }
  if (at == kNoId) return;
  if (Block& b = forest_.block(at); b.folded() && b.group == group) b.flags |= Block::kBehind;
  const RecordId record = forest_.FindRecord(at, group);
  if (record == kNoId) return;
  forest_.record(record).flags |= Record::kBehind;
  if (!forest_.record(record).in_memory()) return;
  residents_.MakeColdest(record);
}

}  // namespace cistern
