// SPDX-License-Identifier: Apache-2.0
#include "flash/append.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/format.h"
#include "base/limits.h"

namespace cistern::flash {

using State = Region::State;

Appender::Appender(Media& media, Tables& tables)
    : media_(media),
      tables_(tables),
      budget_(media.options().budget_bytes_a_day, media.Now()),
      log_turn_(media.Now()),
      next_epoch_(media.Random() | 1),  // 0 says that a region is empty
      group_(media.executor()) {}

Result<Appender::Layout> Appender::LayOut(std::span<const tier::AppendRequest> records) const {
  if (records.empty() || records.size() > tier::kMaxBatchRecords) {
    return Error(Code::kInvalid, Text("flash batch: has ", records.size(), " records and a batch has 1 to ",
                                      tier::kMaxBatchRecords));
  }
  const std::uint32_t unit = media_.unit();
  Layout layout;
  layout.count = static_cast<std::uint32_t>(records.size());
  layout.head_units = static_cast<std::uint32_t>(RoundUp(BatchHeadBytes(layout.count), unit) / unit);
  std::uint64_t total = layout.head_units;
  for (const tier::AppendRequest& record : records) {
    const std::uint64_t body = record::BodyBytesOf(record.seal);
    const auto trailer = static_cast<std::uint32_t>(
        RoundUp(record::TrailerBytes(static_cast<std::uint32_t>(record.seal.segment_crcs.size()),
                                     static_cast<std::uint32_t>(record.seal.part_bytes.size())),
                unit));
    CISTERN_ASSERT(reinterpret_cast<std::uintptr_t>(record.body) % std::min(unit, kMaxAlignment) == 0);
    layout.at.push_back(static_cast<std::uint32_t>(total));
    layout.trailer.push_back(trailer);
    layout.trailer_bytes += trailer;
    layout.record_bytes += RoundUp(body, unit) + trailer;
    layout.least_sequence = std::min(layout.least_sequence, record.sequence);
    total += (RoundUp(body, unit) + trailer) / unit;
  }
  const Geometry& geometry = media_.geometry();
  const std::uint64_t room = geometry.units() - 2 - geometry.TableUnits(layout.count);
  if (total > room) {
    return Error(Code::kInvalid,
                 Text("flash batch: takes ", total * unit, " bytes and a region has room for ", room * unit,
                      "; write fewer records at a time, or larger regions"));
  }
  layout.units = static_cast<std::uint32_t>(total);
  return layout;
}

tier::Tier::Room Appender::RoomFor(std::uint64_t record_bytes) const {
  Layout layout;
  layout.count = 1;
  layout.units = static_cast<std::uint32_t>(RoundUp(record_bytes, media_.unit()) / media_.unit() + 1);
  const auto fits = [&](const auto& device) { return OpenFits(*device, layout); };
  if (!media_.any_in_service()) return tier::Tier::Room::kNoDevice;
  if (!MayOpen(Purpose::kNew) && (!MayFill(Purpose::kNew) || std::ranges::none_of(media_.devices(), fits))) {
    return tier::Tier::Room::kNoRoom;
  }
  if (!budget_.Allows(record_bytes, media_.Now())) return tier::Tier::Room::kNoBudget;
  return tier::Tier::Room::kYes;
}

tier::Tier::WriteCosts Appender::write_costs() const {
  const FlashCounters& counters = media_.counters();
  const auto moved = static_cast<double>(counters.moved_bytes.value());
  const auto fresh = static_cast<double>(counters.fresh_bytes());
  return {.turn_ms = log_turn_.Ms(media_.capacity_bytes(), media_.Now()),
          .moved = fresh > 0 ? moved / fresh : 0,
          .budget_bytes_a_ms = static_cast<double>(budget_.bytes_a_day()) / 86'400'000,
          .saved = budget_.HoursSaved(media_.Now())};
}

// The last free region is kept for what reclaim moves: a region's worth of it fits there, whatever else is
// written.
bool Appender::MayOpen(Purpose purpose) const {
  return purpose == Purpose::kMove || media_.free_regions() > 1;
}

bool Appender::MayFill(Purpose purpose) const {
  return purpose == Purpose::kMove || media_.free_regions() > 0;
}

DeviceRegions* Appender::Choose(const Layout& layout, const DeviceRegions* avoid, Purpose purpose) {
  const auto devices = media_.devices();
  DeviceRegions* best = nullptr;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    DeviceRegions* device = devices[(turn_ + i) % devices.size()].get();
    if (!device->in_service()) continue;
    const bool fits = OpenFits(*device, layout);
    if (fits ? !MayFill(purpose) : device->free() == 0 || !MayOpen(purpose)) continue;
    if (best == nullptr || best == avoid ||
        (device != avoid && device->device().queued_write_bytes() < best->device().queued_write_bytes())) {
      best = device;
    }
  }
  ++turn_;
  return best;
}

// In one step with the choice of the device: from here on the units are this batch's.
std::uint32_t Appender::Reserve(DeviceRegions& device, const Layout& layout, std::uint32_t* unit) {
  if (device.open() != kNoRegion && !OpenFits(device, layout)) BeginClosing(device);
  if (device.open() == kNoRegion) {
    Prepare(device, layout.least_sequence);
    device.Open();
  }
  const std::uint32_t number = device.open();
  Region& region = device.at(number);
  Prepare(device, region.first_sequence() + 1);
  *unit = region.Reserve(layout.units, layout.count);
  ++region.writing()->writers;
  device.SetLeast(number, std::min(region.least_sequence(), layout.least_sequence));
  return number;
}

// The header of the next free region is on its way while the one before it is still written to: nobody waits
// for a sync where a region ends.
void Appender::Prepare(DeviceRegions& device, std::uint64_t first_sequence) {
  const std::uint32_t next = device.next_free();
  if (next == kNoRegion || device.at(next).writing() != nullptr) return;
  ++device.BeginHeader(next, next_epoch_++, first_sequence).writers;
  group_.Spawn(WriteFirst(device, next));
}

Task<void> Appender::WriteFirst(DeviceRegions& device, std::uint32_t number) {
  DeviceUse use(device);
  const Region& region = device.at(number);
  (void)co_await device.WriteHeader(number, region.epoch(), region.first_sequence());
  region.writing()->header.Set();
  WriterLeft(device, number);
}

// An append that is under way: no tombstone may go that what it writes would need.
class Appender::Underway final {
 public:
  Underway(std::multiset<std::uint64_t>& all, std::uint64_t least) : all_(all), at_(all.insert(least)) {}
  ~Underway() { all_.erase(at_); }
  Underway(const Underway&) = delete;
  Underway& operator=(const Underway&) = delete;

 private:
  std::multiset<std::uint64_t>& all_;
  const std::multiset<std::uint64_t>::iterator at_;
};

Task<Result<std::vector<tier::Location>>> Appender::Append(std::span<const tier::AppendRequest> records,
                                                           Purpose purpose) {
  if (closing_) co_return Error(Code::kGone, "flash: the tier is closing");
  Result<Layout> layout = LayOut(records);
  if (!layout) co_return std::unexpected(std::move(layout.error()));
  FlashCounters& counters = media_.counters();
  const std::uint64_t bytes = std::uint64_t{layout->units} * media_.unit();
  if (purpose == Purpose::kNew && !budget_.Allows(bytes, media_.Now())) {
    counters.refused_by_budget.Add(bytes);
    co_return Error(Code::kBusy, Text("flash: the endurance budget of ", budget_.bytes_a_day(),
                                      " bytes a day is spent for now"));
  }
  const Underway underway(appending_, layout->least_sequence);
  Status last;
  DeviceRegions* device = nullptr;
  for (int attempt = 0; attempt < 2; ++attempt) {
    device = Choose(*layout, device, purpose);
    if (device == nullptr || closing_) break;
    budget_.Spend(bytes, media_.Now());
    log_turn_.Append(bytes, media_.capacity_bytes(), media_.Now());
    std::uint32_t unit = 0;
    const std::uint32_t region = Reserve(*device, *layout, &unit);
    last = co_await WriteBatch(*device, region, unit, *layout, records);
    if (!last.ok()) continue;
    std::vector<tier::Location> locations;
    locations.reserve(records.size());
    for (const std::uint32_t at : layout->at) locations.push_back(LocationOf({region, unit + at}));
    counters.appended_records.Add(records.size());
    counters.appended_bytes.Add(layout->record_bytes);
    if (purpose == Purpose::kMove) counters.moved_bytes.Add(layout->record_bytes);
    co_return locations;
  }
  if (!last.ok()) co_return std::unexpected(std::move(last));
  counters.refused_no_region.Add();
  if (!media_.any_in_service()) co_return Error(Code::kIoError, "flash: no device is in service");
  co_return Error(Code::kBusy, Text("flash: none of ", media_.regions(), " regions is free"));
}

Task<Status> Appender::WriteBatch(DeviceRegions& device, std::uint32_t number, std::uint32_t unit,
                                  const Layout& layout, std::span<const tier::AppendRequest> records) {
  DeviceUse use(device);
  Writing& writing = *device.at(number).writing();
  Batch batch;
  batch.count = layout.count;
  batch.record_bytes = layout.record_bytes;
  writing.batches.PushBack(batch);
  co_await writing.header.Wait();
  Buffer buffer = media_.pool().Take(std::uint64_t{layout.head_units} * media_.unit() + layout.trailer_bytes);
  Status status = co_await Transmit(device, number, unit, layout, records, buffer);
  batch.entries = buffer.data() + kBatchFixedBytes;
  batch.written = status.ok();
  BatchEnded(device, number, batch);
  co_await batch.decided.Wait();
  if (!status.ok()) media_.counters().io_errors.Add();
  if (status.ok() && !batch.counted) {
    status = Status(Code::kIoError, Text("flash device ", device.path(), ": an earlier batch of region ",
                                         number - device.first(), " was not written"));
  }
  WriterLeft(device, number);
  co_return status;
}

// The head and the trailers are made in the buffer, bodies go from where they are.
Task<Status> Appender::Transmit(DeviceRegions& device, std::uint32_t number, std::uint32_t unit,
                                const Layout& layout, std::span<const tier::AppendRequest> records,
                                Buffer& buffer) {
  const std::uint32_t unit_bytes = media_.unit();
  const std::uint64_t epoch = device.at(number).epoch();
  const std::size_t head_bytes = std::size_t{layout.head_units} * unit_bytes;
  std::vector<std::span<const std::byte>> pieces;
  pieces.reserve(1 + 2 * records.size());
  pieces.push_back(buffer.bytes().first(head_bytes));
  std::size_t at = head_bytes;
  std::uint64_t spent = 0;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const tier::AppendRequest& record = records[i];
    const std::uint64_t body = record::BodyBytesOf(record.seal);
    const auto trailer = buffer.bytes().subspan(at, layout.trailer[i]);
    record::Stamp stamp;
    stamp.region = number - device.first();
    stamp.region_epoch = epoch;
    stamp.unit = unit + layout.at[i];
    stamp.sequence = record.sequence;
    stamp.born = record.born;
    stamp.expiry = record.expiry;
    stamp.conversation = record.conversation;
    record::EncodeTrailer(record.seal, stamp, trailer);
    at += trailer.size();

    tier::TierEntry entry;
    entry.key = record.seal.key;
    entry.parent = record.seal.parent;
    entry.incarnation = record.seal.incarnation;
    entry.born = record.born;
    entry.sequence = record.sequence;
    entry.conversation = record.conversation;
    entry.expiry = record.expiry;
    entry.body_bytes = static_cast<std::uint32_t>(body);
    entry.record_bytes = static_cast<std::uint32_t>(RoundUp(body, unit_bytes) + trailer.size());
    entry.group = record.seal.group;
    entry.parts = static_cast<std::uint16_t>(record.seal.part_bytes.size());
    entry.location = LocationOf({number, stamp.unit});
    EncodeEntry(entry, buffer.data() + BatchHeadBytes(static_cast<std::uint32_t>(i)));

    pieces.push_back({record.body, RoundUp(body, unit_bytes)});
    pieces.push_back(trailer);
    if (spent += trailer.size(); spent >= kStepBytes) {
      spent = 0;
      co_await Yield();
    }
  }
  EncodeBatchHead({epoch, unit, layout.count, layout.units}, buffer.bytes().first(head_bytes));
  Status status = co_await device.device().Write(pieces, device.OffsetOf(number, unit));
  if (status.ok()) media_.counters().device_written_bytes.Add(std::uint64_t{layout.units} * unit_bytes);
  co_return status;
}

// A batch counts when all before it in the region do, as recovery finds them; behind one that failed none
// ever will.
void Appender::BatchEnded(DeviceRegions& device, std::uint32_t number, Batch& batch) {
  Region& region = device.at(number);
  Writing& writing = *region.writing();
  batch.ended = true;
  for (;;) {
    Batch* front = writing.batches.front();
    if (front == nullptr || !front->ended) return;
    if (!front->written) break;
    writing.batches.PopFront();
    front->counted = true;
    tables_.Add(region, front->entries, front->count);
    device.Adopt(number, front->record_bytes);
    front->decided.Set();
  }
  FailWriting(writing);
  if (device.open() == number) BeginClosing(device);
}

// Those that are not written yet find it when they end; the others can be tried elsewhere at once.
void Appender::FailWriting(Writing& writing) {
  while (Batch* batch = writing.batches.PopFront()) batch->decided.Set();
}

void Appender::BeginClosing(DeviceRegions& device) {
  const std::uint32_t number = device.open();
  device.BeginClosing();
  ++device.at(number).writing()->writers;
  WriterLeft(device, number);
}

void Appender::WriterLeft(DeviceRegions& device, std::uint32_t number) {
  const Region& region = device.at(number);
  if (--region.writing()->writers > 0 || region.is(State::kOpen)) return;
  if (!device.in_service()) {
    device.EndWriting(number);
  } else if (region.is(State::kClosing)) {
    group_.Spawn(CloseRegion(device, number));
  } else if (closing_) {
    group_.Spawn(EmptyAgain(device, number));
  }
}

// The header of a region that was made ready in vain is made empty again.
Task<void> Appender::EmptyAgain(DeviceRegions& device, std::uint32_t number) {
  DeviceUse use(device);
  (void)co_await device.WriteHeader(number, 0, 0);
  device.EndWriting(number);
}

// Nothing more is written to the region: it is open, or ready, or being made so.
void Appender::LetGo(DeviceRegions& device, std::uint32_t number) {
  const Region& region = device.at(number);
  if (region.is(State::kOpen)) {
    BeginClosing(device);
  } else if (region.is(State::kFree)) {
    ++region.writing()->writers;
    WriterLeft(device, number);
  }
}

Task<void> Appender::CloseRegion(DeviceRegions& device, std::uint32_t number) {
  DeviceUse use(device);
  co_await tables_.Write(device, number);
  (void)co_await device.MakeDurable();
  if (device.in_service()) device.Closed(number);
  device.EndWriting(number);
}

void Appender::DeviceOut(DeviceRegions& device) {
  const std::vector<std::uint32_t> writing = device.writing();
  for (const std::uint32_t number : writing) {
    FailWriting(*device.at(number).writing());
    LetGo(device, number);
  }
}

Task<void> Appender::Close() {
  closing_ = true;
  for (const auto& device : media_.devices()) {
    const std::vector<std::uint32_t> writing = device->writing();
    for (const std::uint32_t number : writing) LetGo(*device, number);
  }
  for (const auto& device : media_.devices()) {
    while (!device->writing().empty()) co_await device->writing_ended().Wait();
  }
  co_await group_.Close();
}

}  // namespace cistern::flash
