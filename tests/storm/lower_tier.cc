// SPDX-License-Identifier: Apache-2.0
// What worlds with a lower tier have besides, whichever it is: deaths that are planned, devices that go out
// and come back, and what is known of blocks that are not in memory.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/format.h"
#include "client.h"
#include "world.h"

namespace cistern::storm {

// Sizes and policies by which blocks go to the tier and come from there all the time.
void World::MakeLowerOptions() {
  Random& random = scheduler_.random();
  options_.max_lower_blocks = 512 + static_cast<std::uint32_t>(random.Below(4096));
  static constexpr std::uint64_t kAhead[] = {0, 40'000, 1'000'000};
  options_.read_ahead_bytes = kAhead[random.Below(3)];
  static constexpr std::uint64_t kScrub[] = {0, 1u << 20, 64u << 20};
  options_.scrub_bytes_per_s = kScrub[random.Below(3)];
  static constexpr WritePolicy kWrite[] = {WritePolicy::kThrough, WritePolicy::kThrough, WritePolicy::kBack,
                                           WritePolicy::kSelective};
  options_.lower.write.policy = kWrite[random.Below(4)];
  static constexpr Admission kAdmit[] = {Admission::kSecondHit, Admission::kWorth, Admission::kWorth,
                                         Admission::kAll, Admission::kAll};
  options_.lower.admit = kAdmit[random.Below(5)];
  static constexpr Promotion kPromote[] = {Promotion::kSecondHit, Promotion::kWorth, Promotion::kAll};
  options_.lower.promote = kPromote[random.Below(3)];
  options_.lower.write.uses = 1 + static_cast<std::uint32_t>(random.Below(3));
}

std::vector<std::string> World::Devices() const {
  std::vector<std::string> names;
  if (simulated_) names.push_back("simulated");
  if (flash_)
    std::ranges::transform(flash_->devices, std::back_inserter(names), &flash::FlashDeviceOptions::path);
  return names;
}

void World::NoteDevices(SimNode& node) {
  out_.clear();
  if (simulated_ && !node.simulated().in_service()) out_ = Devices();
  if (!flash_) return;
  for (const flash::FlashDeviceState& device : node.flash().devices()) {
    if (!device.in_service) out_.push_back(device.path);
  }
}

bool World::WritesUnderWay() const { return simulated_ ? media_.writing() : !unsynced_.empty(); }

// The dead one's requests end by and by; the successor waits for them.
void World::LandLate() {
  if (late_.empty() || random().Below(late_odds_) != 0) return;
  late_.front().LandSome(random());
  if (late_.front().empty()) late_.erase(late_.begin());
}

std::uint64_t World::Cuts() {
  if (node() == nullptr) return 0;
  const catalog::StoreCounters& counters = node()->store().counters();
  return counters.cut_at_reclaim.value() + counters.lost_below.value() + counters.cut_bad.value() +
         counters.expired.value();
}

// Once it is known what lies below: the successor is to find just that.
void World::PlanDeath(Fault kind) {
  planned_ = kind == Fault::kKill ? Death::kKill : Death::kReboot;
  planned_kind_ = kind;
  node()->WantSurvey();
}

bool World::TakeOutSome() {
  const std::vector<std::string> devices = Devices();
  if (node() == nullptr || out_.size() == devices.size()) return false;
  auto call = std::make_shared<Call>();
  call->kind = Call::Kind::kTakeOut;
  std::size_t which = random().Below(devices.size());
  if (std::ranges::find(out_, devices[which]) != out_.end()) which ^= 1;
  call->spec.name = devices[which];
  faults_.Injected(Fault::kTakeOut);
  call->answered = [this](Call& answer) {
    if (!answer.lost && answer.status.ok()) faults_.Seen(Fault::kTakeOut);
  };
  model_.Trace(call->spec.name, " is taken out");
  ++device_faults_;
  out_.push_back(call->spec.name);
  node()->Send(call);
  return true;
}

bool World::InjectLowerTier(Fault kind) {
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
      if (!WritesUnderWay()) {
        if (std::exchange(torn_due_, true)) return false;
        return true;
      }
      return KillSome(random().Below(2) == 0 ? Fault::kCrash : Fault::kReboot, true);
    }
    case Fault::kFlipMedia: {
      if (simulated_) return FlipSimulated();
      // Most of them are given up before anybody reads them.
      bool any = false;
      for (int i = 0; i < 4; ++i) any |= FlipMedia();
      return any;
    }
    case Fault::kTakeOut: return TakeOutSome();
    default: {
      if (node() == nullptr && random().Below(6) != 0) return false;
      std::uint32_t& due = deadlines_[static_cast<std::size_t>(kind)];
      if (due > 0) return false;
      // Now and then so many in a row that the device goes out for it.
      due = kind == Fault::kHang || kind == Fault::kLostFlush ? 1
            : random().Below(12) == 0                         ? 9
                                      : 1 + static_cast<std::uint32_t>(random().Below(3));
      if (kind == Fault::kElsewhere) due += 6;
      return true;
    }
  }
}

// As whoever runs the node: what went out is brought back when it can be.
void World::TendDevices() {
  if (out_.empty() || node() == nullptr || random().Below(2) != 0) return;
  const std::string path = out_[random().Below(out_.size())];
  if (flash_) UnhangDevice(path);
  auto call = std::make_shared<Call>();
  call->kind = Call::Kind::kBringBack;
  call->spec.name = path;
  call->answered = [this, path](Call& answer) {
    if (answer.lost) return;
    model_.Trace(path, " is to be brought back: ", answer.status.ToString());
    if (simulated_ && answer.status.ok()) media_known_ = media_.id();
    if (answer.status.code() == Code::kMismatch) flash_->discard_foreign = true;
  };
  node()->Send(call);
}

// ---- blocks in the lower tier --------------------------------------------------------------------------

std::vector<LowerBlock> World::Doubts(SimNode& node) {
  std::vector<LowerBlock> blocks;
  for (std::uint32_t ns = 0; ns < trees_.size(); ++ns) {
    if (incarnations_[ns] == 0 || !node.store().CheckNamespace(slots_[ns], incarnations_[ns]).ok()) continue;
    for (BlockCode code = 1; code < kCodes; ++code) {
      for (std::uint16_t group = 0; group < trees_[ns].groups(); ++group) {
        if (model_.PutsOf({ns, group, code}).empty()) continue;
        if (LookAt({ns, group, code}, false).outcome == arena::ReadOutcome::kHit) continue;
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
  const catalog::StoreCounters& c = node.store().counters();
  return Cuts() + c.evicted.value() + c.evicted_below.value() + c.evicted_below_over_quota.value() +
         c.dropped.value() + device_faults_;
}

void World::Told(SimNode& node, std::vector<LowerBlock> blocks) {
  told_ = std::move(blocks);
  told_exact_ = Changes(node) == known_changes_;
  model_.Trace("told exactly: ", told_exact_);
}

bool World::InLowerTier(const BlockId& block) const {
  return std::ranges::any_of(told_, [&](const LowerBlock& lower) {
    return lower.ns == block.ns && lower.group == block.group && lower.code == block.code &&
           lower.state != LowerBlock::State::kGone;
  });
}

bool World::HarmedRecordAbove(std::uint32_t ns, BlockCode code) {
  return std::ranges::any_of(harmed_, [&](const Somewhere& at) {
    const std::uint64_t bytes =
        record::TrailerOffset(at.body_bytes, geometry_.alignment) + geometry_.alignment;
    return at.block.ns == ns && model_.Below(ns, code, at.block.code) &&
           damage_.Standing(arena_.slot(at.place), bytes);
  });
}

// Whether something in memory is damaged that it may hang below: it may be refused, or cut where it is found.
bool World::HarmedAbove(const LowerBlock& lower) {
  if (HarmedRecordAbove(lower.ns, lower.code)) return true;
  for (BlockCode code : ChainOf(lower.code)) {
    for (std::uint16_t group = 0; group < trees_[lower.ns].groups(); ++group) {
      const Look look = LookAt({lower.ns, group, code}, false);
      if (look.outcome == arena::ReadOutcome::kMiss) continue;
      if (damage_.Standing(arena_.directory(look.place), sizeof(arena::DirectoryEntry))) return true;
    }
  }
  return false;
}

// Whether some record of it, or of what it may hang below, is not in memory, whatever its group: a block that
// is lost in one of them is cut, and with it all that descends from it.
bool World::PartlyInLowerTier(const BlockId& block) {
  if (model_.odd_parents(block.ns)) return true;
  for (BlockCode code : ChainOf(block.code)) {
    for (std::uint16_t group = 0; group < trees_[block.ns].groups(); ++group) {
      if (LookAt({block.ns, group, code}, false).outcome == arena::ReadOutcome::kMiss) return true;
    }
  }
  return false;
}

// Power that was cut takes what was not durable. A device that fails while it is read in, or whose tables,
// heads or headers are damaged, loses what they name; one that is smaller loses what lay behind its end; one
// that the dead node's requests still held is left out (R8).
bool World::TierMayHaveLost(SimNode& node) {
  // Nothing is lost of the simulated media but with its service.
  if (simulated_) return !node.simulated().in_service() || media_unknown_;
  const auto devices = node.flash().devices();
  return power_was_cut_ || shrunk_ || device_faults_ != device_faults_at_boot_ || MediaDamaged() ||
         media_damaged_at_boot_ || std::ranges::any_of(devices, [](const flash::FlashDeviceState& device) {
           return !device.in_service;
         });
}

// R7, at any moment: all that is acknowledged is found if the node dies now, with what is still under way
// lost.
void World::CheckAcknowledged() {
  if (simulated_) return CheckRooms();
  CheckRegions();
}

// Neither it nor what it hangs below is in memory, in no group.
bool World::OnlyInLowerTier(const LowerBlock& lower) {
  if (flash_ || model_.odd_parents(lower.ns)) return false;
  const auto full = trees_[lower.ns].first_full;
  for (BlockCode code : ChainOf(lower.code)) {
    for (std::uint16_t group = 0; group < trees_[lower.ns].groups(); ++group) {
      const BlockId block{lower.ns, group, code};
      if (LookAt(block, false).outcome != arena::ReadOutcome::kMiss) return false;
      if (full && group == *full && !InLowerTier(block)) return false;
    }
  }
  return true;
}

// Promise 7: after SIGKILL what the lower tier had acknowledged and could be reached is found again.
void World::CheckWarmLower(SimNode& node) {
  const std::vector<LowerBlock> before = std::exchange(warm_lower_, {});
  if (TierMayHaveLost(node)) return;
  model_.Trace(before.size(), " blocks that lay in the lower tier have to be there");
  for (const LowerBlock& was : before) {
    const BlockId block{was.ns, was.group, was.code};
    if (Doubtful(block) || InLowerTier(block)) continue;
    if (LookAt(block, false).outcome == arena::ReadOutcome::kHit) continue;
    bool expires = false;
    for (BlockCode code : ChainOf(was.code)) {
      for (std::uint16_t group = 0; group < trees_[was.ns].groups(); ++group) {
        for (PutNo put : model_.PutsOf({was.ns, group, code})) expires |= model_.put(put).ttl_s != 0;
      }
    }
    if (expires || model_.odd_parents(was.ns)) continue;
    Violation(Text(TextOf(block), " lay in the lower tier and did not survive: of ", before.size(),
                   " that did, ", node.store().counters().recovered.value(), " records are in memory and ",
                   node.store().counters().recovery_refused.value(), " were refused, ",
                   node.store().counters().recovery_dropped.value(), " dropped"));
  }
}

}  // namespace cistern::storm
