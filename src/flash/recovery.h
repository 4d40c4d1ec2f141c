// SPDX-License-Identifier: Apache-2.0
// What the regions hold after a start. Headers and locators are read first, many at a time; then the tables
// of closed regions; then the batches of regions that were open, which are closed by it. Damaged regions are
// noted and freed.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/task.h"
#include "flash/format.h"
#include "flash/media.h"
#include "flash/table.h"

namespace cistern::flash {

class Recovery final {
 public:
  Recovery(Media& media, Tables& tables) : media_(media), tables_(tables) {}

  Executor& executor() const { return media_.executor(); }

  // Once, before any append.
  Task<Status> Run(const Found& found);

 private:
  class Helpers;

  Task<void> ReadHeads(DeviceRegions& device, std::uint32_t& next);
  Task<void> ReadTables(Tables::Turn& turn, const Found& found);
  Task<void> CloseOpen(std::uint32_t region, const Found& found);
  Task<void> Scan(DeviceRegions& device, std::uint32_t region, const Found& found);
  // Says so where a batch follows the end that was found.
  Task<void> NoteMoreBehind(DeviceRegions& device, std::uint32_t region, std::uint32_t unit, Buffer& buffer);
  Task<void> GiveUp(std::uint32_t region);
  Task<void> Settle(DeviceRegions& device);

  Media& media_;
  Tables& tables_;
  std::vector<std::pair<std::uint32_t, Locator>> closed_;
  std::size_t next_closed_ = 0;
  std::vector<std::uint32_t> open_;
  std::vector<std::uint32_t> damaged_;
};

}  // namespace cistern::flash
