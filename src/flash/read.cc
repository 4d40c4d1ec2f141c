// SPDX-License-Identifier: Apache-2.0
#include "flash/read.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/assert.h"
#include "base/format.h"
#include "tier/check.h"

namespace cistern::flash {

using State = Region::State;

// A read of the record at an address: its region is not opened again before the read has ended.
class RecordReader::Reading final {
 public:
  Reading(Media& media, const FlashAddress& address)
      : regions_(media.DeviceOf(address.region)),
        use_(regions_),
        region_(address.region),
        epoch_(regions_.at(region_).epoch()),
        begin_(regions_.OffsetOf(region_, address.unit)) {
    regions_.BeginRead(region_);
  }
  ~Reading() { regions_.EndRead(region_); }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

  Device& device() const { return regions_.device(); }
  std::uint64_t epoch() const { return epoch_; }  // of the region when the read began
  std::uint64_t begin() const { return begin_; }  // of the record, on the device

 private:
  DeviceRegions& regions_;
  DeviceUse use_;
  const std::uint32_t region_;
  const std::uint64_t epoch_;
  const std::uint64_t begin_;
};

std::int64_t RecordReader::EstimateUs(const tier::Location& location, std::uint64_t bytes) const {
  const DeviceRegions* device = media_.InServiceOf(AddressOf(location).region);
  if (device == nullptr) return tier::Tier::kNever;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(device->device().EstimateUs(bytes)));
}

Status RecordReader::CheckPlace(const tier::Location& location, std::uint64_t record_bytes) const {
  const std::uint32_t unit = media_.unit();
  const FlashAddress address = AddressOf(location);
  if (address.region >= media_.regions()) return Status(Code::kMiss, "flash: no such region");
  DeviceRegions& device = media_.DeviceOf(address.region);
  const Region& region = device.at(address.region);
  if (device.in_service() &&
      (region.is(State::kFree) || region.is(State::kReleasing) || address.unit == 0 ||
       record_bytes < 2 * unit || address.unit + record_bytes / unit > media_.geometry().units() - 1)) {
    return Status(Code::kMiss, "flash: no record lies there");
  }
  return Status();
}

Task<Result<tier::FetchedRecord>> RecordReader::Fetch(tier::Location location, std::span<std::byte> into,
                                                      const tier::Tier::Arrived* arrived) {
  const std::uint32_t unit = media_.unit();
  CISTERN_ASSERT(into.size() % unit == 0 && reinterpret_cast<std::uintptr_t>(into.data()) % unit == 0);
  if (Status place = CheckPlace(location, into.size()); !place.ok())
    co_return std::unexpected(std::move(place));
  const Reading reading(media_, AddressOf(location));
  Status status;
  if (arrived != nullptr) {
    status = co_await reading.device().Read(into, reading.begin(), *arrived);
  } else {
    status = co_await reading.device().Read(into, reading.begin());
  }
  auto fetched = Check(location, into, into.size(), reading.epoch(), std::move(status));
  if (fetched) Served(into.size());
  co_return fetched;
}

Task<Result<tier::FetchedRecord>> RecordReader::FetchSome(tier::Location location, std::uint64_t record_bytes,
                                                          std::span<std::byte> trailer, std::uint64_t offset,
                                                          std::span<std::byte> body) {
  const std::uint32_t unit = media_.unit();
  for (const std::span<std::byte> into : {trailer, body}) {
    CISTERN_ASSERT(into.size() % unit == 0 && reinterpret_cast<std::uintptr_t>(into.data()) % unit == 0);
  }
  CISTERN_ASSERT(record_bytes % unit == 0 && trailer.size() <= record_bytes);
  CISTERN_ASSERT(offset % unit == 0 && offset + body.size() <= record_bytes);
  if (Status place = CheckPlace(location, record_bytes); !place.ok())
    co_return std::unexpected(std::move(place));
  const Reading reading(media_, AddressOf(location));
  // Both are under way before the first is awaited.
  std::optional<Task<Status>> beside;
  if (!body.empty()) beside.emplace(reading.device().Read(body, reading.begin() + offset));
  Status status = co_await reading.device().Read(trailer, reading.begin() + record_bytes - trailer.size());
  if (beside) {
    Status other = co_await *beside;
    if (status.ok()) status = std::move(other);
  }
  auto fetched = Check(location, trailer, record_bytes, reading.epoch(), std::move(status));
  if (fetched && !body.empty()) Served(trailer.size() + body.size());
  co_return fetched;
}

void RecordReader::Served(std::uint64_t bytes) {
  media_.counters().fetched_records.Add();
  media_.counters().fetched_bytes.Add(bytes);
}

Result<tier::FetchedRecord> RecordReader::Check(const tier::Location& location,
                                                std::span<const std::byte> trailer,
                                                std::uint64_t record_bytes, std::uint64_t epoch,
                                                Status status) {
  if (!status.ok()) {
    media_.counters().io_errors.Add();
    return std::unexpected(std::move(status));
  }
  const std::uint32_t unit = media_.unit();
  const FlashAddress address = AddressOf(location);
  DeviceRegions& device = media_.DeviceOf(address.region);
  const FlashAddress on_device{address.region - device.first(), address.unit};
  const auto fetched =
      tier::CheckRecord(trailer, record_bytes, unit, {on_device.region, on_device.unit, epoch});
  if (!fetched) {
    ReportBad(location);
    return Error(Code::kMiss, Text("flash device ", device.path(), ": region ", on_device.region, ", unit ",
                                   on_device.unit, ": is not the record that was written there"));
  }
  device.device().Sound();
  return *fetched;
}

void RecordReader::ReportBad(const tier::Location& location) {
  const std::uint32_t number = AddressOf(location).region;
  DeviceRegions* device = media_.InServiceOf(number);
  if (device == nullptr) return;
  media_.counters().bad_records.Add();
  if (!device->at(number).scanned()) device->device().Bad();
}

}  // namespace cistern::flash
