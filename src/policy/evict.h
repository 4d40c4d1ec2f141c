// SPDX-License-Identifier: Apache-2.0
// In what order residents leave. The order is a decision on dense ids and nothing else: who owns the ids
// (the store's records, the simulator's blocks) says whether one may go; the order says which is next.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "cistern/status.h"

namespace cistern {

using EntryId = std::uint32_t;  // dense: memory is 16 bytes for each id up to the largest ever inserted
using Shelf = std::uint8_t;

enum class EvictionPolicy : std::uint8_t { kLru };

std::string_view EvictionPolicyName(EvictionPolicy policy);         // "lru"
Result<EvictionPolicy> ParseEvictionPolicy(std::string_view name);  // kInvalid names the known ones

// Least recently touched first. Every call is O(1), or looks at each shelf in use; only an id larger than any
// before allocates.
//
// An id is absent, in the order, or parked. Parked is what was coldest and cannot go now (it has resident
// descendants, a lease, a pin): it leaves the order, so that Coldest() does not come back to it, and counts
// as older than everything in it until it is touched.
//
// It stands on a shelf that its owner chose, and each shelf knows its own coldest: ids that take room of one
// kind serve a newcomer of that kind. The order is one over all shelves.
class Lru final {
 public:
  Lru() { ends_.fill({kEnd, kEnd}); }

  // Largest id that can be inserted, plus one.
  static constexpr EntryId kMaxEntries = 0xffff'fff0;

  // Makes room for ids below `entries`, so that inserting them does not allocate.
  void Reserve(EntryId entries);

  // An absent id becomes the most recent, on a shelf that it keeps until it is removed.
  void Insert(EntryId id, Shelf shelf = 0);
  // The id goes first from now on, wherever it was: for what lies behind its group's reach. A parked one
  // stays parked.
  void InsertCold(EntryId id);
  // An id that is not absent becomes the most recent. A parked one is back in the order with that: if it
  // still cannot go when it has become the coldest again, it is parked again.
  void Touch(EntryId id);
  // An id that is not absent becomes absent.
  void Remove(EntryId id);

  // The next to go, or nothing when all are parked.
  std::optional<EntryId> Coldest() const;
  // Of one shelf; and its last to go.
  std::optional<EntryId> Coldest(Shelf shelf) const;
  std::optional<EntryId> Warmest(Shelf shelf) const;
  // The next of the shelves for which `may(shelf)` holds.
  template <class May>
  std::optional<EntryId> ColdestOf(May may) const {
    std::optional<EntryId> coldest;
    for (std::size_t word = 0; word < in_use_.size(); ++word) {
      for (std::uint64_t bits = in_use_[word]; bits != 0; bits &= bits - 1) {
        const std::size_t on = word * 64 + static_cast<std::size_t>(std::countr_zero(bits));
        const EntryId id = ends_[on].coldest;
        if ((!coldest || links_[id].when < links_[*coldest].when) && may(static_cast<Shelf>(on)))
          coldest = id;
      }
    }
    return coldest;
  }
  // Of an id in the order: the next to go after it on its shelf, or nothing.
  std::optional<EntryId> Warmer(EntryId id) const {
    const EntryId warmer = links_[id].warmer;
    return warmer == kEnd ? std::nullopt : std::optional(warmer);
  }
  Shelf shelf(EntryId id) const { return static_cast<Shelf>(links_[id].when); }
  // Of an id in the order: how many ids became the most recent since it did. One that went to the cold end
  // counts as a little older than what was there.
  std::uint64_t Age(EntryId id) const { return next_ - (links_[id].when >> 8); }
  // Takes an id out of the order until Unpark or Touch. Nothing happens to one that is parked.
  void Park(EntryId id);
  // The id may go again: it returns as the coldest. Nothing happens to one that was touched meanwhile.
  void Unpark(EntryId id);

  bool Contains(EntryId id) const { return id < links_.size() && links_[id].colder != kAbsent; }
  bool Parked(EntryId id) const { return id < links_.size() && links_[id].colder == kParked; }
  // In the order and parked together; parked alone.
  std::size_t size() const { return listed_ + parked_; }
  std::size_t parked() const { return parked_; }

 private:
  struct Link {
    EntryId colder;  // a neighbour, kEnd, or the state of what is not in the list
    EntryId warmer;
    std::uint64_t when;  // it became the most recent, above 8 bits of its shelf
  };
  struct Ends {
    EntryId coldest;
    EntryId warmest;
  };

  static constexpr EntryId kEnd = 0xffff'ffff;
  static constexpr EntryId kAbsent = 0xffff'fffe;
  static constexpr EntryId kParked = 0xffff'fffd;
  static constexpr std::uint64_t kFirst = std::uint64_t{1} << 54;  // room below for what goes to the cold end

  void LinkWarmest(EntryId id);
  void LinkColdest(EntryId id);
  void Unlink(EntryId id);
  void NoteShelf(Shelf shelf);

  std::vector<Link> links_;
  std::array<Ends, 256> ends_;
  std::array<std::uint64_t, 4> in_use_{};  // shelves, a bit each
  std::uint64_t next_ = kFirst;
  std::size_t listed_ = 0;
  std::size_t parked_ = 0;
};

}  // namespace cistern
