// SPDX-License-Identifier: Apache-2.0
// All devices of a tier with their regions, and what those share: sizes, buffers, figures, the log.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "flash/address.h"
#include "flash/buffer.h"
#include "flash/device_regions.h"
#include "flash/figures.h"
#include "flash/options.h"

namespace cistern::flash {

class Media final {
 public:
  // `out` is told once a device, when it leaves service.
  Media(FlashParts parts, FlashOptions options, std::function<void(DeviceRegions&)> out);
  Media(const Media&) = delete;
  Media& operator=(const Media&) = delete;

  Executor& executor() const { return parts_.executor(); }
  const FlashParts& parts() const { return parts_; }
  io::Loop& loop() const { return parts_.loop; }
  Logger& log() const { return parts_.log; }
  std::uint64_t Random() const { return parts_.random(); }
  Instant Now() const { return parts_.loop.clock().Now(); }
  const FlashOptions& options() const { return options_; }
  BufferPool& pool() { return pool_; }
  FlashCounters& counters() { return counters_; }
  const FlashCounters& counters() const { return counters_; }

  const Geometry& geometry() const { return geometry_; }
  std::uint32_t unit() const { return geometry_.unit; }
  void SetRegionBytes(std::uint64_t bytes) { geometry_.region_bytes = bytes; }

  std::span<const std::unique_ptr<DeviceRegions>> devices() const { return devices_; }
  // The device of a region that there is.
  DeviceRegions& DeviceOf(std::uint32_t region) const;
  // Null where there is no such region, or its device is out of service.
  DeviceRegions* InServiceOf(std::uint32_t region) const;
  // Null where none has that path.
  DeviceRegions* Find(const std::string& path) const;

  std::uint32_t regions() const { return devices_.back()->end(); }
  // Of the devices in service.
  std::vector<std::uint64_t> ids() const;
  std::uint32_t free_regions() const;
  std::uint64_t live_bytes() const;
  std::uint64_t capacity_bytes() const;
  std::uint64_t oldest_sequence() const;
  bool any_in_service() const;

  // What was written to devices in service; one that cannot goes out of service, and is told.
  Task<Status> MakeDurable();

 private:
  FlashParts parts_;
  FlashOptions options_;
  Geometry geometry_;
  FlashCounters counters_;
  BufferPool pool_;
  std::vector<std::unique_ptr<DeviceRegions>> devices_;
};

}  // namespace cistern::flash
