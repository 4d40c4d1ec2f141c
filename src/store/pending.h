// SPDX-License-Identifier: Apache-2.0
// Puts that are not visible yet: their parts are still coming, their writer holds them back, or their parent
// is not reachable. Bounded in count and time. A put is its owner's, realm's, group's, key's and number's, so
// those of other numbers do not stand in its way, and no other owner can add a part to it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "cistern/key.h"
#include "cistern/options.h"
#include "store/due.h"
#include "store/tree.h"

namespace cistern {

using PutSlot = std::uint32_t;

struct PutName {
  OwnerToken owner{};
  RealmId realm = kNoId;
  std::uint16_t group = 0;
  BlockKey key;
  PutId id;
  friend bool operator==(const PutName&, const PutName&) = default;
};

struct Put {
  enum class State : std::uint8_t { kOpen, kPublished, kEnded };

  PutName name;
  BlockKey parent;
  std::vector<std::uint32_t> part_bytes;
  std::vector<std::uint32_t> crcs;  // of the segments of all parts
  std::uint64_t body_bytes = 0;
  std::uint64_t written = 0;     // parts whose bytes are in the slot, a bit each
  std::uint64_t writing = 0;     // parts that are being copied
  std::uint64_t made = 0;        // when, as the store counts puts, cuts and drops
  std::uint64_t after_drop = 0;  // when the last drop of a key before it was; 0: never since the start
  std::uint64_t generation = 0;
  Place place = 0;
  std::uint32_t expiry = 0;
  std::uint64_t conversation = 0;
  std::uint32_t users = 0;  // who still looks at it
  bool has_slot = false;
  bool held = false;
  bool unsure = false;  // waits until all that was cut is collected
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

class Pending final {
 public:
  explicit Pending(std::uint32_t max_puts);

  // Open puts; those that ended and are still looked at do not count.
  std::uint32_t size() const { return open_; }
  bool full() const { return puts_.size() >= max_puts_; }

  // kNoId when there is none open.
  PutSlot Find(const PutName& name) const;
  // Not full. The put is open.
  PutSlot Add(const PutName& name, const BlockKey& parent, Instant deadline);
  // Not open any more: no longer found, no longer due. Its slot stays until Free.
  void Close(PutSlot slot);
  // Closed and without users.
  void Free(PutSlot slot) { puts_.Remove(slot); }

  Put& operator[](PutSlot slot) { return puts_[slot].put; }
  // Past every slot in use; slots below it that are free have realm kNoId.
  PutSlot end() const { return puts_.end(); }
  // The open put whose time is over, kNoId when there is none.
  PutSlot FirstDue(Instant now) const;

  // Open puts of a key's tag, below a key's tag, and of a number, in the order in which they were added:
  // start with kNoId. The one before may have been closed only after asking for the next.
  PutSlot NextOf(RealmId realm, Tag key, PutSlot before) const;
  PutSlot NextBelow(RealmId realm, Tag parent, PutSlot before) const;
  PutSlot NextNumbered(RealmId realm, const PutId& id, PutSlot before) const;

  // Whether nothing but its parent is missing any more.
  void SetReady(PutSlot slot, bool ready);
  // Any ready put below a key's tag of a group in `groups` (a bit each); kNoId when there is none.
  PutSlot ReadyBelow(RealmId realm, Tag parent, std::uint32_t groups) const;

 private:
  enum Index { kByName, kByKey, kByParent, kByNumber, kReadyByParent, kIndexes };
  struct Link {
    PutSlot next = kNoId;
    PutSlot prev = kNoId;
    std::uint64_t hash = 0;
    bool linked = false;
  };
  struct Item {
    Put put;
    std::array<Link, kIndexes> links;
    bool open = false;
    std::uint32_t next_free = kNoId;
  };

  // The one after `before` of those of just this hash, for which `is` holds.
  template <class Is>
  PutSlot Next(Index index, std::uint64_t hash, PutSlot before, Is is) const;
  void LinkInto(Index index, PutSlot slot, std::uint64_t hash);
  // Nothing happens to one that is not linked.
  void Unlink(Index index, PutSlot slot);
  static std::uint64_t NumberHash(RealmId realm, const PutId& id);

  const std::uint32_t max_puts_;
  std::uint32_t open_ = 0;
  Slab<Item> puts_;
  std::uint64_t mask_;
  struct Ends {
    PutSlot first = kNoId;
    PutSlot last = kNoId;
  };
  std::array<std::vector<Ends>, kIndexes> ends_;
  Due due_;
};

}  // namespace cistern
