// SPDX-License-Identifier: Apache-2.0
#include "flash/flash_tier.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "flash/append.h"
#include "flash/media.h"
#include "flash/open.h"
#include "flash/read.h"
#include "flash/reclaim.h"
#include "flash/recovery.h"
#include "flash/table.h"

namespace cistern::flash {

static_assert(tier::kMaxBatchRecords <= kMaxBatchEntries);

namespace {
constexpr std::uint64_t kAppendsARegion = 4;
constexpr std::int64_t kTickUs = 100'000;
}  // namespace

Task<Result<std::unique_ptr<FlashTier>>> FlashTier::Open(FlashParts parts, FlashOptions options,
                                                         tier::JournalView journal) {
  Status status = options.Validate();
  if (!status.ok()) co_return std::unexpected(std::move(status));
  std::unique_ptr<FlashTier> tier(new FlashTier(std::move(parts), std::move(options), std::move(journal)));
  Event opened;
  Task<void> ticks = tier->TickUntil(opened);
  status = co_await tier->opener_->Open();
  opened.Set();
  co_await ticks;
  if (status.ok()) co_return tier;
  co_await tier->Close();
  co_return std::unexpected(std::move(status));
}

// As its owner does later.
Task<void> FlashTier::TickUntil(Event& opened) {
  for (;;) {
    (void)co_await opened.Wait(media_->Now().PlusUs(kTickUs));
    if (opened.is_set()) co_return;
    Tick();
  }
}

FlashTier::FlashTier(FlashParts parts, FlashOptions options, tier::JournalView journal)
    : media_(std::make_unique<Media>(std::move(parts), std::move(options),
                                     [this](DeviceRegions& device) { DeviceOut(device); })),
      tables_(std::make_unique<Tables>(*media_)),
      opener_(std::make_unique<DeviceOpener>(*media_, std::move(journal))),
      reader_(std::make_unique<RecordReader>(*media_)),
      appender_(std::make_unique<Appender>(*media_, *tables_)),
      reclaim_(std::make_unique<flash::Reclaim>(*media_, *tables_, *reader_, *appender_)) {}

FlashTier::~FlashTier() = default;

Executor& FlashTier::executor() const { return media_->executor(); }

void FlashTier::DeviceOut(DeviceRegions& device) {
  media_->log().Log(LogLevel::kError, "flash device ", device.path(),
                    ": is out of service: ", device.device().why(),
                    "; what was on it is lost, the rest goes on; `cistern device bring-back ", device.path(),
                    "` takes it in again, formatted anew");
  appender_->DeviceOut(device);
  reclaim_->DeviceOut();
  device.readers_left().Pulse();
  device.forgotten = owner_ == nullptr;
  if (owner_ != nullptr) owner_->DeviceOut(RangeOf(device.first(), device.end()));
}

std::vector<std::uint64_t> FlashTier::media_ids() const { return media_->ids(); }
tier::JournalMark FlashTier::newest_mark() const { return opener_->newest_mark(); }
Task<Status> FlashTier::Mark(tier::JournalMark mark) { return opener_->Mark(mark); }

Task<Status> FlashTier::Recover(Found found) {
  Recovery recovery(*media_, *tables_);
  Status status = co_await recovery.Run(found);
  recovered_ = status.ok();
  co_return status;
}

// ---- taking in ----

void FlashTier::Adopt(const tier::Location& location, std::uint64_t record_bytes) {
  const std::uint32_t region = AddressOf(location).region;
  if (DeviceRegions* device = media_->InServiceOf(region)) device->Adopt(region, record_bytes);
}

void FlashTier::Forget(const tier::Location& location, std::uint64_t record_bytes) {
  const std::uint32_t region = AddressOf(location).region;
  if (DeviceRegions* device = media_->InServiceOf(region)) device->Forget(region, record_bytes);
}

FlashTier::Room FlashTier::RoomFor(std::uint64_t record_bytes) const {
  return appender_->RoomFor(record_bytes);
}

std::uint64_t FlashTier::max_append_bytes() const { return region_bytes() / kAppendsARegion; }

Task<Result<std::vector<tier::Location>>> FlashTier::Append(std::span<const tier::AppendRequest> records) {
  return appender_->Append(records, Appender::Purpose::kNew);
}

Task<Status> FlashTier::MakeDurable() { co_return co_await media_->MakeDurable(); }

// ---- giving back ----

std::int64_t FlashTier::EstimateUs(const tier::Location& location, std::uint64_t bytes) const {
  return reader_->EstimateUs(location, bytes);
}

Task<Result<tier::FetchedRecord>> FlashTier::Fetch(tier::Location location, std::span<std::byte> into,
                                                   const Arrived* arrived) {
  return reader_->Fetch(location, into, arrived);
}

Task<Result<tier::FetchedRecord>> FlashTier::FetchSome(tier::Location location, std::uint64_t record_bytes,
                                                       std::span<std::byte> trailer, std::uint64_t offset,
                                                       std::span<std::byte> body) {
  return reader_->FetchSome(location, record_bytes, trailer, offset, body);
}

void FlashTier::ReportBad(const tier::Location& location) { reader_->ReportBad(location); }

std::string FlashTier::Describe(const tier::Location& location) const {
  const FlashAddress address = AddressOf(location);
  return Text("flash region ", address.region, ", unit ", address.unit);
}

std::string FlashTier::DescribeMedium(const tier::Location& location) const {
  return Text("flash device ", media_->DeviceOf(AddressOf(location).region).path());
}

// ---- room ----

// Behind an append that hangs, whose device is out of service, no region that is given up lets a tombstone
// end.
void FlashTier::Reclaim(bool wanted) {
  if (!recovered_ || owner_ == nullptr) return;
  reclaim_->Start(*owner_, wanted && media_->oldest_sequence() <= appender_->oldest_sequence());
}

std::uint64_t FlashTier::oldest_sequence() const {
  return std::min(appender_->oldest_sequence(), media_->oldest_sequence());
}

// ---- trouble ----

void FlashTier::Tick() {
  const Instant now = media_->Now();
  const auto devices = media_->devices();
  for (std::size_t i = 0; i < devices.size(); ++i) {
    devices[i]->device().Tick(now);
    if (devices[i]->ended() && devices[i]->device().CloseFile() && media_->parts().let_go)
      media_->parts().let_go(i);
  }
}

void FlashTier::Forgotten(const tier::LocationRange& range) {
  for (const auto& device : media_->devices()) {
    if (range.contains(LocationOf({device->first(), 0}))) device->forgotten = true;
  }
}

Task<void> FlashTier::Close() {
  co_await reclaim_->Close();
  co_await appender_->Close();
  for (const auto& device : media_->devices()) co_await device->device().Close();
}

Status FlashTier::TakeOut(const std::string& path) {
  DeviceRegions* device = media_->Find(path);
  if (device == nullptr)
    return Status(Code::kMiss, Text("flash device ", path, ": there is none of this path"));
  ++device->taken_out;
  device->device().GoOut("it was taken out by hand");
  return Status();
}

Task<Status> FlashTier::BringBack(std::string path) { return opener_->BringBack(std::move(path)); }

// ---- figures ----

std::vector<FlashDeviceState> FlashTier::devices() const {
  std::vector<FlashDeviceState> states;
  for (const auto& device : media_->devices()) states.push_back(device->Figures());
  return states;
}

const FlashCounters& FlashTier::counters() const { return media_->counters(); }
std::uint64_t FlashTier::reservable_bytes() const { return reclaim_->ReservableBytes(); }
std::uint64_t FlashTier::capacity_bytes() const { return media_->capacity_bytes(); }
std::uint64_t FlashTier::live_bytes() const { return media_->live_bytes(); }
std::uint64_t FlashTier::live_bytes(std::uint32_t region) const {
  return media_->DeviceOf(region).at(region).live_bytes();
}
std::uint32_t FlashTier::free_regions() const { return media_->free_regions(); }
std::uint32_t FlashTier::regions() const { return media_->regions(); }
std::uint64_t FlashTier::region_bytes() const { return media_->geometry().region_bytes; }
tier::Tier::WriteCosts FlashTier::write_costs() const {
  WriteCosts costs = appender_->write_costs();
  if (media_->counters().reclaimed.value() == 0 || reclaim_->RoomLeft()) costs.turn_ms = 0;
  return costs;
}

std::uint64_t FlashTier::budget_left_bytes() const { return appender_->budget_left_bytes(); }
void FlashTier::SetBudget(std::uint64_t bytes_a_day) { appender_->SetBudget(bytes_a_day); }

Task<Result<std::unique_ptr<tier::Tier>>> OpenFlash(FlashParts parts, FlashOptions options,
                                                    tier::JournalView journal) {
  auto tier = co_await FlashTier::Open(std::move(parts), std::move(options), std::move(journal));
  if (!tier) co_return std::unexpected(std::move(tier.error()));
  co_return std::unique_ptr<tier::Tier>(std::move(*tier));
}

}  // namespace cistern::flash
