// SPDX-License-Identifier: Apache-2.0
// The order in which residents leave memory, over dense ids alone. The owner of the ids (the store's
// records, the simulator's blocks) says whether one may leave; the order says which is next.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace cistern::policy {

using EntryId = std::uint32_t;  // dense: memory is 16 bytes for each id up to the largest ever inserted
using SizeClass = std::uint8_t;

// Least recently touched first. Every call is O(1), or looks at each size class in use; only an id larger
// than any before allocates.
//
// An id is absent, in the order, or parked. A parked id was coldest and cannot leave now (its record has
// resident descendants, a lease, a pin): it is out of the order, so that Coldest() does not return it again,
// and counts as older than every id in the order until it is touched.
//
// The owner gives each id a size class, and each class knows its own coldest: an id that leaves makes room
// for one of the same class. The order is one over all classes.
class Lru final {
 public:
  Lru() { ends_.fill({kEnd, kEnd}); }

  // Largest id that can be inserted, plus one.
  static constexpr EntryId kMaxEntries = 0xffff'fff0;

  // Makes room for ids less than `entries`, so that inserting them does not allocate.
  void Reserve(EntryId entries);

  // An absent id becomes the most recent, in a size class that it keeps until it is removed.
  void Insert(EntryId id, SizeClass size_class = 0);
  // The id is evicted first from now on, wherever it was: for records behind their group's reach. A parked
  // one stays parked.
  void InsertCold(EntryId id);
  // An id that is not absent becomes the most recent. A parked one is back in the order with that: if it
  // still cannot go when it has become the coldest again, it is parked again.
  void Touch(EntryId id);
  // An id that is not absent becomes absent.
  void Remove(EntryId id);

  // The next to go, or nothing when all are parked.
  std::optional<EntryId> Coldest() const;
  // The next of one size class; and the class's last.
  std::optional<EntryId> Coldest(SizeClass size_class) const;
  std::optional<EntryId> Warmest(SizeClass size_class) const;
  // The next of the size classes for which `may(size_class)` holds.
  template <class May>
  std::optional<EntryId> ColdestOf(May may) const {
    std::optional<EntryId> coldest;
    for (std::size_t word = 0; word < in_use_.size(); ++word) {
      for (std::uint64_t bits = in_use_[word]; bits != 0; bits &= bits - 1) {
        const std::size_t on = word * 64 + static_cast<std::size_t>(std::countr_zero(bits));
        const EntryId id = ends_[on].coldest;
        if ((!coldest || links_[id].when < links_[*coldest].when) && may(static_cast<SizeClass>(on)))
          coldest = id;
      }
    }
    return coldest;
  }
  // The next after an id in the order, in its size class, or none.
  std::optional<EntryId> Warmer(EntryId id) const {
    const EntryId warmer = links_[id].warmer;
    return warmer == kEnd ? std::nullopt : std::optional(warmer);
  }
  SizeClass size_class(EntryId id) const { return static_cast<SizeClass>(links_[id].when); }
  // The number of ids that became the most recent since this id in the order did. One moved to the cold end
  // counts as a little older than the coldest before it.
  std::uint64_t Age(EntryId id) const { return next_ - (links_[id].when >> 8); }
  // Takes an id out of the order until Unpark or Touch. No effect on a parked one.
  void Park(EntryId id);
  // The id may leave again: it returns as the coldest. No effect on one that was touched since.
  void Unpark(EntryId id);

  bool Contains(EntryId id) const { return id < links_.size() && links_[id].colder != kAbsent; }
  bool Parked(EntryId id) const { return id < links_.size() && links_[id].colder == kParked; }
  // Ids in the order and parked together; parked alone.
  std::size_t size() const { return listed_ + parked_; }
  std::size_t parked() const { return parked_; }

 private:
  struct Link {
    EntryId colder;  // a neighbour, kEnd, or the state of what is not in the list
    EntryId warmer;
    std::uint64_t when;  // it became the most recent, above 8 bits of its size class
  };
  struct Ends {
    EntryId coldest;
    EntryId warmest;
  };

  static constexpr EntryId kEnd = 0xffff'ffff;
  static constexpr EntryId kAbsent = 0xffff'fffe;
  static constexpr EntryId kParked = 0xffff'fffd;
  static constexpr std::uint64_t kFirst = std::uint64_t{1}
                                          << 54;  // smaller numbers are for ids moved to the cold end

  void LinkWarmest(EntryId id);
  void LinkColdest(EntryId id);
  void Unlink(EntryId id);
  void NoteSizeClass(SizeClass size_class);

  std::vector<Link> links_;
  std::array<Ends, 256> ends_;
  std::array<std::uint64_t, 4> in_use_{};  // size classes, a bit each
  std::uint64_t next_ = kFirst;
  std::size_t listed_ = 0;
  std::size_t parked_ = 0;
};

}  // namespace cistern::policy
