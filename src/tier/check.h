// SPDX-License-Identifier: Apache-2.0
// Whether what a medium gave is a record, and the one that was written there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "tier/tier.h"

namespace cistern::tier {

// What a stamp must say of where its record lies.
struct StampedPlace {
  std::uint32_t region = 0;
  std::uint32_t unit = 0;
  std::uint64_t epoch = 0;
};

// `end` is the end of a record of `record_bytes`: the trailer lies there in as many units as it takes, and
// only one number of units can hold it. The result borrows `end`.
std::optional<FetchedRecord> CheckRecord(std::span<const std::byte> end, std::uint64_t record_bytes,
                                         std::uint32_t unit, const StampedPlace& place);

}  // namespace cistern::tier
