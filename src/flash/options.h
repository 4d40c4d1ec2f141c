// SPDX-License-Identifier: Apache-2.0
// The settings of the flash tier and what it borrows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/log.h"
#include "base/task.h"
#include "cistern/status.h"
#include "io/loop.h"

namespace cistern::flash {

// A file or block device of the tier.
struct FlashDeviceOptions {
  std::string path;              // a directory, in which the file `flash` is made; or a block device
  std::uint64_t size_bytes = 0;  // of the file; for a block device 0: all of it
  // Not ok: why it cannot be looked at. The tier opens without it, and it may be brought back, where its size
  // is said.
  Status absent = {};
};

struct FlashOptions {
  std::vector<FlashDeviceOptions> devices;  // 1 to kMaxFlashDevices
  std::uint32_t unit = 4096;                // the arena's alignment: of locations and transfers
  std::uint64_t region_bytes = 0;           // 0: chosen from the size of the devices (RegionBytesFor)
  std::uint64_t budget_bytes_a_day = 0;     // endurance: of what is written, 0: without a limit
  bool discard_foreign = false;             // overwrite what is not this tier's
  // A transfer that takes longer takes its device out of service; time in which the node did not run does not
  // count.
  std::int64_t hang_us = 10'000'000;
  std::uint32_t read_depth = 64;  // transfers at a device at a time; the rest waits in order
  std::uint32_t write_depth = 8;

  // kInvalid names the field, its value and its limit.
  Status Validate() const;
};

// Borrowed; all of it outlives the tier.
struct FlashParts {
  io::Loop& loop;
  Logger& log;
  // Random 64 bits: ids of devices and the first epochs of a new one.
  std::function<std::uint64_t()> random;
  // Runs what a device may keep waiting, off the loop's thread; without it, on it.
  std::function<Task<Status>(std::function<Status()>)> beside = nullptr;
  // Told which of the devices is out of service and let go of, when that begins.
  std::function<void(std::size_t device)> let_go = nullptr;
  Executor& executor() const { return loop.executor(); }
};

inline constexpr std::size_t kMaxFlashDevices = 16;
// File operations that a device of these depths has at a time, at most. A loop that has room for those of all
// devices refuses nobody else's for them.
std::uint32_t MaxDeviceIo(const FlashOptions& options);
inline constexpr std::uint64_t kMinRegionBytes = 64u << 10;  // for simulation; a node takes 16 MiB and more
inline constexpr std::uint64_t kMaxRegionBytes = 1ull << 30;

// 256 MiB to 1 GiB where there are 64 of them, down to 16 MiB on a small device.
std::uint64_t RegionBytesFor(std::uint64_t smallest_device_bytes);

}  // namespace cistern::flash
