// SPDX-License-Identifier: Apache-2.0
#include "store/publisher.h"

#include <utility>

#include "arena/protocol.h"
#include "base/assert.h"

namespace cistern::store {

namespace {
// Windows of more blocks are ordered like full groups: finding the record that fell behind costs a look a
// block.
constexpr std::uint32_t kMaxWindowLooks = 64;
}  // namespace

residency::Step Publisher::TryPublish(catalog::PutIndex put) {
  ++context_.pending[put].users;
  const residency::Step step = TryPublishOpen(put);
  const catalog::Put& p = context_.pending[put];
  if (p.state == catalog::Put::State::kOpen)
    context_.pending.SetReady(put, p.whole() && !p.held && !p.unsure);
  puts_.Leave(put);
  return step;
}

Task<void> Publisher::Settle() {
  if (cascade_waits()) co_await Cascade();
  if (context_.conversations.sharing()) co_await context_.catalog.ShareUses();
}

Task<void> Publisher::Cascade() {
  while (CascadeSlice()) co_await Yield();
}

bool Publisher::CascadeSlice() {
  while (!context_.forest.collecting() && !unsure_.empty()) {
    if (context_.steps.Spent()) return true;
    const Unsure unsure = unsure_.back();
    unsure_.pop_back();
    context_.steps.Count();
    catalog::Put& p = context_.pending[unsure.put];
    if (p.made != unsure.made) continue;
    p.unsure = false;
    if (p.state != catalog::Put::State::kOpen || TryPublish(unsure.put) != residency::Step::kSpent) continue;
    context_.pending[unsure.put].unsure = true;
    unsure_.push_back(unsure);
    return true;
  }
  while (!cascade_.empty()) {
    if (context_.steps.Spent()) return true;
    WaitingChildren& children = cascade_.front();
    context_.steps.Count();
    const catalog::PutIndex put =
        context_.pending.ReadyChildOf(children.tree, children.key_hash, children.groups);
    if (put == catalog::kNoId) {
      cascade_.pop_front();
      continue;
    }
    const std::uint16_t group = context_.pending[put].name.group;
    const residency::Step step = TryPublish(put);
    if (step == residency::Step::kSpent) return true;
    const catalog::NamespaceEntry* entry = context_.catalog.EntryOf(children.tree);
    if (step == residency::Step::kDone || entry == nullptr ||
        context_.pending.ReadyChildOf(children.tree, children.key_hash, 1u << group) != put) {
      continue;
    }
    // The put waits for its parent in the group that it needs, and so do all puts that need the same group.
    for (std::uint16_t g = 0; g < entry->groups.size(); ++g) {
      if (entry->ParentGroup(g) == entry->ParentGroup(group)) children.groups &= ~(1u << g);
    }
  }
  return false;
}

residency::Step Publisher::TryPublishOpen(catalog::PutIndex put) {
  const auto end = [this, put](Code code) {
    puts_.End(put, code);
    return residency::Step::kDone;
  };
  for (;;) {
    if (context_.steps.Spent()) return residency::Step::kSpent;
    catalog::Put& p = context_.pending[put];
    context_.steps.Count();
    const catalog::NamespaceEntry* entry = context_.catalog.EntryOf(p.name.tree);
    if (entry == nullptr) return end(Code::kMiss);
    if (!p.whole() || p.held) return residency::Step::kWaits;
    catalog::BlockId parent = catalog::kNoId, block = catalog::kNoId;
    residency::Step step = FindParent(put, *entry, &parent);
    if (step == residency::Step::kDone) step = CheckDrops(put, parent, *entry);
    if (step == residency::Step::kDone) step = FindPresent(put, *entry, &parent, &block);
    if (step != residency::Step::kDone)
      return p.state == catalog::Put::State::kOpen ? step : residency::Step::kDone;
    if (context_.sequences.exhausted()) return end(Code::kBusy);
    if (context_.options.max_blocks > 0 && residents_.count() >= context_.options.max_blocks) {
      // A window's record does not stay out alone: without the full group's its block is not found at all.
      const bool full = entry->groups[p.name.group].reach == Reach::kFull;
      bool stays_out = false;
      step = evictor_.EvictOne({.standing = p.standing,
                                .groups = evictor_.MayLeaveFor(context_.catalog.GroupOf(p.name.tree), 0),
                                .age = p.age},
                               full ? &stays_out : nullptr);
      if (step == residency::Step::kDone) continue;
      if (step == residency::Step::kSpent) return step;
      if (stays_out) context_.counters.stayed_out.Add();
      return end(Code::kBusy);
    }
    block = BlockFor(put, parent, block);
    if (block == catalog::kNoId) {
      // The forest is full of placeholders: a removed chain frees its placeholders too.
      if (removal_.to_reap()) {
        removal_.Reap();
        continue;
      }
      // A record that is evicted to the lower tier leaves its block in the forest, so eviction helps only
      // without one.
      step = !lower_.present() ? evictor_.EvictOne({}) : residency::Step::kWaits;
      if (step == residency::Step::kDone) continue;
      return step == residency::Step::kSpent ? step : end(Code::kBusy);
    }
    // The index entry is made last, when the block has its place in the forest.
    const arena::Found found{
        .place = p.place,
        .body_bytes = static_cast<std::uint32_t>(p.body_bytes),
        .expiry = p.expiry,
        .generation_low = static_cast<std::uint32_t>(p.generation) & arena::kGenerationLowMask};
    const auto number =
        evictor_.AddEntry(arena::FingerprintOf(entry->incarnation, p.name.group, p.name.key), found, block);
    if (!number) {
      removal_.Settle(block);
      return end(Code::kBusy);
    }
    MakeVisible(put, block, *number, *entry);
    return residency::Step::kDone;
  }
}

residency::Step Publisher::FindParent(catalog::PutIndex put, const catalog::NamespaceEntry& entry,
                                      catalog::BlockId* parent) {
  const catalog::Put& p = context_.pending[put];
  *parent = catalog::kNoId;
  if (p.parent.none()) {
    *parent = context_.forest.tree(p.name.tree)->root;
    return residency::Step::kDone;
  }
  bool unsure = false;
  *parent = context_.catalog.Find(p.name.tree, p.parent, &unsure);
  if (unsure) return WaitUntilSure(put);
  const std::uint16_t needed = entry.ParentGroup(p.name.group);
  if (needed == catalog::kNoGroup) return residency::Step::kDone;
  if (*parent == catalog::kNoId) return residency::Step::kWaits;
  const auto above = context_.forest.See(*parent, needed);
  if (!above || context_.catalog.Expired(above->expiry) || removal_.Gone(*above))
    return residency::Step::kWaits;
  return residency::Step::kDone;
}

residency::Step Publisher::FindPresent(catalog::PutIndex put, const catalog::NamespaceEntry& entry,
                                       catalog::BlockId* parent, catalog::BlockId* block) {
  const catalog::Put& p = context_.pending[put];
  bool unsure = false;
  *block = context_.catalog.Find(p.name.tree, p.name.key, &unsure);
  if (unsure) return WaitUntilSure(put);
  if (*block == catalog::kNoId) return residency::Step::kDone;
  if (const auto copy = context_.forest.See(*block, p.name.group)) {
    if (!context_.catalog.Expired(copy->expiry) && !removal_.Gone(*copy)) {
      if (p.conversation != 0) context_.conversations.Uses(p.name.tree, p.name.key, p.conversation);
      for (const std::uint64_t conversation : p.also)
        context_.conversations.Uses(p.name.tree, p.name.key, conversation);
      puts_.End(put, Code::kOk);
      return residency::Step::kWaits;
    }
    if (!removal_.LoseGone(*block, p.name.group, *copy))
      deletions_.Cut(*block, residency::LossReason::kExpired);
    *block = catalog::kNoId;
    // A parent without a record has left with its last child.
    return FindParent(put, entry, parent);
  }
  const catalog::Block& b = context_.forest.block(*block);
  if (b.is(catalog::Block::kOrphan)) {
    const catalog::Forest::Answer descends =
        *parent == catalog::kNoId ? catalog::Forest::Answer::kNo : DescendsFrom(*parent, *block);
    if (descends == catalog::Forest::Answer::kNo) return residency::Step::kDone;
    if (descends == catalog::Forest::Answer::kUnknown) {
      // An adoption might close a circle: the put came after its children, deep in a chain. Such a put is
      // refused.
      puts_.End(put, Code::kBusy);
      return residency::Step::kWaits;
    }
  } else if (*parent != catalog::kNoId
                 ? b.parent == *parent
                 : context_.forest.block(b.parent).key_hash() == catalog::KeyHashOf(p.name.tree, p.parent)) {
    return residency::Step::kDone;
  }
  // A chained hash has one parent: this key is no block of the chain that the put names.
  puts_.End(put, Code::kInvalid);
  return residency::Step::kWaits;
}

// The put is not ready while it waits: others with the same parent may be, and are not kept waiting.
residency::Step Publisher::WaitUntilSure(catalog::PutIndex put) {
  catalog::Put& p = context_.pending[put];
  if (!std::exchange(p.unsure, true)) unsure_.push_back({put, p.made});
  return residency::Step::kWaits;
}

// A drop ends its descendants' puts parent by parent. A put whose parent was then neither present nor
// pending may have been a descendant all the same: it is given up when there was a drop between it and its
// parent.
bool Publisher::MayDescendFromDropped(const catalog::Put& put, catalog::BlockId parent,
                                      const catalog::NamespaceEntry& entry) const {
  if (put.parent.none()) return false;
  const std::uint16_t needed = entry.ParentGroup(put.name.group);
  // Records read from the lower tier have no after_drop.
  const catalog::RecordId above =
      needed == catalog::kNoGroup ? catalog::kNoId : context_.forest.FindRecord(parent, needed);
  std::uint64_t drop =
      above == catalog::kNoId ? catalog::Record::kDropUnknown : context_.forest.record(above).after_drop;
  if (drop == catalog::Record::kDropUnknown) drop = context_.forest.tree(put.name.tree)->last_drop;
  return drop > put.made;
}

// A parent that was there when the put was made, and has been since, would have ended the put with itself: at
// the latest when what was cut is collected.
residency::Step Publisher::CheckDrops(catalog::PutIndex put, catalog::BlockId parent,
                                      const catalog::NamespaceEntry& entry) {
  const catalog::Put& p = context_.pending[put];
  if (!MayDescendFromDropped(p, parent, entry)) return residency::Step::kDone;
  const catalog::IncarnationTree& tree = *context_.forest.tree(p.name.tree);
  if (p.parent_stood && tree.parent_left < p.made)
    return deletions_.Concern(tree.slot) ? WaitUntilSure(put) : residency::Step::kDone;
  puts_.End(put, Code::kMiss);
  return residency::Step::kWaits;
}

catalog::Forest::Answer Publisher::DescendsFrom(catalog::BlockId block, catalog::BlockId top) {
  for (std::uint32_t looks = 0; looks < catalog::kStandingLooks;
       ++looks, block = context_.forest.block(block).parent) {
    if (block == catalog::kNoId) return catalog::Forest::Answer::kNo;
    context_.steps.Count();
    if (block == top) return catalog::Forest::Answer::kYes;
  }
  return catalog::Forest::Answer::kUnknown;
}

// The block of the put's record, made if the forest has none; kNoId past the forest's bound. `parent` and
// `block` are what FindParent and FindPresent found in this step. A block of their keys that stands in the
// table all the same was cut with an ancestor.
catalog::BlockId Publisher::BlockFor(catalog::PutIndex put, catalog::BlockId parent, catalog::BlockId block) {
  const catalog::Put& p = context_.pending[put];
  const catalog::TreeId tree = p.name.tree;
  const auto detach_old = [&](const BlockKey& key) {
    if (!context_.forest.collecting()) return;
    if (const catalog::BlockId old = context_.forest.Find(tree, key); old != catalog::kNoId)
      deletions_.Detach(old);
  };
  if (parent == catalog::kNoId) {
    // Only namespaces without a full group get here: a block may be put before its parent.
    detach_old(p.parent);
    parent =
        context_.catalog.AddBlock(tree, catalog::KeyHashOf(tree, p.parent), context_.forest.OrphansOf(tree));
    if (parent == catalog::kNoId) return catalog::kNoId;
    context_.forest.block(parent).flags |= catalog::Block::kOrphan;
  }
  if (block == catalog::kNoId) {
    detach_old(p.name.key);
    block = context_.catalog.AddBlock(tree, catalog::KeyHashOf(tree, p.name.key), parent);
    if (block == catalog::kNoId) removal_.Settle(parent);
  } else if (context_.forest.block(block).is(catalog::Block::kOrphan)) {
    context_.forest.block(block).flags &= static_cast<std::uint16_t>(~catalog::Block::kOrphan);
    const catalog::BlockId home = context_.forest.block(block).parent;
    context_.forest.Adopt(parent, block);
    removal_.Settle(home);
  }
  return block;
}

void Publisher::MakeVisible(catalog::PutIndex put, catalog::BlockId block, std::uint32_t index_number,
                            const catalog::NamespaceEntry& entry) {
  catalog::Put& p = context_.pending[put];
  const std::uint64_t born = context_.sequences.Next();
  const record::Seal seal{.incarnation = entry.incarnation,
                          .group = p.name.group,
                          .key = p.name.key,
                          .parent = p.parent,
                          .put_id = p.put_id,
                          .part_bytes = p.part_bytes,
                          .segment_crcs = p.crcs};
  arena::Publish(
      context_.words, context_.slots.arena(), p.place, p.generation,
      {.seal = seal, .sequence = born, .born = born, .expiry = p.expiry, .conversation = p.conversation});
  context_.steps.Count(8);
  const catalog::Block& b = context_.forest.block(block);
  bool noted = false;
  if (b.placeholder() && !b.folded()) {
    noted = context_.conversations.Began(p.name.tree, p.name.key, p.parent, p.conversation);
  } else if (p.conversation != 0) {
    noted = context_.conversations.Wrote(p.name.tree, p.name.key, p.parent, p.conversation);
  }
  for (const std::uint64_t user : p.also) context_.conversations.Uses(p.name.tree, p.name.key, user);
  if (noted && b.first_child != catalog::kNoId)
    context_.steps.Count(2 * context_.conversations.LookBelow(context_.forest, block, p.name.key));
  context_.steps.Count(p.conversation != 0 ? 4 + static_cast<std::uint32_t>(p.also.size()) : 1);
  const catalog::RecordId record = context_.forest.AddRecord(block, p.name.group);
  CISTERN_ASSERT(record < context_.catalog.max_records());
  catalog::Record& r = context_.forest.record(record);
  r.key = p.name.key;
  r.place = p.place;
  r.body_bytes = static_cast<std::uint32_t>(p.body_bytes);
  r.expiry = p.expiry;
  r.parts = static_cast<std::uint8_t>(p.part_bytes.size() - 1);
  r.flags = catalog::Record::kVerified;
  if (p.age) r.flags |= catalog::Record::kTaken;
  r.born = born;
  r.after_drop = p.after_drop;
  r.generation = p.generation;
  residents_.Enter(record, index_number, p.standing);
  context_.slots.Unpin(p.place);
  p.has_slot = false;
  p.state = catalog::Put::State::kPublished;
  context_.counters.published.Add();
  ++context_.catalog.counted().At(p.name.tree).published;
  context_.pending.Close(put);
  MarkBehind(block, p.name.group, entry);
  write_back_.NotePut(record);
  std::uint32_t child_groups = 0;
  for (std::uint16_t g = 0; g < entry.groups.size(); ++g) {
    if (entry.ParentGroup(g) == p.name.group) child_groups |= 1u << g;
  }
  // A child that becomes ready later looks for its parent itself.
  const catalog::KeyHash key_hash = catalog::KeyHashOf(p.name.tree, p.name.key);
  context_.steps.Count();
  if (context_.pending.ReadyChildOf(p.name.tree, key_hash, child_groups) != catalog::kNoId)
    cascade_.push_back({p.name.tree, key_hash, child_groups});
}

// The record that fell a whole window behind this new one goes before others: no continuation of this chain
// needs it.
void Publisher::MarkBehind(catalog::BlockId block, std::uint16_t group,
                           const catalog::NamespaceEntry& entry) {
  const std::uint32_t window = entry.groups[group].window_blocks;
  if (window == 0 || window > kMaxWindowLooks) return;
  catalog::BlockId at = block;
  for (std::uint32_t back = 0; back < window && at != catalog::kNoId; ++back) {
    context_.steps.Count();
    at = context_.forest.block(at).parent;
  }
  if (at == catalog::kNoId) return;
  if (catalog::Block& b = context_.forest.block(at); b.folded() && b.group == group)
    b.flags |= catalog::Block::kBehind;
  const catalog::RecordId record = context_.forest.FindRecord(at, group);
  if (record == catalog::kNoId) return;
  context_.forest.record(record).flags |= catalog::Record::kBehind;
  if (!context_.forest.record(record).in_memory()) return;
  residents_.MakeColdest(record);
}

}  // namespace cistern::store
