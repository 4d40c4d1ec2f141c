// SPDX-License-Identifier: Apache-2.0
// What worlds with flash have besides: its devices and what they suffer, I/O of the dead that lands late, and
// what is known of blocks that are not in memory.
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

// ---- the tier --------------------------------------------------------------------------------------------

void World::MakeFlash() {
  Random& random = scheduler_.random();
  FlashOptions flash;
  flash.unit = geometry_.alignment;
  flash.region_bytes = kMinRegionBytes << random.Below(3);
  const std::uint64_t devices = 1 + random.Below(2);
  for (std::uint64_t i = 0; i < devices; ++i) {
    flash.devices.push_back(
        {Text("flash", i), flash::kSuperBytes + flash.region_bytes * (6 + random.Below(16))});
  }
  flash.hang_us = static_cast<std::int64_t>(20'000 + random.Below(500'000));
  if (random.Below(8) == 0) flash.budget_bytes_a_day = 500u << 20;
  flash.read_depth = 1 + static_cast<std::uint32_t>(random.Below(32));
  options_.max_blocks = 3 + random.Below(24);
  options_.max_lower_blocks = 512 + static_cast<std::uint32_t>(random.Below(4096));
  static constexpr std::uint64_t kAhead[] = {0, 40'000, 1'000'000};
  options_.read_ahead_bytes = kAhead[random.Below(3)];
  static constexpr std::uint64_t kScrub[] = {0, 1u << 20, 64u << 20};
  options_.scrub_bytes_per_s = kScrub[random.Below(3)];
  static constexpr WritePolicy kWrite[] = {WritePolicy::kThrough, WritePolicy::kThrough, WritePolicy::kBack,
                                           WritePolicy::kSelective};
  options_.lower.write = kWrite[random.Below(4)];
  options_.lower.admit = random.Below(5) == 0 ? Admission::kSecondHit : Admission::kAll;
  options_.lower.promote = random.Below(3) != 0 ? Promotion::kSecondHit : Promotion::kAll;
  options_.lower.selective_uses = 1 + static_cast<std::uint32_t>(random.Below(3));
  if (narrow_) {
    flash.region_bytes = kMinRegionBytes;
    flash.devices = {{"flash0", flash::kSuperBytes + flash.region_bytes * 6}};
    flash.budget_bytes_a_day = 0;
    options_.max_blocks = 2;
    options_.lower = {};
  }
  flash_ = std::move(flash);
  // What a restart finds can be told exactly only where the media are sound.
  faults_.set_flash(random.Below(2) == 0);
}

// Between two nodes: now and then a device has another size.
void World::Resize() {
  if (boots_ == 0 || narrow_ || random().Below(8) != 0) return;
  FlashDeviceOptions& device = flash_->devices[random().Below(flash_->devices.size())];
  const std::uint64_t regions = 6 + random().Below(16);
  const std::uint64_t size = flash::kSuperBytes + flash_->region_bytes * regions;
  model_.Trace(device.path, " resized from ", device.size_bytes, " to ", size);
  shrunk_ |= size < device.size_bytes;
  device.size_bytes = size;
}

void World::UnhangDevices() {
  for (const FlashDeviceOptions& device : flash_->devices) disk_.Unhang(FileOf(device.path));
}

// What its owner does when a node does not start.
void World::NoteStart(const Status& status) {
  if (!flash_) return;
  due_ = {};
  UnhangDevices();
  if (status.code() == Code::kMismatch) {
    flash_->discard_foreign = true;
    power_was_cut_ = true;  // all of it may be gone
  }
}

// The dead one's requests end by and by; the successor waits for them.
void World::LandLate() {
  if (late_.empty() || random().Below(late_odds_) != 0) return;
  late_.front().LandSome(random());
  if (late_.front().empty()) late_.erase(late_.begin());
}

std::uint64_t World::Cuts() {
  if (node() == nullptr) return 0;
  const StoreCounters& counters = node()->store().counters();
  return counters.cut_at_reclaim.value() + counters.lost_below.value() + counters.cut_bad.value() +
         counters.expired.value();
}

// ---- what devices suffer ---------------------------------------------------------------------------------

// Once it is known what lies below: the successor is to find just that.
void World::PlanDeath(Fault kind) {
  planned_ = kind == Fault::kKill ? Death::kKill : Death::kReboot;
  planned_kind_ = kind;
  node()->WantSurvey();
}

bool World::InjectBelow(Fault kind) {
  if (clean_start_ && node() == nullptr) return false;
  switch (kind) {
    case Fault::kKill:
    case Fault::kReboot:
      if (node() != nullptr && !planned_ && random().Below(2) == 0) {
        PlanDeath(kind);
        return true;
      }
      return KillSome(kind);
    case Fault::kTorn: {
      if (unsynced_.empty()) return false;
      return KillSome(random().Below(2) == 0 ? Fault::kCrash : Fault::kReboot);
    }
    case Fault::kFlipMedia: return FlipMedia();
    case Fault::kTakeOut: {
      if (node() == nullptr || out_.size() == flash_->devices.size()) return false;
      auto call = std::make_shared<Call>();
      call->kind = Call::Kind::kTakeOut;
      std::size_t which = random().Below(flash_->devices.size());
      if (std::ranges::find(out_, flash_->devices[which].path) != out_.end()) which ^= 1;
      call->spec.name = flash_->devices[which].path;
      faults_.Injected(kind);
      call->answered = [this](Call& answer) {
        if (!answer.lost && answer.status.ok()) faults_.Seen(Fault::kTakeOut);
      };
      model_.Trace(call->spec.name, " is taken out");
      ++device_faults_;
      out_.push_back(call->spec.name);
      node()->Send(call);
      return true;
    }
    default: {
      if (node() == nullptr && random().Below(6) != 0) return false;
      std::uint32_t& due = due_[static_cast<std::size_t>(kind)];
      if (due > 0) return false;
      // Now and then so many in a row that the device goes out for it.
      due = kind == Fault::kHang || kind == Fault::kLostFlush ? 1
            : random().Below(12) == 0                         ? 9
                                      : 1 + static_cast<std::uint32_t>(random().Below(3));
      return true;
    }
  }
}

std::optional<Fault> World::DueAt(const IoRequest& request) {
  static constexpr Fault kReads[] = {Fault::kHang, Fault::kFlipRead, Fault::kReadError, Fault::kShortIo,
                                     Fault::kElsewhere};
  static constexpr Fault kWrites[] = {Fault::kHang, Fault::kNoSpace, Fault::kWriteError, Fault::kShortIo};
  static constexpr Fault kSyncs[] = {Fault::kLostFlush, Fault::kHang, Fault::kWriteError};
  const std::span<const Fault> kinds = request.kind == IoRequest::Kind::kRead ? std::span<const Fault>(kReads)
                                       : request.kind == IoRequest::Kind::kWrite
                                           ? std::span<const Fault>(kWrites)
                                           : std::span<const Fault>(kSyncs);
  // From any of them on, so that none has to wait for the others.
  const std::size_t first =
      due_[static_cast<std::size_t>(Fault::kLostFlush)] > 0 ? 0 : random().Below(kinds.size());
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const Fault kind = kinds[(first + i) % kinds.size()];
    const bool serving = node() != nullptr;
    // A node that starts waits for a device that hangs as long as it takes.
    if (kind == Fault::kHang && !serving) continue;
    if (kind == Fault::kElsewhere && (!serving || !NextTo(request))) continue;
    if (due_[static_cast<std::size_t>(kind)] > 0) return kind;
  }
  return std::nullopt;
}

// Where a device that lies takes the bytes of a read from: before or behind it in the same region, where
// another record of the same length may lie, of the same batch or, with a head between them, of the next.
std::optional<std::uint64_t> World::NextTo(const IoRequest& request) {
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
bool World::LosesTail(const IoRequest& request, const std::string& path) {
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

cistern::Fault World::AskDevice(const IoRequest& request, const std::string& path) {
  if (request.kind == IoRequest::Kind::kRead) NoteMediaRead(request, path);
  if (request.kind == IoRequest::Kind::kWrite) unsynced_.insert(path);
  const bool sync = request.kind == IoRequest::Kind::kSync;
  const auto due = random().Below(2) == 0 ? DueAt(request) : std::nullopt;
  if (sync && (!due || *due == Fault::kLostFlush)) {
    if (!due) {
      unsynced_.erase(path);
      lost_flush_ = false;
    }
  }
  if (!due && request.kind == IoRequest::Kind::kWrite && LosesTail(request, path))
    return {cistern::FaultKind::kLostTail, geometry_.alignment};
  if (!due) return {};
  --due_[static_cast<std::size_t>(*due)];
  ++device_faults_;
  faults_.Injected(*due);
  if (*due != Fault::kLostFlush) faults_.Seen(*due);
  model_.Trace(FaultName(*due), " at ", path, ", offset ", request.offset, ", ", request.size, " bytes");
  switch (*due) {
    case Fault::kReadError:
    case Fault::kWriteError: return {cistern::FaultKind::kIoError, 0};
    case Fault::kNoSpace: return {cistern::FaultKind::kNoSpace, 0};
    case Fault::kHang:
      // What comes behind a write that hangs must not count, which a kill shows.
      if (request.kind == IoRequest::Kind::kWrite && !planned_ && node() != nullptr &&
          random().Below(4) != 0) {
        PlanDeath(Fault::kKill);
      }
      return {cistern::FaultKind::kHang, 0};
    case Fault::kFlipRead: return {cistern::FaultKind::kFlip, random().Next()};
    case Fault::kElsewhere: return {cistern::FaultKind::kElsewhere, *NextTo(request)};
    case Fault::kShortIo: return {cistern::FaultKind::kShort, random().Below(request.size + 1)};
    case Fault::kLostFlush:
      // Only a power cut shows it, so one comes.
      lost_flush_ = true;
      return {cistern::FaultKind::kLostFlush, 0};
    default: return {};
  }
}

// A byte of what the media hold: of the superblock, or in a region in use of its header, its table with what
// leads there, or its records.
bool World::FlipMedia() {
  const FlashDeviceOptions& device = flash_->devices[random().Below(flash_->devices.size())];
  const std::string path = FileOf(device.path);
  if (MediaDamaged() && media_marks_.size() > 12) return false;
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

void World::NoteMediaRead(const IoRequest& request, const std::string& path) {
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
  return !media_marks_.empty();
}

// As whoever runs the node: what went out is brought back when it can be.
void World::TendDevices() {
  if (out_.empty() || node() == nullptr || random().Below(2) != 0) return;
  const std::string path = out_[random().Below(out_.size())];
  disk_.Unhang(FileOf(path));
  auto call = std::make_shared<Call>();
  call->kind = Call::Kind::kBringBack;
  call->spec.name = path;
  call->answered = [this, path](Call& answer) {
    if (answer.lost) return;
    model_.Trace(path, " is to be brought back: ", answer.status.ToString());
    if (answer.status.code() == Code::kMismatch) flash_->discard_foreign = true;
  };
  node()->Send(call);
}

// ---- what lies below -------------------------------------------------------------------------------------

std::vector<Below> World::Doubts(SimNode& node) {
  std::vector<Below> blocks;
  for (std::uint32_t ns = 0; ns < realms_.size(); ++ns) {
    if (incarnations_[ns] == 0 || !node.store().CheckNamespace(slots_[ns], incarnations_[ns]).ok()) continue;
    for (BlockCode code = 1; code < kCodes; ++code) {
      for (std::uint16_t group = 0; group < realms_[ns].groups(); ++group) {
        if (model_.PutsOf({ns, group, code}).empty()) continue;
        if (LookAt({ns, group, code}, false).outcome == ReadOutcome::kHit) continue;
        blocks.push_back({ns, group, code, slots_[ns], KeyOf(ns, code)});
      }
    }
  }
  known_changes_ = Changes(node);
  return blocks;
}

// Whatever may have taken blocks away since a survey began; those of drops under way are doubtful by
// themselves.
std::uint64_t World::Changes(SimNode& node) {
  const StoreCounters& c = node.store().counters();
  return Cuts() + c.evicted.value() + c.evicted_below.value() + c.dropped.value() + device_faults_;
}

void World::Told(SimNode& node, std::vector<Below> blocks) {
  told_ = std::move(blocks);
  told_exact_ = Changes(node) == known_changes_;
  model_.Trace("told exactly: ", told_exact_);
}

bool World::IsBelow(const BlockId& block) const {
  return std::ranges::any_of(told_, [&](const Below& below) {
    return below.ns == block.ns && below.group == block.group && below.code == block.code &&
           below.state != Below::State::kGone;
  });
}

// Whether something in memory is damaged that it may hang below: it may be refused, or cut where it is found.
bool World::HarmedAbove(const Below& below) {
  for (const Somewhere& at : harmed_) {
    const std::byte* slot = arena_.slot(at.place);
    if (at.block.ns == below.ns && model_.Below(below.ns, below.code, at.block.code) &&
        damage_.Standing(slot, TrailerOffset(at.body_bytes, geometry_.alignment) + geometry_.alignment)) {
      return true;
    }
  }
  for (BlockCode code : ChainOf(below.code)) {
    for (std::uint16_t group = 0; group < realms_[below.ns].groups(); ++group) {
      const Look look = LookAt({below.ns, group, code}, false);
      if (look.outcome == ReadOutcome::kMiss) continue;
      if (damage_.Standing(arena_.directory(look.place), sizeof(DirectoryEntry))) return true;
    }
  }
  return false;
}

// Whether some record of it, or of what it may hang below, is not in memory, whatever its group: a block that
// is lost in one of them is cut, and with it all that descends from it.
bool World::PartlyBelow(const BlockId& block) {
  if (model_.odd_parents(block.ns)) return true;
  for (BlockCode code : ChainOf(block.code)) {
    for (std::uint16_t group = 0; group < realms_[block.ns].groups(); ++group) {
      if (LookAt({block.ns, group, code}, false).outcome == ReadOutcome::kMiss) return true;
    }
  }
  return false;
}

// Power that was cut takes what was not durable. A device that fails while it is read in, or whose tables,
// heads or headers are damaged, loses what they name; one that is smaller loses what lay behind its end; one
// that the dead node's requests still held is left out (R8).
bool World::FlashMayHaveLost(SimNode& node) {
  const auto devices = node.store().tier()->devices();
  return power_was_cut_ || shrunk_ || device_faults_ != device_faults_at_boot_ || MediaDamaged() ||
         std::ranges::any_of(devices, [](const Tier::DeviceState& device) { return !device.in_service; });
}

// R7, at any moment: all that is acknowledged is found if the node dies now, with what is still under way
// lost.
void World::CheckAcknowledged() {
  if (MediaDamaged()) return;
  const Tier& tier = *node()->store().tier();
  std::uint32_t number = 0;
  for (const Tier::DeviceState& device : tier.devices()) {
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

// Promise 7: after SIGKILL what flash had acknowledged and could be reached is found again.
void World::CheckWarmBelow(SimNode& node) {
  const std::vector<Below> before = std::exchange(warm_below_, {});
  if (FlashMayHaveLost(node)) return;
  model_.Trace(before.size(), " blocks that lay on flash have to be there");
  for (const Below& was : before) {
    const BlockId block{was.ns, was.group, was.code};
    if (Doubtful(block) || IsBelow(block)) continue;
    if (LookAt(block, false).outcome == ReadOutcome::kHit) continue;
    bool expires = false;
    for (BlockCode code : ChainOf(was.code)) {
      for (std::uint16_t group = 0; group < realms_[was.ns].groups(); ++group) {
        for (PutNo put : model_.PutsOf({was.ns, group, code})) expires |= model_.put(put).ttl_s != 0;
      }
    }
    if (expires || model_.odd_parents(was.ns)) continue;
    Violation(Text(TextOf(block), " lay on flash and did not survive the kill: of ", before.size(),
                   " that did, ", node.store().counters().recovered.value(), " records are in memory and ",
                   node.store().counters().recovery_refused.value(), " were refused"));
  }
}

}  // namespace cistern::storm
