// SPDX-License-Identifier: Apache-2.0
#include "flash/reclaim.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "base/assert.h"
#include "base/format.h"
#include "record/seal_copy.h"

namespace cistern::flash {

using State = Region::State;

namespace {

// Read and written again at a time, and at most an eighth of a region: a batch that does not fit into the
// open region closes it, and what reclaim leaves empty it would have to give up again.
constexpr std::uint64_t kMoveBytes = 4u << 20;
constexpr std::uint64_t kMovesARegion = 8;
constexpr std::size_t kMoveRecords = 128;  // the owner looks at all of them once more in one step
constexpr std::size_t kRecordsAStep = 64;

// Free regions that appends to a device need soon.
std::size_t NeededOn(const DeviceRegions& device) {
  return std::clamp<std::size_t>(device.count() / 16, device.count() < 4 ? 1 : 2, 4);
}

}  // namespace

bool Reclaim::Wanted() const {
  return std::ranges::any_of(media_.devices(), [](const auto& device) {
    return device->in_service() && device->any_closed() && device->free() < NeededOn(*device);
  });
}

bool Reclaim::RoomLeft() const {
  return std::ranges::any_of(media_.devices(), [](const auto& device) {
    return device->in_service() && (device->any_empty() || device->free() > NeededOn(*device) + 1);
  });
}

// Beside the free regions of a device there is one that is open, and one more to be given up. What stays
// fills three quarters of the others at least: with heads of batches, a table, and a batch that did not fit.
std::uint64_t Reclaim::ReservableBytes() const {
  const std::uint64_t region_bytes = media_.geometry().region_bytes;
  std::uint64_t bytes = 0;
  for (const auto& device : media_.devices()) {
    if (!device->in_service()) continue;
    const std::uint64_t count = device->count(), others = NeededOn(*device) + 2;
    bytes += std::min(count * region_bytes / 2, (count > others ? count - others : 1) * region_bytes / 4 * 3);
  }
  return bytes;
}

std::optional<std::uint32_t> Reclaim::TakeVictim() {
  DeviceRegions* best = nullptr;
  for (const auto& device : media_.devices()) {
    if (!device->in_service() || !device->any_closed()) continue;
    if (best == nullptr || best->any_empty() < device->any_empty() ||
        (best->any_empty() == device->any_empty() && device->free() < best->free())) {
      best = device.get();
    }
  }
  if (best == nullptr) return std::nullopt;
  return best->Take();
}

void Reclaim::GiveBack(std::uint32_t number) {
  DeviceRegions* device = media_.InServiceOf(number);
  if (device != nullptr && device->at(number).is(State::kTaken)) device->GiveBack(number);
}

// Reads of the region may still be under way.
Task<Status> Reclaim::Release(std::uint32_t number) {
  DeviceRegions& device = media_.DeviceOf(number);
  DeviceUse use(device);
  Region& region = device.at(number);
  if (device.in_service()) {
    if (!region.is(State::kTaken)) {
      co_return Status(Code::kGone, Text("flash device ", device.path(), ": was formatted meanwhile"));
    }
    device.BeginRelease(number);
    while (region.has_readers()) co_await device.readers_left().Wait();
  }
  Status status = co_await device.WriteHeader(number, 0, 0);
  if (!status.ok()) co_return status;
  device.Free(number);
  media_.counters().released_regions.Add();
  co_return Status();
}

void Reclaim::Start(tier::TierOwner& owner, bool wanted) {
  if (running_ || closing_ || (!wanted && !Wanted())) return;
  running_ = true;
  group_.Spawn(Run(owner));
}

Task<void> Reclaim::Run(tier::TierOwner& owner) {
  const std::uint64_t begun = devices_out_;
  co_await Yield();
  const auto victim = closing_ ? std::nullopt : TakeVictim();
  if (victim) {
    media_.counters().reclaimed.Add();
    if (co_await GiveUp(owner, *victim)) co_await owner.Reclaimed();
  }
  // Where a device went meanwhile, another reclaim has begun, or may.
  if (begun == devices_out_) running_ = false;
  if (victim) Start(owner, false);
}

Task<bool> Reclaim::GiveUp(tier::TierOwner& owner, std::uint32_t number) {
  DeviceRegions& device = media_.DeviceOf(number);
  const DeviceUse use(device);  // a device that came back has other records in the region
  const Region& region = device.at(number);
  std::vector<tier::TierEntry> entries;
  const Status read = co_await tables_.Entries(device, number, entries);
  if (!read.ok()) {
    media_.log().Log(LogLevel::kWarning, "flash region ", number, ": ", read.message(),
                     "; what they name is given up");
  }
  // Power lost behind the release must not take what moved: it was durable here.
  if (co_await Evacuate(owner, entries)) (void)co_await media_.MakeDurable();
  // Records that are not in the table, or did not fit elsewhere.
  if (region.live_bytes() > 0 && !closing_) co_await owner.Lose(RangeOf(number, number + 1));
  if (region.live_bytes() > 0) {
    GiveBack(number);  // the owner does not know yet of an append that has just ended, or the tier closes
    co_return false;
  }
  const Status status = co_await Release(number);
  if (!status.ok()) media_.log().Log(LogLevel::kError, "flash region ", number, ": ", status.message());
  co_return status.ok();
}

Task<bool> Reclaim::Evacuate(tier::TierOwner& owner, std::span<const tier::TierEntry> entries) {
  const std::uint64_t region_bytes = media_.geometry().region_bytes;
  std::uint64_t kept_bytes = 0;
  std::vector<const tier::TierEntry*> keep;
  for (std::size_t i = entries.size(); i-- > 0 && !closing_;) {
    if (i % kRecordsAStep == 0) co_await Yield();
    if (!co_await owner.Keep(entries[i], kept_bytes, region_bytes)) continue;
    kept_bytes += entries[i].record_bytes;
    keep.push_back(&entries[i]);
  }
  // Parents first on the media as well, whose order is that of the next table: leaves are asked after first,
  // and a restart may find no more than what moved so far.
  std::ranges::reverse(keep);
  co_await MoveAll(owner, keep);
  co_return !keep.empty();
}

Task<void> Reclaim::MoveAll(tier::TierOwner& owner, std::span<const tier::TierEntry* const> entries) {
  const std::uint64_t most = std::min(kMoveBytes, media_.geometry().region_bytes / kMovesARegion);
  while (!entries.empty() && !closing_) {
    std::size_t count = 0;
    std::uint64_t bytes = 0;
    while (count < entries.size() && count < kMoveRecords &&
           (count == 0 || bytes + entries[count]->record_bytes <= most)) {
      bytes += entries[count++]->record_bytes;
    }
    co_await MoveBatch(owner, entries.first(count), bytes);
    entries = entries.subspan(count);
  }
}

// A record that was read back, to be appended again.
struct Reclaim::Move {
  Move(const tier::TierEntry& entry_in, const tier::FetchedRecord& fetched, const std::byte* body)
      : entry(entry_in), seal(fetched.seal) {
    request.body = body;
    request.born = fetched.stamp.born;
    request.expiry = fetched.stamp.expiry;
  }

  const tier::TierEntry& entry;
  const record::SealCopy seal;
  tier::AppendRequest request;
};

Task<void> Reclaim::MoveBatch(tier::TierOwner& owner, std::span<const tier::TierEntry* const> entries,
                              std::uint64_t bytes) {
  const Buffer buffer = media_.pool().Take(bytes);
  std::deque<Move> read;
  std::uint64_t at = 0;
  for (const tier::TierEntry* entry : entries) {
    const std::span<std::byte> into = buffer.bytes().subspan(at, entry->record_bytes);
    at += entry->record_bytes;
    auto fetched = co_await reader_.FetchSome(entry->location, into.size(), into, 0, {});
    // One that is something else is lost with the region.
    if (!fetched || !fetched->seal.HasKey(entry->key) || fetched->seal.incarnation() != entry->incarnation ||
        fetched->seal.group() != entry->group) {
      continue;
    }
    read.emplace_back(*entry, *fetched, into.data());
  }
  co_await Yield();
  // In one step with the append: a record that was dropped meanwhile is not written with a number that its
  // tombstone does not wait for (R10).
  std::vector<tier::AppendRequest> requests;
  std::vector<const tier::TierEntry*> moving;
  for (Move& move : read) {
    const auto stamp = owner.StampOf(move.entry);
    if (!stamp) continue;
    move.request.seal = move.seal.seal();
    move.request.sequence = stamp->sequence;
    move.request.conversation = stamp->conversation;
    requests.push_back(move.request);
    moving.push_back(&move.entry);
  }
  if (requests.empty()) co_return;
  const auto locations = co_await appender_.Append(requests, Appender::Purpose::kMove);
  for (std::size_t i = 0; locations && i < moving.size(); ++i) {
    if (i % kRecordsAStep == 0) co_await Yield();
    owner.Moved(*moving[i], (*locations)[i]);
  }
}

Task<void> Reclaim::Close() {
  closing_ = true;
  co_await group_.Close();
}

}  // namespace cistern::flash
