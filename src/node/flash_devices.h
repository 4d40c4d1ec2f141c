// SPDX-License-Identifier: Apache-2.0
// The devices of a node's flash, one of which an operator takes out of service or brings back.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/task.h"
#include "catalog/journal.h"
#include "flash/flash_tier.h"
#include "memory/movers.h"
#include "node/flash_places.h"
#include "node/options.h"

namespace cistern::node {

// On a thread of `movers`: a call that a device may keep waiting.
Task<Status> CallDevice(Executor&, memory::Movers& movers, std::function<Status()> call);

class FlashDevices final {
 public:
  struct Parts {  // all borrowed
    Executor& on;
    const NodeOptions& options;  // a reload changes them
    const FlashPlaces& places;
    std::vector<Fd>& claims;  // on each device, none on those that are files or out of service
    catalog::Journal& journal;
    memory::Movers* movers;  // null: there is no flash
    flash::FlashTier* tier;  // likewise
  };
  explicit FlashDevices(const Parts& parts) : parts_(parts) {}
  FlashDevices(const FlashDevices&) = delete;
  FlashDevices& operator=(const FlashDevices&) = delete;

  Executor& executor() { return parts_.on; }

  // As ServerParts::device.
  Task<Status> Change(std::string path, bool back);

 private:
  Task<Result<std::size_t>> FindDeviceBeside(std::string path);
  Task<Status> BringBack(std::size_t number);

  const Parts parts_;
  bool brings_back_ = false;  // one of them
};

}  // namespace cistern::node
