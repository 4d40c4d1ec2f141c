// SPDX-License-Identifier: Apache-2.0
// Regions are given up whole (R9): what policy keeps is moved first, leaves before what they descend from are
// let go, and what cannot be kept is cut. Only then is the region free.
#include <algorithm>

#include "record/seal.h"
#include "store/impl.h"
#include "store/lower_bytes.h"

namespace cistern {

namespace {
constexpr std::uint64_t kMoveBytes = 4u << 20;  // read and written again at a time

}  // namespace

void BlockStore::Impl::StartReclaim() {
  if (tier_ == nullptr || reclaiming_ || lower_.closed()) return;
  const bool crowded = journal_.tombstones() > options_.max_tombstones / 4 * 3;
  if (!tier_->WantsReclaim() && !crowded) return;
  reclaiming_ = true;
  lower_.Spawn(Reclaim());
}

Task<void> BlockStore::Impl::Reclaim() {
  const std::uint64_t begun = devices_lost_;
  co_await Yield();
  const auto victim = tier_->TakeVictim();
  if (victim) {
    counters_.reclaimed.Add();
    Status status;
    auto entries = co_await tier_->Entries(*victim);
    if (entries) {
      co_await Evacuate(*entries);
    } else {
      log_.Log(LogLevel::kWarning, "flash region ", *victim, ": ", entries.error().message(),
               "; what it holds is given up");
    }
    // Who is not in the table, or did not fit elsewhere.
    if (tier_->live_bytes(*victim) > 0) co_await ForgetRegions(*victim, *victim + 1);
    if (tier_->live_bytes(*victim) > 0) {
      tier_->GiveBack(*victim);  // an append that has just ended is not known above yet
    } else {
      status = co_await tier_->Release(*victim);
      if (!status.ok()) log_.Log(LogLevel::kError, "flash region ", *victim, ": ", status.message());
    }
    if (status.ok()) co_await EndTombstones();
  }
  // Where a device went meanwhile, another one has begun.
  if (begun == devices_lost_) reclaiming_ = false;
  if (victim && tier_->WantsReclaim()) StartReclaim();
  StartWriters();
}

// Children come after their parents in a table; from its end on, what goes makes leaves of what is above it.
Task<void> BlockStore::Impl::Evacuate(const std::vector<FlashEntry>& entries) {
  std::uint64_t moved = 0, gathered = 0;
  std::vector<const FlashEntry*> keep;
  for (std::size_t i = entries.size(); i-- > 0;) {
    if (Spent()) co_await Yield();
    const FlashEntry& entry = entries[i];
    // Whether it is here cannot be told while much is being collected.
    while (tree_.collecting()) {
      Collect();
      co_await Yield();
    }
    const auto [block, copy] = FindOnFlash(entry);
    if (block == kNoId) continue;
    Count(2);
    if (copy.in_memory) {
      // Still here: it is written again when its turn comes.
      Record& r = tree_.record(copy.record);
      ForgetFlash(tree_.block(block).realm, copy);
      r.flash = {};
      const LowerPolicy lower = LowerOf(r);
      if (lower.write != WritePolicy::kBack && Wanted(lower, r.uses)) WantBelow(copy.record);
      continue;
    }
    if (copy.record != kNoId) EndPassageIfIdle(copy.record);
    const Block& b = tree_.block(block);
    const bool below = b.first_child != kNoId || pending_.NextBelow(b.realm, b.tag(), kNoId) != kNoId;
    const bool held = copy.record != kNoId && tree_.record(copy.record).holds > 0;
    const LastCopy last{.used = copy.touched, .has_below = below, .held = held, .bytes = entry.record_bytes};
    if (Expired(copy.expiry, NowS())) {
      Cut(block, Reason::kExpired);
    } else if (KeptAtReclaim(last, moved + gathered, tier_->region_bytes())) {
      gathered += entry.record_bytes;
      keep.push_back(&entry);
    } else if (below || held) {
      // There is no room for what many descend from: they go with it.
      counters_.cut_at_reclaim.Add();
      Cut(block, Reason::kNoRoom);
    } else {
      counters_.evicted_below.Add();
      Remove(tree_.Take(block, entry.group));
    }
    if (gathered < kMoveBytes) continue;
    moved += gathered;
    gathered = 0;
    co_await MoveRecords(keep);
    keep.clear();
  }
  // Parents first on the media as well, should that be all that a restart finds.
  std::ranges::reverse(keep);
  co_await MoveRecords(keep);
}

std::pair<BlockId, Tree::Copy> BlockStore::Impl::FindOnFlash(const FlashEntry& entry) {
  const RealmId realm = RealmOfIncarnation(entry.incarnation);
  if (realm == kNoId) return {kNoId, {}};
  const BlockId block = Find(realm, entry.key);
  if (block == kNoId) return {kNoId, {}};
  const auto copy = tree_.See(block, entry.group);
  if (!copy || copy->flash != entry.place) return {kNoId, {}};
  return {block, *copy};
}

Task<void> BlockStore::Impl::MoveRecords(const std::vector<const FlashEntry*>& keep) {
  for (std::size_t first = 0; first < keep.size();) {
    std::size_t count = 0;
    std::uint64_t bytes = 0;
    while (first + count < keep.size() && count < kBatchRecords &&
           (count == 0 || bytes + keep[first + count]->record_bytes <= kMoveBytes)) {
      bytes += keep[first + count++]->record_bytes;
      Count();
    }
    co_await MoveBatch(std::span(keep).subspan(first, count), bytes);
    first += count;
  }
}

Task<void> BlockStore::Impl::MoveBatch(std::span<const FlashEntry* const> keep, std::uint64_t bytes) {
  const AlignedBytes buffer(bytes);
  std::deque<DownItem> items;
  std::vector<const FlashEntry*> from;
  std::uint64_t at = 0;
  for (const FlashEntry* entry : keep) {
    if (Spent()) co_await Yield();
    const std::span<std::byte> into = buffer.span().subspan(at, entry->record_bytes);
    at += entry->record_bytes;
    auto fetched = co_await tier_->Fetch(entry->place, into);
    if (!fetched || !fetched->seal.HasKey(entry->key) || fetched->seal.incarnation() != entry->incarnation ||
        fetched->seal.group() != entry->group) {
      continue;  // it is forgotten with the region
    }
    DownItem& item = items.emplace_back();
    from.push_back(entry);
    const SealView& seal = fetched->seal;
    item.seal.emplace(seal);
    item.outgoing = {.body = into.data(),
                     .seal = item.seal->seal(),
                     .born = fetched->stamp.born,
                     .expiry = fetched->stamp.expiry,
                     .conversation = conversations_.Of(RealmOfIncarnation(seal.incarnation()), seal.key())};
  }
  co_await Yield();
  // In one step with the append: what was dropped meanwhile is not written with a number that its tombstone
  // does not wait for (R10).
  std::vector<Outgoing> batch;
  std::vector<const FlashEntry*> moving;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (FindOnFlash(*from[i]).first == kNoId) continue;
    items[i].outgoing.sequence = sequence_++;
    batch.push_back(items[i].outgoing);
    moving.push_back(from[i]);
  }
  if (batch.empty()) co_return;
  auto places = co_await tier_->Append(batch, Tier::Purpose::kMove);
  for (std::size_t i = 0; places && i < moving.size(); ++i) {
    if (Spent()) co_await Yield();
    Moved(*moving[i], (*places)[i]);
  }
}

void BlockStore::Impl::Moved(const FlashEntry& entry, FlashPlace to) {
  Count(2);
  const auto [block, copy] = FindOnFlash(entry);
  if (block == kNoId) {
    tier_->Forget(to, entry.record_bytes);  // it went, or was written anew, meanwhile
    return;
  }
  if (tier_->EstimateUs(to, 1) == Tier::kNever) return;  // it went in this very moment
  counters_.moved_below.Add();
  tier_->Forget(entry.place, entry.record_bytes);
  tree_.SetFlash(block, entry.group, to);  // and not used there yet
  if (copy.record != kNoId) tree_.Fold(copy.record);
}

// A device that went takes its blocks along: those that are nowhere else are cut. Looks at every block, in
// steps; ids that are made meanwhile are not of a region that is not written to any more.
Task<void> BlockStore::Impl::ForgetRegions(std::uint32_t first, std::uint32_t last) {
  const auto there = [&](const FlashPlace& place) {
    return !place.none() && place.region >= first && place.region < last;
  };
  for (BlockId id = 0; id < tree_.block_end(); ++id) {
    if (Spent()) co_await Yield();
    Count();
    const Tag tag = tree_.block(id).tag();
    for (std::uint16_t group = 0; group < kMaxGroups; ++group) {
      // It may be gone with its last group.
      if (!tree_.block(id).has_key() || tree_.block(id).is(Block::kCut) || tree_.block(id).tag() != tag)
        break;
      const auto copy = tree_.See(id, group);
      Count();
      if (!copy || !there(copy->flash)) continue;
      if (copy->in_memory) {
        ForgetFlash(tree_.block(id).realm, *copy);
        tree_.record(copy->record).flash = {};
        continue;
      }
      counters_.lost_below.Add();
      if (copy->record != kNoId) EndPassageIfIdle(copy->record);
      const bool held = copy->record != kNoId && tree_.record(copy->record).holds > 0;
      if (held || tree_.block(id).first_child != kNoId) {
        Cut(id, Reason::kNoRoom);
      } else {
        Remove(tree_.Take(id, group));
      }
    }
  }
  while (Collect()) co_await Yield();
}

// Whoever waits for a transfer there may wait forever: others take their places.
void BlockStore::Impl::DeviceOut(std::uint32_t first, std::uint32_t last) {
  ++devices_lost_;
  writers_ = 0;
  writing_ = writing_bytes_ = 0;
  reclaiming_ = false;
  if (recovering_) {
    lost_.push_back({first, last});
  } else if (!lower_.closed()) {
    lower_.Spawn(DeviceLost(first, last));
  }
}

Task<void> BlockStore::Impl::DeviceLost(std::uint32_t first, std::uint32_t last) {
  co_await Yield();
  co_await EndPassages(true);  // who waits for one of these may wait forever
  co_await ForgetRegions(first, last);
  tier_->Forgotten(first);
  co_await EndTombstones();
}

RealmId BlockStore::Impl::RealmOfIncarnation(std::uint64_t incarnation) const {
  const auto found = realm_of_.find(incarnation);
  return found == realm_of_.end() ? kNoId : found->second;
}

// A tombstone is needed as long as something older may be found on the media; for a device that is gone it is
// not kept, which the journal has to say first.
Task<void> BlockStore::Impl::EndTombstones() {
  if (ending_tombstones_) co_return;
  ending_tombstones_ = true;
  // Again where one went out meanwhile: the oldest is asked for in the step in which the journal is right.
  while (tier_ != nullptr && tier_->device_ids() != journaled_devices_) {
    std::vector<std::uint64_t> ids = tier_->device_ids();
    const Status status = co_await journal_.PutDevices(ids);
    if (!status.ok()) {
      ending_tombstones_ = false;
      co_return;
    }
    journaled_devices_ = std::move(ids);
  }
  const std::uint64_t oldest = tier_ == nullptr ? UINT64_MAX : tier_->oldest_sequence();
  while (!collected_tombstones_.empty() && *collected_tombstones_.begin() < oldest) {
    if (Spent()) co_await Yield();
    Count();
    journal_.EndTombstone(*collected_tombstones_.begin());
    collected_tombstones_.erase(collected_tombstones_.begin());
  }
  ending_tombstones_ = false;
}

}  // namespace cistern
