// SPDX-License-Identifier: Apache-2.0
#include "store/tree.h"

#include <bit>
#include <cstring>

#include "base/assert.h"

namespace cistern {

Tree::Tree(std::uint32_t max_blocks, const Geometry& geometry)
    : max_blocks_(max_blocks),
      geometry_(geometry),
      table_(std::bit_ceil(std::uint64_t{max_blocks} * 3 / 2 + 16)),
      at_(geometry.slots_bytes() / kUnitBytes) {}

RealmId Tree::AddRealm(std::uint32_t slot, std::uint64_t incarnation) {
  const RealmId id = next_realm_++;
  const BlockId root = blocks_.Add();
  blocks_[root].flags = Block::kRoot | Block::kAway;
  blocks_[root].realm = id;
  realms_[id] = {.incarnation = incarnation, .slot = slot, .root = root};
  return id;
}

void Tree::RemoveRealm(RealmId realm) {
  const BlockId root = realms_.at(realm).root;
  CISTERN_ASSERT(blocks_[root].first_child == kNoId);
  blocks_.Remove(root);
  realms_.erase(realm);
}

BlockId Tree::OrphansOf(RealmId realm) {
  Realm& r = realms_.at(realm);
  if (r.orphans == kNoId) {
    r.orphans = blocks_.Add();
    blocks_[r.orphans].flags = Block::kHome | Block::kAway;
    blocks_[r.orphans].realm = realm;
    LinkChild(r.root, r.orphans);
  }
  return r.orphans;
}

std::uint32_t Tree::TagOf(RealmId realm, const BlockKey& key) {
  return static_cast<std::uint32_t>(key.Hash(realm) >> 32);
}

BlockId Tree::Find(RealmId realm, const BlockKey& key, std::uint32_t tag) const {
  for (std::size_t at = HomeOf(tag);; at = (at + 1) & (table_.size() - 1)) {
    const Bucket& bucket = table_[at];
    if (bucket.id_plus_1 == 0) return kNoId;
    if (bucket.tag != tag) continue;
    const Block& b = blocks_[bucket.id_plus_1 - 1];
    if (b.realm == realm && b.key_bytes == key.length && b.key == key.bytes) return bucket.id_plus_1 - 1;
  }
}

std::uint32_t Tree::PrefetchBucket(RealmId realm, const BlockKey& key) const {
  const std::uint32_t tag = TagOf(realm, key);
  __builtin_prefetch(&table_[HomeOf(tag)]);
  return tag;
}

void Tree::PrefetchBlock(std::uint32_t tag) const {
  for (std::size_t at = HomeOf(tag);; at = (at + 1) & (table_.size() - 1)) {
    const Bucket& bucket = table_[at];
    if (bucket.id_plus_1 == 0) return;
    if (bucket.tag == tag) return __builtin_prefetch(&blocks_[bucket.id_plus_1 - 1]);
  }
}

BlockId Tree::Add(RealmId realm, const BlockKey& key, BlockId parent) {
  if (blocks_.size() >= max_blocks_) return kNoId;
  const BlockId id = blocks_.Add();
  Block& b = blocks_[id];
  b.key = key.bytes;
  b.key_bytes = key.length;
  b.realm = realm;
  if (parent != kNoId) {
    b.stood_at = blocks_[parent].stood_at;
    LinkChild(parent, id);
  }
  const auto tag = TagOf(realm, key);
  std::size_t at = HomeOf(tag);
  while (table_[at].id_plus_1 != 0) at = (at + 1) & (table_.size() - 1);
  table_[at] = {tag, id + 1};
  return id;
}

void Tree::LinkChild(BlockId parent, BlockId block) {
  Block& b = blocks_[block];
  Block& p = blocks_[parent];
  b.parent = parent;
  b.prev_sibling = kNoId;
  b.next_sibling = p.first_child;
  if (p.first_child != kNoId) blocks_[p.first_child].prev_sibling = block;
  p.first_child = block;
}

void Tree::UnlinkChild(BlockId block) {
  Block& b = blocks_[block];
  if (b.parent == kNoId) return;
  (b.prev_sibling == kNoId ? blocks_[b.parent].first_child : blocks_[b.prev_sibling].next_sibling) =
      b.next_sibling;
  if (b.next_sibling != kNoId) blocks_[b.next_sibling].prev_sibling = b.prev_sibling;
  b.parent = b.next_sibling = b.prev_sibling = kNoId;
}

void Tree::Adopt(BlockId parent, BlockId block) {
  UnlinkChild(block);
  LinkChild(parent, block);
}

void Tree::TakeAway(BlockId block) {
  Block& b = blocks_[block];
  if (b.is(Block::kAway)) return;
  b.flags |= Block::kAway;
  const auto tag = TagOf(b.realm, b.Key());
  const std::size_t mask = table_.size() - 1;
  std::size_t hole = HomeOf(tag);
  while (table_[hole].id_plus_1 != block + 1) hole = (hole + 1) & mask;
  // What follows moves up where that keeps it reachable from its home, so that no tombstones pile up.
  for (std::size_t at = (hole + 1) & mask; table_[at].id_plus_1 != 0; at = (at + 1) & mask) {
    const std::size_t home = HomeOf(table_[at].tag);
    if (((at - home) & mask) < ((at - hole) & mask)) continue;
    table_[hole] = table_[at];
    hole = at;
  }
  table_[hole] = {};
}

BlockId Tree::Cut(BlockId block) {
  Block& b = blocks_[block];
  TakeAway(block);
  b.flags |= Block::kCut;
  ++cuts_;
  const BlockId parent = b.parent;
  UnlinkChild(block);
  return parent;
}

Tree::Answer Tree::Standing(BlockId block, std::uint32_t* budget) {
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

BlockId Tree::Free(BlockId block) {
  CISTERN_ASSERT(Empty(block));
  TakeAway(block);
  const BlockId parent = blocks_[block].parent;
  UnlinkChild(block);
  blocks_.Remove(block);
  return parent;
}

void Tree::Discard(BlockId block) {
  TakeAway(block);
  blocks_.Remove(block);
}

RecordId Tree::FindRecord(BlockId block, std::uint16_t group) const {
  for (RecordId id = blocks_[block].first_record; id != kNoId; id = records_[id].next) {
    if (records_[id].group == group) return id;
  }
  return kNoId;
}

RecordId Tree::AddRecord(BlockId block, std::uint16_t group) {
  const RecordId id = records_.Add();
  Record& r = records_[id];
  r.block = block;
  r.group = group;
  r.next = blocks_[block].first_record;
  blocks_[block].first_record = id;
  return id;
}

void Tree::RemoveRecord(RecordId record) {
  RecordId* link = &blocks_[records_[record].block].first_record;
  while (*link != record) link = &records_[*link].next;
  *link = records_[record].next;
  records_.Remove(record);
}

RecordId Tree::At(Place place) const {
  const std::size_t unit = UnitOf(place);
  if (unit >= at_.size() || at_[unit] == 0) return kNoId;
  const RecordId id = at_[unit] - 1;
  return records_[id].place == place ? id : kNoId;
}

}  // namespace cistern
