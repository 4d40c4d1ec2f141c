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
  // The first of these that are away, as far as they follow each other.
  SegmentSpan Away(const SegmentSpan& span) const {
    std::uint32_t first = span.first;
    while (first < span.end() && segments[first] != State::kAway) ++first;
    std::uint32_t end = first;
    while (end < span.end() && segments[end] == State::kAway) ++end;
    return {first, end - first};
  }
  void Set(const SegmentSpan& span, State state) {
    for (std::uint32_t i = span.first; i < span.end(); ++i) segments[i] = state;
  }
};

using PassagePtr = std::shared_ptr<Passage>;

class Passages final {
 public:
  explicit Passages(std::uint64_t max_bytes) : max_bytes_(max_bytes) {}

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
    order_.erase(found->second);
    of_.erase(found);
  }
  // Asked for longest ago first.
  const std::list<PassagePtr>& order() const { return order_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kMost = 1024;

  const std::uint64_t max_bytes_;
  std::uint64_t bytes_ = 0;  // of their slots
  std::list<PassagePtr> order_;
  std::unordered_map<RecordId, std::list<PassagePtr>::iterator> of_;
};

}  // namespace cistern
