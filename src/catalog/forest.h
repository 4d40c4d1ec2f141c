// SPDX-License-Identifier: Apache-2.0
// The blocks of a node, their descent from each other, and their records. A forest has a tree per
// incarnation of a namespace, whose root stands for the empty prefix. It knows where records are and which
// block is whose child; residency and the store decide what may be published, evicted or believed.
//
// A block has records or children; one that has neither any more is freed. One without records is a
// placeholder. A block knows its key by a key hash alone, the 64-bit hash of tree and key; a record proves
// the key: in memory by its own full key, in the lower tier by the seal. So two blocks of one key hash are
// told apart while they have records in memory, and a block that lies in the lower tier alone is found by
// its key hash and proven when it is read.
//
// A block whose only record lies in the lower tier alone may be folded: the record's few facts move into the
// block, and it has no Record until a caller unfolds it. Plain structures, no allocation per block: 52 bytes
// a block and about 9 in the table, which is all that one in the lower tier costs, and 112 a record.
//
// A block that was cut is no longer found by its key and never comes back: a later block of the same key is
// a new one. Its descendants are found until they are collected; Standing() tells them apart.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "arena/geometry.h"
#include "base/random.h"
#include "catalog/id_table.h"
#include "catalog/slab.h"
#include "cistern/key.h"
#include "tier/location.h"

namespace cistern::catalog {

using BlockId = std::uint32_t;
using RecordId = std::uint32_t;
using TreeId = std::uint32_t;
using KeyHash = std::uint64_t;

inline constexpr arena::Place kNowhere = 0xffff'ffff;  // of a record that is not in memory

inline KeyHash KeyHashOf(TreeId tree, const BlockKey& key) { return key.Hash() ^ SplitMix(tree); }
// The key's own hash, of a block that may know no more of its key.
inline std::uint64_t HashOfKey(TreeId tree, KeyHash key_hash) { return key_hash ^ SplitMix(tree); }

struct Block {
  enum Flag : std::uint16_t {
    kRoot = 1,       // of a tree; has no key
    kCut = 2,        // the block and its descendants are lost
    kAway = 4,       // not in the table
    kOrphan = 8,     // a placeholder whose parent is not known yet
    kReaping = 16,   // waits to be freed
    kKept = 32,      // recovery has reached it
    kHome = 64,      // of a tree's orphans; a child of the root, has no key
    kFolded = 128,   // its one record is in here, and in the lower tier
    kTouched = 256,  // of a folded block's record: as Record's
    kBehind = 512,
    kDetached = 2048,      // lost its records before it was collected
    kNobodysAbove = 1024,  // none of its ancestors is one conversation's alone (Conversations)
  };
  std::uint32_t key_hash_low = 0;
  std::uint32_t key_hash_high = 0;
  TreeId tree = kNoId;
  union {
    RecordId first_record = kNoId;
    std::uint32_t location_high;  // of a folded block, never Location::kNone
  };
  std::uint16_t flags = 0;
  std::uint8_t group = 0;  // from here on of a folded block's record
  std::uint8_t parts = 0;
  std::uint32_t location_low = 0;
  std::uint32_t body_bytes = 0;
  std::uint32_t expiry = 0;
  BlockId parent = kNoId;
  BlockId first_child = kNoId;
  BlockId next_sibling = kNoId;
  union {
    BlockId prev_sibling = kNoId;
    std::uint32_t next_free;
  };
  std::uint32_t stood_at = 0;  // the count of cuts at which it last stood

  bool is(Flag flag) const { return (flags & flag) != 0; }
  bool placeholder() const { return first_record == kNoId; }
  bool folded() const { return is(kFolded); }
  // False for a root, a home, and a free block.
  bool has_key() const { return tree != kNoId && (flags & (kRoot | kHome)) == 0; }
  KeyHash key_hash() const { return KeyHash{key_hash_high} << 32 | key_hash_low; }
};
static_assert(tier::Location::kNone == kNoId && sizeof(Block) == 52 && alignof(Block) == 4);

struct Record {
  enum Flag : std::uint8_t {
    kVerified = 1,    // the body was checked since the start
    kBehind = 2,      // behind its window's reach: evicted before others
    kTouched = 4,     // was used since it was written to its location in the lower tier
    kQueued = 8,      // waits to be written to the lower tier
    kTransient = 16,  // fetched and not promoted: evicted first once it was used
    kTaken = 32,      // another node handed it over, and nobody has used it here since
    kFresh = 64,      // came to memory or was used there, and FreshRecords has not given it since
    kUsedFar = 128,   // was used in far memory, and may move near
    // Flags that are cleared when the record leaves memory.
    kOfMemory = kVerified | kQueued | kTransient | kFresh | kUsedFar,
  };
  static constexpr std::uint64_t kDropUnknown = ~std::uint64_t{0};

  BlockId block = kNoId;
  union {
    RecordId next = kNoId;  // of the same block
    std::uint32_t next_free;
  };
  arena::Place place = kNowhere;
  std::uint32_t body_bytes = 0;
  std::uint32_t expiry = 0;
  std::uint16_t group = 0;
  std::uint8_t parts = 0;  // one less than it has
  std::uint8_t flags = 0;
  std::uint32_t references = 0;  // leases, and work under way with its slot
  std::uint32_t entry = kNoId;   // its number in the index; kNoId: it has no entry
  std::uint64_t serial = 0;      // never another record's
  std::uint64_t generation = 0;
  BlockKey key;           // of a record that is in memory, or was since it was unfolded
  std::uint8_t uses = 0;  // since it entered memory, as far as they are counted
  bool given_up = false;  // by the lower tier, for want of room; false once it is there again
  std::uint64_t born = 0;
  std::uint64_t after_drop = 0;  // as its put's; 0: present at the start; or kDropUnknown
  tier::Location location;       // in the lower tier

  bool is(Flag flag) const { return (flags & flag) != 0; }
  bool in_memory() const { return place != kNowhere; }
  bool in_lower_tier() const { return !location.none(); }
  std::uint16_t part_count() const { return static_cast<std::uint16_t>(parts + 1); }
};
static_assert(sizeof(Record) == 112);

// A record remembered over a yield: the id alone may by then be another record's.
struct RecordHandle {
  RecordId record = kNoId;
  std::uint64_t serial = 0;
};

struct IncarnationTree {
  std::uint64_t incarnation = 0;
  std::uint32_t slot = 0;
  BlockId root = kNoId;
  BlockId orphans = kNoId;      // the home of its orphans
  std::uint64_t last_drop = 0;  // when the last drop of a key in it was, as Put::made
  // When a block that puts waited for as their parent last left it for want of room: no cut ended those.
  std::uint64_t parent_left = 0;
};

// Hears which records a node has, in whatever tier; in the middle of a change of the forest, so it only
// reads.
class BlockListener {
 public:
  // The block has a record of the group from now on; no longer.
  virtual void Came(BlockId block, std::uint16_t group) = 0;
  virtual void Went(BlockId block, std::uint16_t group) = 0;

 protected:
  ~BlockListener() = default;
};

class Forest final {
 public:
  // Null: nobody listens.
  void ListenTo(BlockListener* listener) { listener_ = listener; }

  // At most so many blocks, roots and placeholders included, for which the table is made; places are those
  // of the geometry.
  Forest(std::uint32_t max_blocks, const arena::Geometry& geometry);

  // ---- trees ----
  // The id is never given out again.
  TreeId AddTree(std::uint32_t slot, std::uint64_t incarnation);
  // The root has no child left.
  void RemoveTree(TreeId tree);
  // The home of blocks whose parent is not known; made where there is none. ForgetOrphans when it was cut,
  // EndHome before it is freed.
  BlockId OrphansOf(TreeId tree);
  void ForgetOrphans(TreeId tree) { trees_.at(tree).orphans = kNoId; }
  // The home has no child: it is a block like any other, and free to go.
  void EndHome(BlockId home) {
    ForgetOrphans(blocks_[home].tree);
    blocks_[home].flags &= static_cast<std::uint16_t>(~Block::kHome);
  }
  void NoteDrop(TreeId tree, std::uint64_t made) { trees_.at(tree).last_drop = made; }
  void NoteParentLeft(TreeId tree, std::uint64_t made) { trees_.at(tree).parent_left = made; }
  // Null for a removed tree.
  const IncarnationTree* tree(TreeId tree) const {
    const auto found = trees_.find(tree);
    return found == trees_.end() ? nullptr : &found->second;
  }

  // ---- blocks ----
  // kNoId when the table has no such block; a block whose records have another key does not count. Two or
  // three cache lines, and one of its first record.
  BlockId Find(TreeId tree, const BlockKey& key) const { return Find(tree, key, KeyHashOf(tree, key)); }
  BlockId Find(TreeId tree, const BlockKey& key, KeyHash key_hash) const;
  // Any block of the tree with this key hash.
  BlockId FindKeyHash(TreeId tree, KeyHash key_hash) const;
  // Prefetches for a Find of several keys: first their places in the table, then the blocks found there,
  // then their records. PrefetchRecord returns what FindKeyHash does; where MayHaveKey holds, that is also
  // what Find would return.
  void PrefetchBucket(KeyHash key_hash) const { table_.Prefetch(key_hash); }
  void PrefetchBlock(KeyHash key_hash) const;
  BlockId PrefetchRecord(TreeId tree, KeyHash key_hash) const;
  // Prefetches the most used fields of a block whose id is known, and its first record when the block is in
  // the cache.
  void PrefetchKnown(BlockId block) const;
  void PrefetchRecordOf(BlockId block) const;
  // False if its records say that it has another key.
  bool MayHaveKey(BlockId block, const BlockKey& key) const;
  // A new block; kNoId when there are max_blocks. Without a parent (kNoId) it is loose until it is adopted.
  BlockId Add(TreeId tree, KeyHash key_hash, BlockId parent);
  // Makes a block, with its descendants, a child of another block of its tree.
  void Adopt(BlockId parent, BlockId block);
  // Takes a block out of the table: a later block of the same key is another one.
  void TakeAway(BlockId block);
  // Marks a block as cut, takes it out of the table and from its parent's children; its former parent.
  BlockId Cut(BlockId block);
  // kYes if neither the block nor an ancestor was cut. Looks at `*budget` ancestors at most and counts them
  // off; kUnknown where the budget does not suffice. Blocks that were seen to stand cost one look.
  enum class Answer : std::uint8_t { kYes, kNo, kUnknown };
  Answer Standing(BlockId block, std::uint32_t* budget);
  // Count of cuts whose blocks are not all collected: while it is 0, every block in the table stands.
  void CollectingBegins() { ++collecting_; }
  void CollectingEnded() { --collecting_; }
  bool collecting() const { return collecting_ != 0; }
  // Count of all cuts: what was found standing before the last of them has to be looked at again.
  std::uint32_t cuts() const { return cuts_; }

  bool Empty(BlockId block) const {
    const Block& b = blocks_[block];
    return b.first_record == kNoId && b.first_child == kNoId && !b.is(Block::kRoot) && !b.is(Block::kHome);
  }
  // Frees an Empty() block and returns its parent, kNoId for a cut one.
  BlockId Free(BlockId block);
  // Frees a block to which no parent or child refers any more, without a look at either.
  void Discard(BlockId block);

  Block& block(BlockId id) { return blocks_[id]; }
  const Block& block(BlockId id) const { return blocks_[id]; }
  std::uint32_t max_blocks() const { return max_blocks_; }
  // Roots and placeholders included.
  std::uint32_t blocks() const { return blocks_.size(); }
  // Places in the table that Add has changed so far: in waves, so that each costs a fraction of a touch.
  std::uint64_t moved() const { return table_.moved(); }
  // Blocks that were looked at so far because they may have had the key or key hash asked for.
  std::uint64_t looks() const { return looks_; }
  // How many blocks have this key hash, of any tree; `most` where there are more.
  std::uint32_t CountKeyHash(KeyHash key_hash, std::uint32_t most) const;
  // Memory of the table of blocks.
  std::size_t table_bytes() const { return table_.bytes(); }
  std::uint32_t trees() const { return static_cast<std::uint32_t>(trees_.size()); }
  // One past the largest id in use.
  BlockId block_end() const { return blocks_.end(); }

  // ---- records ----
  // Facts of a block's record, read without unfolding it.
  struct Copy {
    bool in_memory = false;
    tier::Location location;  // in the lower tier
    std::uint32_t body_bytes = 0;
    std::uint32_t expiry = 0;
    std::uint16_t group = 0;
    RecordId record = kNoId;  // kNoId for a folded one
    bool touched = false;
  };
  // The block's record of the group. At most as many looks as the block has groups.
  std::optional<Copy> See(BlockId block, std::uint16_t group) const;
  // kNoId when the block has none of this group, or is folded.
  RecordId FindRecord(BlockId block, std::uint16_t group) const;
  // As FindRecord, and unfolds.
  RecordId Take(BlockId block, std::uint16_t group);
  // The block is unfolded and has no record of this group yet.
  RecordId AddRecord(BlockId block, std::uint16_t group);
  void RemoveRecord(RecordId record);
  // Moves the record into its block, and ends the id. False, and no change, if the record is in memory, in
  // the index, referenced, not in the lower tier, or not the block's only one.
  bool Fold(RecordId record);
  // Restores a folded block's record, which has a new serial and neither key, born nor generation.
  RecordId Unfold(BlockId block);
  // Makes a folded block a placeholder; the facts of its record, which the node has no more.
  Copy ForgetFolded(BlockId block);
  // Adds a record that lies in the lower tier alone, folded where possible; the block has no record of this
  // group.
  void PutInLowerTier(BlockId block, std::uint16_t group, std::uint8_t parts, std::uint32_t body_bytes,
                      std::uint32_t expiry, tier::Location location);
  // The block's record of the group has a new location in the lower tier, and was not used there yet.
  void SetLocation(BlockId block, std::uint16_t group, tier::Location location);
  // The record was used.
  void NoteTouched(BlockId block, std::uint16_t group);
  static Copy CopyOf(RecordId id, const Record& record) {
    return {record.in_memory(),         record.location, record.body_bytes, record.expiry, record.group, id,
            record.is(Record::kTouched)};
  }
  static Copy CopyOf(const Block& folded) {
    return {.location = {folded.location_high, folded.location_low},
            .body_bytes = folded.body_bytes,
            .expiry = folded.expiry,
            .group = folded.group,
            .touched = folded.is(Block::kTouched)};
  }
  Record& record(RecordId id) { return records_[id]; }
  const Record& record(RecordId id) const { return records_[id]; }
  std::uint32_t records() const { return records_.size(); }

  // The record in the slot at a place; kNoId for none, and for an invalid place.
  RecordId At(arena::Place place) const;
  void SetAt(arena::Place place, RecordId record) { at_[UnitOf(place)] = record + 1; }

 private:
  Copy TakeFolded(BlockId block);
  // The table's view of the blocks.
  struct KeyHashes {
    const Slab<Block>& blocks;
    KeyHash key_hash(BlockId id) const { return blocks[id].key_hash(); }
    void Prefetch(BlockId id) const { __builtin_prefetch(&blocks[id]); }
  };

  RecordId LinkRecord(BlockId block, std::uint16_t group);
  std::size_t UnitOf(arena::Place place) const { return geometry_.offset(place) / arena::kUnitBytes; }
  void LinkChild(BlockId parent, BlockId block);
  void UnlinkChild(BlockId block);

  const std::uint32_t max_blocks_;
  const arena::Geometry geometry_;
  Slab<Block> blocks_;
  Slab<Record> records_;
  std::unordered_map<TreeId, IncarnationTree> trees_;
  TreeId next_tree_ = 0;
  mutable std::uint64_t looks_ = 0;
  IdTable table_;
  LazyArray<std::uint32_t> at_;  // by unit: the last record there, plus one
  std::uint64_t serials_ = 0;
  std::uint32_t cuts_ = 1;
  std::uint32_t collecting_ = 0;
  BlockListener* listener_ = nullptr;
};

}  // namespace cistern::catalog
