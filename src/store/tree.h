// SPDX-License-Identifier: Apache-2.0
// The blocks of a node and how they descend from each other, and their records. A tree per incarnation of a
// namespace (a realm), whose root stands for the empty prefix. It knows what is where and who is whose child;
// what may be published, evicted or believed is decided above it.
//
// A block has records or children; one that has neither any more is freed. One without records is a ghost.
// A block knows its key by a tag alone, the 64-bit hash of realm and key; what proves a key is a record: in
// memory its own full key, on flash the seal. So two blocks of one tag are told apart while they have
// records here, and one that lies on flash alone is found by its tag and proven when it is read.
//
// A block whose only record lies on flash alone may be folded: the record's few facts move into the block,
// and there is no Record of it until somebody takes it. Plain structures, no allocation per block: 52 bytes a
// block and about 9 in the table, all that one on flash costs, and 112 a record.
//
// A block that was cut is no longer found by its key and never comes back, even for a block of the same key:
// that one is new. Those below it are found until they are collected; Standing() tells them apart.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "arena/geometry.h"
#include "cistern/key.h"
#include "flash/place.h"
#include "store/id_table.h"
#include "store/slab.h"

namespace cistern {

using BlockId = std::uint32_t;
using RecordId = std::uint32_t;
using RealmId = std::uint32_t;
using Tag = std::uint64_t;

inline constexpr Place kNowhere = 0xffff'ffff;  // of a record that is not in memory

inline Tag TagOf(RealmId realm, const BlockKey& key) { return key.Hash(realm); }

struct Block {
  enum Flag : std::uint16_t {
    kRoot = 1,       // of a realm; has no key
    kCut = 2,        // it and all below it are gone
    kAway = 4,       // not in the table
    kOrphan = 8,     // a ghost whose parent nobody has said yet
    kReaping = 16,   // waits to be freed
    kKept = 32,      // recovery has come to it
    kHome = 64,      // of a realm's orphans; below its root, has no key
    kFolded = 128,   // its one record is in here, and on flash
    kTouched = 256,  // of a folded one's record: as Record's
    kBehind = 512,
  };
  std::uint32_t tag_low = 0;
  std::uint32_t tag_high = 0;
  RealmId realm = kNoId;
  union {
    RecordId first_record = kNoId;
    std::uint32_t flash_region;  // of a folded one, never kNoRegion
  };
  std::uint16_t flags = 0;
  std::uint8_t group = 0;  // from here on of a folded one's record
  std::uint8_t parts = 0;
  std::uint32_t flash_unit = 0;
  std::uint32_t body_bytes = 0;
  std::uint32_t expiry = 0;
  BlockId parent = kNoId;
  BlockId first_child = kNoId;
  BlockId next_sibling = kNoId;
  union {
    BlockId prev_sibling = kNoId;
    std::uint32_t next_free;
  };
  std::uint32_t stood_at = 0;  // the count of cuts at which it was seen to stand

  bool is(Flag flag) const { return (flags & flag) != 0; }
  bool ghost() const { return first_record == kNoId; }
  bool folded() const { return is(kFolded); }
  // Neither a root nor a home, nor free.
  bool has_key() const { return realm != kNoId && (flags & (kRoot | kHome)) == 0; }
  Tag tag() const { return Tag{tag_high} << 32 | tag_low; }
};
static_assert(kNoRegion == kNoId && sizeof(Block) == 52 && alignof(Block) == 4);

struct Record {
  enum Flag : std::uint8_t {
    kVerified = 1,  // its body was checked since the start
    kBehind = 2,    // behind its window's reach: goes before others
    kTouched = 4,   // was asked for since it was written to where it lies on flash
    kQueued = 8,    // waits to be written there
    kPassing = 16,  // read from there and not promoted: goes first once it was used
  };
  static constexpr std::uint64_t kDropUnknown = ~std::uint64_t{0};

  BlockId block = kNoId;
  union {
    RecordId next = kNoId;  // of the same block
    std::uint32_t next_free;
  };
  Place place = kNowhere;
  std::uint32_t body_bytes = 0;
  std::uint32_t expiry = 0;
  std::uint16_t group = 0;
  std::uint8_t parts = 0;  // one less than it has
  std::uint8_t flags = 0;
  std::uint32_t holds = 0;      // leases, and what is under way with its slot
  std::uint32_t entry = kNoId;  // its number in the index; kNoId: it is not there
  std::uint64_t serial = 0;     // never another record's
  std::uint64_t generation = 0;
  BlockKey key;           // of one that is in memory, or was since it was unfolded
  std::uint8_t uses = 0;  // since it came into memory, as far as they are counted
  std::uint64_t born = 0;
  std::uint64_t after_drop = 0;  // as its put's; 0: it was here at the start; or kDropUnknown
  FlashPlace flash;

  bool is(Flag flag) const { return (flags & flag) != 0; }
  bool in_memory() const { return place != kNowhere; }
  bool on_flash() const { return !flash.none(); }
  std::uint16_t part_count() const { return static_cast<std::uint16_t>(parts + 1); }
};
static_assert(sizeof(Record) == 112);

// A record as somebody remembers it over a yield: the id alone may by then be another record's.
struct Held {
  RecordId record = kNoId;
  std::uint64_t serial = 0;
};

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
  // kNoId when none is in the table. One whose records have another key is not it. Two or three cache lines,
  // and one of its first record.
  BlockId Find(RealmId realm, const BlockKey& key) const { return Find(realm, key, TagOf(realm, key)); }
  BlockId Find(RealmId realm, const BlockKey& key, Tag tag) const;
  // Any of the realm with this tag.
  BlockId FindTag(RealmId realm, Tag tag) const;
  // What Find of several keys will look at, asked for ahead: first where each of them is in the table, then
  // the blocks that are there, then their records. The last says what FindTag does: where MayHaveKey, that is
  // what Find would say.
  void PrefetchBucket(Tag tag) const { table_.Prefetch(tag); }
  void PrefetchBlock(Tag tag) const;
  BlockId PrefetchRecord(RealmId realm, Tag tag) const;
  // Of a block whose id is known: what is asked of it most, and its first record when it is in the cache.
  void PrefetchKnown(BlockId block) const;
  void PrefetchRecordOf(BlockId block) const;
  // Whether its records do not say that it has another key.
  bool MayHaveKey(BlockId block, const BlockKey& key) const;
  // A new block. kNoId when max_blocks are there. Without a parent (kNoId) it is loose until it is adopted.
  BlockId Add(RealmId realm, Tag tag, BlockId parent);
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
  // How many places in the table Add has changed so far: in waves, so that each costs a fraction of a touch.
  std::uint64_t moved() const { return table_.moved(); }
  // Of memory for the table of blocks.
  std::size_t table_bytes() const { return table_.bytes(); }
  std::uint32_t realms() const { return static_cast<std::uint32_t>(realms_.size()); }
  // Past every id in use.
  BlockId block_end() const { return blocks_.end(); }

  // ---- records ----
  // What is known of a block's record without unfolding it.
  struct Copy {
    bool in_memory = false;
    FlashPlace flash;
    std::uint32_t body_bytes = 0;
    std::uint32_t expiry = 0;
    std::uint16_t group = 0;
    RecordId record = kNoId;  // of a folded one
    bool touched = false;
  };
  // The block's record of the group. At most as many looks as the block has groups.
  std::optional<Copy> See(BlockId block, std::uint16_t group) const;
  // kNoId when the block has none of this group, or is folded.
  RecordId FindRecord(BlockId block, std::uint16_t group) const;
  // As FindRecord, and unfolds.
  RecordId Take(BlockId block, std::uint16_t group);
  // The block has none of this group yet; it is unfolded.
  RecordId AddRecord(BlockId block, std::uint16_t group);
  void RemoveRecord(RecordId record);
  // Makes a record part of its block, and ends the id. False, and nothing happens, where it is in memory or
  // in the index or held, or not on flash, or not the block's only one.
  bool Fold(RecordId record);
  // Of a folded block: its record again, which knows its serial anew and neither key, born nor generation.
  RecordId Unfold(BlockId block);
  // A folded block becomes a ghost; what its record was.
  Copy ForgetFolded(BlockId block);
  // A record that lies on flash alone, folded where that can be; the block has none of this group.
  void PutOnFlash(BlockId block, std::uint16_t group, std::uint8_t parts, std::uint32_t body_bytes,
                  std::uint32_t expiry, FlashPlace place);
  // The block's record of the group lies elsewhere on flash from now on, and was not asked for there yet.
  void SetFlash(BlockId block, std::uint16_t group, FlashPlace place);
  // It was asked for.
  void NoteTouched(BlockId block, std::uint16_t group);
  static Copy CopyOf(RecordId id, const Record& record) {
    return {record.in_memory(), record.flash, record.body_bytes,          record.expiry,
            record.group,       id,           record.is(Record::kTouched)};
  }
  static Copy CopyOf(const Block& folded) {
    return {.flash = {folded.flash_region, folded.flash_unit},
            .body_bytes = folded.body_bytes,
            .expiry = folded.expiry,
            .group = folded.group,
            .touched = folded.is(Block::kTouched)};
  }
  Record& record(RecordId id) { return records_[id]; }
  const Record& record(RecordId id) const { return records_[id]; }
  std::uint32_t records() const { return records_.size(); }

  // Which record lies at a place; kNoId for none, and for a place that is none.
  RecordId At(Place place) const;
  void SetAt(Place place, RecordId record) { at_[UnitOf(place)] = record + 1; }
  void ClearAt(Place place) { at_[UnitOf(place)] = 0; }

 private:
  // What the table asks of the blocks.
  struct Tags {
    const Slab<Block>& blocks;
    Tag tag(BlockId id) const { return blocks[id].tag(); }
    void Prefetch(BlockId id) const { __builtin_prefetch(&blocks[id]); }
  };

  std::size_t UnitOf(Place place) const { return geometry_.offset(place) / kUnitBytes; }
  void LinkChild(BlockId parent, BlockId block);
  void UnlinkChild(BlockId block);

  const std::uint32_t max_blocks_;
  const Geometry geometry_;
  Slab<Block> blocks_;
  Slab<Record> records_;
  std::unordered_map<RealmId, Realm> realms_;
  RealmId next_realm_ = 0;
  IdTable table_;
  LazyArray<std::uint32_t> at_;  // by unit: a record, plus one
  std::uint64_t serials_ = 0;
  std::uint32_t cuts_ = 1;
  std::uint32_t collecting_ = 0;
};

}  // namespace cistern
