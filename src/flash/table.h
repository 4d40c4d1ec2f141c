// SPDX-License-Identifier: Apache-2.0
// The table of a region: gathered page by page while the region is written, put behind its records when it is
// closed, and read back.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/event.h"
#include "base/task.h"
#include "flash/media.h"
#include "tier/entry.h"

namespace cistern::flash {

using Found = std::function<Task<void>(std::span<const tier::TierEntry>)>;

class Tables final {
 public:
  // Slices of several tables are given to the caller one after the other, in the order of asking.
  struct Turn {
    bool taken = false;
    Event free;
  };

  explicit Tables(Media& media) : media_(media) {}

  Executor& executor() const { return media_.executor(); }

  // Encoded entries go to the table of a region that is being written.
  void Add(Region& region, const std::byte* entries, std::uint32_t count);
  // The table goes to the device, and its locator once all of the region is durable; which the locator is not
  // yet. Where that fails the region keeps its pages, unless the device is out of service.
  Task<void> Write(DeviceRegions& device, std::uint32_t region);
  // Pages as they are on the device, each checked for itself. kIoError: not all of them could be read.
  Task<Status> Read(DeviceRegions& device, std::uint32_t region, Turn& turn, const Found& found);
  // All entries are added to `all`, whether the table is on the device or could not be written. kIoError: as
  // Read, and those of the pages that could be read were added.
  Task<Status> Entries(DeviceRegions& device, std::uint32_t region, std::vector<tier::TierEntry>& all);
  // Entries that are sound and name records in units [from, to) of the region.
  void Decode(std::uint32_t region, const std::byte* entries, std::uint32_t count, std::uint32_t from,
              std::uint32_t to, std::vector<tier::TierEntry>& out) const;

 private:
  Task<Status> WriteWhole(DeviceRegions& device, std::uint32_t region);
  Task<void> Collect(std::vector<tier::TierEntry>& all, std::span<const tier::TierEntry> slice);

  Media& media_;
};

}  // namespace cistern::flash
