// SPDX-License-Identifier: Apache-2.0
#include "residency/lower_records.h"

#include "policy/placement.h"

namespace cistern::residency {

Task<bool> LowerRecords::Keep(const tier::TierEntry& entry, std::uint64_t kept_bytes,
                              std::uint64_t room_bytes) {
  if (context_.steps.Spent()) co_await Yield();
  // A block's standing cannot be told while much is being collected.
  while (context_.forest.collecting()) {
    owner_.Collect();
    co_await Yield();
  }
  const auto [block, copy] = FindThere(entry);
  if (block == catalog::kNoId) co_return false;
  context_.steps.Count(2);
  // What a quota reserves moves as long as it is there: it may be all that a room holds.
  const bool expired = context_.catalog.Expired(copy.expiry);
  const bool reserved = Reserved(context_.catalog.GroupOf(context_.forest.block(block).tree));
  if (reserved && !expired && kept_bytes + entry.record_bytes <= room_bytes) co_return true;
  if (copy.in_memory) {
    const bool fits = kept_bytes + entry.record_bytes <= room_bytes / 8 * 7;
    if (memory_goes_ && fits && !expired) co_return true;
    GiveUpCopy(block, copy, Why::kNoRoom);
    co_return false;
  }
  if (copy.record != catalog::kNoId) partial_copies_.EndIfIdle(copy.record);
  const catalog::Block& b = context_.forest.block(block);
  const bool descendants =
      b.first_child != catalog::kNoId ||
      context_.pending.NextChildOf(b.tree, b.key_hash(), catalog::kNoId) != catalog::kNoId;
  const bool leased = copy.record != catalog::kNoId && context_.forest.record(copy.record).references > 0;
  const policy::LastCopy last{
      .used = copy.touched, .has_descendants = descendants, .leased = leased, .bytes = entry.record_bytes};
  if (expired) {
    owner_.Lose(block, LossReason::kExpired);
  } else if (policy::KeptAtReclaim(last, kept_bytes, room_bytes)) {
    co_return true;
  } else if (descendants || leased) {
    // The tier has no room for a block with descendants: they are lost with it.
    context_.counters.cut_at_reclaim.Add();
    owner_.Lose(block, LossReason::kNoRoom);
  } else {
    context_.counters.evicted_below.Add();
    ++context_.catalog.counted().At(b.tree).evicted;
    context_.catalog.gone().Note(b.key_hash(), catalog::WentBy::kEvicted);
    removal_.Remove(context_.forest.Take(block, entry.group));
  }
  co_return false;
}

void LowerRecords::GiveUpCopy(catalog::BlockId block, const catalog::Forest::Copy& copy, Why why) {
  ++gave_up_;
  lower_.Forget(context_.forest.block(block).tree, copy);
  context_.forest.record(copy.record).location = {};
  if (memory_goes_) {
    write_back_.Want(copy.record);
  } else if (why == Why::kLost) {
    write_back_.NoteLost(copy.record);
  } else {
    write_back_.NoteGivenUp(copy.record);
  }
}

// A quota counts bodies, and records may take twice as much: what a reserve keeps beyond what the tier can
// keep for ever would be moved for ever.
bool LowerRecords::Reserved(policy::QuotaGroup group) {
  const policy::QuotaTable& quotas = context_.options.quotas;
  const catalog::CountersOfNamespaces& counted = context_.catalog.counted();
  return quotas.ReservedBelow(group, counted.below()) &&
         counted.records_below()[group] <= quotas.ReservableBelow(group, lower_->reservable_bytes());
}

// A step cannot tell of all that it is asked for what is being collected. What moves meanwhile keeps its
// number: if it is among that, its tombstone waits for it (R10).
std::optional<tier::MoveStamp> LowerRecords::StampOf(const tier::TierEntry& entry) {
  if (FindThere(entry).first == catalog::kNoId) return std::nullopt;
  return tier::MoveStamp{
      .sequence = context_.forest.collecting() ? entry.sequence : context_.sequences.Next(),
      .conversation =
          context_.conversations.Of(context_.catalog.TreeOfIncarnation(entry.incarnation), entry.key)};
}

void LowerRecords::Moved(const tier::TierEntry& entry, tier::Location to) {
  context_.steps.Count(2);
  const auto [block, copy] = FindThere(entry);
  if (block == catalog::kNoId) {
    lower_->Forget(to, entry.record_bytes);  // the record was removed or written anew during the move
    return;
  }
  if (lower_->EstimateUs(to, 1) == tier::Tier::kNever) return;  // the device left service in this very step
  context_.counters.moved_below.Add();
  lower_->Forget(entry.location, entry.record_bytes);
  context_.forest.SetLocation(block, entry.group, to);  // the record was not used at this location yet
  if (copy.record != catalog::kNoId) context_.forest.Fold(copy.record);
}

// Every block is looked at, in steps. Blocks added during the walk have no record in the range: it takes no
// writes any more.
Task<void> LowerRecords::LoseAll(tier::LocationRange range, Why why) {
  for (catalog::BlockId id = 0; id < context_.forest.block_end(); ++id) {
    if (context_.steps.Spent()) co_await Yield();
    context_.steps.Count();
    const catalog::KeyHash key_hash = context_.forest.block(id).key_hash();
    for (std::uint16_t group = 0; group < kMaxGroups; ++group) {
      if (context_.steps.Spent()) co_await Yield();
      // The block may have been freed with its last group's record.
      if (!context_.forest.block(id).has_key() || context_.forest.block(id).is(catalog::Block::kCut) ||
          context_.forest.block(id).key_hash() != key_hash) {
        break;
      }
      const auto copy = context_.forest.See(id, group);
      context_.steps.Count();
      if (!copy || !range.contains(copy->location)) continue;
      if (copy->in_memory) {
        GiveUpCopy(id, *copy, why);
        continue;
      }
      removal_.Lose(id, group, *copy);
    }
  }
  while (owner_.Collect()) co_await Yield();
}

Task<void> LowerRecords::Reclaimed() {
  co_await tombstones_.End();
  write_back_.Start();
}

// Writers that wait for a transfer of this device may wait for ever: others take their places.
void LowerRecords::DeviceOut(tier::LocationRange range) {
  lower_.NoteOut();
  write_back_.DeviceOut();
  if (recovering_) {
    lost_.push_back(range);
  } else if (!lower_.closed()) {
    Lost(range);
  }
}

void LowerRecords::Lost(tier::LocationRange range) {
  ++losing_;
  lower_.Spawn(MediumLost(range));
}

void LowerRecords::Recovered() {
  recovering_ = false;
  for (const tier::LocationRange& range : lost_) Lost(range);
  lost_.clear();
}

std::pair<catalog::BlockId, catalog::Forest::Copy> LowerRecords::FindThere(const tier::TierEntry& entry) {
  const catalog::TreeId tree = context_.catalog.TreeOfIncarnation(entry.incarnation);
  if (tree == catalog::kNoId) return {catalog::kNoId, {}};
  context_.steps.Count();
  const catalog::BlockId block = context_.forest.Find(tree, entry.key);
  if (block == catalog::kNoId) return {catalog::kNoId, {}};
  const auto copy = context_.forest.See(block, entry.group);
  if (!copy || copy->location != entry.location) return {catalog::kNoId, {}};
  return {block, *copy};
}

Task<void> LowerRecords::MediumLost(tier::LocationRange range) {
  co_await Yield();
  co_await partial_copies_.EndAll(true);  // their reads may wait for the device for ever
  co_await LoseAll(range, Why::kLost);
  --losing_;
  lower_->Forgotten(range);
  co_await tombstones_.End();
}

}  // namespace cistern::residency
