// SPDX-License-Identifier: Apache-2.0
// Decisions on memory of two speeds: near, on memory nodes with processors, and far, on nodes that are memory
// alone (docs/decisions/0040-far-memory.md). What is put lies near. Where near memory is full its coldest
// moves far, and what is coldest there leaves; what is used in far memory moves near, unless it is worth less
// than what would move far for it. The store and the simulator carry them out.
#pragma once

#include <cstdint>
#include <optional>

#include "policy/order.h"

namespace cistern::policy {

// Which size classes are far: those from one on.
class FarMemory final {
 public:
  struct Side {
    SizeClass first_far;
    bool is_far;
    constexpr bool operator()(SizeClass size_class) const { return (size_class >= first_far) == is_far; }
  };

  constexpr explicit FarMemory(SizeClass first) : first_(first) {}

  constexpr bool Has(SizeClass size_class) const { return size_class >= first_; }
  constexpr Side near() const { return {first_, false}; }
  constexpr Side far() const { return {first_, true}; }
  // Where the size class is.
  constexpr Side SideOf(SizeClass size_class) const { return {first_, Has(size_class)}; }

 private:
  SizeClass first_;
};

// What happens where near memory is full, and far memory too, for the coldest near id.
enum class NearWay : std::uint8_t {
  kMoves,       // far, and the coldest there leaves for it
  kLeaves,      // itself: it is worth less than that one
  kNewStaysOut  // nothing happens: the newcomer is worth less than what would leave
};
// None: nothing in far memory may leave.
inline NearWay WayOf(const Order& order, const Standing& newcomer, EntryId near, std::optional<EntryId> far) {
  const EntryId leaves = !far || order.Colder(near, *far) ? near : *far;
  if (order.StaysOut(newcomer, leaves)) return NearWay::kNewStaysOut;
  return leaves == near ? NearWay::kLeaves : NearWay::kMoves;
}

// An id that was used in far memory moves near, where near memory is full. Of the near ids a few are parked
// for which `may(id)` does not hold: that may not move.
template <class May>
bool MovesNear(Order& order, const FarMemory& far, EntryId id, May may) {
  return !order.Passes(order.StandingOf(id), kAllGroups, may, far.near());
}

}  // namespace cistern::policy
