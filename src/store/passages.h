// SPDX-License-Identifier: Apache-2.0
// What passes through memory without staying: slots that hold some segments of a block on flash, for who
// asked for just these. No index entry and no directory entry leads there, only the views that were granted.
//
// A passage has a hold on its record, so it is idle when that is the only one. Idle ones stay until their
// room is wanted, the one asked for longest ago first: the ranks of an engine ask one after the other.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "arena/geometry.h"
#include "base/assert.h"
#include "base/event.h"
#include "record/segments.h"
#include "store/tree.h"

namespace cistern {

struct Passage {
  enum class State : std::uint8_t { kAway, kComing, kHere };

  Held held;
  std::uint64_t record_bytes = 0;
  Place place = kNowhere;        // while there is no slot yet
  std::uint64_t generation = 0;  // that it has, or will have when the first segments are here
  bool placing = false;          // somebody looks for a slot
  bool published = false;
  bool ended = false;       // nothing of it may be believed any more
  std::uint32_t reads = 0;  // under way
  std::vector<State> segments;
  Event changed;  // pulsed

  bool All(const SegmentSpan& span, State state) const {
    for (std::uint32_t i = span.first; i < span.end(); ++i) {
      if (segments[i] != state) return false;
    }
    return true;
  }
  bool Any(const SegmentSpan& span, State state) const {
    for (std::uint32_t i = span.first; i < span.end(); ++i) {
      if (segments[i] == state) return true;
    }
    return false;
  }
  // From the first to the last of these that is away; count 0: none is.
  SegmentSpan Away(const SegmentSpan& span) const {
    SegmentSpan away{span.first, 0};
    for (std::uint32_t i = span.first; i < span.end(); ++i) {
      if (segments[i] != State::kAway) continue;
      if (away.count == 0) away.first = i;
      away.count = i + 1 - away.first;
    }
    return away;
  }
};

using PassagePtr = std::shared_ptr<Passage>;

class Passages final {
 public:
  explicit Passages(std::uint64_t max_bytes) : max_bytes_(max_bytes) {}

  std::size_t size() const { return of_.size(); }
  bool RoomFor(std::uint64_t record_bytes) const {
    return of_.size() < kMost && bytes_ + record_bytes <= max_bytes_;
  }
  // The record's; null when it has none. `Asked` makes it the one asked for last.
  PassagePtr Find(RecordId record) const {
    const auto found = of_.find(record);
    return found == of_.end() ? nullptr : *found->second;
  }
  void Asked(RecordId record) { order_.splice(order_.end(), order_, of_.at(record)); }
  void Add(PassagePtr passage) {
    bytes_ += passage->record_bytes;
    const RecordId record = passage->held.record;
    order_.push_back(std::move(passage));
    const bool added = of_.emplace(record, std::prev(order_.end())).second;
    CISTERN_ASSERT(added);
  }
  void Remove(RecordId record) {
    const auto found = of_.find(record);
    bytes_ -= (*found->second)->record_bytes;
    at_.erase((*found->second)->place);
    order_.erase(found->second);
    of_.erase(found);
  }
  // It has its slot from now on, by which it is found.
  void Placed(const Passage& passage) { at_.emplace(passage.place, passage.held.record); }
  PassagePtr At(Place place) const {
    const auto found = at_.find(place);
    return found == at_.end() ? nullptr : Find(found->second);
  }
  // Asked for longest ago first.
  const std::list<PassagePtr>& order() const { return order_; }

 private:
  static constexpr std::size_t kMost = 1024;

  const std::uint64_t max_bytes_;
  std::uint64_t bytes_ = 0;  // of their slots
  std::list<PassagePtr> order_;
  std::unordered_map<RecordId, std::list<PassagePtr>::iterator> of_;
  std::unordered_map<Place, RecordId> at_;
};

}  // namespace cistern
