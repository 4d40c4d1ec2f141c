// SPDX-License-Identifier: Apache-2.0
// What a lower tier knows of a record without reading it.
#pragma once

#include <cstdint>

#include "cistern/key.h"
#include "tier/location.h"

namespace cistern::tier {

// A hint until the record's own seal and stamp were read.
struct TierEntry {
  BlockKey key;
  BlockKey parent;
  std::uint64_t incarnation = 0;
  std::uint64_t born = 0;
  std::uint64_t sequence = 0;
  std::uint64_t conversation = 0;
  std::uint32_t expiry = 0;
  std::uint32_t body_bytes = 0;
  std::uint32_t record_bytes = 0;
  std::uint16_t group = 0;
  std::uint16_t parts = 1;
  Location location;
  friend bool operator==(const TierEntry&, const TierEntry&) = default;
};

}  // namespace cistern::tier
