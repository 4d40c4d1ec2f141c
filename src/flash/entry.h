// SPDX-License-Identifier: Apache-2.0
// What flash knows of a record without reading it.
#pragma once

#include <cstdint>

#include "cistern/key.h"
#include "flash/place.h"

namespace cistern {

// What a region's table says of a record in it. A hint until the record's own seal and stamp were read.
struct FlashEntry {
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
  FlashPlace place;
  friend bool operator==(const FlashEntry&, const FlashEntry&) = default;
};

}  // namespace cistern
