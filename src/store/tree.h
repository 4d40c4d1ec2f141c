// SPDX-License-Identifier: Apache-2.0
// The blocks of a node and how they descend from each other, and their records in memory. A tree per
// incarnation of a namespace (a realm), whose root stands for the empty prefix. It knows what is where and
// who is whose child; what may be published, evicted or believed is decided above it.
//
// A block has records or children; one that has neither any more is freed. One without records is a ghost.
// Plain structures, no allocation per block; 64 bytes a block and 48 a record, and with table, order and
// places about 150 together.
//
// A block that was cut is no longer found by its key and never comes back, even for a block of the same key:
// that one is new. Those below it are found until they are collected; Standing() tells them apart.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "arena/geometry.h"
#include "cistern/key.h"
#include "store/slab.h"

namespace cistern {

using BlockId = std::uint32_t;
using RecordId = std::uint32_t;
using RealmId = std::uint32_t;

struct Block {
  enum Flag : std::uint8_t {
    kRoot = 1,      // of a realm; has no key
    kCut = 2,       // it and all below it are gone
    kAway = 4,      // not in the table
    kOrphan = 8,    // a ghost whose parent nobody has said yet
    kReaping = 16,  // waits to be freed
    kKept = 32,     // recovery has come to it
    kHome = 64,     // of a realm's orphans; below its root, has no key
  };
  std::array<std::uint8_t, BlockKey::kMaxBytes> key{};
  std::uint8_t key_bytes = 0;
  std::uint8_t flags = 0;
  RealmId realm = kNoId;
  BlockId parent = kNoId;
  BlockId first_child = kNoId;
  BlockId next_sibling = kNoId;
  union {
    BlockId prev_sibling = kNoId;
    std::uint32_t next_free;
  };
  RecordId first_record = kNoId;
  std::uint32_t stood_at = 0;  // the count of cuts at which it was seen to stand

  bool is(Flag flag) const { return (flags & flag) != 0; }
  bool ghost() const { return first_record == kNoId; }
  BlockKey Key() const {
    BlockKey made;
    made.bytes = key;
    made.length = key_bytes;
    return made;
  }
};
static_assert(sizeof(Block) == 64);

struct Record {
  enum Flag : std::uint8_t {
    kVerified = 1,  // its body was checked since the start
    kBehind = 2,    // behind its window's reach: goes before others
  };
  BlockId block = kNoId;
  union {
    RecordId next = kNoId;  // of the same block
    std::uint32_t next_free;
  };
  Place place = 0;
  std::uint32_t body_bytes = 0;
  std::uint32_t expiry = 0;
  std::uint16_t group = 0;
  std::uint8_t parts = 0;  // one less than it has
  std::uint8_t flags = 0;
  std::uint32_t holds = 0;  // leases, and what is under way with its slot
  std::uint32_t entry = 0;  // its number in the index; kNoId: recovery found no room for it there
  std::uint64_t born = 0;
  std::uint64_t generation = 0;
  std::uint64_t after_drop = 0;  // as its put's; 0: it was here at the start

  bool is(Flag flag) const { return (flags & flag) != 0; }
  std::uint16_t part_count() const { return static_cast<std::uint16_t>(parts + 1); }
};
static_assert(sizeof(Record) == 56);

struct Realm {
  std::uint64_t incarnation = 0;
  std::uint32_t slot = 0;
  BlockId root = kNoId;
  BlockId orphans = kNoId;      // the home of its orphans
  std::uint64_t last_drop = 0;  // when the last drop of a key in it was, as Put::made
};

class Tree final {
 public:
  // At most so many blocks, roots and ghosts included, of which the table is made for; places are those of
  // the geometry.
  Tree(std::uint32_t max_blocks, const Geometry& geometry);

  // ---- realms ----
  // Its id is never given out again.
  RealmId AddRealm(std::uint32_t slot, std::uint64_t incarnation);
  // Its root has no child left.
  void RemoveRealm(RealmId realm);
  // Where blocks hang whose parent is not known; made where there is none. ForgetOrphans when it was cut.
  BlockId OrphansOf(RealmId realm);
  void ForgetOrphans(RealmId realm) { realms_.at(realm).orphans = kNoId; }
  void NoteDrop(RealmId realm, std::uint64_t made) { realms_.at(realm).last_drop = made; }
  // Null for one that was removed.
  const Realm* realm(RealmId realm) const {
    const auto found = realms_.find(realm);
    return found == realms_.end() ? nullptr : &found->second;
  }

  // ---- blocks ----
  // kNoId when none is in the table. Two or three cache lines.
  BlockId Find(RealmId realm, const BlockKey& key) const { return Find(realm, key, TagOf(realm, key)); }
  BlockId Find(RealmId realm, const BlockKey& key, std::uint32_t tag) const;
  // What Find of several keys will look at, asked for ahead: first every key's bucket, which gives its tag,
  // then every tag's block.
  std::uint32_t PrefetchBucket(RealmId realm, const BlockKey& key) const;
  void PrefetchBlock(std::uint32_t tag) const;
  // The first record of a block that was found.
  void PrefetchFirstRecord(BlockId block) const {
    if (!blocks_[block].ghost()) __builtin_prefetch(&records_[blocks_[block].first_record]);
  }
  // A new block; the key is not in the table. kNoId when max_blocks are there. Without a parent (kNoId) it is
  // loose until it is adopted.
  BlockId Add(RealmId realm, const BlockKey& key, BlockId parent);
  // Hangs a block (and all below it) below another one of its realm.
  void Adopt(BlockId parent, BlockId block);
  // Takes a block out of the table: a block of the same key will be another one.
  void TakeAway(BlockId block);
  // Cut, out of the table, and no child of its parent any more; its former parent.
  BlockId Cut(BlockId block);
  // Whether neither it nor an ancestor was cut. Looks at `*budget` ancestors at most and counts them off; an
  // answer that this does not suffice for is kUnknown. Blocks that were seen to stand cost one look.
  enum class Answer : std::uint8_t { kYes, kNo, kUnknown };
  Answer Standing(BlockId block, std::uint32_t* budget);
  // Cuts whose blocks are not all collected: while there are none, every block in the table stands.
  void CollectingBegins() { ++collecting_; }
  void CollectingEnded() { --collecting_; }
  bool collecting() const { return collecting_ != 0; }

  bool Empty(BlockId block) const {
    const Block& b = blocks_[block];
    return b.first_record == kNoId && b.first_child == kNoId && !b.is(Block::kRoot) && !b.is(Block::kHome);
  }
  // Frees an Empty() block and returns its parent, kNoId for a cut one.
  BlockId Free(BlockId block);
  // Frees a block of which nobody below or above is left to know, without looking at either.
  void Discard(BlockId block);

  Block& block(BlockId id) { return blocks_[id]; }
  const Block& block(BlockId id) const { return blocks_[id]; }
  std::uint32_t max_blocks() const { return max_blocks_; }
  // Roots and ghosts included.
  std::uint32_t blocks() const { return blocks_.size(); }
  std::uint32_t realms() const { return static_cast<std::uint32_t>(realms_.size()); }
  // Past every id in use.
  BlockId block_end() const { return blocks_.end(); }

  // ---- records ----
  // kNoId when the block has none of this group. At most as many looks as the block has groups.
  RecordId FindRecord(BlockId block, std::uint16_t group) const;
  // The block has none of this group yet.
  RecordId AddRecord(BlockId block, std::uint16_t group);
  void RemoveRecord(RecordId record);
  Record& record(RecordId id) { return records_[id]; }
  const Record& record(RecordId id) const { return records_[id]; }
  std::uint32_t records() const { return records_.size(); }

  // Which record lies at a place; kNoId for none, and for a place that is none.
  RecordId At(Place place) const;
  void SetAt(Place place, RecordId record) { at_[UnitOf(place)] = record + 1; }
  void ClearAt(Place place) { at_[UnitOf(place)] = 0; }

 private:
  struct Bucket {
    std::uint32_t tag;  // high half of the hash; its place comes from it alone, so that removal can shift
    BlockId id_plus_1;
  };

  static std::uint32_t TagOf(RealmId realm, const BlockKey& key);
  std::size_t HomeOf(std::uint32_t tag) const { return (std::uint64_t{tag} * table_.size()) >> 32; }
  std::size_t UnitOf(Place place) const { return geometry_.offset(place) / kUnitBytes; }
  void LinkChild(BlockId parent, BlockId block);
  void UnlinkChild(BlockId block);

  const std::uint32_t max_blocks_;
  const Geometry geometry_;
  Slab<Block> blocks_;
  Slab<Record> records_;
  std::unordered_map<RealmId, Realm> realms_;
  RealmId next_realm_ = 0;
  LazyArray<Bucket> table_;
  LazyArray<std::uint32_t> at_;  // by unit: a record, plus one
  std::uint32_t cuts_ = 1;
  std::uint32_t collecting_ = 0;
};

}  // namespace cistern
