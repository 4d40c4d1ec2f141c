// SPDX-License-Identifier: Apache-2.0
// Where on this host lies what is below memory: the volumes of flash and the journal that goes with them,
// each of one tenant. These calls block, for as long as a device or its file system likes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "cistern/status.h"
#include "flash/flash_tier.h"
#include "node/options.h"

namespace cistern::node {

struct FlashPlaces {
  std::vector<flash::FlashDeviceOptions> devices;  // as the tier takes them, in the order of the options
  std::uint64_t bytes = 0;                         // of all devices
  std::string journal_directory;                   // empty: it lies with memory
  // A journal is there: the node starts without devices that cannot be looked at (absent).
  bool had_flash = false;
};

// Looks at every path before it touches one, then makes the tenant's directories. What a device holds is the
// tier's to judge. kInvalid: no such directory or device, and no journal beside the others; a directory
// without a size, one volume twice, no directory for the journal; kIoError: read-only, or not this user's. A
// check makes no directory, and root's leaves open whose the tenant's are: it is for a node of another
// user's.
enum class FindsFor : std::uint8_t { kStart, kCheck };
Result<FlashPlaces> FindFlashPlaces(const NodeOptions& options, FindsFor what = FindsFor::kStart);

// Of a device that was found: what the tier would refuse of its size, and of its file system's room for it.
Status CheckDevice(const FlashPlaces& places, std::size_t at);

// Of flash and its journal, what lies in the host's memory alone.
struct Lost {
  std::string what;
  std::string_view way_out;
};
std::vector<Lost> LostAtReboot(const NodeOptions& options, const FlashPlaces& places);

// Nobody else on this host uses the device, mounted or otherwise, or begins to, as long as the descriptor is
// open. kBusy: somebody does. None for a directory, in which the tenant's is made where another disk is there
// by now. `device` is the one of places that `volume` became.
Result<Fd> ClaimDevice(const FlashVolume& volume, const flash::FlashDeviceOptions& device);

// How many blocks on so much flash the node keeps in its tables: as many as the smallest would be, as long as
// their entries take no more than an eighth of what the host gives. `alignment` is the arena's.
inline constexpr std::uint64_t kLowerEntryBytes = 64;  // of a block of one group
std::uint32_t LowerBlocksOf(std::uint64_t flash_bytes, std::uint32_t alignment, std::uint64_t host_bytes);
// The same on this host.
std::uint32_t MaxLowerBlocks(const FlashPlaces& places, std::uint32_t alignment);

// Which of `places.devices` a person means by `path`, as it stands in the options or as the tier has it. By
// the texts alone, so it does not block; none: it may be another name, which FindDevice finds.
std::optional<std::size_t> DeviceNamed(const NodeOptions& options, const FlashPlaces& places,
                                       const std::string& path);
// By what the names lead to on the file system, which may block. kMiss lists those that there are.
Result<std::size_t> FindDevice(const NodeOptions& options, const FlashPlaces& places,
                               const std::string& path);

// Quotas of flash where there is none are refused, and reserves of more than half of it: what moves stays,
// and reclaim has to find room.
Status CheckFlashQuotas(const NodeOptions& options, const FlashPlaces& places);

}  // namespace cistern::node
