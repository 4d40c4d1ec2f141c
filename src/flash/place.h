// SPDX-License-Identifier: Apache-2.0
// Where a record lies on flash.
#pragma once

#include <cstdint>

namespace cistern {

inline constexpr std::uint32_t kNoRegion = 0xffff'ffff;

// Unit `unit` of region `region`; a unit is the arena's alignment, and regions are counted over all devices
// of the tier in the order in which they were attached. Eight bytes with the alignment of four: an index of
// what is on flash holds one a block.
struct FlashPlace {
  std::uint32_t region = kNoRegion;
  std::uint32_t unit = 0;

  bool none() const { return region == kNoRegion; }
  friend bool operator==(const FlashPlace&, const FlashPlace&) = default;
};

}  // namespace cistern
