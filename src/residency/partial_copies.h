// SPDX-License-Identifier: Apache-2.0
// Slots that hold some segments of a block in the lower tier, for readers that asked for just these. No
// index entry and no directory entry leads there, only the views that were granted.
//
// A partial copy has a reference on its record, and is idle when that is the only one. Idle copies stay
// until their room is wanted, the one asked for longest ago first: the ranks of an engine ask one after the
// other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/event.h"
#include "base/task.h"
#include "record/segments.h"
#include "residency/context.h"
#include "residency/residents.h"

namespace cistern::residency {

struct PartialCopy {
  enum class State : std::uint8_t { kAbsent, kFetching, kPresent };

  catalog::RecordHandle handle;
  std::uint64_t record_bytes = 0;
  std::uint64_t slot_bytes = 0;            // of the slot that it takes
  std::uint64_t asked = 0;                 // the larger, the later it was asked for
  arena::Place place = catalog::kNowhere;  // none while it has no slot yet
  std::uint64_t generation = 0;            // of its slot, or what it will be when the first segments are here
  bool placing = false;                    // a search for its slot is under way
  bool published = false;
  bool ended = false;       // none of its bytes may be believed any more
  bool no_room = false;     // the last read found no slot for it
  std::uint32_t reads = 0;  // reads under way
  std::vector<State> segments;
  Event changed;  // pulsed at each change

  bool All(const record::SegmentSpan& span, State state) const {
    for (std::uint32_t i = span.first; i < span.end(); ++i) {
      if (segments[i] != state) return false;
    }
    return true;
  }
  bool Any(const record::SegmentSpan& span, State state) const {
    for (std::uint32_t i = span.first; i < span.end(); ++i) {
      if (segments[i] == state) return true;
    }
    return false;
  }
  // The span from the first to the last absent segment of `span`; count 0: none is absent.
  record::SegmentSpan Absent(const record::SegmentSpan& span) const {
    record::SegmentSpan absent{span.first, 0};
    for (std::uint32_t i = span.first; i < span.end(); ++i) {
      if (segments[i] != State::kAbsent) continue;
      if (absent.count == 0) absent.first = i;
      absent.count = i + 1 - absent.first;
    }
    return absent;
  }
};

using PartialCopyPtr = std::shared_ptr<PartialCopy>;

class PartialCopies final {
 public:
  PartialCopies(const StoreContext& context, Residents& residents)
      : context_(context), residents_(residents) {}
  PartialCopies(const PartialCopies&) = delete;
  PartialCopies& operator=(const PartialCopies&) = delete;

  Executor& executor() { return context_.executor; }

  // The copy's views end, and its slot is free when its last transfer has ended.
  void End(catalog::RecordId record);
  bool EndIfIdle(catalog::RecordId record);
  // Ends the first idle copy, in a slot of this size; true: there was one. Its record may be folded.
  bool EndIdle(std::optional<memory::SlotSize> size = std::nullopt);
  // Ends all copies, or those with a read under way.
  Task<void> EndAll(bool reading_only);
  // Bounds: records, and bytes of slots.
  static constexpr std::size_t kMost = 1024;
  static constexpr std::uint64_t kShare = 8;  // of the slots
  std::size_t size() const { return of_.size(); }
  bool RoomFor(std::uint64_t record_bytes) const {
    return of_.size() < kMost && bytes_ + record_bytes <= context_.slots.bytes() / kShare;
  }
  // The record's copy; null when it has none.
  PartialCopyPtr Find(catalog::RecordId record) const {
    const auto found = of_.find(record);
    return found == of_.end() ? nullptr : *found->second;
  }
  // The copy in a slot; null where the slot has none.
  PartialCopyPtr At(arena::Place place) const {
    const auto found = at_.find(place);
    return found == at_.end() ? nullptr : Find(found->second);
  }
  // The copy in a slot ends if it is idle; its record may be folded.
  void EndIdleAt(arena::Place place);
  // The copy becomes the one asked for last.
  void Asked(catalog::RecordId record);
  void Add(PartialCopyPtr copy);
  // The copy has its slot from now on and is found by it.
  void Placed(const PartialCopy& copy) { at_.emplace(copy.place, copy.handle.record); }

 private:
  using Order = std::list<PartialCopyPtr>;  // asked for longest ago first

  void Remove(catalog::RecordId record);
  // The one asked for longest ago, of all or in slots of this size; null: there is none.
  PartialCopyPtr First(std::optional<memory::SlotSize> size = std::nullopt) const;

  const StoreContext context_;
  Residents& residents_;
  std::uint64_t bytes_ = 0;  // of the copies' slots
  std::uint64_t asked_ = 0;
  std::unordered_map<std::uint64_t, Order> orders_;  // by bytes of a slot; none is empty
  std::unordered_map<catalog::RecordId, Order::iterator> of_;
  std::unordered_map<arena::Place, catalog::RecordId> at_;
};

}  // namespace cistern::residency
