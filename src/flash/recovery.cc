// SPDX-License-Identifier: Apache-2.0
#include "flash/recovery.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/format.h"
#include "base/task_group.h"

namespace cistern::flash {

namespace {

constexpr std::uint32_t kHeadReaders = 16;  // at a device
constexpr std::uint32_t kTableReaders = 8;
constexpr std::uint32_t kScanBytes = 512u << 10;
constexpr std::uint32_t kLookedBehindBytes = 8u << 20;  // what appends that come together may have

}  // namespace

// Tasks that are dropped where whoever waits for them is dropped.
class Recovery::Helpers final {
 public:
  explicit Helpers(Executor& executor) : group(executor) {}
  ~Helpers() { group.Drop(); }
  TaskGroup group;
};

Task<void> Recovery::ReadHeads(DeviceRegions& device, std::uint32_t& next) {
  const Geometry& geometry = media_.geometry();
  Buffer buffer = media_.pool().Take(2 * std::size_t{media_.unit()});
  const auto unit = buffer.bytes().first(media_.unit());
  const auto first_batch = buffer.bytes().subspan(media_.unit(), media_.unit());
  while (next < device.count()) {
    const std::uint32_t number = device.first() + next++;
    Status status =
        co_await device.device().Read(buffer, 2 * std::size_t{media_.unit()}, device.OffsetOf(number, 0));
    if (!device.in_service()) co_return;
    const auto header = DecodeRegionHeader(unit);
    if (!status.ok() || !header) {
      // Zeros are a region that was never used, behind which nothing can lie.
      if (!status.ok() || !AllZero(unit) || PeekBatch(first_batch)) damaged_.push_back(number);
      continue;
    }
    // A region of another life, or one that was given up.
    if (header->device_id != device.id || header->epoch == 0) continue;
    if (header->region != number - device.first()) {
      damaged_.push_back(number);
      continue;
    }
    device.Found(number, header->epoch, header->first_sequence);
    status =
        co_await device.device().Read(buffer, unit.size(), device.OffsetOf(number, geometry.units() - 1));
    if (!device.in_service()) co_return;
    const auto locator = DecodeLocator(unit);
    if (status.ok() && locator && locator->epoch == header->epoch &&
        locator->table_unit + std::uint64_t{geometry.TableUnits(locator->entries)} < geometry.units()) {
      closed_.push_back({number, *locator});
    } else {
      open_.push_back(number);
    }
  }
}

Task<void> Recovery::ReadTables(Tables::Turn& turn, const Found& found) {
  while (next_closed_ < closed_.size()) {
    const auto [number, locator] = closed_[next_closed_++];
    DeviceRegions& device = media_.DeviceOf(number);
    device.at(number).FoundTable(locator.table_unit, locator.entries, locator.scanned);
    device.SetLeast(number, locator.least_sequence);
    const Status status = co_await tables_.Read(device, number, turn, found);
    if (!status.ok()) {
      media_.log().Log(LogLevel::kWarning, status.message(), "; what they name is lost");
    }
  }
}

// Batches follow each other until one is not whole.
Task<void> Recovery::Scan(DeviceRegions& device, std::uint32_t number, const Found& found) {
  Region& region = device.at(number);
  const Geometry& geometry = media_.geometry();
  const std::uint32_t unit_bytes = geometry.unit;
  Buffer buffer = media_.pool().Take(kScanBytes);
  std::span<const std::byte> ahead;  // what the buffer has from `unit` on
  std::uint32_t unit = 1;
  std::uint64_t least = UINT64_MAX;
  std::vector<tier::TierEntry> slice;
  Status unreadable;
  for (;;) {
    auto head = DecodeBatchHead(ahead);
    if (!head && head.error() == FlashFault::kShort) {
      const std::size_t bytes =
          std::size_t{std::min(kScanBytes / unit_bytes, geometry.units() - 1 - unit)} * unit_bytes;
      unreadable = co_await device.device().Read(buffer, bytes, device.OffsetOf(number, unit));
      if (!unreadable.ok()) break;
      ahead = buffer.bytes().first(bytes);
      head = DecodeBatchHead(ahead);
    }
    if (!head || head->epoch != region.epoch() || head->unit != unit) break;
    const auto head_units =
        static_cast<std::uint32_t>(RoundUp(BatchHeadBytes(head->entries), unit_bytes) / unit_bytes);
    const std::uint64_t end = std::uint64_t{unit} + head->units;
    if (end + geometry.TableUnits(region.entries() + head->entries) + 1 > geometry.units()) break;
    const std::byte* entries = ahead.data() + kBatchFixedBytes;
    tables_.Add(region, entries, head->entries);
    slice.clear();
    tables_.Decode(number, entries, head->entries, unit + head_units, static_cast<std::uint32_t>(end), slice);
    for (const tier::TierEntry& entry : slice) least = std::min(least, entry.sequence);
    ahead = ahead.subspan(std::min(ahead.size(), std::size_t{head->units} * unit_bytes));
    unit = static_cast<std::uint32_t>(end);
    co_await found(slice);
    co_await Yield();
  }
  region.FoundTable(unit, region.entries(), true);
  device.SetLeast(number, least);
  if (unreadable.ok()) {
    co_await NoteMoreBehind(device, number, unit, buffer);
  } else {
    media_.log().Log(LogLevel::kWarning, "flash device ", device.path(), ": region ", number - device.first(),
                     " cannot be read from unit ", unit, " on (", unreadable.message(),
                     "); what lies there is lost");
  }
}

// Of appends that come together a kill may leave a later one without an earlier one: nobody was told of it.
// Damage looks the same.
Task<void> Recovery::NoteMoreBehind(DeviceRegions& device, std::uint32_t number, std::uint32_t unit,
                                    Buffer& buffer) {
  const std::uint32_t unit_bytes = media_.geometry().unit;
  const std::uint32_t end = std::min(media_.geometry().units() - 1, unit + kLookedBehindBytes / unit_bytes);
  const std::uint64_t epoch = device.at(number).epoch();
  while (unit < end) {
    const std::uint32_t units = std::min(kScanBytes / unit_bytes, end - unit);
    const auto bytes = buffer.bytes().first(std::size_t{units} * unit_bytes);
    const Status read = co_await device.device().Read(buffer, bytes.size(), device.OffsetOf(number, unit));
    if (!read.ok()) co_return;
    for (std::uint32_t i = 0; i < units; ++i, ++unit) {
      const auto head = PeekBatch(bytes.subspan(std::size_t{i} * unit_bytes));
      if (!head || head->epoch != epoch) continue;
      media_.log().Log(LogLevel::kWarning, "flash device ", device.path(), ": region ",
                       number - device.first(), " goes on at unit ", unit,
                       " behind what is not whole; that was never acknowledged, or what is before it was "
                       "damaged; none of it is believed");
      co_return;
    }
    co_await Yield();
  }
}

Task<void> Recovery::CloseOpen(std::uint32_t number, const Found& found) {
  DeviceRegions& device = media_.DeviceOf(number);
  if (!device.in_service()) co_return;
  device.BeginWriting(number);
  co_await Scan(device, number, found);
  const std::uint32_t records = device.at(number).entries();
  if (records > 0) {
    media_.log().Log(LogLevel::kInfo, "flash device ", device.path(), ": region ", number - device.first(),
                     " was open; ", records, " records are found in it");
    co_await tables_.Write(device, number);
  } else {
    // A region that was ready and got nothing is free once nothing can be found in it later either.
    (void)co_await device.WriteHeader(number, 0, 0);
    device.FoundEmpty(number);
  }
  device.EndWriting(number);
}

Task<void> Recovery::GiveUp(std::uint32_t number) {
  DeviceRegions& device = media_.DeviceOf(number);
  if (!device.in_service()) co_return;
  if (!device.formatted)
    media_.log().Log(LogLevel::kWarning, "flash device ", device.path(), ": the header of region ",
                     number - device.first(), " cannot be read; the region is given up");
  (void)co_await device.WriteHeader(number, 0, 0);
}

Task<void> Recovery::Settle(DeviceRegions& device) {
  // The locators of regions that were closed just now.
  const bool open =
      std::ranges::any_of(open_, [&](std::uint32_t number) { return &media_.DeviceOf(number) == &device; });
  if (open && device.in_service()) {
    const Status status = co_await device.device().Sync();
    if (!status.ok()) device.device().FailedFor("what a start found is not durable", status);
  }
  for (std::uint32_t i = 0; i < device.count(); ++i) {
    device.Settle(device.first() + i);
    if (i % 256 == 255) co_await Yield();
  }
}

Task<Status> Recovery::Run(const Found& found) {
  const auto devices = media_.devices();
  {
    std::vector<std::uint32_t> next(devices.size(), 0);
    Helpers heads(executor());
    for (std::size_t i = 0; i < devices.size(); ++i) {
      for (std::uint32_t n = 0; n < kHeadReaders; ++n) heads.group.Spawn(ReadHeads(*devices[i], next[i]));
    }
    co_await heads.group.Close();
  }
  {
    Tables::Turn turn;
    Helpers tables(executor());
    for (std::uint32_t n = 0; n < kTableReaders; ++n) tables.group.Spawn(ReadTables(turn, found));
    co_await tables.group.Close();
  }
  for (const std::uint32_t number : open_) co_await CloseOpen(number, found);
  for (const std::uint32_t number : damaged_) co_await GiveUp(number);
  for (const auto& device : devices) co_await Settle(*device);
  co_return Status();
}

}  // namespace cistern::flash
