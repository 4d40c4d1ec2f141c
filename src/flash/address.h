// SPDX-License-Identifier: Apache-2.0
// A location as flash means it: a region, and the unit in it where a record begins.
#pragma once

#include <cstdint>

#include "tier/location.h"

namespace cistern::flash {

inline constexpr std::uint32_t kNoRegion = tier::Location::kNone;

struct FlashAddress {
  std::uint32_t region = kNoRegion;  // of the tier; on its device it has a number of its own
  std::uint32_t unit = 0;
};

constexpr FlashAddress AddressOf(const tier::Location& location) { return {location.high, location.low}; }
constexpr tier::Location LocationOf(const FlashAddress& address) { return {address.region, address.unit}; }

// All locations in regions [first, last).
constexpr tier::LocationRange RangeOf(std::uint32_t first, std::uint32_t last) {
  return {{first, 0}, {last, 0}};
}

}  // namespace cistern::flash
