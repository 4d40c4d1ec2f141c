// SPDX-License-Identifier: Apache-2.0
#include "node/flash_devices.h"

#include <utility>

namespace cistern::node {

Task<Status> CallDevice(Executor&, memory::Movers& movers, std::function<Status()> call) {
  memory::CallJob job(movers, std::move(call));
  co_return co_await job;
}

Task<Status> FlashDevices::Change(std::string path, bool back) {
  std::optional<std::size_t> number = DeviceNamed(parts_.options, parts_.places, path);
  if (!number) {
    Result<std::size_t> found = co_await FindDeviceBeside(std::move(path));
    if (!found) co_return found.error();
    number = *found;
  }
  if (!back) co_return parts_.tier->TakeOut(parts_.places.devices[*number].path);
  if (brings_back_)
    co_return Status(Code::kBusy, "flash: a device is being brought back; try again when that has ended");
  brings_back_ = true;
  Status status = co_await BringBack(*number);
  brings_back_ = false;
  co_return status;
}

Task<Result<std::size_t>> FlashDevices::FindDeviceBeside(std::string path) {
  Result<std::size_t> found = Error(Code::kMiss, "");
  if (parts_.places.devices.empty()) co_return FindDevice(parts_.options, parts_.places, path);
  // A reload may change the node's options meanwhile.
  const NodeOptions options = parts_.options;
  (void)co_await CallDevice(executor(), *parts_.movers, [&] {
    found = FindDevice(options, parts_.places, path);
    return Status();
  });
  co_return found;
}

Task<Status> FlashDevices::BringBack(std::size_t number) {
  const flash::FlashDeviceOptions& device = parts_.places.devices[number];
  if (parts_.tier->devices()[number].in_service)
    co_return co_await parts_.tier->BringBack(device.path);  // says so
  // Another one may be there by now.
  parts_.claims[number] = Fd();
  const FlashVolume volume = parts_.options.flash[number];
  Result<Fd> claim = Fd();
  (void)co_await CallDevice(executor(), *parts_.movers, [&] {
    claim = ClaimDevice(volume, device);
    return Status();
  });
  if (!claim) co_return claim.error();
  parts_.claims[number] = std::move(*claim);
  Status brought = co_await parts_.tier->BringBack(device.path);
  if (!brought.ok()) {
    if (!parts_.tier->devices()[number].in_service) parts_.claims[number] = Fd();
    co_return brought;
  }
  // So that a restart believes what will be on it.
  co_return co_await parts_.journal.PutDevices(parts_.tier->media_ids());
}

}  // namespace cistern::node
