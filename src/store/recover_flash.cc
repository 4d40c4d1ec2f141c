// SPDX-License-Identifier: Apache-2.0
// What comes back from flash: what its tables say, as far as the journal knows its namespaces, beside what
// memory still holds. Of two records of a block the one with the higher sequence counts (R11); the same one
// in memory and on flash is one. Whether it is reachable and was not dropped is judged with the rest.
#include <algorithm>

#include "store/impl.h"
#include "store/revival.h"

namespace cistern {

Task<Status> BlockStore::Impl::OpenTier(Revival& revival) {
  if (!open_tier_) co_return Status();
  std::vector<std::uint64_t> known = revival.journal.devices;
  if (revival.journal.damaged) known.clear();
  auto tier = co_await open_tier_(journal_.id(), std::move(known));
  if (!tier) co_return std::move(tier.error());
  tier_ = std::move(*tier);
  tier_->set_on_device_out([this](std::uint32_t first, std::uint32_t last) { DeviceOut(first, last); });
  lower_.Spawn(TickTier());
  co_return Status();
}

// A device that hangs must not keep the start waiting.
Task<void> BlockStore::Impl::TickTier() {
  constexpr std::int64_t kTickUs = 100'000;
  while (recovering_ && !lower_.closed()) {
    const Status slept = co_await SleepUntil(clock_.Now().PlusUs(kTickUs));
    CISTERN_ASSERT(slept.ok());
    if (recovering_) tier_->Tick();
  }
}

Task<void> BlockStore::Impl::AdmitAll(Revival& revival, std::span<const FlashEntry> found) {
  constexpr std::size_t kAhead = 8;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (Spent()) co_await Yield();
    if (i + kAhead < found.size()) {
      const FlashEntry& later = found[i + kAhead];
      const auto realm = revival.realms.find(later.incarnation);
      if (realm != revival.realms.end()) tree_.PrefetchBucket(TagOf(realm->second, later.key));
    }
    Count(2);
    AdmitFlash(revival, found[i]);
  }
}

Task<Status> BlockStore::Impl::ScanFlash(Revival& revival) {
  co_return co_await tier_->Recover(
      [this, &revival](std::span<const FlashEntry> found) { return AdmitAll(revival, found); });
}

void BlockStore::Impl::AdmitFlash(Revival& revival, const FlashEntry& found) {
  revival.last_below = std::max({revival.last_below, found.sequence, found.born});
  const auto known = revival.realms.find(found.incarnation);
  const auto refuse = [&] { counters_.recovery_refused.Add(); };
  if (revival.journal.damaged || known == revival.realms.end() || Expired(found.expiry, NowS()))
    return refuse();
  const RealmId realm = known->second;
  const NamespaceEntry& entry = *EntryOf(realm);
  if (found.group >= entry.groups.size() || entry.groups[found.group].parts() != found.parts ||
      (entry.groups[found.group].body_bytes != 0 &&
       entry.groups[found.group].body_bytes != found.body_bytes) ||
      RecordBytesOf(entry, found.group, found.body_bytes) != found.record_bytes) {
    return refuse();
  }
  const Tag tag = TagOf(realm, found.key);
  BlockId block = tree_.Find(realm, found.key, tag);
  if (block == kNoId) {
    block = AddBlock(realm, tag, kNoId);
    if (block == kNoId) return refuse();
    revival.parents[block] = Revival::ParentTag(realm, found.parent);
  } else if (revival.parents[block] != Revival::ParentTag(realm, found.parent)) {
    return refuse();
  }
  const auto copy = tree_.See(block, found.group);
  if (copy && copy->in_memory) {
    Record& r = tree_.record(copy->record);
    // Its namesake of another put: which of the two was dropped, or lost, the sequence says.
    if (r.born != found.born && revival.sequences[copy->record] > found.sequence) return refuse();
    if (r.born == found.born && r.on_flash() && revival.placed_records[copy->record] > found.sequence) {
      return refuse();
    }
    if (r.born != found.born) {
      Retire(words_, slots_.arena(), r.place);
      slots_.Free(r.place);
      bytes_ -= r.body_bytes;
      --resident_;
      r.place = kNowhere;
      r.born = found.born;
      r.body_bytes = found.body_bytes;
      r.expiry = found.expiry;
      r.after_drop = Record::kDropUnknown;
    }
    r.flash = found.place;
    revival.placed_records[copy->record] = found.sequence;
    return;
  }
  if (copy && copy->record == kNoId) {
    if (revival.placed[block] > found.sequence) return refuse();
    tree_.ForgetFolded(block);
  } else if (copy) {
    if (revival.placed_records[copy->record] > found.sequence) return refuse();
    tree_.RemoveRecord(copy->record);
  }
  // A block of several groups is not folded: then each of its records knows when it was born.
  const bool was_folded = tree_.block(block).folded();
  const std::uint64_t other_born = was_folded ? revival.born[block] : 0;
  const std::uint64_t other_placed = was_folded ? revival.placed[block] : 0;
  const std::uint16_t other_group = tree_.block(block).group;
  tree_.PutOnFlash(block, found.group, static_cast<std::uint8_t>(found.parts - 1), found.body_bytes,
                   found.expiry, found.place);
  if (was_folded) {
    const RecordId other = tree_.FindRecord(block, other_group);
    tree_.record(other).born = other_born;
    revival.placed_records[other] = other_placed;
  }
  if (tree_.block(block).folded()) {
    revival.born[block] = found.born;
    revival.placed[block] = found.sequence;
  } else {
    const RecordId record = tree_.FindRecord(block, found.group);
    tree_.record(record).born = found.born;
    revival.placed_records[record] = found.sequence;
  }
  if (found.conversation != 0) conversations_.Wrote(realm, found.key, found.parent, found.conversation);
}

void BlockStore::Impl::AdoptFlash(RealmId realm, const Tree::Copy& copy) {
  tier_->Adopt(copy.flash, RecordBytesOf(realm, copy.group, copy.body_bytes));
}

}  // namespace cistern
