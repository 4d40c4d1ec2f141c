// SPDX-License-Identifier: Apache-2.0
// Flash as the lower tier of a world: its devices, what they suffer, and what they hold.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/format.h"
#include "client.h"
#include "flash/format.h"
#include "world.h"

namespace cistern::storm {
namespace {

std::string FileOf(const std::string& device) { return device + "/flash"; }

// Of the records that a restart finds in a region that was open: it follows the batches to the first that is
// not whole.
std::uint64_t BytesToBeFound(std::span<const std::byte> region, std::uint64_t unit_bytes) {
  const auto header = flash::DecodeRegionHeader(region.first(flash::kSectorBytes));
  std::uint64_t bytes = 0, unit = 1;
  while (header && unit * unit_bytes < region.size()) {
    const auto batch = region.subspan(unit * unit_bytes);
    const auto head = flash::DecodeBatchHead(batch);
    if (!head || head->epoch != header->epoch || head->unit != unit) break;
    for (std::uint32_t i = 0; i < head->entries; ++i) {
      const auto entry = flash::DecodeEntry(batch.data() + flash::BatchHeadBytes(i), 0);
      bytes += entry ? entry->record_bytes : 0;
    }
    unit += head->units;
  }
  return bytes;
}

}  // namespace

void World::MakeFlash() {
  Random& random = scheduler_.random();
  flash::FlashOptions flash;
  flash.unit = geometry_.alignment;
  flash.region_bytes = flash::kMinRegionBytes << random.Below(3);
  const std::uint64_t devices = 1 + random.Below(2);
  for (std::uint64_t i = 0; i < devices; ++i) {
    flash.devices.push_back(
        {Text("flash", i), flash::kSuperBytes + flash.region_bytes * (6 + random.Below(16))});
  }
  flash.hang_us = static_cast<std::int64_t>(20'000 + random.Below(500'000));
  static constexpr std::uint64_t kBudgets[] = {500u << 20, 500u << 20, 60u << 20, 1};
  if (random.Below(8) == 0) flash.budget_bytes_a_day = kBudgets[random.Below(4)];
  flash.read_depth = 1 + static_cast<std::uint32_t>(random.Below(32));
  MakeLowerOptions();
  if (narrow_) {
    flash.region_bytes = flash::kMinRegionBytes;
    flash.devices = {{"flash0", flash::kSuperBytes + flash.region_bytes * 6}};
    flash.budget_bytes_a_day = 0;
    options_.max_blocks = 2;
    options_.lower = {};
  }
  flash_ = std::move(flash);
  // What a restart finds can be told exactly only where the media are sound: in a third of the worlds.
  faults_.set_tier(TierKind::kFlash, random.Below(3) != 0);
}

// Between two nodes: now and then a device has another size.
void World::Resize() {
  if (boots_ == 0 || narrow_ || random().Below(8) != 0) return;
  flash::FlashDeviceOptions& device = flash_->devices[random().Below(flash_->devices.size())];
  const std::uint64_t regions = 6 + random().Below(16);
  const std::uint64_t size = flash::kSuperBytes + flash_->region_bytes * regions;
  model_.Trace(device.path, " resized from ", device.size_bytes, " to ", size);
  shrunk_ |= size < device.size_bytes;
  device.size_bytes = size;
}

void World::UnhangDevice(const std::string& path) { disk_.Unhang(FileOf(path)); }

void World::UnhangDevices() {
  for (const flash::FlashDeviceOptions& device : flash_->devices) disk_.Unhang(FileOf(device.path));
}

// What its owner does when a node does not start.
void World::NoteStart(const Status& status) {
  if (!flash_) return;
  deadlines_ = {};
  UnhangDevices();
  if (status.code() == Code::kMismatch) {
    flash_->discard_foreign = true;
    power_was_cut_ = true;  // all of it may be gone
  }
}

std::optional<Fault> World::DueAt(const io::IoRequest& request) {
  static constexpr Fault kReads[] = {Fault::kHang, Fault::kFlipRead, Fault::kReadError, Fault::kShortIo,
                                     Fault::kElsewhere};
  static constexpr Fault kWrites[] = {Fault::kHang, Fault::kNoSpace, Fault::kWriteError, Fault::kShortIo};
  static constexpr Fault kSyncs[] = {Fault::kLostFlush, Fault::kHang, Fault::kWriteError};
  const std::span<const Fault> kinds =
      request.kind == io::IoRequest::Kind::kRead    ? std::span<const Fault>(kReads)
      : request.kind == io::IoRequest::Kind::kWrite ? std::span<const Fault>(kWrites)
                                                    : std::span<const Fault>(kSyncs);
  // From any of them on, so that none has to wait for the others; the two that few operations can suffer go
  // first.
  const auto due = [this](Fault kind) { return deadlines_[static_cast<std::size_t>(kind)] > 0; };
  if (request.kind == io::IoRequest::Kind::kRead && due(Fault::kElsewhere) && node() != nullptr &&
      NextTo(request)) {
    return Fault::kElsewhere;
  }
  const std::size_t first = due(Fault::kLostFlush) ? 0 : random().Below(kinds.size());
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const Fault kind = kinds[(first + i) % kinds.size()];
    const bool serving = node() != nullptr;
    // A node that starts waits for a device that hangs as long as it takes.
    if (kind == Fault::kHang && !serving) continue;
    if (kind == Fault::kElsewhere && (!serving || !NextTo(request))) continue;
    if (due(kind)) return kind;
  }
  return std::nullopt;
}

// Where a device that lies takes the bytes of a read from: before or behind it in the same region, where
// another record of the same length may lie, of the same batch or, with a head between them, of the next.
std::optional<std::uint64_t> World::NextTo(const io::IoRequest& request) {
  if (request.offset < flash::kSuperBytes) return std::nullopt;
  const std::uint64_t dice = SplitMix(request.offset);
  const std::uint64_t distance = request.size + (dice % 2 == 0 ? 0 : geometry_.alignment);
  const std::uint64_t in_region = (request.offset - flash::kSuperBytes) % flash_->region_bytes;
  const bool before = in_region >= distance;
  const bool behind = in_region + distance + request.size <= flash_->region_bytes;
  if (!before && !behind) return std::nullopt;
  return before && (!behind || dice / 2 % 2 == 0) ? request.offset - distance : request.offset + distance;
}

// In a narrow world a record's namesake of an earlier life of the region then often lies where it would:
// behind a batch's head that is as it should be.
bool World::LosesTail(const io::IoRequest& request, const std::string& path) {
  if (!narrow_ || !faults_.rots() || node() == nullptr || request.offset < flash::kSuperBytes) return false;
  const bool header = (request.offset - flash::kSuperBytes) % flash_->region_bytes == 0;
  const std::uint64_t lost = request.offset + geometry_.alignment;
  const std::span<const std::byte> bytes = disk_.Bytes(path);
  if (header || request.size <= geometry_.alignment || lost >= bytes.size() || random().Below(16) != 0)
    return false;
  faults_.Injected(Fault::kFlipMedia);
  media_marks_.push_back({path, lost, bytes[lost], false});
  model_.Trace("lost tail of a write at ", path, ", offset ", request.offset, ", ", request.size, " bytes");
  return true;
}

cistern::io::Fault World::AskDevice(const io::IoRequest& request, const std::string& path) {
  if (request.kind == io::IoRequest::Kind::kRead) NoteMediaRead(request, path);
  if (request.kind == io::IoRequest::Kind::kWrite) unsynced_.insert(path);
  const bool sync = request.kind == io::IoRequest::Kind::kSync;
  const auto due = random().Below(2) == 0 ? DueAt(request) : std::nullopt;
  if (sync && (!due || *due == Fault::kLostFlush)) {
    if (!due) {
      unsynced_.erase(path);
      lost_flush_ = false;
    }
  }
  if (!due && request.kind == io::IoRequest::Kind::kWrite && LosesTail(request, path))
    return {cistern::io::FaultKind::kLostTail, geometry_.alignment};
  if (!due) return {};
  --deadlines_[static_cast<std::size_t>(*due)];
  ++device_faults_;
  faults_.Injected(*due);
  if (*due != Fault::kLostFlush) faults_.Seen(*due);
  model_.Trace(FaultName(*due), " at ", path, ", offset ", request.offset, ", ", request.size, " bytes");
  switch (*due) {
    case Fault::kReadError:
    case Fault::kWriteError: return {cistern::io::FaultKind::kIoError, 0};
    case Fault::kNoSpace: return {cistern::io::FaultKind::kNoSpace, 0};
    case Fault::kHang:
      // What comes behind a write that hangs must not count, which a kill shows.
      if (request.kind == io::IoRequest::Kind::kWrite && !planned_ && node() != nullptr &&
          random().Below(4) != 0) {
        PlanDeath(Fault::kKill);
      }
      return {cistern::io::FaultKind::kHang, 0};
    case Fault::kFlipRead: return {cistern::io::FaultKind::kFlip, random().Next()};
    case Fault::kElsewhere: return {cistern::io::FaultKind::kElsewhere, *NextTo(request)};
    case Fault::kShortIo: return {cistern::io::FaultKind::kShort, random().Below(request.size + 1)};
    case Fault::kLostFlush:
      // Only a power cut shows it, so one comes.
      lost_flush_ = true;
      return {cistern::io::FaultKind::kLostFlush, 0};
    default: return {};
  }
}

// A byte of what the media hold: of the superblock, or in a region in use of its header, its table with what
// leads there, or its records.
bool World::FlipMedia() {
  const flash::FlashDeviceOptions& device = flash_->devices[random().Below(flash_->devices.size())];
  const std::string path = FileOf(device.path);
  if (MediaDamaged() && media_marks_.size() > 40) return false;
  const std::span<const std::byte> bytes = disk_.Bytes(path);
  if (bytes.empty()) return false;
  const std::uint64_t regions = (bytes.size() - flash::kSuperBytes) / flash_->region_bytes;
  std::uint64_t at = random().Below(64);
  const bool super = boots_ > super_flipped_at_ + 2 && random().Below(20) == 0;
  if (super) super_flipped_at_ = boots_;
  if (!super) {
    std::uint64_t region = random().Below(regions);
    std::uint64_t start = 0;
    bool live = false;
    for (int tries = 0; tries < 8 && !live; ++tries, region = random().Below(regions)) {
      start = flash::kSuperBytes + region * flash_->region_bytes;
      const auto header = flash::DecodeRegionHeader(bytes.subspan(start, flash::kSectorBytes));
      live = header && header->epoch != 0;
    }
    if (!live) return false;
    const std::uint64_t last = start + flash_->region_bytes - geometry_.alignment;
    const auto locator = flash::DecodeLocator(bytes.subspan(last, flash::kSectorBytes));
    const std::uint64_t table =
        locator ? start + std::uint64_t{locator->table_unit} * geometry_.alignment : last;
    switch (random().Below(10)) {
      case 0: at = start + random().Below(64); break;
      case 1: at = last + random().Below(64); break;
      case 2: at = table + random().Below(std::min<std::uint64_t>(last - table + 1, 4096)); break;
      default:
        at = start + geometry_.alignment + random().Below(std::max<std::uint64_t>(table - start, 1));
        at = std::min(at, last - 1);
        break;
    }
  }
  disk_.Flip(path, at, std::byte{1} << random().Below(8));
  faults_.Injected(Fault::kFlipMedia);
  media_marks_.push_back({path, at, disk_.Bytes(path)[at], false});
  model_.Trace("flip-media: ", path, " offset ", at);
  return true;
}

void World::NoteMediaRead(const io::IoRequest& request, const std::string& path) {
  for (MediaMark& mark : media_marks_) {
    if (mark.seen || mark.path != path || mark.offset < request.offset ||
        mark.offset >= request.offset + request.size || disk_.Bytes(path)[mark.offset] != mark.value) {
      continue;
    }
    mark.seen = true;
    faults_.Seen(Fault::kFlipMedia);
  }
}

bool World::MediaDamaged() {
  std::erase_if(media_marks_, [this](const MediaMark& mark) {
    const auto bytes = disk_.Bytes(mark.path);
    return mark.offset >= bytes.size() || bytes[mark.offset] != mark.value;
  });
  std::erase_if(lost_writes_, [this](const LostWrite& lost) {
    const auto bytes = disk_.Bytes(lost.path);
    return lost.offset + lost.left.size() > bytes.size() ||
           !std::ranges::equal(lost.left, bytes.subspan(lost.offset, lost.left.size()));
  });
  return !media_marks_.empty() || !lost_writes_.empty();
}

// A sync that failed after its node was killed, or that the device lied about: no node can know.
void World::NoteLostWrites() {
  constexpr std::uint64_t kLeft = 64;
  for (const io::SimulatedDisk::Lost& lost : disk_.lost()) {
    const auto bytes = disk_.Bytes(lost.path);
    if (lost.offset >= bytes.size()) continue;
    const auto left = bytes.subspan(lost.offset, std::min({lost.size, kLeft, bytes.size() - lost.offset}));
    lost_writes_.push_back({lost.path, lost.offset, {left.begin(), left.end()}});
  }
}

void World::CheckRegions() {
  if (MediaDamaged()) return;
  const flash::FlashTier& tier = node()->flash();
  std::uint32_t number = 0;
  for (const flash::FlashDeviceState& device : tier.devices()) {
    const std::span<const std::byte> bytes = disk_.Bytes(FileOf(device.path));
    for (std::uint64_t at = flash::kSuperBytes; at + flash_->region_bytes <= device.size_bytes;
         at += flash_->region_bytes, ++number) {
      const std::uint64_t live = device.in_service ? tier.live_bytes(number) : 0;
      if (live == 0) continue;
      const std::uint64_t found =
          BytesToBeFound(bytes.subspan(at, flash_->region_bytes), geometry_.alignment);
      if (found >= live) continue;
      Violation(Text(device.path, ": of ", live, " bytes that are acknowledged in the region at ", at,
                     " only ", found, " would be found if the node died now"));
    }
  }
}

}  // namespace cistern::storm
