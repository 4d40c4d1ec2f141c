// SPDX-License-Identifier: Apache-2.0
#include "tier/simulated_tier.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>

#include "base/assert.h"
#include "base/format.h"
#include "record/seal_copy.h"
#include "tier/check.h"

namespace cistern::tier {

namespace {

constexpr std::size_t kRecordsAStep = 32;
constexpr std::size_t kMoveRecords = 64;
constexpr std::uint32_t kNoOpenRoom = Location::kNone;

std::uint64_t RecordBytesOf(const record::Seal& seal, std::uint32_t unit) {
  return record::RecordBytes(record::BodyBytesOf(seal), static_cast<std::uint32_t>(seal.segment_crcs.size()),
                             static_cast<std::uint32_t>(seal.part_bytes.size()), unit);
}

}  // namespace

std::uint64_t SimulatedMedia::bytes(std::uint32_t room) const {
  std::uint64_t bytes = 0;
  const auto end = records_.lower_bound({room + 1, 0});
  for (auto at = records_.lower_bound({room, 0}); at != end; ++at) bytes += at->second.bytes.size();
  return bytes;
}

std::optional<Location> SimulatedMedia::Pick(std::uint64_t dice) const {
  if (records_.empty()) return std::nullopt;
  return std::next(records_.begin(), static_cast<std::ptrdiff_t>(dice % records_.size()))->first;
}

bool SimulatedMedia::Flip(const Location& location, std::uint64_t bit) {
  const auto found = records_.find(location);
  if (found == records_.end()) return false;
  std::vector<std::byte>& bytes = found->second.bytes;
  bytes[bit / 8 % bytes.size()] ^= static_cast<std::byte>(1u << bit % 8);
  return true;
}

// A read or write that is under way: its room is not given up, and the media are not brought back, before it
// has ended.
class SimulatedTier::Transfer final {
 public:
  Transfer(SimulatedTier& tier, std::uint32_t& users) : tier_(tier), users_(users) {
    ++users_;
    ++tier_.transfers_;
  }
  ~Transfer() {
    --users_;
    --tier_.transfers_;
    tier_.ended_.Pulse();
  }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

 private:
  SimulatedTier& tier_;
  std::uint32_t& users_;
};

SimulatedTier::SimulatedTier(Parts parts, SimulatedTierOptions options, const JournalView& journal)
    : executor_(parts.executor),
      media_(parts.media),
      options_(options),
      random_(parts.seed),
      rooms_(options.rooms),
      open_(kNoOpenRoom),
      group_(parts.executor) {
  CISTERN_ASSERT(options_.rooms >= 4);
  media_.stopped_ = false;
  for (auto& [number, records] : std::exchange(media_.unacknowledged_, {})) {
    if (random_.Chance(0.5)) media_.records_.merge(records);
  }
  const bool ours = media_.journal_id_ == journal.id;
  if (ours) newest_mark_ = media_.mark_;
  if (!ours || journal.missed_drops || newest_mark_ > journal.mark ||
      std::ranges::find(journal.known, media_.id_) == journal.known.end()) {
    Begin(journal.id);
  }
  media_.mark_ = std::max(newest_mark_, journal.mark);
}

SimulatedTier::~SimulatedTier() { group_.Drop(); }

void SimulatedTier::Begin(std::uint64_t journal_id) {
  media_.id_ = random_.Next() | 1;
  media_.journal_id_ = journal_id;
  media_.records_.clear();
  media_.unacknowledged_.clear();
  for (RoomState& room : rooms_) room = RoomState();
  open_ = kNoOpenRoom;
}

std::vector<std::uint64_t> SimulatedTier::media_ids() const {
  return in_service_ ? std::vector<std::uint64_t>{media_.id_} : std::vector<std::uint64_t>();
}

Task<Status> SimulatedTier::Mark(JournalMark mark) {
  co_await Delay();
  if (in_service_ && !media_.stopped_) media_.mark_ = std::max(media_.mark_, mark);
  co_return Status();
}

// Its media keep what was acknowledged as it is.
Task<Status> SimulatedTier::MakeDurable() {
  co_await Delay();
  co_return Status();
}

bool SimulatedTier::Suffers(TierFault fault, double chance, const Location& location) const {
  return random_.Chance(chance) || (options_.suffers && options_.suffers(fault, location));
}

void SimulatedTier::CountError() {
  if (options_.most_errors != 0 && ++errors_ >= options_.most_errors) TakeOut();
}

Task<void> SimulatedTier::Delay() {
  const auto us = random_.Between(static_cast<std::uint64_t>(options_.least_us),
                                  static_cast<std::uint64_t>(options_.most_us));
  co_await SleepUntil(executor_.Now().PlusUs(static_cast<std::int64_t>(us)));
}

// ---- recovery ----

Task<Status> SimulatedTier::Recover(Found found) {
  std::vector<TierEntry> slice;
  for (auto at = media_.records_.begin(); at != media_.records_.end(); ++at) {
    RoomState& room = rooms_[at->first.high];
    if (room.free()) room.opened = ++opened_;
    room.used_bytes += at->second.bytes.size();
    room.least_sequence = std::min(room.least_sequence, at->second.entry.sequence);
    slice.push_back(at->second.entry);
    if (slice.size() < kRecordsAStep && std::next(at) != media_.records_.end()) continue;
    co_await Delay();
    if (Suffers(TierFault::kReadError, 0, {})) {
      TakeOut();
      break;
    }
    co_await found(slice);
    slice.clear();
  }
  recovered_ = true;
  co_return Status();
}

void SimulatedTier::Adopt(const Location& location, std::uint64_t record_bytes) {
  if (in_service_) rooms_[location.high].live_bytes += record_bytes;
}

// ---- taking in ----

std::uint32_t SimulatedTier::free_rooms() const {
  return static_cast<std::uint32_t>(std::ranges::count_if(rooms_, &RoomState::free));
}

std::uint64_t SimulatedTier::live_bytes() const {
  std::uint64_t bytes = 0;
  for (const RoomState& room : rooms_) bytes += room.live_bytes;
  return in_service_ ? bytes : 0;
}

// The last free room is kept for what reclaim moves.
std::optional<std::uint32_t> SimulatedTier::ChooseRoom(std::uint64_t bytes, bool moving) const {
  if (open_ != kNoOpenRoom && rooms_[open_].used_bytes + bytes <= options_.room_bytes) return open_;
  if (!MayOpen(moving)) return std::nullopt;
  const auto free = std::ranges::find_if(rooms_, &RoomState::free);
  if (free == rooms_.end()) return std::nullopt;
  return static_cast<std::uint32_t>(free - rooms_.begin());
}

SimulatedTier::Room SimulatedTier::RoomFor(std::uint64_t record_bytes) const {
  if (!in_service_) return Room::kNoDevice;
  if (!ChooseRoom(record_bytes, false) || Suffers(TierFault::kNoRoom, options_.faults.no_room, {})) {
    return Room::kNoRoom;
  }
  return Suffers(TierFault::kNoBudget, options_.faults.no_budget, {}) ? Room::kNoBudget : Room::kYes;
}

Task<Result<std::vector<Location>>> SimulatedTier::Append(std::span<const AppendRequest> records) {
  return Write(records, false);
}

SimulatedMedia::Record SimulatedTier::MakeRecord(const AppendRequest& request,
                                                 const Location& location) const {
  const record::Seal& seal = request.seal;
  SimulatedMedia::Record record;
  record.bytes.resize(RecordBytesOf(seal, options_.unit));
  const std::uint64_t body = record::BodyBytesOf(seal);
  std::memcpy(record.bytes.data(), request.body, body);
  record::Stamp stamp;
  stamp.region = location.high;
  stamp.region_epoch = media_.id_;
  stamp.unit = location.low;
  stamp.sequence = request.sequence;
  stamp.born = request.born;
  stamp.expiry = request.expiry;
  stamp.conversation = request.conversation;
  record::EncodeTrailer(seal, stamp,
                        std::span(record.bytes).subspan(record::TrailerOffset(body, options_.unit)));
  record.entry = {.key = seal.key,
                  .parent = seal.parent,
                  .incarnation = seal.incarnation,
                  .born = request.born,
                  .sequence = request.sequence,
                  .conversation = request.conversation,
                  .expiry = request.expiry,
                  .body_bytes = static_cast<std::uint32_t>(body),
                  .record_bytes = static_cast<std::uint32_t>(record.bytes.size()),
                  .group = seal.group,
                  .parts = static_cast<std::uint16_t>(seal.part_bytes.size()),
                  .location = location};
  return record;
}

Task<Result<std::vector<Location>>> SimulatedTier::Write(std::span<const AppendRequest> records,
                                                         bool moving) {
  if (closing_) co_return Error(Code::kGone, "simulated tier: is closing");
  std::uint64_t bytes = 0;
  for (const AppendRequest& request : records) bytes += RecordBytesOf(request.seal, options_.unit);
  if (records.empty() || records.size() > kMaxBatchRecords || bytes > options_.room_bytes) {
    co_return Error(Code::kInvalid, Text("simulated tier: ", records.size(), " records of ", bytes,
                                         " bytes and a room has ", options_.room_bytes));
  }
  if (!in_service_) co_return Error(Code::kIoError, "simulated tier: is out of service");
  const auto room = ChooseRoom(bytes, moving);
  if (!room) co_return Error(Code::kBusy, Text("simulated tier: none of ", options_.rooms, " rooms is free"));
  RoomState& state = rooms_[*room];
  if (state.free()) {
    state.opened = ++opened_;
    open_ = *room;
  }
  state.used_bytes += bytes;
  const std::uint32_t number = media_.next_;
  std::vector<Location> locations;
  SimulatedMedia::Records written;
  for (const AppendRequest& request : records) {
    const Location location{*room, media_.next_++};
    locations.push_back(location);
    state.least_sequence = std::min(state.least_sequence, request.sequence);
    written.emplace(location, MakeRecord(request, location));
  }
  if (!media_.stopped_) media_.unacknowledged_.emplace(number, std::move(written));
  const Transfer transfer(*this, state.writers);
  co_await Delay();
  if (media_.stopped_) co_return Error(Code::kGone, "simulated tier: its process is dead");
  SimulatedMedia::Records whole = std::move(media_.unacknowledged_[number]);
  media_.unacknowledged_.erase(number);
  const bool failed = !in_service_ || Suffers(TierFault::kWriteError, options_.faults.write_error, {});
  if (failed) {
    // A restart may find them all the same.
    if (in_service_ && random_.Chance(0.5)) media_.records_.merge(whole);
    counters_.io_errors.Add();
    CountError();
    co_return Error(Code::kIoError, "simulated tier: a write failed");
  }
  errors_ = 0;
  for (const auto& [location, record] : whole) state.live_bytes += record.bytes.size();
  counters_.appended_records.Add(whole.size());
  media_.records_.merge(whole);
  co_return locations;
}

void SimulatedTier::Forget(const Location& location, std::uint64_t record_bytes) {
  if (!in_service_) return;
  CISTERN_ASSERT(rooms_[location.high].live_bytes >= record_bytes);
  rooms_[location.high].live_bytes -= record_bytes;
}

// ---- giving back ----

std::int64_t SimulatedTier::EstimateUs(const Location&, std::uint64_t) const {
  return in_service_ ? (options_.least_us + options_.most_us) / 2 : kNever;
}

std::span<const std::byte> SimulatedTier::BytesFor(const Location& location) {
  auto found = media_.records_.find(location);
  if (found != media_.records_.end() && Suffers(TierFault::kMisread, options_.faults.misread, location)) {
    found = std::next(
        media_.records_.begin(),
        static_cast<std::ptrdiff_t>(random_.Below(std::min<std::size_t>(media_.records_.size(), 64))));
  }
  if (found == media_.records_.end()) return {};
  return found->second.bytes;
}

void SimulatedTier::MayFlip(const Location& location, std::span<std::byte> bytes) {
  if (bytes.empty() || !Suffers(TierFault::kFlip, options_.faults.flip, location)) return;
  bytes[random_.Below(bytes.size())] ^= static_cast<std::byte>(1u << random_.Below(8));
}

Task<Result<FetchedRecord>> SimulatedTier::Fetch(Location location, std::span<std::byte> into,
                                                 const Arrived* arrived) {
  auto fetched = co_await FetchSome(location, into.size(), into, 0, {});
  if (!fetched || arrived == nullptr) co_return fetched;
  // By chance some of it was there before the rest, in any order.
  const std::size_t units = into.size() / options_.unit;
  for (std::size_t told = 0; told + 1 < units && random_.Chance(0.5);) {
    const std::size_t first = random_.Below(units), count = random_.Between(1, units - first);
    (*arrived)(into.subspan(first * options_.unit, count * options_.unit));
    told += count;
    co_await Delay();
  }
  co_return fetched;
}

Task<Result<FetchedRecord>> SimulatedTier::FetchSome(Location location, std::uint64_t record_bytes,
                                                     std::span<std::byte> trailer, std::uint64_t offset,
                                                     std::span<std::byte> body) {
  CISTERN_ASSERT(record_bytes % options_.unit == 0 && trailer.size() % options_.unit == 0 &&
                 trailer.size() <= record_bytes);
  CISTERN_ASSERT(offset % options_.unit == 0 && body.size() % options_.unit == 0 &&
                 offset + body.size() <= record_bytes);
  if (!in_service_) co_return Error(Code::kIoError, "simulated tier: is out of service");
  if (location.high >= rooms_.size()) co_return Error(Code::kMiss, "simulated tier: no such room");
  const Transfer transfer(*this, rooms_[location.high].readers);
  co_await Delay();
  if (!in_service_ || Suffers(TierFault::kReadError, options_.faults.read_error, location)) {
    counters_.io_errors.Add();
    CountError();
    co_return Error(Code::kIoError, "simulated tier: a read failed");
  }
  const std::span<const std::byte> bytes = BytesFor(location);
  std::vector<std::byte> all(bytes.begin(), bytes.end());
  all.resize(record_bytes);
  MayFlip(location, all);
  std::memcpy(trailer.data(), all.data() + record_bytes - trailer.size(), trailer.size());
  if (!body.empty()) std::memcpy(body.data(), all.data() + offset, body.size());
  const auto fetched =
      CheckRecord(trailer, record_bytes, options_.unit, {location.high, location.low, media_.id_});
  if (!fetched) {
    ReportBad(location);
    co_return Error(Code::kMiss, Text(Describe(location), ": is not the record that was written there"));
  }
  errors_ = 0;
  counters_.fetched_records.Add();
  co_return *fetched;
}

void SimulatedTier::ReportBad(const Location&) {
  counters_.bad_records.Add();
  CountError();
}

std::string SimulatedTier::Describe(const Location& location) const {
  return Text("simulated room ", location.high, ", record ", location.low);
}

std::string SimulatedTier::DescribeMedium(const Location&) const { return "simulated media"; }

// ---- room ----

bool SimulatedTier::Wanted() const { return free_rooms() < 2; }

// The oldest of the rooms that nothing is written to any more.
std::optional<std::uint32_t> SimulatedTier::TakeVictim() {
  std::optional<std::uint32_t> victim;
  for (std::uint32_t i = 0; i < rooms_.size(); ++i) {
    const RoomState& room = rooms_[i];
    if (room.free() || room.taken || room.writers > 0 || i == open_) continue;
    if (!victim || room.opened < rooms_[*victim].opened) victim = i;
  }
  if (victim) rooms_[*victim].taken = true;
  return victim;
}

void SimulatedTier::Reclaim(bool wanted) {
  if (reclaiming_ || closing_ || !recovered_ || !in_service_ || owner_ == nullptr) return;
  if (!wanted && !Wanted()) return;
  reclaiming_ = true;
  group_.Spawn(RunReclaim());
}

Task<void> SimulatedTier::RunReclaim() {
  const std::uint64_t begun = outs_;
  co_await Yield();
  const auto victim = in_service_ ? TakeVictim() : std::nullopt;
  const std::uint64_t id = media_.id_;  // another one: the rooms began anew meanwhile, and the victim is none
  if (victim) {
    co_await GiveUp(*victim, id);
    if (co_await Release(*victim, id)) co_await owner_->Reclaimed();
  }
  if (begun == outs_) reclaiming_ = false;
  if (victim) Reclaim(false);
}

// Leaves are asked after first: the room's records, the last one first.
Task<void> SimulatedTier::GiveUp(std::uint32_t room, std::uint64_t id) {
  std::vector<TierEntry> entries, keep;
  const auto begin = media_.records_.lower_bound({room, 0}), end = media_.records_.lower_bound({room + 1, 0});
  for (auto at = begin; at != end; ++at) entries.push_back(at->second.entry);
  co_await Delay();
  std::uint64_t kept_bytes = 0;
  for (std::size_t i = entries.size(); i-- > 0 && !closing_;) {
    if (i % kRecordsAStep == 0) co_await Yield();
    if (!co_await owner_->Keep(entries[i], kept_bytes, options_.room_bytes)) continue;
    kept_bytes += entries[i].record_bytes;
    keep.push_back(entries[i]);
  }
  std::ranges::reverse(keep);
  for (std::size_t at = 0; at < keep.size() && !closing_; at += kMoveRecords) {
    co_await Move(std::span(keep).subspan(at, std::min(kMoveRecords, keep.size() - at)));
  }
  if (id == media_.id_ && rooms_[room].live_bytes > 0 && !closing_)
    co_await owner_->Lose({{room, 0}, {room + 1, 0}});
}

Task<void> SimulatedTier::Move(std::span<const TierEntry> entries) {
  struct Read {
    const TierEntry* entry;
    std::vector<std::byte> bytes;
    std::optional<record::SealCopy> seal;
    AppendRequest request;
  };
  std::deque<Read> read;
  for (const TierEntry& entry : entries) {
    std::vector<std::byte> bytes(entry.record_bytes);
    auto fetched = co_await Fetch(entry.location, bytes, nullptr);
    if (!fetched || !fetched->seal.HasKey(entry.key) || fetched->seal.incarnation() != entry.incarnation ||
        fetched->seal.group() != entry.group) {
      continue;
    }
    Read& each = read.emplace_back();
    each.entry = &entry;
    each.seal.emplace(fetched->seal);
    each.request.seal = each.seal->seal();
    each.request.born = fetched->stamp.born;
    each.request.expiry = fetched->stamp.expiry;
    each.bytes = std::move(bytes);
    each.request.body = each.bytes.data();
  }
  co_await Yield();
  std::vector<AppendRequest> requests;
  std::vector<const TierEntry*> moving;
  for (Read& each : read) {
    const auto stamp = owner_->StampOf(*each.entry);
    if (!stamp) continue;
    each.request.sequence = stamp->sequence;
    each.request.conversation = stamp->conversation;
    requests.push_back(each.request);
    moving.push_back(each.entry);
  }
  if (requests.empty()) co_return;
  const auto locations = co_await Write(requests, true);
  for (std::size_t i = 0; locations && i < moving.size(); ++i) {
    if (i % kRecordsAStep == 0) co_await Yield();
    counters_.moved_records.Add();
    owner_->Moved(*moving[i], (*locations)[i]);
  }
}

// Whether the room is free, durably: a crash before that finds all of it.
Task<bool> SimulatedTier::Release(std::uint32_t number, std::uint64_t id) {
  RoomState& room = rooms_[number];
  while (room.readers > 0 && id == media_.id_) co_await ended_.Wait();
  co_await Delay();
  if (!in_service_ || id != media_.id_) co_return false;
  if (room.live_bytes > 0) {
    room.taken = false;  // an append that has just ended, or the tier closes
    co_return false;
  }
  if (media_.stopped_) co_return false;
  media_.records_.erase(media_.records_.lower_bound({number, 0}),
                        media_.records_.lower_bound({number + 1, 0}));
  room = RoomState();
  counters_.reclaimed.Add();
  co_return true;
}

std::uint64_t SimulatedTier::oldest_sequence() const {
  std::uint64_t oldest = UINT64_MAX;
  if (!in_service_) return oldest;
  for (const RoomState& room : rooms_) oldest = std::min(oldest, room.least_sequence);
  return oldest;
}

// ---- trouble ----

void SimulatedTier::TakeOut() {
  if (!in_service_) return;
  in_service_ = false;
  ++outs_;
  reclaiming_ = false;
  forgotten_ = owner_ == nullptr;
  if (owner_ != nullptr) owner_->DeviceOut({{0, 0}, {options_.rooms, 0}});
}

Status SimulatedTier::BringBack() {
  if (in_service_) return Status(Code::kInvalid, "simulated tier: is in service");
  if (!recovered_ || !forgotten_ || transfers_ > 0) {
    return Status(Code::kBusy, Text("simulated tier: what was on it is being forgotten, or ", transfers_,
                                    " transfers have not ended; try again"));
  }
  if (media_.stopped_) return Status(Code::kGone, "simulated tier: its process is dead");
  Begin(media_.journal_id_);
  in_service_ = true;
  errors_ = 0;
  return Status();
}

void SimulatedTier::Forgotten(const LocationRange& range) { forgotten_ |= range.contains({0, 0}); }

Task<void> SimulatedTier::Close() {
  closing_ = true;
  co_await group_.Close();
  while (transfers_ > 0) co_await ended_.Wait();
}

}  // namespace cistern::tier
