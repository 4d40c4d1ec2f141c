// SPDX-License-Identifier: Apache-2.0
// The order in which residents leave memory, over dense ids alone. The owner of the ids (the store's
// records, the simulator's blocks) says whether one may leave; the order says which is next.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/paged_array.h"

namespace cistern::policy {

using EntryId = std::uint32_t;  // dense: memory is 16 bytes for each id up to the largest ever inserted
using Shelf = std::uint16_t;

// Least recently touched first. Every call is O(1), or looks at each shelf in use; only an id or a shelf
// larger than any before allocates, a page of ids at most.
//
// An id is absent, in the order, or parked. A parked id was coldest and cannot leave now (its record has
// resident descendants, a lease, a pin): it is out of the order, so that Coldest() does not return it again,
// and counts as older than every id in the order until it is touched.
//
// The owner gives each id a shelf, and each shelf knows its own coldest. The order is one over all shelves.
class Lru final {
 public:
  // Largest id that can be inserted, plus one.
  static constexpr EntryId kMaxEntries = 0xffff'fff0;

  static constexpr int kShelfBits = 16;
  static constexpr std::size_t kShelves = std::size_t{1} << kShelfBits;

  // Makes room for ids less than `entries`, so that inserting them does not allocate.
  void Reserve(EntryId entries);

  // An absent id becomes the most recent, on a shelf that it keeps until it is removed.
  void Insert(EntryId id, Shelf shelf = 0);
  // An absent id becomes the coldest of all.
  void InsertCold(EntryId id, Shelf shelf = 0);
  // An id that is not absent becomes the most recent. A parked one is back in the order with that: if it
  // still cannot go when it has become the coldest again, it is parked again.
  void Touch(EntryId id);
  // An id that is not absent becomes absent.
  void Remove(EntryId id);
  // An id that is not absent goes to another shelf, as recent as it was: its warmest, whatever is there.
  void Reshelve(EntryId id, Shelf shelf);

  // The next to go, or nothing when all are parked.
  std::optional<EntryId> Coldest() const;
  // The next of one shelf; and the shelf's last.
  std::optional<EntryId> Coldest(Shelf shelf) const {
    return shelf < ends_.size() ? IdAt(ends_[shelf].coldest) : std::nullopt;
  }
  std::optional<EntryId> Warmest(Shelf shelf) const {
    return shelf < ends_.size() ? IdAt(ends_[shelf].warmest) : std::nullopt;
  }
  // Shelves from `first` on that have ids in the order, up to `end`, in turn.
  template <class See>
  void ForShelves(std::size_t first, std::size_t end, See see) const {
    for (std::size_t word = first / 64; word < in_use_.size() && word * 64 < end; ++word) {
      for (std::uint64_t bits = in_use_[word]; bits != 0; bits &= bits - 1) {
        const std::size_t on = word * 64 + static_cast<std::size_t>(std::countr_zero(bits));
        if (on >= first && on < end) see(static_cast<Shelf>(on));
      }
    }
  }
  // The next of the shelves from `first` on, up to `end`.
  std::optional<EntryId> ColdestAmong(std::size_t first, std::size_t end) const {
    EntryId coldest = kEnd;
    ForShelves(first, end, [&](Shelf on) {
      const EntryId id = ends_[on].coldest;
      if (coldest == kEnd || links_[id].when < links_[coldest].when) coldest = id;
    });
    return IdAt(coldest);
  }
  // The next after an id in the order, on its shelf, or none.
  std::optional<EntryId> Warmer(EntryId id) const { return IdAt(links_[id].warmer); }
  Shelf shelf(EntryId id) const { return static_cast<Shelf>(links_[id].when); }
  // The number of ids that became the most recent since this id in the order did. One moved to the cold end
  // counts as a little older than the coldest before it.
  std::uint64_t Age(EntryId id) const { return next_ - (links_[id].when >> kShelfBits); }
  // Times that an id became the most recent, up to now; less an id's age, when that one did.
  std::uint64_t uses() const { return next_ - kFirst; }
  // Takes an id out of the order until Unpark or Touch. No effect on a parked one.
  void Park(EntryId id);
  // The id may leave again: it returns as the coldest. No effect on one that was touched since.
  void Unpark(EntryId id);

  bool Contains(EntryId id) const {
    const Link* link = links_.Find(id);
    return link != nullptr && link->colder != kAbsent;
  }
  bool Parked(EntryId id) const {
    const Link* link = links_.Find(id);
    return link != nullptr && link->colder == kParked;
  }
  // Ids in the order and parked together; parked alone.
  std::size_t size() const { return listed_ + parked_; }
  std::size_t parked() const { return parked_; }

 private:
  struct Link {
    EntryId colder;  // a neighbour, kEnd, or the state of what is not in the list
    EntryId warmer;
    std::uint64_t when;  // it became the most recent, above the bits of its shelf
  };
  struct Ends {
    EntryId coldest;
    EntryId warmest;
  };

  static constexpr EntryId kEnd = 0xffff'ffff;
  static constexpr EntryId kAbsent = 0xffff'fffe;
  static constexpr EntryId kParked = 0xffff'fffd;
  // Smaller numbers are for ids moved to the cold end.
  static constexpr std::uint64_t kFirst = std::uint64_t{1} << 46;

  static std::optional<EntryId> IdAt(EntryId end) { return end == kEnd ? std::nullopt : std::optional(end); }
  void MakeRoomFor(EntryId id, Shelf shelf);
  void LinkWarmest(EntryId id);
  void LinkWarmest(EntryId id, std::uint64_t when);
  void LinkColdest(EntryId id);
  void Unlink(EntryId id);
  void NoteShelf(Shelf shelf);

  PagedArray<Link> links_{Link{kAbsent, kEnd, 0}};
  std::vector<Ends> ends_;             // up to the largest shelf ever used
  std::vector<std::uint64_t> in_use_;  // shelves, a bit each
  std::uint64_t next_ = kFirst;
  std::size_t listed_ = 0;
  std::size_t parked_ = 0;
};

}  // namespace cistern::policy
