// SPDX-License-Identifier: Apache-2.0
// Puts that are not visible yet: parts are missing, the writer holds the put, or its parent is not
// reachable. Bounded in count, bytes and time. A put is identified by owner, tree, group, key and put id, so
// puts of other ids do not stand in its way, and no other owner can add a part to it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "catalog/deadline_heap.h"
#include "catalog/forest.h"
#include "cistern/key.h"
#include "cistern/options.h"
#include "policy/reuse.h"
#include "policy/share.h"

namespace cistern::catalog {

using PutIndex = std::uint32_t;

struct PutName {
  OwnerToken owner{};
  TreeId tree = kNoId;
  std::uint16_t group = 0;
  BlockKey key;
  PutId id;
  friend bool operator==(const PutName&, const PutName&) = default;
};

struct Put {
  enum class State : std::uint8_t { kOpen, kPublished, kEnded };

  PutName name;
  PutId put_id;  // of its future seal: the name's, or what a source says that it had there
  BlockKey parent;
  std::vector<std::uint32_t> part_bytes;
  std::vector<std::uint32_t> crcs;  // of the segments of all parts
  std::uint64_t body_bytes = 0;
  std::uint64_t written = 0;     // parts whose bytes are in the slot, a bit each
  std::uint64_t writing = 0;     // parts that are being copied
  std::uint64_t made = 0;        // when, in the store's order of puts, cuts and drops
  std::uint64_t after_drop = 0;  // when the last drop of a key before it was; 0: none since the start
  std::uint64_t generation = 0;
  arena::Place place = 0;
  std::uint32_t expiry = 0;
  std::uint64_t conversation = 0;
  std::vector<std::uint64_t> also;     // conversations besides, of a source's put
  policy::Standing standing;           // of its future record
  std::optional<std::uint64_t> age{};  // as Newcomer::age
  std::uint32_t users = 0;             // calls that still look at it
  bool has_slot = false;
  bool held = false;
  bool unsure = false;        // waits until all cut blocks are collected
  bool parent_stood = false;  // a block of its parent's key stood when it was made
  State state = State::kOpen;
  Code end = Code::kOk;  // why it ended; kOk: the block was there already
  std::uint32_t next_free = kNoId;

  bool whole() const { return written == ~std::uint64_t{0} >> (64 - part_bytes.size()); }
  std::uint64_t part_offset(std::uint32_t part) const {
    std::uint64_t offset = 0;
    for (std::uint32_t i = 0; i < part; ++i) offset += part_bytes[i];
    return offset;
  }
  std::uint32_t first_segment(std::uint32_t part) const;
};

// What pending puts may take: bytes of the arena, which nobody can read yet and nothing evicts, and with
// their number the core's own memory, about a KiB each.
struct PendingBound {
  static constexpr std::uint32_t kLeastPuts = 4096, kMostPuts = 131'072;
  static constexpr std::uint64_t kArenaBytesAPut = 64u << 10;

  std::uint32_t puts = kLeastPuts;
  std::uint64_t bytes = ~std::uint64_t{0};

  // Half of the arena's slots, and a put for each kArenaBytesAPut of them; `max_puts`: instead, unless 0.
  static PendingBound Of(std::uint64_t memory_bytes, std::uint32_t max_puts = 0);
};

class PendingPuts final {
 public:
  explicit PendingPuts(PendingBound bound);

  // Number of open puts; ended ones with users do not count.
  std::uint32_t size() const { return open_; }
  const PendingBound& bound() const { return bound_; }
  // As PendingBound::Of has it for so much memory; the number of puts stays.
  void SetMemory(std::uint64_t memory_bytes) { bound_.bytes = PendingBound::Of(memory_bytes).bytes; }
  // Bytes of the open puts' records.
  std::uint64_t bytes() const { return bytes_; }
  // Whether the owner may have one more; what one may have depends on what is left for others.
  bool HasRoom(const OwnerToken& owner, std::uint64_t record_bytes) const {
    const Share share = Of(owner);
    return policy::MayTakeOne(bound_.puts, puts_.size(), share.puts) &&
           policy::MayTake(bound_.bytes, bytes_, share.bytes, record_bytes);
  }
  struct Share {
    std::uint32_t puts = 0;   // with ended ones that have users
    std::uint64_t bytes = 0;  // of the open ones' records
  };
  Share Of(const OwnerToken& owner) const {
    auto of = of_.find(owner);
    return of == of_.end() ? Share() : of->second;
  }

  // kNoId when no such put is open.
  PutIndex Find(const PutName& name) const;
  // Adds an open put, for whose record its owner HasRoom(). kNo: neither Find nor NextNumbered finds it.
  enum class Named : bool { kNo, kYes };
  PutIndex Add(const PutName& name, const BlockKey& parent, std::uint64_t record_bytes, Instant deadline,
               Named named = Named::kYes);
  // Prefetches what Add links a put of this key hash into, and one whose parent has it.
  void Prefetch(KeyHash key_hash) const {
    __builtin_prefetch(&ends_[kByKey][key_hash & mask_], 1);
    __builtin_prefetch(&ends_[kByParent][key_hash & mask_], 1);
  }
  // The put is not open any more: not found, without a deadline. Its index stays in use until Free.
  void Close(PutIndex put);
  // The put is closed and has no users.
  void Free(PutIndex put);

  Put& operator[](PutIndex put) { return puts_[put].put; }
  // One past the largest index in use; free indexes have tree kNoId.
  PutIndex end() const { return puts_.end(); }
  // An open put past its deadline, kNoId when there is none.
  PutIndex FirstDue(Instant now) const;

  // Open puts of a key hash, with a parent of that key hash, and of a put id, in the order of their adding:
  // start with kNoId. The previous one may be closed only after the next was asked for.
  PutIndex NextOf(TreeId tree, KeyHash key, PutIndex before) const;
  PutIndex NextChildOf(TreeId tree, KeyHash parent, PutIndex before) const;
  PutIndex NextNumbered(TreeId tree, const PutId& id, PutIndex before) const;

  // Ready: the put misses nothing but its parent.
  void SetReady(PutIndex put, bool ready);
  // Any ready put with a parent of this key hash and a group in `groups` (a bit each); kNoId when there is
  // none.
  PutIndex ReadyChildOf(TreeId tree, KeyHash parent, std::uint32_t groups) const;

 private:
  enum Index { kByName, kByKey, kByParent, kByNumber, kReadyByParent, kIndexes };
  struct Link {
    PutIndex next = kNoId;
    PutIndex prev = kNoId;
    std::uint64_t hash = 0;
    bool linked = false;
  };
  struct Item {
    Put put;
    std::array<Link, kIndexes> links;
    std::uint64_t record_bytes = 0;
    bool open = false;
    std::uint32_t next_free = kNoId;
  };

  // The next put after `before` with exactly this hash for which `is` holds.
  template <class Is>
  PutIndex Next(Index index, std::uint64_t hash, PutIndex before, Is is) const;
  void LinkInto(Index index, PutIndex put, std::uint64_t hash);
  // No effect on a put that is not linked.
  void Unlink(Index index, PutIndex put);
  static std::uint64_t NumberHash(TreeId tree, const PutId& id);

  PendingBound bound_;
  std::map<OwnerToken, Share> of_;  // of each owner that has any
  std::uint32_t open_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint32_t ready_ = 0;
  Slab<Item> puts_;
  std::uint64_t mask_;
  struct Ends {
    PutIndex first = kNoId;
    PutIndex last = kNoId;
  };
  std::array<std::vector<Ends>, kIndexes> ends_;
  DeadlineHeap deadlines_;
};

}  // namespace cistern::catalog
