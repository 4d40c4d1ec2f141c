// SPDX-License-Identifier: Apache-2.0
#include "catalog/forest.h"

#include "base/assert.h"

namespace cistern::catalog {

Forest::Forest(std::uint32_t max_blocks, const arena::Geometry& geometry)
    : max_blocks_(max_blocks),
      geometry_(geometry),
      table_(max_blocks),
      at_(geometry.slots_bytes() / arena::kUnitBytes) {}

TreeId Forest::AddTree(std::uint32_t slot, std::uint64_t incarnation) {
  const TreeId id = next_tree_++;
  const BlockId root = blocks_.Add();
  blocks_[root].flags = Block::kRoot | Block::kAway;
  blocks_[root].tree = id;
  trees_[id] = {.incarnation = incarnation, .slot = slot, .root = root};
  return id;
}

void Forest::RemoveTree(TreeId tree) {
  const BlockId root = trees_.at(tree).root;
  CISTERN_ASSERT(blocks_[root].first_child == kNoId);
  blocks_.Remove(root);
  trees_.erase(tree);
}

BlockId Forest::OrphansOf(TreeId tree) {
  IncarnationTree& r = trees_.at(tree);
  if (r.orphans == kNoId) {
    r.orphans = blocks_.Add();
    blocks_[r.orphans].flags = Block::kHome | Block::kAway;
    blocks_[r.orphans].tree = tree;
    LinkChild(r.root, r.orphans);
  }
  return r.orphans;
}

BlockId Forest::Find(TreeId tree, const BlockKey& key, KeyHash key_hash) const {
  return table_.Find(key_hash, [&](BlockId id) {
    ++looks_;
    const Block& b = blocks_[id];
    return b.key_hash() == key_hash && b.tree == tree && MayHaveKey(id, key);
  });
}

BlockId Forest::FindKeyHash(TreeId tree, KeyHash key_hash) const {
  return table_.Find(key_hash, [&](BlockId id) {
    ++looks_;
    const Block& b = blocks_[id];
    return b.key_hash() == key_hash && b.tree == tree;
  });
}

std::uint32_t Forest::CountKeyHash(KeyHash key_hash, std::uint32_t most) const {
  std::uint32_t count = 0;
  table_.Find(key_hash, [&](BlockId id) {
    ++looks_;
    count += blocks_[id].key_hash() == key_hash;
    return count == most;
  });
  return count;
}

// True if each record that knows its key agrees.
bool Forest::MayHaveKey(BlockId block, const BlockKey& key) const {
  const Block& b = blocks_[block];
  if (b.placeholder() || b.folded()) return true;
  for (RecordId id = b.first_record; id != kNoId; id = records_[id].next) {
    if (!records_[id].key.none()) return records_[id].key == key;
  }
  return true;
}

void Forest::PrefetchBlock(KeyHash key_hash) const {
  const BlockId likely = table_.Find(key_hash, [](BlockId) { return true; });
  if (likely != kNoId) PrefetchKnown(likely);
}

void Forest::PrefetchKnown(BlockId block) const {
  const Block& b = blocks_[block];
  __builtin_prefetch(&b);
  __builtin_prefetch(&b.first_child);  // may lie in the next line
}

void Forest::PrefetchRecordOf(BlockId block) const {
  const Block& b = blocks_[block];
  if (b.placeholder() || b.folded()) return;
  const auto* record = reinterpret_cast<const std::byte*>(&records_[b.first_record]);
  __builtin_prefetch(record);
  __builtin_prefetch(record + sizeof(Record) - 1);
}

BlockId Forest::PrefetchRecord(TreeId tree, KeyHash key_hash) const {
  const BlockId block = FindKeyHash(tree, key_hash);
  if (block != kNoId) PrefetchRecordOf(block);
  return block;
}

BlockId Forest::Add(TreeId tree, KeyHash key_hash, BlockId parent) {
  if (blocks_.size() >= max_blocks_) return kNoId;
  const BlockId id = blocks_.Add();
  Block& b = blocks_[id];
  b.key_hash_low = static_cast<std::uint32_t>(key_hash);
  b.key_hash_high = static_cast<std::uint32_t>(key_hash >> 32);
  b.tree = tree;
  if (parent != kNoId) {
    b.stood_at = blocks_[parent].stood_at;
    LinkChild(parent, id);
  }
  table_.Add(id, key_hash, KeyHashes{blocks_});
  return id;
}

void Forest::LinkChild(BlockId parent, BlockId block) {
  Block& b = blocks_[block];
  Block& p = blocks_[parent];
  b.parent = parent;
  b.prev_sibling = kNoId;
  b.next_sibling = p.first_child;
  if (p.first_child != kNoId) blocks_[p.first_child].prev_sibling = block;
  p.first_child = block;
}

void Forest::UnlinkChild(BlockId block) {
  Block& b = blocks_[block];
  if (b.parent == kNoId) return;
  (b.prev_sibling == kNoId ? blocks_[b.parent].first_child : blocks_[b.prev_sibling].next_sibling) =
      b.next_sibling;
  if (b.next_sibling != kNoId) blocks_[b.next_sibling].prev_sibling = b.prev_sibling;
  b.parent = b.next_sibling = b.prev_sibling = kNoId;
}

void Forest::Adopt(BlockId parent, BlockId block) {
  UnlinkChild(block);
  LinkChild(parent, block);
}

void Forest::TakeAway(BlockId block) {
  Block& b = blocks_[block];
  if (b.is(Block::kAway)) return;
  b.flags |= Block::kAway;
  table_.Remove(block, b.key_hash(), KeyHashes{blocks_});
}

BlockId Forest::Cut(BlockId block) {
  Block& b = blocks_[block];
  TakeAway(block);
  b.flags |= Block::kCut;
  ++cuts_;
  const BlockId parent = b.parent;
  UnlinkChild(block);
  return parent;
}

Forest::Answer Forest::Standing(BlockId block, std::uint32_t* budget) {
  if (collecting_ == 0) return Answer::kYes;
  BlockId top = block;
  for (;; top = blocks_[top].parent) {
    const Block& b = blocks_[top];
    if (b.is(Block::kCut)) return Answer::kNo;
    if (b.is(Block::kRoot) || b.stood_at == cuts_) break;
    if (*budget == 0) return Answer::kUnknown;
    --*budget;
  }
  for (BlockId at = block; at != top; at = blocks_[at].parent) blocks_[at].stood_at = cuts_;
  return Answer::kYes;
}

BlockId Forest::Free(BlockId block) {
  CISTERN_ASSERT(Empty(block));
  TakeAway(block);
  const BlockId parent = blocks_[block].parent;
  UnlinkChild(block);
  blocks_.Remove(block);
  return parent;
}

void Forest::Discard(BlockId block) {
  TakeAway(block);
  blocks_.Remove(block);
}

std::optional<Forest::Copy> Forest::See(BlockId block, std::uint16_t group) const {
  const Block& b = blocks_[block];
  if (b.folded()) return b.group == group ? std::optional(CopyOf(b)) : std::nullopt;
  const RecordId id = FindRecord(block, group);
  return id == kNoId ? std::nullopt : std::optional(CopyOf(id, records_[id]));
}

RecordId Forest::FindRecord(BlockId block, std::uint16_t group) const {
  if (blocks_[block].folded()) return kNoId;
  for (RecordId id = blocks_[block].first_record; id != kNoId; id = records_[id].next) {
    if (records_[id].group == group) return id;
  }
  return kNoId;
}

RecordId Forest::Take(BlockId block, std::uint16_t group) {
  const Block& b = blocks_[block];
  if (b.folded()) return b.group == group ? Unfold(block) : kNoId;
  return FindRecord(block, group);
}

RecordId Forest::AddRecord(BlockId block, std::uint16_t group) {
  if (blocks_[block].folded()) Unfold(block);
  const RecordId id = LinkRecord(block, group);
  if (listener_ != nullptr) listener_->Came(block, group);
  return id;
}

RecordId Forest::LinkRecord(BlockId block, std::uint16_t group) {
  const RecordId id = records_.Add();
  Record& r = records_[id];
  r.block = block;
  r.group = group;
  r.serial = ++serials_;
  r.next = blocks_[block].first_record;
  blocks_[block].first_record = id;
  return id;
}

void Forest::RemoveRecord(RecordId record) {
  if (listener_ != nullptr) listener_->Went(records_[record].block, records_[record].group);
  RecordId* link = &blocks_[records_[record].block].first_record;
  while (*link != record) link = &records_[*link].next;
  *link = records_[record].next;
  records_.Remove(record);
}

bool Forest::Fold(RecordId record) {
  const Record& r = records_[record];
  Block& b = blocks_[r.block];
  if (r.in_memory() || !r.in_lower_tier() || r.references > 0 || r.entry != kNoId) return false;
  if (b.first_record != record || r.next != kNoId) return false;
  b.flags |= Block::kFolded;
  if (r.is(Record::kTouched)) b.flags |= Block::kTouched;
  if (r.is(Record::kBehind)) b.flags |= Block::kBehind;
  b.location_high = r.location.high;
  b.location_low = r.location.low;
  b.body_bytes = r.body_bytes;
  b.expiry = r.expiry;
  b.group = static_cast<std::uint8_t>(r.group);
  b.parts = r.parts;
  records_.Remove(record);
  return true;
}

RecordId Forest::Unfold(BlockId block) {
  const std::uint8_t parts = blocks_[block].parts;
  const auto touched = static_cast<std::uint8_t>(blocks_[block].is(Block::kTouched) ? Record::kTouched : 0);
  const auto behind = static_cast<std::uint8_t>(blocks_[block].is(Block::kBehind) ? Record::kBehind : 0);
  const Copy copy = TakeFolded(block);
  const RecordId id = LinkRecord(block, copy.group);
  Record& r = records_[id];
  r.body_bytes = copy.body_bytes;
  r.expiry = copy.expiry;
  r.parts = parts;
  r.flags = static_cast<std::uint8_t>(touched | behind);
  r.after_drop = Record::kDropUnknown;
  r.location = copy.location;
  return id;
}

void Forest::PutInLowerTier(BlockId block, std::uint16_t group, std::uint8_t parts, std::uint32_t body_bytes,
                            std::uint32_t expiry, tier::Location location) {
  Record& r = records_[AddRecord(block, group)];
  r.parts = parts;
  r.body_bytes = body_bytes;
  r.expiry = expiry;
  r.location = location;
  r.after_drop = Record::kDropUnknown;
  Fold(blocks_[block].first_record);
}

void Forest::SetLocation(BlockId block, std::uint16_t group, tier::Location location) {
  if (Block& b = blocks_[block]; b.folded()) {
    b.location_high = location.high;
    b.location_low = location.low;
    b.flags &= static_cast<std::uint16_t>(~Block::kTouched);
    return;
  }
  Record& r = records_[FindRecord(block, group)];
  r.location = location;
  r.flags &= static_cast<std::uint8_t>(~Record::kTouched);
}

void Forest::NoteTouched(BlockId block, std::uint16_t group) {
  if (Block& b = blocks_[block]; b.folded()) {
    if (b.group == group) b.flags |= Block::kTouched;
  } else if (const RecordId record = FindRecord(block, group); record != kNoId) {
    records_[record].flags |= Record::kTouched;
  }
}

Forest::Copy Forest::ForgetFolded(BlockId block) {
  const Copy copy = TakeFolded(block);
  if (listener_ != nullptr) listener_->Went(block, copy.group);
  return copy;
}

Forest::Copy Forest::TakeFolded(BlockId block) {
  Block& b = blocks_[block];
  CISTERN_ASSERT(b.folded());
  const Copy copy = CopyOf(b);
  b.flags &= static_cast<std::uint16_t>(~(Block::kFolded | Block::kTouched | Block::kBehind));
  b.first_record = kNoId;
  b.location_low = b.body_bytes = b.expiry = 0;
  b.group = b.parts = 0;
  return copy;
}

RecordId Forest::At(arena::Place place) const {
  const std::size_t unit = UnitOf(place);
  if (unit >= at_.size() || at_[unit] == 0) return kNoId;
  const RecordId id = at_[unit] - 1;
  // It may have left the slot since, and its id may be another record's.
  return records_[id].place == place ? id : kNoId;
}

}  // namespace cistern::catalog
