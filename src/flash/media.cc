// SPDX-License-Identifier: Apache-2.0
#include "flash/media.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace cistern::flash {

Media::Media(FlashParts parts, FlashOptions options, std::function<void(DeviceRegions&)> out)
    : parts_(std::move(parts)), options_(std::move(options)) {
  geometry_.unit = options_.unit;
  for (const FlashDeviceOptions& device : options_.devices) {
    devices_.push_back(std::make_unique<DeviceRegions>(
        parts_.loop, device.path, Device::Limits{options_.read_depth, options_.write_depth, options_.hang_us},
        geometry_, pool_, out));
  }
}

DeviceRegions& Media::DeviceOf(std::uint32_t region) const {
  for (const auto& device : devices_) {
    if (device->Has(region)) return *device;
  }
  CISTERN_ASSERT(false);
  return *devices_.front();
}

DeviceRegions* Media::InServiceOf(std::uint32_t region) const {
  if (region >= regions()) return nullptr;
  DeviceRegions& device = DeviceOf(region);
  return device.in_service() ? &device : nullptr;
}

DeviceRegions* Media::Find(const std::string& path) const {
  for (const auto& device : devices_) {
    if (device->path() == path) return device.get();
  }
  return nullptr;
}

Task<Status> Media::MakeDurable() {
  Status status;
  for (const auto& device : devices_) {
    if (!device->in_service()) continue;
    const DeviceUse use(*device);
    Status made = co_await device->MakeDurable();
    if (!made.ok()) status = std::move(made);
  }
  co_return status;
}

std::vector<std::uint64_t> Media::ids() const {
  std::vector<std::uint64_t> ids;
  for (const auto& device : devices_) {
    if (device->in_service() && device->id != 0) ids.push_back(device->id);
  }
  return ids;
}

std::uint32_t Media::free_regions() const {
  std::size_t free = 0;
  for (const auto& device : devices_) free += device->in_service() ? device->free() : 0;
  return static_cast<std::uint32_t>(free);
}

std::uint64_t Media::live_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& device : devices_) bytes += device->in_service() ? device->live_bytes() : 0;
  return bytes;
}

std::uint64_t Media::capacity_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& device : devices_) {
    if (device->in_service()) bytes += device->count() * geometry_.region_bytes;
  }
  return bytes;
}

std::uint64_t Media::oldest_sequence() const {
  std::uint64_t oldest = UINT64_MAX;
  for (const auto& device : devices_) {
    if (device->in_service()) oldest = std::min(oldest, device->oldest_sequence());
  }
  return oldest;
}

bool Media::any_in_service() const {
  return std::ranges::any_of(devices_, [](const auto& device) { return device->in_service(); });
}

}  // namespace cistern::flash
