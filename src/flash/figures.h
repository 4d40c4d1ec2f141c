// SPDX-License-Identifier: Apache-2.0
// What the flash tier says of itself.
#pragma once

#include <cstdint>
#include <string>

#include "base/metrics.h"

namespace cistern {
class MetricRegistry;
}  // namespace cistern

namespace cistern::flash {

class FlashTier;

struct FlashCounters {
  Counter appended_records, appended_bytes, device_written_bytes, fetched_records, fetched_bytes, reclaimed,
      moved_bytes, released_regions, refused_by_budget, refused_no_region, bad_records, io_errors;

  // Of records that came from memory.
  std::uint64_t fresh_bytes() const { return appended_bytes.value() - moved_bytes.value(); }
  double write_amplification() const;  // bytes written per byte of these; 0: there are none
};

struct FlashDeviceState {
  std::string path;
  std::uint64_t id = 0;
  bool in_service = true;
  std::string why;  // it is out
  std::uint64_t size_bytes = 0;
  std::uint64_t read_bytes = 0, written_bytes = 0, reads = 0, writes = 0, errors = 0, bad_records = 0;
  std::uint32_t in_flight = 0;
  std::int64_t read_estimate_us = 0;  // of 64 KiB, now
};

// Borrows the tier; null: there is none, and the registry is for its names alone.
void AddMetrics(MetricRegistry& registry, const FlashTier* tier);
// Of a node without flash: the list of its devices, which is empty.
void AddDeviceMetrics(MetricRegistry& registry, const FlashTier* tier);

}  // namespace cistern::flash
