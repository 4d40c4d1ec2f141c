// SPDX-License-Identifier: Apache-2.0
#include "flash/options.h"

#include <algorithm>
#include <bit>

#include "base/format.h"
#include "base/limits.h"
#include "flash/device.h"
#include "flash/format.h"

namespace cistern::flash {

Status FlashOptions::Validate() const {
  if (devices.empty() || devices.size() > kMaxFlashDevices) {
    return Status(Code::kInvalid,
                  Text("flash: has ", devices.size(), " devices and a tier has 1 to ", kMaxFlashDevices));
  }
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].path.empty()) return Status(Code::kInvalid, Text("flash device ", i, ": has no path"));
    for (std::size_t j = 0; j < i; ++j) {
      if (devices[j].path == devices[i].path) {
        return Status(Code::kInvalid, Text("flash device ", devices[i].path, ": is named twice"));
      }
    }
  }
  if (!std::has_single_bit(unit) || unit < 512 || unit > kMaxAlignment) {
    return Status(Code::kInvalid, Text("flash unit: is ", unit, " bytes and may be 512, 1024, 2048 or 4096"));
  }
  if (region_bytes != 0 &&
      (region_bytes < kMinRegionBytes || region_bytes > kMaxRegionBytes || region_bytes % kSuperBytes != 0)) {
    return Status(Code::kInvalid, Text("flash region_bytes: is ", region_bytes, " and must be a multiple of ",
                                       kSuperBytes, " from ", kMinRegionBytes, " to ", kMaxRegionBytes));
  }
  if (hang_us < 1000) return Status(Code::kInvalid, Text("flash hang_us: is ", hang_us, ", at least 1000"));
  if (read_depth < 1 || read_depth > 1024) {
    return Status(Code::kInvalid, Text("flash read_depth: is ", read_depth, " and must be from 1 to 1024"));
  }
  if (write_depth < 1 || write_depth > 64) {
    return Status(Code::kInvalid, Text("flash write_depth: is ", write_depth, " and must be from 1 to 64"));
  }
  return Status();
}

// A read in pieces is an operation each. Syncs are of regions that are opened, closed and given up.
std::uint32_t MaxDeviceIo(const FlashOptions& options) {
  constexpr std::uint32_t kSyncs = 16;
  constexpr std::uint64_t kPieces =
      std::max(kReadBytesAtDevice, RoundUp(kMaxBodyBytes, kReadPieceBytes)) / kReadPieceBytes;
  return options.read_depth + options.write_depth + kSyncs + std::uint32_t{kPieces};
}

std::uint64_t RegionBytesFor(std::uint64_t smallest_device_bytes) {
  constexpr std::uint64_t kRegions = 64;
  constexpr std::uint64_t kSmallest = 16u << 20;
  return std::clamp(std::bit_floor(smallest_device_bytes / kRegions), kSmallest, kMaxRegionBytes);
}

}  // namespace cistern::flash
