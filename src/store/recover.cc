// SPDX-License-Identifier: Apache-2.0
// What comes back after a restart: what the heads believe, of a current incarnation, not expired, whose
// parent came back and was born before it, and that no tombstone above it is younger than (R10, R11).
// Everything else is retired here, before anybody can ask. Each pass goes over all blocks in order and
// fetches ahead, because a million blocks are a million cache misses a pass otherwise.
#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/impl.h"
#include "store/revival.h"

namespace cistern {

namespace {
constexpr std::size_t kBatch = 128;
constexpr std::size_t kWave = 16;
constexpr std::uint32_t kAhead = 8;
constexpr std::uint64_t kClearAStep = 4096;  // entries, in order: each costs a fraction of a touch
}  // namespace

Task<Status> BlockStore::Impl::Recover() {
  auto contents = co_await journal_.Open();
  if (!contents) co_return std::move(contents.error());
  Revival revival(*this, std::move(*contents));
  if (revival.journal.damaged) {
    log_.Log(LogLevel::kWarning,
             "journal: damaged before its end; what memory and flash held is not believed");
  }
  AdvanceTime(words_, slots_.arena(), revival.journal.time_s);
  if (Status status = co_await OpenTier(revival); !status.ok()) co_return status;
  co_await ClearIndex();
  for (NamespaceEntry& entry : revival.journal.namespaces) {
    // A list may have 64 KiB.
    co_await Yield();
    if (realms_.size() <= entry.slot) realms_.resize(entry.slot + 1, kNoId);
    realms_[entry.slot] = tree_.AddRealm(entry.slot, entry.incarnation);
    revival.realms[entry.incarnation] = realm_of_[entry.incarnation] = realms_[entry.slot];
    names_.Put(entry);
  }
  co_await Scan(revival);
  if (tier_ != nullptr) {
    if (Status status = co_await ScanFlash(revival); !status.ok()) co_return status;
  }
  for (NoteId from = 0;;) {
    std::uint32_t budget = kSpentTouches / 2;
    const bool more = conversations_.RelateSome(&from, &budget);
    Count(kSpentTouches / 2 - budget);
    if (!more) break;
    co_await Yield();
  }
  const Recovery::Counts& counts = revival.recovery.counts();
  sequence_ = std::max({revival.journal.sequences_below, counts.last_sequence + 1, counts.last_born + 1,
                        revival.last_below + 1});
  co_await LinkParents(revival);
  co_await FindDropped(revival);
  co_await KeepReachable(revival);
  co_await Refuse(revival);
  slots_.EndAdoption();
  co_await FillIndex(revival);
  counters_.recovered.Add(resident_);
  if (Status status = co_await SettleNames(revival); !status.ok()) co_return status;
  if (tier_ != nullptr) co_await WantAllBelow(revival);
  recovering_ = false;
  for (const auto& [first, last] : lost_) lower_.Spawn(DeviceLost(first, last));
  lost_.clear();
  co_return Status();
}

// What was dropped, and below what: orphans may descend from anything that was.
Task<void> BlockStore::Impl::FindDropped(Revival& revival) {
  for (const Tombstone& tombstone : revival.journal.tombstones) {
    Count();
    if (Spent()) co_await Yield();
    const auto realm = revival.realms.find(tombstone.incarnation);
    if (realm == revival.realms.end()) continue;
    const auto note = [&](std::unordered_map<BlockId, std::uint64_t>& drops, BlockId block) {
      if (block != kNoId) drops[block] = std::max(drops[block], tombstone.sequence);
    };
    note(revival.dropped, Find(realm->second, tombstone.key));
    note(revival.orphaned, tree_.realm(realm->second)->orphans);
  }
}

// What a reboot would lose is written as if it had just been put, parents first.
Task<void> BlockStore::Impl::WantAllBelow(const Revival& revival) {
  bool any = false;
  for (std::uint32_t slot = 0; slot < names_.end() && !any; ++slot) {
    const NamespaceEntry* entry = names_.at(slot);
    any = entry != nullptr && WrittenAtUse(entry->lower.Over(options_.lower), 0);
  }
  if (!any) co_return;
  for (const BlockId block : revival.order) {
    Count();
    if (Spent()) co_await Yield();
    if (block == kNoId || tree_.block(block).folded() || !tree_.block(block).has_key()) continue;
    for (RecordId r = tree_.block(block).first_record; r != kNoId; r = tree_.record(r).next)
      if (WrittenAtUse(LowerOf(tree_.record(r)), 0)) WantBelow(r);
  }
}

Task<void> BlockStore::Impl::ClearIndex() {
  for (std::uint32_t slot = 0; slot < kMaxNamespaces; ++slot) SetIncarnation(words_, index_.index(), slot, 0);
  const std::uint64_t entries = index_.index().entry_count();
  for (std::uint64_t at = 0; at < entries; at += kClearAStep) {
    index_.ClearRange(at, std::min(kClearAStep, entries - at));
    co_await Yield();
  }
}

Task<void> BlockStore::Impl::Scan(Revival& revival) {
  std::vector<RecoveredBlock> batch(kBatch);
  while (!revival.recovery.done()) {
    const std::size_t n = revival.recovery.Next(batch);
    for (std::size_t i = 0; i < n; ++i) {
      const auto realm = revival.realms.find(batch[i].incarnation);
      if (realm != revival.realms.end()) tree_.PrefetchBucket(TagOf(realm->second, batch[i].key));
    }
    for (std::size_t i = 0; i < n; ++i) Admit(revival, batch[i]);
    Count(static_cast<std::uint32_t>(2 * n));
    co_await Yield();
  }
}

void BlockStore::Impl::Admit(Revival& revival, const RecoveredBlock& found) {
  const auto refuse = [&](Place place) {
    Retire(words_, slots_.arena(), place);
    slots_.Free(place);
    counters_.recovery_refused.Add();
  };
  const auto known = revival.realms.find(found.incarnation);
  if (revival.journal.damaged || known == revival.realms.end() ||
      (found.expiry != 0 && NowS() >= found.expiry)) {
    return refuse(found.place);
  }
  const RealmId realm = known->second;
  const NamespaceEntry& entry = *EntryOf(realm);
  if (found.group >= entry.groups.size() || entry.groups[found.group].parts() != found.parts ||
      (entry.groups[found.group].body_bytes != 0 &&
       entry.groups[found.group].body_bytes != found.body_bytes)) {
    return refuse(found.place);
  }
  const Tag tag = TagOf(realm, found.key);
  BlockId block = tree_.Find(realm, found.key, tag);
  if (block == kNoId) {
    block = AddBlock(realm, tag, kNoId);
    if (block == kNoId) return refuse(found.place);
    revival.parents[block] = Revival::ParentTag(realm, found.parent);
  } else if (revival.parents[block] != Revival::ParentTag(realm, found.parent)) {
    return refuse(found.place);
  }
  RecordId record = tree_.FindRecord(block, found.group);
  if (record == kNoId) {
    record = tree_.AddRecord(block, found.group);
  } else if (revival.sequences[record] > found.sequence) {
    return refuse(found.place);
  } else {
    refuse(tree_.record(record).place);
    bytes_ -= tree_.record(record).body_bytes;
    --resident_;
  }
  revival.sequences[record] = found.sequence;
  Record& r = tree_.record(record);
  r.key = found.key;
  r.place = found.place;
  r.body_bytes = found.body_bytes;
  r.expiry = found.expiry;
  r.parts = static_cast<std::uint8_t>(found.parts - 1);
  r.flags = 0;
  r.entry = kNoId;
  r.born = found.born;
  r.generation = found.generation;
  bytes_ += found.body_bytes;
  ++resident_;
  if (found.conversation != 0) conversations_.Wrote(realm, found.key, found.parent, found.conversation);
}

Task<void> BlockStore::Impl::LinkParents(Revival& revival) {
  const BlockId end = tree_.block_end();
  for (BlockId id = 0; id < end; ++id) {
    if (Spent()) co_await Yield();
    Count();
    if (id + 2 * kAhead < end) tree_.PrefetchBucket(revival.parents[id + 2 * kAhead]);
    if (id + kAhead < end) tree_.PrefetchBlock(revival.parents[id + kAhead]);
    if (tree_.block(id).is(Block::kRoot)) continue;
    const RealmId realm = tree_.block(id).realm;
    const BlockId root = tree_.realm(realm)->root;
    const Tag parent = revival.parents[id];
    BlockId above = parent == 0 ? root : tree_.FindTag(realm, parent);
    if (above == kNoId && EntryOf(realm)->first_full == kNoGroup) {
      above = AddBlock(realm, parent, tree_.OrphansOf(realm));
      if (above != kNoId) tree_.block(above).flags |= Block::kOrphan;
    }
    if (above != kNoId) tree_.Adopt(above, id);
  }
}

Task<void> BlockStore::Impl::KeepReachable(Revival& revival) {
  if (!revival.dropped.empty() || !revival.orphaned.empty()) {
    revival.floors.resize(tree_.block_end());
    revival.memory_floors.resize(tree_.block_end());
  }
  revival.order.reserve(tree_.blocks());
  for (const auto& [incarnation, realm] : revival.realms) revival.order.push_back(tree_.realm(realm)->root);
  // The order of a hash map must not decide what a simulation does next.
  std::ranges::sort(revival.order);
  for (std::size_t i = 0; i < revival.order.size(); ++i) {
    if (Spent()) co_await Yield();
    // Who is judged soon: the children of those whose turn is soon.
    if (i + 2 * kAhead < revival.order.size()) {
      const BlockId child = tree_.block(revival.order[i + 2 * kAhead]).first_child;
      if (child != kNoId) tree_.PrefetchKnown(child);
    }
    if (i + kAhead < revival.order.size()) {
      const BlockId child = tree_.block(revival.order[i + kAhead]).first_child;
      if (child != kNoId) tree_.PrefetchRecordOf(child);
    }
    for (BlockId child = tree_.block(revival.order[i]).first_child; child != kNoId;
         child = tree_.block(child).next_sibling) {
      Judge(revival, child);
      tree_.block(child).flags |= Block::kKept;
      revival.order.push_back(child);
      if (Spent()) co_await Yield();
    }
  }
}

void BlockStore::Impl::Judge(Revival& revival, BlockId block) {
  const BlockId parent = tree_.block(block).parent;
  const NamespaceEntry& entry = *EntryOf(tree_.block(block).realm);
  std::uint64_t floor = 0, memory_floor = 0;
  if (!revival.floors.empty()) {
    const auto dropped = revival.dropped.find(block);
    const auto orphaned = revival.orphaned.find(block);
    const std::uint64_t here = dropped == revival.dropped.end() ? 0 : dropped->second;
    const std::uint64_t home = orphaned == revival.orphaned.end() ? 0 : orphaned->second;
    floor = revival.floors[block] = std::max({revival.floors[parent], here, home});
    memory_floor = revival.memory_floors[block] = std::max(revival.memory_floors[parent], here);
  }
  const auto counts = [&](std::uint16_t group, std::uint64_t born, bool in_memory) {
    Count();
    if (born <= (in_memory ? memory_floor : floor)) return false;
    const std::uint16_t needed = entry.ParentGroup(group);
    if (needed == kNoGroup || tree_.block(parent).is(Block::kRoot)) return true;
    const auto above = tree_.See(parent, needed);
    return above && revival.BornOf(tree_, parent, *above) < born;
  };
  if (tree_.block(block).folded()) {
    if (!counts(tree_.block(block).group, revival.born[block], false)) RefuseFolded(block);
    return;
  }
  for (RecordId id = tree_.block(block).first_record; id != kNoId;) {
    const Record& r = tree_.record(id);
    const RecordId next = r.next;
    if (!counts(r.group, r.born, r.in_memory())) RefuseRecord(id);
    id = next;
  }
}

// What lies on flash counts as live from FillIndex on: until then there is nothing to take back there.
void BlockStore::Impl::RefuseFolded(BlockId block) {
  tree_.ForgetFolded(block);
  counters_.recovery_refused.Add();
}

void BlockStore::Impl::RefuseRecord(RecordId record) {
  const Record r = tree_.record(record);
  if (r.in_memory()) {
    Retire(words_, slots_.arena(), r.place);
    slots_.Free(r.place);
    bytes_ -= r.body_bytes;
    --resident_;
  }
  tree_.RemoveRecord(record);
  counters_.recovery_refused.Add();
}

Task<void> BlockStore::Impl::Refuse(Revival& revival) {
  for (BlockId id = 0; id < tree_.block_end(); ++id) {
    if (Spent()) co_await Yield();
    Count();
    Block& b = tree_.block(id);
    const bool kept = b.is(Block::kKept) || !b.has_key();
    b.flags &= static_cast<std::uint16_t>(~Block::kKept);
    if (kept) continue;
    // Its parent is not here, nor will its children have one: no link of it leads to a block that stays.
    if (b.folded()) RefuseFolded(id);
    while (!b.ghost()) RefuseRecord(b.first_record);
    tree_.Discard(id);
  }
  // Children before parents: a chain of empty blocks goes link by link.
  for (std::size_t i = revival.order.size(); i-- > 0;) {
    if (i >= kAhead) tree_.PrefetchKnown(revival.order[i - kAhead]);
    if (!tree_.Empty(revival.order[i])) continue;
    tree_.Free(revival.order[i]);
    revival.order[i] = kNoId;
    Count();
    if (Spent()) co_await Yield();
  }
}

// Leaves are entered first, so they are the coldest: who touched what before the restart is not known, and a
// leaf is the first that may go.
Task<void> BlockStore::Impl::FillIndex(Revival& revival) {
  std::array<std::pair<RecordId, Fingerprint>, kWave> wave;
  std::size_t waiting = 0;
  std::vector<BlockId> left_out;
  const auto enter = [&] {
    for (std::size_t i = 0; i < waiting; ++i) {
      const auto& [id, fingerprint] = wave[i];
      Record& r = tree_.record(id);
      const auto number = index_.Insert(fingerprint, FoundOf(r));
      if (number) {
        r.entry = static_cast<std::uint32_t>(*number);
      } else {
        left_out.push_back(r.block);
      }
    }
    waiting = 0;
  };
  const auto& order = revival.order;
  for (std::size_t i = order.size(); i-- > 0;) {
    if (i >= 2 * kAhead && order[i - 2 * kAhead] != kNoId) tree_.PrefetchKnown(order[i - 2 * kAhead]);
    if (i >= kAhead && order[i - kAhead] != kNoId) tree_.PrefetchRecordOf(order[i - kAhead]);
    if (order[i] == kNoId) continue;
    const Block& b = tree_.block(order[i]);
    Count();
    if (b.folded()) AdoptFlash(b.realm, Tree::CopyOf(b));
    for (RecordId id = b.folded() ? kNoId : b.first_record; id != kNoId; id = tree_.record(id).next) {
      const Record& r = tree_.record(id);
      if (r.on_flash()) AdoptFlash(b.realm, Tree::CopyOf(id, r));
      if (!r.in_memory()) continue;
      Count(2);
      tree_.SetAt(r.place, id);
      order_.Insert(id, slots_.SizeNumber(r.place));
      if (r.expiry != 0) expiry_.Set(id, r.expiry);
      wave[waiting] = {id, FingerprintOf(tree_.realm(b.realm)->incarnation, r.group, r.key)};
      index_.index().Prefetch(wave[waiting].second);
      if (++waiting == kWave) enter();
    }
    if (Spent()) {
      enter();
      co_await Yield();
    }
  }
  enter();
  for (const BlockId block : left_out) {
    // One that was cut with an ancestor is gone by the time it is its turn, or has no record left.
    if (!tree_.block(block).ghost()) Cut(block, Reason::kBad);
    while (Collect()) co_await Yield();
  }
}

Task<Status> BlockStore::Impl::SettleNames(Revival& revival) {
  std::vector<NamespaceEntry> kept;
  for (const NamespaceEntry& entry : revival.journal.namespaces) {
    co_await Yield();
    const RealmId realm = realms_[entry.slot];
    // All sessions ended with the restart, so nobody is attached to a list without name and blocks.
    if (entry.names.empty() && tree_.block(tree_.realm(realm)->root).first_child == kNoId) {
      names_.Forget(entry.slot);
      realm_of_.erase(entry.incarnation);
      tree_.RemoveRealm(realm);
      realms_[entry.slot] = kNoId;
    } else {
      kept.push_back(entry);
    }
  }
  sequences_below_ = sequence_ + kSequencesReserved;
  // What lies on flash is still there, whatever was retired here.
  std::vector<Tombstone> tombstones;
  if (tier_ != nullptr) {
    tombstones = std::move(revival.journal.tombstones);
    journaled_devices_ = tier_->device_ids();
    for (const Tombstone& tombstone : tombstones) {
      Count();
      if (Spent()) co_await Yield();
      collected_tombstones_.insert(tombstone.sequence);
    }
  }
  if (Status status =
          co_await journal_.Start(kept, sequences_below_, std::move(tombstones), journaled_devices_);
      !status.ok()) {
    co_return status;
  }
  for (const NamespaceEntry& entry : kept) {
    Count();
    if (Spent()) co_await Yield();
    SetIncarnation(words_, index_.index(), entry.slot, entry.incarnation);
  }
  co_return Status();
}

}  // namespace cistern
