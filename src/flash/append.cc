// SPDX-License-Identifier: Apache-2.0
// Down: batches into open regions, opening them and closing them.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/format.h"
#include "flash/impl.h"

namespace cistern {

using flash::Batch;
using flash::Buffer;
using flash::RoundUp;
using flash::Writing;

namespace {

constexpr std::uint64_t kStepBytes = 64u << 10;
constexpr std::uint32_t kPagesAWrite = 16;
constexpr std::size_t kRegionsToSpareOne = 4;

}  // namespace

Result<Tier::Impl::Layout> Tier::Impl::LayOut(std::span<const Outgoing> records) const {
  if (records.empty() || records.size() > kMaxBatchRecords) {
    return Error(Code::kInvalid, Text("flash batch: has ", records.size(), " records and a batch has 1 to ",
                                      kMaxBatchRecords));
  }
  const std::uint32_t unit = options_.unit;
  Layout layout;
  const auto count = static_cast<std::uint32_t>(records.size());
  layout.head_units = static_cast<std::uint32_t>(RoundUp(flash::BatchHeadBytes(count), unit) / unit);
  std::uint64_t total = layout.head_units;
  for (const Outgoing& record : records) {
    std::uint64_t body = 0;
    for (const std::uint32_t part : record.seal.part_bytes) body += part;
    const auto trailer = static_cast<std::uint32_t>(
        RoundUp(TrailerBytes(static_cast<std::uint32_t>(record.seal.segment_crcs.size()),
                             static_cast<std::uint32_t>(record.seal.part_bytes.size())),
                unit));
    CISTERN_ASSERT(reinterpret_cast<std::uintptr_t>(record.body) % std::min<std::uint32_t>(unit, 4096) == 0);
    layout.at.push_back(static_cast<std::uint32_t>(total));
    layout.trailer.push_back(trailer);
    layout.trailer_bytes += trailer;
    layout.record_bytes += RoundUp(body, unit) + trailer;
    layout.least_sequence = std::min(layout.least_sequence, record.sequence);
    total += (RoundUp(body, unit) + trailer) / unit;
  }
  const std::uint64_t room = units() - 2 - TableUnits(count);
  if (total > room) {
    return Error(Code::kInvalid,
                 Text("flash batch: takes ", total * unit, " bytes and a region has room for ", room * unit,
                      "; write fewer records at a time, or larger regions"));
  }
  layout.units = static_cast<std::uint32_t>(total);
  return layout;
}

bool Tier::Impl::Fits(const Region& region, const Layout& layout, std::size_t records) const {
  const std::uint64_t table = TableUnits(region.reserved + static_cast<std::uint32_t>(records));
  return region.used + std::uint64_t{layout.units} + table + 1 <= units();
}

Tier::Room Tier::Impl::RoomFor(std::uint64_t record_bytes) const {
  Layout layout;
  layout.units = static_cast<std::uint32_t>(RoundUp(record_bytes, options_.unit) / options_.unit + 1);
  bool any = false;
  bool room = false;
  for (const auto& member : members_) {
    if (!member->device.in_service()) continue;
    any = true;
    room |= (!member->free.empty() && MayOpen(Purpose::kNew)) ||
            (member->open != kNoRegion && Fits(regions_[member->open], layout, 1));
  }
  if (!any) return Room::kNoDevice;
  if (!room) return Room::kNoFreeRegion;
  if (!budget_.Allows(record_bytes, parts_.loop.clock().Now())) return Room::kNoBudget;
  return Room::kYes;
}

// The last free region is kept for what reclaim moves, where there are enough to spare one.
bool Tier::Impl::MayOpen(Purpose purpose) const {
  return purpose == Purpose::kMove || regions_.size() < kRegionsToSpareOne || free_regions() > 1;
}

Tier::Impl::Member* Tier::Impl::Choose(const Layout& layout, std::size_t records, const Member* avoid,
                                       Purpose purpose) {
  Member* best = nullptr;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    Member* member = members_[(turn_ + i) % members_.size()].get();
    if (!member->device.in_service()) continue;
    const bool fits = member->open != kNoRegion && Fits(regions_[member->open], layout, records);
    if (!fits && (member->free.empty() || !MayOpen(purpose))) continue;
    if (best == nullptr || best == avoid ||
        (member != avoid && member->device.queued_write_bytes() < best->device.queued_write_bytes())) {
      best = member;
    }
  }
  ++turn_;
  return best;
}

// In one step with the choice of the device: from here on the place is this batch's.
std::uint32_t Tier::Impl::Reserve(Member& member, const Layout& layout, std::size_t records,
                                  std::uint32_t* unit) {
  if (member.open != kNoRegion && !Fits(regions_[member.open], layout, records)) {
    BeginClosing(member, member.open);
  }
  std::uint32_t number = member.open;
  if (number == kNoRegion) {
    Prepare(member, layout.least_sequence);
    number = member.free.front();
    member.free.pop_front();
    member.open = number;
    Region& fresh = regions_[number];
    CISTERN_ASSERT(fresh.state == State::kFree && fresh.readers == 0 && fresh.live_bytes == 0);
    fresh.state = State::kOpen;
    fresh.scanned = false;
    fresh.used = 1;
    fresh.reserved = fresh.entries = 0;
  }
  Region& region = regions_[number];
  Prepare(member, region.first_sequence + 1);
  *unit = region.used;
  region.used += layout.units;
  region.reserved += static_cast<std::uint32_t>(records);
  ++region.writing->writers;
  SetLeast(member, region, std::min(region.least_sequence, layout.least_sequence));
  return number;
}

// The header of the next free region is on its way while the one before it is still written to: nobody waits
// for a sync where a region ends.
void Tier::Impl::Prepare(Member& member, std::uint64_t first_sequence) {
  if (member.free.empty() || closing_) return;
  const std::uint32_t number = member.free.front();
  Region& next = regions_[number];
  if (next.writing != nullptr) return;
  next.epoch = next_epoch_++;
  next.first_sequence = first_sequence;
  next.writing = std::make_unique<Writing>();
  ++next.writing->writers;
  member.writing.push_back(number);
  group_.Spawn(WriteFirst(member, number));
}

Task<Status> Tier::Impl::WriteHeader(Member& member, std::uint32_t region, std::uint64_t epoch,
                                     std::uint64_t first) {
  Buffer buffer = pool_.Take(options_.unit);
  const auto unit = buffer.bytes().first(options_.unit);
  flash::EncodeRegionHeader({member.id, epoch, first, region - member.first}, unit);
  Status status = co_await member.device.Write(std::span<const std::byte>(unit), OffsetOf(member, region, 0));
  if (status.ok()) status = co_await member.device.Sync();
  if (!status.ok()) {
    member.device.FailedFor(Text("the header of region ", region - member.first, " could not be written"),
                            status);
  }
  co_return status;
}

Task<void> Tier::Impl::WriteFirst(Member& member, std::uint32_t number) {
  User user(member);
  Region& region = regions_[number];
  const Status status = co_await WriteHeader(member, number, region.epoch, region.first_sequence);
  if (!status.ok()) FailWriting(*region.writing);
  region.writing->header.Set();
  WriterLeft(member, number);
}

// As long as an append is under way no tombstone may go that what it writes would need.
class Tier::Impl::Appending final {
 public:
  Appending(std::multiset<std::uint64_t>& all, std::uint64_t least) : all_(all), at_(all.insert(least)) {}
  ~Appending() { all_.erase(at_); }
  Appending(const Appending&) = delete;
  Appending& operator=(const Appending&) = delete;

 private:
  std::multiset<std::uint64_t>& all_;
  const std::multiset<std::uint64_t>::iterator at_;
};

Task<Result<std::vector<FlashPlace>>> Tier::Impl::Append(std::span<const Outgoing> records, Purpose purpose) {
  if (closing_) co_return Error(Code::kGone, "flash: the tier is closing");
  Result<Layout> layout = LayOut(records);
  if (!layout) co_return std::unexpected(std::move(layout.error()));
  const std::uint64_t bytes = std::uint64_t{layout->units} * options_.unit;
  if (purpose == Purpose::kNew && !budget_.Allows(bytes, parts_.loop.clock().Now())) {
    counters_.refused_by_budget.Add(bytes);
    co_return Error(Code::kBusy, Text("flash: the endurance budget of ", options_.budget_bytes_a_day,
                                      " bytes a day is spent for now"));
  }
  const Appending appending(appending_, layout->least_sequence);
  Status last;
  Member* member = nullptr;
  for (int attempt = 0; attempt < 2; ++attempt) {
    member = Choose(*layout, records.size(), member, purpose);
    if (member == nullptr || closing_) break;
    budget_.Spend(bytes, parts_.loop.clock().Now());
    std::uint32_t unit = 0;
    const std::uint32_t region = Reserve(*member, *layout, records.size(), &unit);
    last = co_await WriteBatch(*member, region, unit, *layout, records);
    if (!last.ok()) continue;
    std::vector<FlashPlace> places;
    places.reserve(records.size());
    for (const std::uint32_t at : layout->at) places.push_back({region, unit + at});
    counters_.appended_records.Add(records.size());
    counters_.appended_bytes.Add(layout->record_bytes);
    co_return places;
  }
  if (!last.ok()) co_return std::unexpected(std::move(last));
  counters_.refused_no_region.Add();
  bool any = false;
  for (const auto& each : members_) any |= each->device.in_service();
  if (!any) co_return Error(Code::kIoError, "flash: no device is in service");
  co_return Error(Code::kBusy, Text("flash: none of ", regions_.size(), " regions is free"));
}

Task<Status> Tier::Impl::WriteBatch(Member& member, std::uint32_t number, std::uint32_t unit,
                                    const Layout& layout, std::span<const Outgoing> records) {
  User user(member);
  Region& region = regions_[number];
  Buffer buffer;
  Batch batch;
  batch.count = static_cast<std::uint32_t>(records.size());
  batch.record_bytes = layout.record_bytes;
  region.writing->batches.PushBack(batch);
  co_await region.writing->header.Wait();
  Status status;
  if (region.writing->failed) {
    status = Status(Code::kIoError, Text("flash device ", member.device.path(), ": region ",
                                         number - member.first, " could not be written"));
  } else {
    buffer = pool_.Take(std::uint64_t{layout.head_units} * options_.unit + layout.trailer_bytes);
    status = co_await Transmit(member, number, unit, layout, records, buffer);
  }
  batch.entries = buffer.valid() ? buffer.data() + flash::kBatchFixedBytes : nullptr;
  batch.written = status.ok();
  BatchEnded(member, number, batch);
  co_await batch.decided.Wait();
  if (!status.ok()) counters_.io_errors.Add();
  if (status.ok() && !batch.counted) {
    status =
        Status(Code::kIoError, Text("flash device ", member.device.path(), ": an earlier batch of region ",
                                    number - member.first, " was not written"));
  }
  WriterLeft(member, number);
  co_return status;
}

// Head and trailers are made here, bodies go from where they are.
Task<Status> Tier::Impl::Transmit(Member& member, std::uint32_t number, std::uint32_t unit,
                                  const Layout& layout, std::span<const Outgoing> records, Buffer& buffer) {
  const Region& region = regions_[number];
  const std::size_t head_bytes = std::size_t{layout.head_units} * options_.unit;
  std::vector<std::span<const std::byte>> pieces;
  pieces.reserve(1 + 2 * records.size());
  pieces.push_back(buffer.bytes().first(head_bytes));
  std::size_t at = head_bytes;
  std::uint64_t spent = 0;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const Outgoing& record = records[i];
    std::uint64_t body = 0;
    for (const std::uint32_t part : record.seal.part_bytes) body += part;
    const auto trailer = buffer.bytes().subspan(at, layout.trailer[i]);
    Stamp stamp;
    stamp.region = number - member.first;
    stamp.region_epoch = region.epoch;
    stamp.unit = unit + layout.at[i];
    stamp.sequence = record.sequence;
    stamp.born = record.born;
    stamp.expiry = record.expiry;
    stamp.conversation = record.conversation;
    EncodeTrailer(record.seal, stamp, trailer);
    at += trailer.size();

    FlashEntry entry;
    entry.key = record.seal.key;
    entry.parent = record.seal.parent;
    entry.incarnation = record.seal.incarnation;
    entry.born = record.born;
    entry.sequence = record.sequence;
    entry.conversation = record.conversation;
    entry.expiry = record.expiry;
    entry.body_bytes = static_cast<std::uint32_t>(body);
    entry.record_bytes = static_cast<std::uint32_t>(RoundUp(body, options_.unit) + trailer.size());
    entry.group = record.seal.group;
    entry.parts = static_cast<std::uint16_t>(record.seal.part_bytes.size());
    entry.place = {number, unit + layout.at[i]};
    flash::EncodeEntry(entry, buffer.data() + flash::BatchHeadBytes(static_cast<std::uint32_t>(i)));

    pieces.push_back({record.body, RoundUp(body, options_.unit)});
    pieces.push_back(trailer);
    if (spent += trailer.size(); spent >= kStepBytes) {
      spent = 0;
      co_await Yield();
    }
  }
  flash::EncodeBatchHead({region.epoch, unit, static_cast<std::uint32_t>(records.size()), layout.units},
                         buffer.bytes().first(head_bytes));
  Status status = co_await member.device.Write(pieces, OffsetOf(member, number, unit));
  if (status.ok()) counters_.device_written_bytes.Add(std::uint64_t{layout.units} * options_.unit);
  co_return status;
}

// Recovery follows the batches of an open region and stops at the first that is not whole, so a batch counts
// when all before it do; behind one that failed none ever will.
void Tier::Impl::BatchEnded(Member& member, std::uint32_t number, Batch& batch) {
  Region& region = regions_[number];
  Writing& writing = *region.writing;
  batch.ended = true;
  while (!writing.failed) {
    Batch* front = writing.batches.front();
    if (front == nullptr || !front->ended) return;
    if (!front->written) {
      FailWriting(writing);
      break;
    }
    writing.batches.PopFront();
    front->counted = true;
    Accept(region, front->entries, front->count);
    region.live_bytes += front->record_bytes;
    member.live_bytes += front->record_bytes;
    front->decided.Set();
  }
  if (batch.linked()) batch.Unlink();
  batch.decided.Set();
  if (member.open == number) BeginClosing(member, number);
}

// Their buffers are free, so those that have ended can be tried elsewhere at once.
void Tier::Impl::FailWriting(Writing& writing) {
  writing.failed = true;
  List<Batch> waiting;
  while (Batch* batch = writing.batches.PopFront()) {
    if (batch->ended) {
      batch->decided.Set();
    } else {
      waiting.PushBack(*batch);
    }
  }
  while (Batch* batch = waiting.PopFront()) writing.batches.PushBack(*batch);
}

void Tier::Impl::Accept(Region& region, const std::byte* entries, std::uint32_t count) {
  Writing& writing = *region.writing;
  for (std::uint32_t i = 0; i < count;) {
    const std::uint32_t in_page = region.entries % flash::kPageEntries;
    if (in_page == 0) writing.pages.push_back(pool_.Take(flash::kPageBytes));
    const std::uint32_t n = std::min(count - i, flash::kPageEntries - in_page);
    std::memcpy(writing.pages.back().data() + flash::PageUsedBytes(in_page),
                entries + std::size_t{i} * flash::kEntryBytes, std::size_t{n} * flash::kEntryBytes);
    region.entries += n;
    i += n;
  }
}

void Tier::Impl::BeginClosing(Member& member, std::uint32_t number) {
  Region& region = regions_[number];
  CISTERN_ASSERT(member.open == number && region.state == State::kOpen);
  member.open = kNoRegion;
  region.state = State::kClosing;
  ++region.writing->writers;
  WriterLeft(member, number);
}

void Tier::Impl::WriterLeft(Member& member, std::uint32_t number) {
  Region& region = regions_[number];
  if (--region.writing->writers > 0 || region.state == State::kOpen) return;
  if (!member.device.in_service()) {
    EndWriting(member, number);
  } else if (region.state == State::kClosing) {
    group_.Spawn(CloseRegion(member, number));
  } else if (closing_) {
    group_.Spawn(EmptyAgain(member, number));
  }
}

// A region that was made ready in vain.
Task<void> Tier::Impl::EmptyAgain(Member& member, std::uint32_t number) {
  User user(member);
  (void)co_await WriteHeader(member, number, 0, 0);
  EndWriting(member, number);
}

// Nothing more is written to it: it is open, or ready, or being made so.
void Tier::Impl::LetGo(Member& member, std::uint32_t number) {
  Region& region = regions_[number];
  if (region.state == State::kOpen) {
    BeginClosing(member, number);
  } else if (region.state == State::kFree) {
    ++region.writing->writers;
    WriterLeft(member, number);
  }
}

void Tier::Impl::EndWriting(Member& member, std::uint32_t number) {
  regions_[number].writing.reset();
  std::erase(member.writing, number);
  writing_ended_.Pulse();
}

// What the table names is durable before the table is: power lost between them must not leave a table of
// records that are not there.
Task<void> Tier::Impl::CloseRegion(Member& member, std::uint32_t number) {
  User user(member);
  Region& region = regions_[number];
  Status status = co_await member.device.Sync();
  bool durable = status.ok();
  if (durable) {
    status = co_await WriteTable(member, number);
    if (status.ok()) {
      status = co_await member.device.Sync();
      durable = status.ok();
    }
  }
  if (!durable) {
    member.device.FailedFor(Text("what was written to region ", number - member.first, " is not durable"),
                            status);
  }
  if (member.device.in_service()) {
    if (!status.ok()) {
      parts_.log.Log(LogLevel::kWarning, "flash device ", member.device.path(), ": the table of region ",
                     number - member.first, " is not on it (", status.message(),
                     "); a restart reads the region");
      region.pages = std::move(region.writing->pages);
    }
    region.state = State::kClosed;
    IntoClosed(member, number);
  }
  EndWriting(member, number);
}

Task<Status> Tier::Impl::WriteTable(Member& member, std::uint32_t number) {
  Region& region = regions_[number];
  std::vector<Buffer>& pages = region.writing->pages;
  const auto count = static_cast<std::uint32_t>(pages.size());
  std::vector<std::span<const std::byte>> pieces;
  std::uint64_t at = OffsetOf(member, number, region.used);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t entries = std::min(region.entries - i * flash::kPageEntries, flash::kPageEntries);
    const auto page = pages[i].bytes().first(RoundUp(flash::PageUsedBytes(entries), options_.unit));
    flash::EncodePageHead({region.epoch, i, entries}, page);
    pieces.push_back(page);
    if (pieces.size() < kPagesAWrite && i + 1 < count) {
      co_await Yield();
      continue;
    }
    Status status = co_await member.device.Write(pieces, at);
    if (!status.ok()) co_return status;
    for (const auto piece : pieces) at += piece.size(), counters_.device_written_bytes.Add(piece.size());
    pieces.clear();
  }
  Buffer buffer = pool_.Take(options_.unit);
  const auto last = buffer.bytes().first(options_.unit);
  flash::EncodeLocator({region.epoch, region.least_sequence, region.used, region.entries, region.scanned},
                       last);
  co_return co_await member.device.Write(std::span<const std::byte>(last),
                                         OffsetOf(member, number, units() - 1));
}

Task<void> Tier::Impl::Close() {
  closing_ = true;
  for (const auto& member : members_) {
    const std::vector<std::uint32_t> writing = member->writing;
    for (const std::uint32_t number : writing) {
      LetGo(*member, number);
    }
  }
  for (const auto& member : members_) {
    while (!member->writing.empty()) co_await writing_ended_.Wait();
  }
  co_await group_.Close();
}

}  // namespace cistern
