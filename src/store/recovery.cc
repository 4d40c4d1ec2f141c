// SPDX-License-Identifier: Apache-2.0
#include "store/recovery.h"

#include <algorithm>
#include <array>
#include <optional>
#include <ranges>
#include <unordered_map>

#include "arena/protocol.h"
#include "policy/placement.h"
#include "record/seal.h"

namespace cistern::store {

namespace {
constexpr std::size_t kBatch = 128;
constexpr std::size_t kWave = 16;
constexpr std::uint32_t kAhead = 8;
// What a journal that lost its end may have set aside in it: that of so many starts that nobody makes them.
constexpr std::uint64_t kLostSequences = catalog::Sequences::kReserved << 16;
constexpr std::uint64_t kClearAStep = 4096;  // entries, in order: each costs a fraction of a touch

// Whether a record that was found in a tier is one of a group of the namespace.
bool FitsGroup(const catalog::NamespaceEntry& entry, const auto& found) {
  if (found.group >= entry.groups.size()) return false;
  const catalog::Group& group = entry.groups[found.group];
  return group.parts() == found.parts && (group.body_bytes == 0 || group.body_bytes == found.body_bytes);
}
}  // namespace

Task<Status> StoreRecovery::Recover() {
  auto contents = co_await context_.journal.Open();
  if (!contents) co_return std::move(contents.error());
  RecoveryState state(context_, std::move(*contents));
  for (const std::string& note : state.journal.notes) context_.log.Log(LogLevel::kWarning, "journal: ", note);
  if (state.journal.damaged) {
    context_.log.Log(LogLevel::kWarning,
                     "journal: damaged before its end; what memory and flash held is not believed");
  }
  NoteOlderMemory(state);
  arena::AdvanceTime(context_.words, context_.slots.arena(), state.journal.time_s);
  if (Status status = co_await OpenTier(state); !status.ok()) co_return status;
  co_await ClearIndex();
  for (catalog::NamespaceEntry& entry : state.journal.namespaces) {
    // A list may have 64 KiB.
    co_await Yield();
    state.trees[entry.incarnation] = context_.catalog.AddTree(entry.slot, entry.incarnation);
    context_.namespaces.Put(entry);
  }
  co_await Scan(state);
  NoteDamagedMemory(state);
  if (lower_.present()) {
    if (Status status = co_await ScanLowerTier(state); !status.ok()) co_return status;
  }
  const memory::Recovery::Counts& counts = state.recovery.counts();
  context_.sequences.Start(std::max({state.journal.sequences_below, counts.last_sequence + 1,
                                     counts.last_born + 1, state.last_lower + 1}) +
                           (state.journal.damaged ? kLostSequences : 0));
  co_await LinkParents(state);
  co_await FindDropped(state);
  co_await KeepReachable(state);
  co_await Refuse(state);
  RecoveredNotes notes(context_, state);
  co_await notes.Make();
  context_.slots.EndAdoption();
  co_await FillIndex(state);
  context_.counters.recovered.Add(residents_.count());
  if (Status status = co_await SettleNamespaces(state, notes); !status.ok()) co_return status;
  if (lower_.present()) co_await WriteAllBack(state);
  recovering_ = false;
  lower_records_.Recovered();
  co_return Status();
}

Task<void> StoreRecovery::FindDropped(RecoveryState& state) {
  for (const catalog::Tombstone& tombstone : state.journal.tombstones) {
    context_.steps.Count();
    if (context_.steps.Spent()) co_await Yield();
    const auto tree = state.trees.find(tombstone.incarnation);
    if (tree == state.trees.end()) continue;
    const auto note = [&](std::unordered_map<catalog::BlockId, std::uint64_t>& drops,
                          catalog::BlockId block) {
      if (block != catalog::kNoId) drops[block] = std::max(drops[block], tombstone.sequence);
    };
    note(state.dropped, context_.catalog.Find(tree->second, tombstone.key));
    note(state.orphaned, context_.forest.tree(tree->second)->orphans);
  }
}

// Writes back the records that a reboot would lose, as if they had just been put, parents first.
Task<void> StoreRecovery::WriteAllBack(const RecoveryState& state) {
  bool any = false;
  for (std::uint32_t slot = 0; slot < context_.namespaces.end() && !any; ++slot) {
    const catalog::NamespaceEntry* entry = context_.namespaces.at(slot);
    any = entry != nullptr && policy::WrittenAtUse(entry->lower.Over(context_.options.lower), 0, true);
  }
  if (!any) co_return;
  for (const catalog::BlockId block : state.order) {
    context_.steps.Count();
    if (context_.steps.Spent()) co_await Yield();
    if (block == catalog::kNoId || context_.forest.block(block).folded() ||
        !context_.forest.block(block).has_key())
      continue;
    for (catalog::RecordId r = context_.forest.block(block).first_record; r != catalog::kNoId;
         r = context_.forest.record(r).next)
      write_back_.NoteFound(r);
  }
}

Task<void> StoreRecovery::ClearIndex() {
  for (std::uint32_t slot = 0; slot < arena::kMaxNamespaces; ++slot)
    arena::SetIncarnation(context_.words, residents_.index().index(), slot, 0);
  const std::uint64_t entries = residents_.index().index().entry_count();
  for (std::uint64_t at = 0; at < entries; at += kClearAStep) {
    residents_.index().ClearRange(at, std::min(kClearAStep, entries - at));
    co_await Yield();
  }
}

Task<void> StoreRecovery::Scan(RecoveryState& state) {
  std::vector<memory::RecoveredBlock> batch(kBatch);
  while (!state.recovery.done()) {
    const std::size_t n = state.recovery.Next(batch);
    for (std::size_t i = 0; i < n; ++i) {
      const auto tree = state.trees.find(batch[i].incarnation);
      if (tree != state.trees.end())
        context_.forest.PrefetchBucket(catalog::KeyHashOf(tree->second, batch[i].key));
    }
    for (std::size_t i = 0; i < n; ++i) Admit(state, batch[i]);
    context_.steps.Count(static_cast<std::uint32_t>(2 * n));
    co_await Yield();
  }
}

catalog::BlockId StoreRecovery::BlockFor(RecoveryState& state, catalog::TreeId tree, const BlockKey& key,
                                         const BlockKey& parent) {
  const catalog::KeyHash key_hash = catalog::KeyHashOf(tree, key);
  const catalog::KeyHash parent_hash = RecoveryState::ParentKeyHash(tree, parent);
  const catalog::BlockId found = context_.forest.Find(tree, key, key_hash);
  if (found != catalog::kNoId) return state.parents[found] == parent_hash ? found : catalog::kNoId;
  const catalog::BlockId added = context_.catalog.AddBlock(tree, key_hash, catalog::kNoId);
  if (added != catalog::kNoId) state.parents[added] = parent_hash;
  return added;
}

void StoreRecovery::Admit(RecoveryState& state, const memory::RecoveredBlock& found) {
  const auto leave = [&](arena::Place place, Counter& why) {
    arena::Retire(context_.words, context_.slots.arena(), place);
    context_.slots.Free(place);
    why.Add();
  };
  const auto refuse = [&](arena::Place place) { leave(place, context_.counters.recovery_refused); };
  const auto drop = [&](arena::Place place) { leave(place, context_.counters.recovery_dropped); };
  if (state.journal.damaged || state.memory_refused) return refuse(found.place);
  const auto known = state.trees.find(found.incarnation);
  if (known == state.trees.end()) return state.memory_is_anothers ? refuse(found.place) : drop(found.place);
  if (context_.catalog.Expired(found.expiry)) return drop(found.place);
  const catalog::TreeId tree = known->second;
  const catalog::NamespaceEntry& entry = *context_.catalog.EntryOf(tree);
  if (!FitsGroup(entry, found)) return refuse(found.place);
  const catalog::BlockId block = BlockFor(state, tree, found.key, found.parent);
  if (block == catalog::kNoId) return refuse(found.place);
  catalog::RecordId record = context_.forest.FindRecord(block, found.group);
  if (record == catalog::kNoId) {
    record = context_.forest.AddRecord(block, found.group);
  } else if (state.sequences[record] > found.sequence) {
    return drop(found.place);
  } else {
    drop(context_.forest.record(record).place);
  }
  state.sequences[record] = found.sequence;
  catalog::Record& r = context_.forest.record(record);
  r.key = found.key;
  r.place = found.place;
  r.body_bytes = found.body_bytes;
  r.expiry = found.expiry;
  r.parts = static_cast<std::uint8_t>(found.parts - 1);
  r.flags = 0;
  r.entry = catalog::kNoId;
  r.born = found.born;
  r.generation = found.generation;
  state.NoteWritten(tree, found);
}

Task<void> StoreRecovery::LinkParents(RecoveryState& state) {
  const catalog::BlockId end = context_.forest.block_end();
  for (catalog::BlockId id = 0; id < end; ++id) {
    if (context_.steps.Spent()) co_await Yield();
    context_.steps.Count();
    if (id + 2 * kAhead < end) context_.forest.PrefetchBucket(state.parents[id + 2 * kAhead]);
    if (id + kAhead < end) context_.forest.PrefetchBlock(state.parents[id + kAhead]);
    if (context_.forest.block(id).is(catalog::Block::kRoot)) continue;
    const catalog::TreeId tree = context_.forest.block(id).tree;
    const catalog::BlockId root = context_.forest.tree(tree)->root;
    const catalog::KeyHash parent = state.parents[id];
    catalog::BlockId above = parent == 0 ? root : context_.forest.FindKeyHash(tree, parent);
    if (above == catalog::kNoId && context_.catalog.EntryOf(tree)->first_full == catalog::kNoGroup) {
      above = context_.catalog.AddBlock(tree, parent, context_.forest.OrphansOf(tree));
      if (above != catalog::kNoId) context_.forest.block(above).flags |= catalog::Block::kOrphan;
    }
    if (above != catalog::kNoId) context_.forest.Adopt(above, id);
  }
}

Task<void> StoreRecovery::KeepReachable(RecoveryState& state) {
  if (!state.dropped.empty() || !state.orphaned.empty()) {
    state.floors.resize(context_.forest.block_end());
    state.memory_floors.resize(context_.forest.block_end());
  }
  state.order.reserve(context_.forest.blocks());
  for (const auto& [incarnation, tree] : state.trees) state.order.push_back(context_.forest.tree(tree)->root);
  // The order of a hash map must not decide what a simulation does next.
  std::ranges::sort(state.order);
  for (std::size_t i = 0; i < state.order.size(); ++i) {
    if (context_.steps.Spent()) co_await Yield();
    // The blocks judged soon: the children of those whose turn is soon.
    if (i + 2 * kAhead < state.order.size()) {
      const catalog::BlockId child = context_.forest.block(state.order[i + 2 * kAhead]).first_child;
      if (child != catalog::kNoId) context_.forest.PrefetchKnown(child);
    }
    if (i + kAhead < state.order.size()) {
      const catalog::BlockId child = context_.forest.block(state.order[i + kAhead]).first_child;
      if (child != catalog::kNoId) context_.forest.PrefetchRecordOf(child);
    }
    for (catalog::BlockId child = context_.forest.block(state.order[i]).first_child; child != catalog::kNoId;
         child = context_.forest.block(child).next_sibling) {
      Judge(state, child);
      context_.forest.block(child).flags |= catalog::Block::kKept;
      state.order.push_back(child);
      if (context_.steps.Spent()) co_await Yield();
    }
  }
}

void StoreRecovery::Judge(RecoveryState& state, catalog::BlockId block) {
  const catalog::BlockId parent = context_.forest.block(block).parent;
  const catalog::NamespaceEntry& entry = *context_.catalog.EntryOf(context_.forest.block(block).tree);
  std::uint64_t floor = 0, memory_floor = 0;
  if (!state.floors.empty()) {
    const auto dropped = state.dropped.find(block);
    const auto orphaned = state.orphaned.find(block);
    const std::uint64_t here = dropped == state.dropped.end() ? 0 : dropped->second;
    const std::uint64_t home = orphaned == state.orphaned.end() ? 0 : orphaned->second;
    floor = state.floors[block] = std::max({state.floors[parent], here, home});
    memory_floor = state.memory_floors[block] = std::max(state.memory_floors[parent], here);
  }
  const auto counts = [&](std::uint16_t group, std::uint64_t born, bool in_memory) {
    context_.steps.Count();
    if (born <= (in_memory ? memory_floor : floor)) return false;
    const std::uint16_t needed = entry.ParentGroup(group);
    if (needed == catalog::kNoGroup || context_.forest.block(parent).is(catalog::Block::kRoot)) return true;
    const auto above = context_.forest.See(parent, needed);
    return above && state.BornOf(context_.forest, parent, *above) < born;
  };
  if (context_.forest.block(block).folded()) {
    if (!counts(context_.forest.block(block).group, state.born[block], false)) RefuseFolded(block);
    return;
  }
  for (catalog::RecordId id = context_.forest.block(block).first_record; id != catalog::kNoId;) {
    const catalog::Record& r = context_.forest.record(id);
    const catalog::RecordId next = r.next;
    if (!counts(r.group, r.born, r.in_memory())) RefuseRecord(id);
    id = next;
  }
}

// Records in the lower tier count as live from FillIndex on: a folded one that is refused before needs no
// Forget.
void StoreRecovery::RefuseFolded(catalog::BlockId block) {
  context_.forest.ForgetFolded(block);
  context_.counters.recovery_dropped.Add();
}

void StoreRecovery::RefuseRecord(catalog::RecordId record) {
  const catalog::Record r = context_.forest.record(record);
  if (r.in_memory()) {
    arena::Retire(context_.words, context_.slots.arena(), r.place);
    context_.slots.Free(r.place);
  }
  context_.forest.RemoveRecord(record);
  context_.counters.recovery_dropped.Add();
}

Task<void> StoreRecovery::Refuse(RecoveryState& state) {
  for (catalog::BlockId id = 0; id < context_.forest.block_end(); ++id) {
    if (context_.steps.Spent()) co_await Yield();
    context_.steps.Count();
    catalog::Block& b = context_.forest.block(id);
    const bool kept = b.is(catalog::Block::kKept) || !b.has_key();
    b.flags &= static_cast<std::uint16_t>(~catalog::Block::kKept);
    if (kept) continue;
    // Neither its parent nor its children stay: no link leads from it to a block that stays.
    if (b.folded()) RefuseFolded(id);
    while (!b.placeholder()) RefuseRecord(b.first_record);
    context_.forest.Discard(id);
  }
  // Children before parents: a chain of empty blocks is freed link by link.
  for (std::size_t i = state.order.size(); i-- > 0;) {
    if (i >= kAhead) context_.forest.PrefetchKnown(state.order[i - kAhead]);
    if (!context_.forest.Empty(state.order[i])) continue;
    context_.forest.Free(state.order[i]);
    state.order[i] = catalog::kNoId;
    context_.steps.Count();
    if (context_.steps.Spent()) co_await Yield();
  }
}

// Leaves are entered first, so they are the coldest: the order of uses before the restart is not known, and
// a leaf is the first record that may be evicted.
Task<void> StoreRecovery::FillIndex(RecoveryState& state) {
  std::array<std::pair<catalog::RecordId, arena::Fingerprint>, kWave> wave;
  std::size_t waiting = 0;
  std::vector<catalog::BlockId> left_out;
  const auto enter = [&] {
    for (std::size_t i = 0; i < waiting; ++i) {
      const auto& [id, fingerprint] = wave[i];
      if (!residents_.AddEntry(id, fingerprint)) left_out.push_back(context_.forest.record(id).block);
    }
    waiting = 0;
  };
  const auto& order = state.order;
  for (std::size_t i = order.size(); i-- > 0;) {
    if (i >= 2 * kAhead && order[i - 2 * kAhead] != catalog::kNoId)
      context_.forest.PrefetchKnown(order[i - 2 * kAhead]);
    if (i >= kAhead && order[i - kAhead] != catalog::kNoId)
      context_.forest.PrefetchRecordOf(order[i - kAhead]);
    if (order[i] == catalog::kNoId) continue;
    const catalog::Block& b = context_.forest.block(order[i]);
    context_.steps.Count();
    if (b.folded()) Adopt(b.tree, catalog::Forest::CopyOf(b));
    for (catalog::RecordId id = b.folded() ? catalog::kNoId : b.first_record; id != catalog::kNoId;
         id = context_.forest.record(id).next) {
      const catalog::Record& r = context_.forest.record(id);
      if (r.in_lower_tier()) Adopt(b.tree, catalog::Forest::CopyOf(id, r));
      if (!r.in_memory()) continue;
      context_.steps.Count(2);
      residents_.Enter(id, catalog::kNoId, {});
      wave[waiting] = {id, arena::FingerprintOf(context_.forest.tree(b.tree)->incarnation, r.group, r.key)};
      residents_.index().index().Prefetch(wave[waiting].second);
      if (++waiting == kWave) enter();
    }
    if (context_.steps.Spent()) {
      enter();
      co_await Yield();
    }
  }
  enter();
  for (const catalog::BlockId block : left_out) {
    // A block cut with an ancestor may be freed, or without records, by its turn.
    if (!context_.forest.block(block).placeholder()) deletions_.Cut(block, residency::LossReason::kBad);
    while (deletions_.Collect()) co_await Yield();
  }
}

Task<Status> StoreRecovery::SettleNamespaces(RecoveryState& state, RecoveredNotes& notes) {
  std::vector<catalog::NamespaceEntry> kept;
  for (const catalog::NamespaceEntry& entry : state.journal.namespaces) {
    co_await Yield();
    const catalog::TreeId tree = context_.catalog.TreeOf(entry.slot);
    // Sessions ended with the restart, so none is attached to a list without name and blocks.
    if (entry.names.empty() &&
        context_.forest.block(context_.forest.tree(tree)->root).first_child == catalog::kNoId) {
      context_.namespaces.Forget(entry.slot);
      context_.catalog.RemoveTree(entry.slot);
    } else {
      kept.push_back(entry);
    }
  }
  context_.sequences.SetAside();
  // Records retired here may still lie in the lower tier.
  std::vector<catalog::Tombstone> tombstones;
  if (lower_.present()) {
    tombstones = std::move(state.journal.tombstones);
    tombstones_.Start(lower_->media_ids());
    for (const catalog::Tombstone& tombstone : tombstones) {
      context_.steps.Count();
      if (context_.steps.Spent()) co_await Yield();
      tombstones_.Collected(tombstone.sequence);
    }
  }
  const std::vector<catalog::ConversationEnd> ends = co_await notes.NeededEnds();
  journal_marks_.Follow();
  if (Status status = co_await context_.journal.Start(kept, context_.sequences.end(), std::move(tombstones),
                                                      tombstones_.journaled_media(), ends);
      !status.ok()) {
    co_return status;
  }
  // A device that hangs does not hold up the start.
  if (lower_.present()) lower_.Spawn(journal_marks_.TellMedia());
  for (const catalog::NamespaceEntry& entry : kept) {
    context_.steps.Count();
    if (context_.steps.Spent()) co_await Yield();
    arena::SetIncarnation(context_.words, residents_.index().index(), entry.slot, entry.incarnation);
  }
  co_return Status();
}

void StoreRecovery::NoteOlderMemory(RecoveryState& state) {
  NoteOlderJournal(state, journal_marks_.OfMemory(), "memory");
  state.memory_is_anothers = journal_marks_.MemoryIsAnothers() || state.journal.mark.state == 0;
  if (journal_marks_.MemoryIsAnothers()) {
    context_.log.Log(
        LogLevel::kWarning,
        "memory: was used with another journal than this one; what it holds of that is not believed");
  }
  if (!journal_marks_.MemoryMissedDrops()) return;
  state.memory_refused = true;
  context_.log.Log(
      LogLevel::kWarning,
      "memory: is an older copy, or was not there while blocks were dropped; what it holds is not believed");
}

void StoreRecovery::NoteOlderJournal(RecoveryState& state, const tier::JournalMark& seen,
                                     std::string_view where) {
  if (seen <= state.journal.mark) return;
  context_.journal.Pass(seen);
  state.journal.damaged = true;
  if (std::exchange(state.journal_is_older, true)) return;
  context_.log.Log(
      LogLevel::kWarning, "journal: ", where, " was used with a later state of it (", seen.state, ':',
      seen.bytes, ") than this (", state.journal.mark.state, ':', state.journal.mark.bytes,
      "), so it is an older copy or has lost its end; what memory and flash held is not believed");
}

void StoreRecovery::NoteOlderMedia(const RecoveryState& state) {
  for (const auto& [medium, records] : state.older_records) {
    context_.log.Log(
        LogLevel::kWarning, medium, ": holds ", records,
        " records of before drops that no device had to wait for any more, so it is an older copy; they "
        "are not believed");
  }
}

void StoreRecovery::NoteDamagedMemory(const RecoveryState& state) {
  const memory::Recovery::Counts& counts = state.recovery.counts();
  if (counts.damaged + counts.damaged_chunks == 0) return;
  context_.log.Log(LogLevel::kWarning, "memory: the entries of ", counts.damaged,
                   " blocks and the headers of ", counts.damaged_chunks,
                   " chunks are damaged; what they named is lost from memory");
}

Task<Status> StoreRecovery::OpenTier(RecoveryState& state) {
  if (!open_tier_) co_return Status();
  tier::JournalView journal{context_.journal.id(), {}, state.journal.mark};
  if (!state.journal.damaged) journal.known = state.journal.devices;
  auto tier = co_await open_tier_(std::move(journal));
  if (!tier) co_return std::move(tier.error());
  lower_.Open(std::move(*tier));
  NoteOlderJournal(state, lower_->newest_mark(), "flash");
  lower_->SetOwner(lower_records_);
  lower_.Spawn(TickTier());
  co_return Status();
}

// A device that hangs must not hold up the start.
Task<void> StoreRecovery::TickTier() {
  constexpr std::int64_t kTickUs = 100'000;
  while (recovering_ && !lower_.closed()) {
    co_await SleepUntil(context_.clock.Now().PlusUs(kTickUs));
    if (recovering_) lower_->Tick();
  }
}

Task<void> StoreRecovery::AdmitAll(RecoveryState& state, std::span<const tier::TierEntry> found) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (context_.steps.Spent()) co_await Yield();
    if (i + kAhead < found.size()) {
      const tier::TierEntry& later = found[i + kAhead];
      const auto tree = state.trees.find(later.incarnation);
      if (tree != state.trees.end())
        context_.forest.PrefetchBucket(catalog::KeyHashOf(tree->second, later.key));
    }
    context_.steps.Count(2);
    AdmitLower(state, found[i]);
  }
}

Task<Status> StoreRecovery::ScanLowerTier(RecoveryState& state) {
  Status status = co_await lower_->Recover(
      [this, &state](std::span<const tier::TierEntry> found) { return AdmitAll(state, found); });
  NoteOlderMedia(state);
  co_return status;
}

void StoreRecovery::AdmitLower(RecoveryState& state, const tier::TierEntry& found) {
  state.last_lower = std::max({state.last_lower, found.sequence, found.born});
  const auto known = state.trees.find(found.incarnation);
  const auto refuse = [&] { context_.counters.recovery_refused.Add(); };
  const auto drop = [&] { context_.counters.recovery_dropped.Add(); };
  // Each tombstone ended when no medium had anything as old.
  if (found.sequence <= state.journal.ended) {
    ++state.older_records[lower_->DescribeMedium(found.location)];
    return refuse();
  }
  if (state.journal.damaged) return refuse();
  if (known == state.trees.end() || context_.catalog.Expired(found.expiry)) return drop();
  const catalog::TreeId tree = known->second;
  const catalog::NamespaceEntry& entry = *context_.catalog.EntryOf(tree);
  if (!FitsGroup(entry, found) ||
      context_.catalog.RecordBytesOf(entry, found.group, found.body_bytes) != found.record_bytes) {
    return refuse();
  }
  const catalog::BlockId block = BlockFor(state, tree, found.key, found.parent);
  if (block == catalog::kNoId) return refuse();
  const auto copy = context_.forest.See(block, found.group);
  if (copy && copy->in_memory) {
    catalog::Record& r = context_.forest.record(copy->record);
    // A record of the same key from another put: their sequences say which of the two was dropped or lost.
    if (r.born != found.born && state.sequences[copy->record] > found.sequence) return drop();
    if (r.born == found.born && r.in_lower_tier() && state.placed_records[copy->record] > found.sequence) {
      return drop();
    }
    if (r.born != found.born) {
      arena::Retire(context_.words, context_.slots.arena(), r.place);
      context_.slots.Free(r.place);
      r.place = catalog::kNowhere;
      r.born = found.born;
      r.body_bytes = found.body_bytes;
      r.expiry = found.expiry;
      r.after_drop = catalog::Record::kDropUnknown;
    }
    r.location = found.location;
    state.placed_records[copy->record] = found.sequence;
    return state.NoteWritten(tree, found);
  }
  if (copy && copy->record == catalog::kNoId) {
    if (state.placed[block] > found.sequence) return drop();
    context_.forest.ForgetFolded(block);
  } else if (copy) {
    if (state.placed_records[copy->record] > found.sequence) return drop();
    context_.forest.RemoveRecord(copy->record);
  }
  // A block of several groups is not folded: then each of its records knows when it was born.
  const bool was_folded = context_.forest.block(block).folded();
  const std::uint64_t other_born = was_folded ? state.born[block] : 0;
  const std::uint64_t other_placed = was_folded ? state.placed[block] : 0;
  const std::uint16_t other_group = context_.forest.block(block).group;
  context_.forest.PutInLowerTier(block, found.group, static_cast<std::uint8_t>(found.parts - 1),
                                 found.body_bytes, found.expiry, found.location);
  if (was_folded) {
    const catalog::RecordId other = context_.forest.FindRecord(block, other_group);
    context_.forest.record(other).born = other_born;
    state.placed_records[other] = other_placed;
  }
  if (context_.forest.block(block).folded()) {
    state.born[block] = found.born;
    state.placed[block] = found.sequence;
  } else {
    const catalog::RecordId record = context_.forest.FindRecord(block, found.group);
    context_.forest.record(record).born = found.born;
    state.placed_records[record] = found.sequence;
  }
  state.NoteWritten(tree, found);
}

void StoreRecovery::Adopt(catalog::TreeId tree, const catalog::Forest::Copy& copy) {
  const std::uint64_t record_bytes = context_.catalog.RecordBytesOf(tree, copy.group, copy.body_bytes);
  lower_->Adopt(copy.location, record_bytes);
  lower_.NoteThere(tree, copy.body_bytes, record_bytes);
}

}  // namespace cistern::store
