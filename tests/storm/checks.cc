// SPDX-License-Identifier: Apache-2.0
// The checks that look at the whole: leases, what a restart brings back, and the store at rest.
#include <algorithm>
#include <utility>

#include "base/format.h"
#include "client.h"
#include "world.h"

namespace cistern::storm {

Sighting World::SightingOf(const BlockId& block, const arena::OpenRecord& record) const {
  Sighting seen;
  seen.block = block;
  PutId id = record.seal.put_id();
  seen.put = id == PutIdOf(static_cast<PutNo>(id.low)) && id.low < model_.puts() ? id.low : 0;
  seen.parts = record.seal.part_count();
  seen.body_bytes = record.seal.body_bytes();
  seen.expiry = record.stamp.expiry;
  if (seen.put != 0) {
    BlockCode parent = model_.put(static_cast<PutNo>(seen.put)).parent;
    seen.parent = record.seal.parent() == KeyOf(block.ns, parent) ? parent : BlockCode{0xffff};
  }
  return seen;
}

World::Look World::LookAt(const BlockId& block, bool with_body) {
  Look look;
  if (incarnations_[block.ns] == 0) return look;
  const auto& lengths = trees_[block.ns].spec.groups[block.group].part_bytes;
  arena::ReadCall call{.incarnation = index_.header()->incarnations[slots_[block.ns]], .now_s = 0};
  BlockKey key = KeyOf(block.ns, block.code);
  auto parts = static_cast<std::uint16_t>(lengths.empty() ? 1 : lengths.size());
  look.outcome = reader_.Open(call, {key, block.group, parts}, nullptr, record_);
  look.place = record_.place;
  look.generation = record_.generation;
  if (look.outcome != arena::ReadOutcome::kHit) return look;
  look.seen = SightingOf(block, record_);
  look.born = record_.stamp.born;
  if (with_body) {
    std::uint64_t at = 0;
    for (std::uint32_t part = 0; part < record_.seal.part_count(); ++part) {
      std::uint32_t bytes = record_.seal.part_bytes(part);
      if (look.seen.put != 0 && !model_.put(static_cast<PutNo>(look.seen.put)).any_bytes &&
          !IsPart(look.seen.put, part, 0, {arena_.slot(look.place) + at, bytes})) {
        look.outcome = arena::ReadOutcome::kBad;
      }
      at += bytes;
    }
  }
  return look;
}

bool World::Reachable(const BlockId& block, bool* by_lower_tier) {
  auto above = trees_[block.ns].ParentGroup(block.group);
  BlockId at = block;
  std::uint64_t born = UINT64_MAX;
  // A chain that is longer than the forest is deep goes round.
  for (std::uint32_t depth = 0; depth <= 2 * kMaxDepth; ++depth) {
    Look look = LookAt(at, false);
    if (look.outcome == arena::ReadOutcome::kMiss && by_lower_tier != nullptr && InLowerTier(at)) {
      *by_lower_tier = true;
      if (!above || ParentOf(at.code) == 0) return true;
      at = {block.ns, *above, ParentOf(at.code)};
      continue;
    }
    if (look.outcome != arena::ReadOutcome::kHit || look.seen.put == 0) return false;
    // What hung below another one of this key is being collected (R10).
    if (look.born >= born) return false;
    born = look.born;
    if (look.seen.parent == 0 || !above) return true;
    at = {block.ns, *above, look.seen.parent};
  }
  return false;
}

bool World::DamagedRecord(arena::Place place, std::uint64_t body_bytes) {
  if (IndexDamaged()) return true;  // it may have led to another record of that place
  if (geometry_.offset(place) >= geometry_.slots_bytes()) return false;
  return damage_.Standing(arena_.slot(place),
                          record::TrailerOffset(body_bytes, geometry_.alignment) + geometry_.alignment);
}

bool World::Doubtful(const BlockId& block) {
  return std::ranges::any_of(dropping_, [&](const auto& drop) {
    return drop.first == block.ns && (trees_[block.ns].drop_ends_orphans() || drop.second == 0 ||
                                      model_.Below(block.ns, block.code, drop.second));
  });
}

bool World::Harmed(const BlockId& block) {
  if (IndexDamaged()) return true;
  std::erase_if(harmed_, [this](const Somewhere& at) { return !DamagedRecord(at.place, at.body_bytes); });
  return std::ranges::any_of(harmed_, [&](const Somewhere& at) {
    return at.block.ns == block.ns && model_.Below(block.ns, block.code, at.block.code);
  });
}

// Of a block and all that it hangs below, in every group.
std::uint64_t World::LeastExpiry(std::uint32_t ns, BlockCode code) {
  std::uint64_t least = 0;
  for (BlockCode other = 1; other < kCodes; ++other) {
    if (other % kTreeBlocks == 0 || !model_.Below(ns, code, other)) continue;
    for (std::uint16_t group = 0; group < trees_[ns].groups(); ++group) {
      if (model_.PutsOf({ns, group, other}).empty()) continue;
      Look look = LookAt({ns, group, other}, false);
      if (look.outcome == arena::ReadOutcome::kHit && look.seen.expiry != 0 &&
          (least == 0 || look.seen.expiry < least)) {
        least = look.seen.expiry;
      }
    }
  }
  return least;
}

// ---- leases ----------------------------------------------------------------------------------------------

void World::Granted(LeaseNote& lease, const std::vector<BlockId>& blocks,
                    const std::vector<store::ViewGrant>& views, Moment since) {
  if (views.size() != blocks.size()) Violation("acquire answered with another number of views");
  for (std::size_t i = 0; i < views.size(); ++i) {
    if (views[i].code != Code::kOk) continue;
    Look look = LookAt(blocks[i], true);
    if (Doubtful(blocks[i]) || Harmed(blocks[i])) {
      lease.lapsed = true;
      continue;
    }
    if (look.outcome != arena::ReadOutcome::kHit || look.place != views[i].place ||
        look.generation != views[i].generation || look.seen.body_bytes != views[i].bytes) {
      // What expired meanwhile may have gone at once.
      if (*arena_.generation(views[i].place) != views[i].generation) {
        lease.lapsed = true;
        continue;
      }
      Violation(Text(TextOf(blocks[i]), ": a view of place ", views[i].place,
                     " was granted, and the record is not there"));
    }
    model_.CheckSighting(look.seen, since, 0);
    lease.blocks.push_back({blocks[i], look.place, look.generation, look.seen.put});
    std::uint64_t expiry = LeastExpiry(blocks[i].ns, blocks[i].code);
    if (expiry != 0 && (lease.least_expiry == 0 || expiry < lease.least_expiry)) lease.least_expiry = expiry;
  }
}

void World::RecordHandle(LeaseNote& lease, std::uint32_t ns, const std::vector<BlockCode>& chain) {
  auto group = trees_[ns].first_full;
  if (!group) return;
  for (BlockCode code : chain) {
    // What the chain's end hangs below stays, but where it has a copy on flash it need not stay in memory;
    // nor need the end itself be in memory when it is held.
    if (has_lower_tier() &&
        (code != chain.back() || LookAt({ns, *group, code}, false).outcome == arena::ReadOutcome::kMiss))
      continue;
    BlockId block{ns, *group, code};
    Look look = LookAt(block, false);
    if (Doubtful(block) || Harmed(block)) {
      lease.lapsed = true;
      return;
    }
    if (look.outcome == arena::ReadOutcome::kMiss)
      Violation(Text(TextOf(block), " was held and is not there"));
    if (look.outcome != arena::ReadOutcome::kHit) {
      lease.lapsed = true;
      return;
    }
    lease.blocks.push_back({block, look.place, look.generation, look.seen.put, code != chain.back()});
  }
  lease.least_expiry = LeastExpiry(ns, chain.back());
}

void World::AddLease(LeasePtr lease) { leases_.push_back(std::move(lease)); }

void World::Disturb(std::uint32_t ns, BlockCode code) {
  if (trees_[ns].drop_ends_orphans()) return DisturbAll(ns);
  for (LeasePtr& lease : leases_) {
    if (lease->ns != ns || lease->lapsed) continue;
    lease->lapsed = std::ranges::any_of(
        lease->blocks, [&](const LeasedBlock& block) { return model_.Below(ns, block.block.code, code); });
  }
}

void World::DisturbAll(std::uint32_t ns) {
  for (LeasePtr& lease : leases_) {
    if (lease->ns == ns) lease->lapsed = true;
  }
}

void World::EndLeasesOf(catalog::SessionId session) {
  for (LeasePtr& lease : leases_) {
    if (lease->caller.session == session) lease->released = lease->lapsed = true;
  }
}

bool World::Moved(LeasedBlock& block) {
  if (!block.may_move) return false;
  const Look look = LookAt(block.block, false);
  if (look.outcome != arena::ReadOutcome::kHit || look.seen.put != block.put) return false;
  block.place = look.place;
  block.generation = look.generation;
  return true;
}

void World::CheckLease(LeaseNote& lease) {
  if (lease.lapsed) return;
  if (clock_.Now() >= lease.deadline || (lease.least_expiry != 0 && LatestTime() >= lease.least_expiry)) {
    lease.lapsed = true;
    return;
  }
  for (LeasedBlock& block : lease.blocks) {
    std::uint64_t generation = *arena_.generation(block.place);
    if (generation == block.generation || Moved(block)) continue;
    // A damaged record is nobody's copy to move.
    if (block.may_move && (Doubtful(block.block) || Harmed(block.block))) {
      lease.lapsed = true;
      return;
    }
    // What it hangs below was lost with a device, found bad there, or had no room when its region was given
    // up.
    if (has_lower_tier() && (lease.boot != boots_ || lease.cuts != Cuts())) {
      lease.lapsed = true;
      return;
    }
    Violation(Text(TextOf(block.block), " is leased at place ", block.place, " with generation ",
                   block.generation, " and has generation ", generation));
  }
}

void World::CheckLeases() {
  for (LeasePtr& lease : leases_) CheckLease(*lease);
  if (leases_.size() > 64) {
    std::erase_if(leases_, [this](const LeasePtr& lease) {
      return lease->released || (lease->lapsed && clock_.Now() >= lease->latest_deadline);
    });
  }
}

// ---- over a restart --------------------------------------------------------------------------------------

// What a reader would find now, with all that it hangs below.
void World::RememberWarm() {
  warm_.clear();
  warm_known_ = true;
  std::erase_if(warm_lower_, [this](const LowerBlock& below) { return HarmedAbove(below); });
  for (std::uint32_t ns = 0; ns < trees_.size(); ++ns) {
    for (BlockCode code = 1; code < kCodes; ++code) {
      for (std::uint16_t group = 0; group < trees_[ns].groups(); ++group) {
        BlockId block{ns, group, code};
        if (model_.PutsOf(block).empty()) continue;
        Look look = LookAt(block, false);
        if (look.outcome != arena::ReadOutcome::kHit || look.seen.put == 0) continue;
        bool by_lower_tier = false;
        if (!Reachable(block, warm_lower_.empty() ? nullptr : &by_lower_tier)) continue;
        by_lower_tier |= has_lower_tier() && PartlyInLowerTier(block);
        // A damaged record of another group is cut where a start's write-back finds it, with this one.
        const bool damaged = damage_.Standing(arena_.directory(look.place), sizeof(arena::DirectoryEntry)) ||
                             HarmedRecordAbove(ns, code);
        warm_.push_back({block, look.seen.put, look.place, look.seen.body_bytes, look.seen.expiry,
                         by_lower_tier, damaged});
      }
    }
  }
}

void World::CheckWarm(SimNode& node) {
  auto damaged = [this](const Warm& warm) {
    return warm.damaged || DamagedRecord(warm.place, warm.body_bytes);
  };
  for (const Warm& warm : warm_) {
    Look look = LookAt(warm.block, false);
    if (look.outcome == arena::ReadOutcome::kHit && look.seen.put == warm.put) continue;
    bool excused = Doubtful(warm.block);
    // As for what lies on flash alone (CheckWarmLower).
    if (warm.by_lower_tier) excused |= TierMayHaveLost(node);
    for (const Warm& other : warm_) {
      if (excused || other.block.ns != warm.block.ns) continue;
      if (!model_.Below(warm.block.ns, warm.block.code, other.block.code)) continue;
      excused = damaged(other) || (other.expiry != 0 && LatestTime() >= other.expiry);
    }
    if (!excused) {
      Violation(Text(TextOf(warm.block), " put ", warm.put, " at place ", warm.place,
                     " did not survive the restart: of ", warm_.size(), " records ",
                     node.store().counters().recovered.value(), " came back and ",
                     node.store().counters().recovery_refused.value(), " were refused, ",
                     node.store().counters().recovery_dropped.value(), " dropped"));
    }
  }
  warm_.clear();
  // And nothing else may come any more of what was under way.
  for (std::uint32_t ns = 0; ns < trees_.size(); ++ns) {
    for (BlockCode code = 1; code < kCodes; ++code) {
      for (std::uint16_t group = 0; group < trees_[ns].groups(); ++group) {
        const std::vector<PutNo>& puts = model_.PutsOf({ns, group, code});
        if (puts.empty()) continue;
        Look look = LookAt({ns, group, code}, false);
        if (look.outcome == arena::ReadOutcome::kBad) continue;
        // One whose parent is nowhere may just be collected, for its parent could not be written down: at
        // rest it is looked at again.
        if (look.outcome == arena::ReadOutcome::kHit) (void)AuditParent({ns, group, code}, look);
        // The media may hold what did not count this time, for a parent that was not found, say, and will.
        if (has_lower_tier()) continue;
        for (PutNo put : puts) {
          if (look.outcome != arena::ReadOutcome::kHit || look.seen.put != put) model_.Absent(put);
        }
      }
    }
  }
}

// ---- at rest ---------------------------------------------------------------------------------------------

std::optional<BlockId> World::BlockOf(const record::SealView& seal) {
  for (std::uint32_t ns = 0; ns < trees_.size(); ++ns) {
    if (incarnations_[ns] == 0 || index_.header()->incarnations[slots_[ns]] != seal.incarnation()) continue;
    if (seal.group() >= trees_[ns].groups()) continue;
    for (BlockCode code = 1; code < kCodes; ++code) {
      if (seal.HasKey(KeyOf(ns, code))) return BlockId{ns, seal.group(), code};
    }
  }
  return std::nullopt;
}

bool World::AuditParent(const BlockId& block, const Look& look) {
  auto group = trees_[block.ns].ParentGroup(block.group);
  if (!group || look.seen.parent == 0) return true;
  BlockId parent{block.ns, *group, look.seen.parent};
  Look above = LookAt(parent, false);
  if (above.outcome == arena::ReadOutcome::kMiss) {
    if (InLowerTier(parent)) return true;
    if (has_lower_tier()) return false;
    Violation(Text(TextOf(block), " is there at rest and its parent is not"));
  }
  if (above.outcome == arena::ReadOutcome::kHit && above.born >= look.born) {
    Violation(Text(TextOf(block), " was born at ", look.born, " and its parent at ", above.born));
  }
  return true;
}

// Every entry leads to a record that proves it, whose parent is there.
std::uint64_t World::AuditIndex(bool* settled) {
  std::uint64_t entries = 0;
  for (std::uint64_t number = 0; number < index_.entry_count(); ++number) {
    const arena::IndexEntry* entry = index_.entry(number);
    if (entry->fingerprint[0] == 0) continue;
    entries++;
    auto place = static_cast<arena::Place>(entry->place_and_bytes >> 32);
    auto bytes = static_cast<std::uint32_t>(entry->place_and_bytes);
    auto slot = arena::CheckPlace(plain_, arena_, place, bytes);
    if (!slot) Violation(Text("entry ", number, " leads to place ", place, ", which is no slot"));
    std::uint64_t generation = *arena_.generation(place);
    if (generation % 2 != 0 ||
        (generation & arena::kGenerationLowMask) != ((entry->rest >> 8) & arena::kGenerationLowMask)) {
      Violation(Text("entry ", number, " is of another generation than place ", place, " has, ", generation));
    }
    if (DamagedRecord(place, bytes)) continue;
    auto seal = record::CheckSeal({arena_.slot(place) + slot->trailer_offset, slot->trailer_room});
    if (!seal)
      Violation(Text("the record at place ", place, " has no seal: ", record::FaultText(seal.error())));
    auto block = BlockOf(*seal);
    if (!block) Violation(Text("the record at place ", place, " is of no block that is known"));
    Look look = LookAt(*block, true);
    if (look.outcome != arena::ReadOutcome::kHit || look.place != place) {
      Violation(Text(TextOf(*block), " is in the index for place ", place, " and cannot be read from there"));
    }
    if (arena::DirectoryCrc(*arena_.directory(place), place) != arena_.directory(place)->crc &&
        !damage_.Standing(arena_.directory(place), sizeof(arena::DirectoryEntry))) {
      Violation(Text(TextOf(*block), " has no directory entry at place ", place));
    }
    model_.CheckSighting(look.seen, model_.Now(), ticked_wall_);
    *settled &= AuditParent(*block, look);
  }
  return entries;
}

bool World::Audit(SimNode& node) {
  audits_++;
  store::BlockStore::Occupancy occupancy = node.store().occupancy();
  most_blocks_ = std::max(options_.max_blocks, std::min(most_blocks_, occupancy.records));
  if (options_.max_blocks != 0 && occupancy.records > most_blocks_) {
    Violation(Text(occupancy.records, " records, the limit is ", options_.max_blocks, " and there were ",
                   most_blocks_));
  }
  if (occupancy.pending > options_.max_pending)
    Violation(Text(occupancy.pending, " puts are pending, the limit is ", options_.max_pending));
  if (occupancy.leases > options_.max_leases)
    Violation(Text(occupancy.leases, " leases, the limit is ", options_.max_leases));
  if (occupancy.leased_blocks > options_.max_leased_blocks)
    Violation(Text(occupancy.leased_blocks, " leased blocks"));
  if (occupancy.tombstones > options_.max_tombstones) Violation(Text(occupancy.tombstones, " tombstones"));
  std::uint64_t leases = 0;
  // What has come to an end since the last tick began may be there still: the tick itself takes time.
  for (const LeasePtr& lease : leases_) leases += !lease->released && node.ticked() < lease->latest_deadline;
  if (occupancy.leases > leases) Violation(Text(occupancy.leases, " leases live, clients have ", leases));
  for (const auto& [at, generation] : std::exchange(reported_, {})) {
    if (*arena_.generation(at.place) != generation || !BodyDamaged(at.place, at.body_bytes)) continue;
    Violation(
        Text(TextOf(at.block), " at place ", at.place, " was reported bad, is bad, and is still there"));
  }
  if (IndexDamaged()) return true;
  bool settled = true;
  std::uint64_t entries = AuditIndex(&settled);
  if (entries != occupancy.records)
    Violation(Text(entries, " entries in the index, ", occupancy.records, " records"));
  std::uint64_t whole = 0;
  std::string where;
  for (std::uint32_t head = 0; head < geometry_.header_count; ++head) {
    const arena::ChunkHeader& chunk = *arena_.header(head);
    for (std::uint32_t unit = 0; unit < arena::kUnitsPerHeader; ++unit) {
      if (chunk.generations[unit] == 0 || chunk.generations[unit] % 2 != 0) continue;
      whole++;
      const arena::DirectoryEntry& entry = chunk.directory[unit];
      where += Text(" ", head, ":", unit, chunk.carve % 2 == 0 ? "" : "(not carved)", " slot_bytes ",
                    chunk.slot_bytes, " part_of ", chunk.part_of, " gen ", chunk.generations[unit],
                    " entry gen ", entry.generation, " crc ok ",
                    arena::DirectoryCrc(entry, geometry_.place(head * arena::kHeaderSpanBytes +
                                                               unit * arena::kUnitBytes)) == entry.crc,
                    ", boots ", boots_, " seeds ", node_seeds_, ";");
    }
  }
  // Of what passes through, the first segments may be on their way still.
  if (whole < entries || whole > entries + occupancy.partial_copies)
    Violation(Text(whole, " slots are whole, ", entries, " are in the index, ", occupancy.partial_copies,
                   " blocks pass through:", where));
  std::uint64_t used = node.slots().counts().used_slots;
  // Slots that something is read into from below are in use too, until nothing is under way any more.
  if (used > entries + occupancy.pending && (!has_lower_tier() || node.closed()))
    Violation(Text(used, " slots are in use for ", entries, " records and ", occupancy.pending, " puts"));
  unsettled_ = settled ? 0 : unsettled_ + 1;
  if (unsettled_ > 200) Violation("blocks are there at rest whose parents are nowhere");
  return settled;
}

}  // namespace cistern::storm
