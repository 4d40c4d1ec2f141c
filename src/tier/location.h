// SPDX-License-Identifier: Apache-2.0
// Where a record lies in a lower tier.
#pragma once

#include <compare>
#include <cstdint>

namespace cistern::tier {

// Two words that only the tier that gave them reads; everybody else compares and orders them. Eight bytes
// with the alignment of four: the index of what is in a lower tier holds one a block.
struct Location {
  static constexpr std::uint32_t kNone = 0xffff'ffff;  // of `high`: no location at all

  std::uint32_t high = kNone;
  std::uint32_t low = 0;

  bool none() const { return high == kNone; }
  friend auto operator<=>(const Location&, const Location&) = default;
};

// Locations from `first` on and before `last`.
struct LocationRange {
  Location first;
  Location last;

  bool contains(const Location& location) const {
    return !location.none() && first <= location && location < last;
  }
};

}  // namespace cistern::tier
