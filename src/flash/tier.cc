// SPDX-License-Identifier: Apache-2.0
#include "flash/tier.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/assert.h"
#include "base/format.h"
#include "flash/impl.h"

namespace cistern {

using flash::Buffer;
using flash::RoundUp;

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
  if (!std::has_single_bit(unit) || unit < 512 || unit > 4096) {
    return Status(Code::kInvalid, Text("flash unit: is ", unit, " bytes and may be 512, 1024, 2048 or 4096"));
  }
  if (region_bytes != 0 && (region_bytes < kMinRegionBytes || region_bytes > kMaxRegionBytes ||
                            region_bytes % flash::kSuperBytes != 0)) {
    return Status(Code::kInvalid,
                  Text("flash region_bytes: is ", region_bytes, " and must be a multiple of ",
                       flash::kSuperBytes, " from ", kMinRegionBytes, " to ", kMaxRegionBytes));
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

std::uint64_t RegionBytesFor(std::uint64_t smallest_device_bytes) {
  constexpr std::uint64_t kRegions = 64;
  constexpr std::uint64_t kSmallest = 16u << 20;
  return std::clamp(std::bit_floor(smallest_device_bytes / kRegions), kSmallest, kMaxRegionBytes);
}

Tier::Impl::Impl(Parts parts, FlashOptions options, std::uint64_t journal_id,
                 std::vector<std::uint64_t> known)
    : parts_(std::move(parts)),
      options_(std::move(options)),
      journal_id_(journal_id),
      known_(std::move(known)),
      next_epoch_(parts_.random() | 1),  // 0 says that a region is empty
      budget_(options_.budget_bytes_a_day, parts_.loop.clock().Now()),
      group_(parts_.executor()) {
  for (std::size_t i = 0; i < options_.devices.size(); ++i) {
    members_.push_back(std::make_unique<Member>(
        parts_.loop, options_.devices[i].path,
        flash::Device::Limits{options_.read_depth, options_.write_depth, options_.hang_us},
        [this, i] { DeviceLeft(*members_[i]); }));
  }
}

Tier::Impl::~Impl() { group_.Drop(); }

Tier::Impl::Member& Tier::Impl::MemberOf(std::uint32_t region) const {
  for (const auto& member : members_) {
    if (region - member->first < member->count) return *member;
  }
  CISTERN_ASSERT(false);
  return *members_.front();
}

Tier::Impl::Region* Tier::Impl::Find(std::uint32_t region) {
  if (region >= regions_.size() || !MemberOf(region).device.in_service()) return nullptr;
  return &regions_[region];
}

void Tier::Impl::SetLeast(Member& member, Region& region, std::uint64_t least) {
  if (least == region.least_sequence) return;
  const auto at = member.sequences.find(region.least_sequence);
  if (at != member.sequences.end()) member.sequences.erase(at);
  region.least_sequence = least;
  if (least != UINT64_MAX) member.sequences.insert(least);
}

void Tier::Impl::IntoClosed(Member& member, std::uint32_t number) {
  const Region& region = regions_[number];
  member.closed.insert({region.first_sequence, number});
  if (region.live_bytes == 0) member.empty.insert(number);
}

void Tier::Impl::OutOfClosed(Member& member, std::uint32_t number) {
  member.closed.erase({regions_[number].first_sequence, number});
  member.empty.erase(number);
}

// ---- what lives ----

void Tier::Impl::Adopt(const FlashPlace& place, std::uint64_t record_bytes) {
  Region* region = Find(place.region);
  if (region == nullptr) return;
  Member& member = MemberOf(place.region);
  region->live_bytes += record_bytes;
  member.live_bytes += record_bytes;
  member.empty.erase(place.region);
}

void Tier::Impl::Forget(const FlashPlace& place, std::uint64_t record_bytes) {
  Region* region = Find(place.region);
  if (region == nullptr) return;
  Member& member = MemberOf(place.region);
  CISTERN_ASSERT(region->live_bytes >= record_bytes);
  region->live_bytes -= record_bytes;
  member.live_bytes -= record_bytes;
  if (region->live_bytes == 0 && region->state == State::kClosed) member.empty.insert(place.region);
}

// ---- up ----

// A region that is being read is not opened again before this has gone.
class Tier::Impl::Reading {
 public:
  Reading(Member& member, Region& region) : user_(member), member_(member), region_(region) {
    ++region_.readers;
  }
  ~Reading() {
    if (--region_.readers == 0) member_.readers_left.Pulse();
  }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

 private:
  User user_;
  Member& member_;
  Region& region_;
};

namespace {

// The trailer is at the record's end, of which `end` is there, in as many units as it takes; only one of
// these can hold it.
std::optional<Fetched> CheckRecord(std::span<const std::byte> end, std::uint64_t record_bytes,
                                   std::uint32_t unit, FlashPlace place, std::uint64_t epoch) {
  const std::uint64_t most = std::min<std::uint64_t>(RoundUp(kMaxTrailerBytes, unit), end.size());
  for (std::uint64_t bytes = unit; bytes <= most && bytes < record_bytes; bytes += unit) {
    const auto trailer = end.last(bytes);
    const auto seal = CheckSeal(trailer);
    if (!seal) continue;
    if (RecordBytes(seal->body_bytes(), seal->segment_count(), seal->part_count(), unit) != record_bytes ||
        TrailerOffset(seal->body_bytes(), unit) != record_bytes - bytes) {
      continue;
    }
    const auto stamp = CheckStamp(trailer, *seal);
    if (!stamp || stamp->region != place.region || stamp->region_epoch != epoch) return std::nullopt;
    // A device may give another place's bytes, where this very block lay before it was dropped (R11).
    if (stamp->unit != place.unit && stamp->unit != 0) return std::nullopt;
    return Fetched{*seal, *stamp};
  }
  return std::nullopt;
}

}  // namespace

Task<Result<Fetched>> Tier::Impl::FetchSome(FlashPlace place, std::uint64_t record_bytes,
                                            std::span<std::byte> trailer, std::uint64_t offset,
                                            std::span<std::byte> body) {
  const std::uint32_t unit = options_.unit;
  for (const std::span<std::byte> into : {trailer, body}) {
    CISTERN_ASSERT(into.size() % unit == 0 && reinterpret_cast<std::uintptr_t>(into.data()) % unit == 0);
  }
  CISTERN_ASSERT(record_bytes % unit == 0 && trailer.size() <= record_bytes);
  CISTERN_ASSERT(offset % unit == 0 && offset + body.size() <= record_bytes);
  if (place.region >= regions_.size()) co_return Error(Code::kMiss, "flash: no such region");
  Member& member = MemberOf(place.region);
  Region& region = regions_[place.region];
  if (member.device.in_service() &&
      (region.state == State::kFree || region.state == State::kReleasing || place.unit == 0 ||
       record_bytes < 2 * unit || place.unit + record_bytes / unit > units() - 1)) {
    co_return Error(Code::kMiss, "flash: no record lies there");
  }
  Reading reading(member, region);
  const std::uint64_t epoch = region.epoch;
  const std::uint64_t begin = OffsetOf(member, place.region, place.unit);
  // Both are under way before the first is awaited.
  std::optional<Task<Status>> beside;
  if (!body.empty()) beside.emplace(member.device.Read(body, begin + offset));
  Status status = co_await member.device.Read(trailer, begin + record_bytes - trailer.size());
  if (beside) {
    Status other = co_await *beside;
    if (status.ok()) status = std::move(other);
  }
  if (!status.ok()) {
    counters_.io_errors.Add();
    co_return std::unexpected(std::move(status));
  }
  const auto fetched =
      CheckRecord(trailer, record_bytes, unit, {place.region - member.first, place.unit}, epoch);
  if (!fetched) {
    ReportBad(place);
    co_return Error(Code::kMiss,
                    Text("flash device ", member.device.path(), ": region ", place.region - member.first,
                         ", unit ", place.unit, ": is not the record that was written there"));
  }
  member.device.Sound();
  counters_.fetched_records.Add();
  counters_.fetched_bytes.Add(trailer.size() + body.size());
  co_return *fetched;
}

void Tier::Impl::ReportBad(const FlashPlace& place) {
  Region* region = Find(place.region);
  if (region == nullptr) return;
  counters_.bad_records.Add();
  if (!region->scanned) MemberOf(place.region).device.Bad();
}

std::int64_t Tier::Impl::EstimateUs(const FlashPlace& place, std::uint64_t bytes) const {
  if (place.region >= regions_.size()) return kNever;
  const Member& member = MemberOf(place.region);
  if (!member.device.in_service()) return kNever;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(member.device.EstimateUs(bytes)));
}

// ---- reclaim ----

bool Tier::Impl::WantsReclaim() const {
  for (const auto& member : members_) {
    if (!member->device.in_service() || member->closed.empty()) continue;
    const std::size_t wanted = std::clamp<std::size_t>(member->count / 16, member->count < 4 ? 1 : 2, 4);
    if (member->free.size() < wanted) return true;
  }
  return false;
}

std::optional<std::uint32_t> Tier::Impl::TakeVictim() {
  Member* best = nullptr;
  for (const auto& member : members_) {
    if (!member->device.in_service() || member->closed.empty()) continue;
    if (best == nullptr || best->empty.empty() > member->empty.empty() ||
        (best->empty.empty() == member->empty.empty() && member->free.size() < best->free.size())) {
      best = member.get();
    }
  }
  if (best == nullptr) return std::nullopt;
  const std::uint32_t number = best->empty.empty() ? best->closed.begin()->second : *best->empty.begin();
  OutOfClosed(*best, number);
  regions_[number].state = State::kTaken;
  return number;
}

void Tier::Impl::GiveBack(std::uint32_t number) {
  Region* region = Find(number);
  if (region == nullptr || region->state != State::kTaken) return;
  region->state = State::kClosed;
  IntoClosed(MemberOf(number), number);
}

Task<Status> Tier::Impl::Release(std::uint32_t number) {
  Member& member = MemberOf(number);
  User user(member);
  Region& region = regions_[number];
  if (member.device.in_service()) {
    if (region.state != State::kTaken) {
      co_return Status(Code::kGone, Text("flash device ", member.device.path(), ": was formatted meanwhile"));
    }
    CISTERN_ASSERT(region.live_bytes == 0);
    region.state = State::kReleasing;
    while (region.readers > 0) co_await member.readers_left.Wait();
  }
  const Status status = co_await WriteHeader(member, number, 0, 0);
  if (!status.ok()) co_return status;
  SetLeast(member, region, UINT64_MAX);
  region.pages.clear();
  region.entries = 0;
  region.state = State::kFree;
  member.free.push_back(number);
  counters_.released_regions.Add();
  co_return Status();
}

std::uint64_t Tier::Impl::oldest_sequence() const {
  // Appends may go to another device than the one on which they were begun.
  std::uint64_t oldest = appending_.empty() ? UINT64_MAX : *appending_.begin();
  for (const auto& member : members_) {
    if (member->device.in_service() && !member->sequences.empty()) {
      oldest = std::min(oldest, *member->sequences.begin());
    }
  }
  return oldest;
}

// ---- trouble ----

void Tier::Impl::DeviceLeft(Member& member) {
  parts_.log.Log(LogLevel::kError, "flash device ", member.device.path(),
                 ": is out of service: ", member.device.why(),
                 "; what was on it is lost, the rest goes on; `cistern device bring-back ",
                 member.device.path(), "` takes it in again, formatted anew");
  const std::vector<std::uint32_t> writing = member.writing;
  for (const std::uint32_t number : writing) {
    Region& region = regions_[number];
    FailWriting(*region.writing);
    region.writing->header.Set();
    LetGo(member, number);
  }
  member.readers_left.Pulse();
  member.forgotten = !hook_;
  if (hook_) hook_(member.first, member.first + member.count);
}

void Tier::Impl::Forgotten(std::uint32_t first_region) { MemberOf(first_region).forgotten = true; }

void Tier::Impl::Tick() {
  const Instant now = parts_.loop.clock().Now();
  for (const auto& member : members_) member->device.Tick(now);
}

Status Tier::Impl::TakeOut(const std::string& path) {
  for (const auto& member : members_) {
    if (member->device.path() != path) continue;
    member->device.GoOut("it was taken out by hand");
    return Status();
  }
  return Status(Code::kMiss, Text("flash device ", path, ": there is none of this path"));
}

// ---- figures ----

std::uint32_t Tier::Impl::free_regions() const {
  std::size_t free = 0;
  for (const auto& member : members_) free += member->device.in_service() ? member->free.size() : 0;
  return static_cast<std::uint32_t>(free);
}

std::uint64_t Tier::Impl::live_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& member : members_) bytes += member->device.in_service() ? member->live_bytes : 0;
  return bytes;
}

std::uint64_t Tier::Impl::capacity_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& member : members_) {
    if (member->device.in_service()) bytes += member->count * region_bytes_;
  }
  return bytes;
}

std::vector<std::uint64_t> Tier::Impl::device_ids() const {
  std::vector<std::uint64_t> ids;
  for (const auto& member : members_) {
    if (member->device.in_service() && member->id != 0) ids.push_back(member->id);
  }
  return ids;
}

std::vector<Tier::DeviceState> Tier::Impl::devices() const {
  std::vector<DeviceState> states;
  for (const auto& member : members_) {
    const flash::Device& device = member->device;
    const flash::Device::Counts& counts = device.counts();
    DeviceState state;
    state.path = device.path();
    state.id = member->id;
    state.in_service = device.in_service();
    state.why = device.why();
    state.size_bytes = member->size_bytes;
    state.read_bytes = counts.read_bytes;
    state.written_bytes = counts.written_bytes;
    state.reads = counts.reads;
    state.writes = counts.writes;
    state.errors = counts.errors;
    state.bad_records = counts.bad_records;
    state.in_flight = device.in_flight();
    state.read_estimate_us =
        state.in_service ? static_cast<std::int64_t>(device.EstimateUs(64 << 10)) : kNever;
    states.push_back(std::move(state));
  }
  return states;
}

// ---- the tier is its inside ----

Task<Result<std::unique_ptr<Tier>>> Tier::Open(Parts parts, FlashOptions options, std::uint64_t journal_id,
                                               std::vector<std::uint64_t> known) {
  Status status = options.Validate();
  if (!status.ok()) co_return std::unexpected(std::move(status));
  auto impl = std::make_unique<Impl>(std::move(parts), std::move(options), journal_id, std::move(known));
  status = co_await impl->Open();
  if (!status.ok()) co_return std::unexpected(std::move(status));
  co_return std::unique_ptr<Tier>(new Tier(std::move(impl)));
}

Tier::Tier(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tier::~Tier() = default;

Task<void> Tier::Close() { return impl_->Close(); }
std::vector<std::uint64_t> Tier::device_ids() const { return impl_->device_ids(); }
void Tier::set_on_device_out(DeviceOut hook) { impl_->set_hook(std::move(hook)); }
Task<Status> Tier::Recover(std::function<Task<void>(std::span<const FlashEntry>)> found) {
  return impl_->Recover(std::move(found));
}
void Tier::Adopt(const FlashPlace& place, std::uint64_t record_bytes) { impl_->Adopt(place, record_bytes); }
Tier::Room Tier::RoomFor(std::uint64_t record_bytes) const { return impl_->RoomFor(record_bytes); }
Task<Result<std::vector<FlashPlace>>> Tier::Append(std::span<const Outgoing> records, Purpose purpose) {
  return impl_->Append(records, purpose);
}
void Tier::Forget(const FlashPlace& place, std::uint64_t record_bytes) { impl_->Forget(place, record_bytes); }
std::int64_t Tier::EstimateUs(const FlashPlace& place, std::uint64_t bytes) const {
  return impl_->EstimateUs(place, bytes);
}
Task<Result<Fetched>> Tier::Fetch(FlashPlace place, std::span<std::byte> into) {
  return impl_->Fetch(place, into);
}
Task<Result<Fetched>> Tier::FetchSome(FlashPlace place, std::uint64_t record_bytes,
                                      std::span<std::byte> trailer, std::uint64_t offset,
                                      std::span<std::byte> body) {
  return impl_->FetchSome(place, record_bytes, trailer, offset, body);
}
void Tier::ReportBad(const FlashPlace& place) { impl_->ReportBad(place); }
std::uint32_t Tier::free_regions() const { return impl_->free_regions(); }
std::uint32_t Tier::regions() const { return impl_->regions(); }
bool Tier::WantsReclaim() const { return impl_->WantsReclaim(); }
std::optional<std::uint32_t> Tier::TakeVictim() { return impl_->TakeVictim(); }
Task<Result<std::vector<FlashEntry>>> Tier::Entries(std::uint32_t region) { return impl_->Entries(region); }
Task<Status> Tier::Release(std::uint32_t region) { return impl_->Release(region); }
void Tier::GiveBack(std::uint32_t region) { impl_->GiveBack(region); }
std::uint64_t Tier::live_bytes(std::uint32_t region) const { return impl_->live_bytes(region); }
std::uint64_t Tier::oldest_sequence() const { return impl_->oldest_sequence(); }
void Tier::Forgotten(std::uint32_t first_region) { impl_->Forgotten(first_region); }
void Tier::Tick() { impl_->Tick(); }
Status Tier::TakeOut(const std::string& path) { return impl_->TakeOut(path); }
Task<Status> Tier::BringBack(std::string path) { return impl_->BringBack(std::move(path)); }
std::vector<Tier::DeviceState> Tier::devices() const { return impl_->devices(); }
const Tier::Counters& Tier::counters() const { return impl_->counters(); }
std::uint64_t Tier::capacity_bytes() const { return impl_->capacity_bytes(); }
std::uint64_t Tier::live_bytes() const { return impl_->live_bytes(); }
std::uint64_t Tier::region_bytes() const { return impl_->region_bytes(); }
std::uint64_t Tier::budget_left_bytes() const { return impl_->budget_left_bytes(); }

}  // namespace cistern
