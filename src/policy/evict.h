// SPDX-License-Identifier: Apache-2.0
// In what order residents leave. The order is a decision on dense ids and nothing else: who owns the ids
// (the store's records, the simulator's blocks) says whether one may go; the order says which is next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "cistern/status.h"

namespace cistern {

using EntryId = std::uint32_t;  // dense: memory is 8 bytes for each id up to the largest ever inserted

enum class EvictionPolicy : std::uint8_t { kLru };

std::string_view EvictionPolicyName(EvictionPolicy policy);         // "lru"
Result<EvictionPolicy> ParseEvictionPolicy(std::string_view name);  // kInvalid names the known ones

// Least recently touched first. Every call is O(1); only an id larger than any before allocates.
//
// An id is absent, in the order, or parked. Parked is what was coldest and cannot go now (it has resident
// descendants, a lease, a pin): it leaves the order, so that Coldest() does not come back to it, and counts
// as older than everything in it until it is touched.
class Lru final {
 public:
  // Largest id that can be inserted, plus one.
  static constexpr EntryId kMaxEntries = 0xffff'fff0;

  // Makes room for ids below `entries`, so that inserting them does not allocate.
  void Reserve(EntryId entries);

  // An absent id becomes the most recent.
  void Insert(EntryId id);
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
  };

  static constexpr EntryId kEnd = 0xffff'ffff;
  static constexpr EntryId kAbsent = 0xffff'fffe;
  static constexpr EntryId kParked = 0xffff'fffd;

  void LinkWarmest(EntryId id);
  void LinkColdest(EntryId id);
  void Unlink(EntryId id);

  std::vector<Link> links_;
  EntryId coldest_ = kEnd;
  EntryId warmest_ = kEnd;
  std::size_t listed_ = 0;
  std::size_t parked_ = 0;
};

}  // namespace cistern
