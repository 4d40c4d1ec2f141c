// SPDX-License-Identifier: Apache-2.0
#include "residency/residents.h"

#include <utility>

#include "base/assert.h"
#include "record/seal_copy.h"

namespace cistern::residency {
namespace {

// What `reuse` remembers of requests is in proportion to the blocks of a store: engines' are hardly smaller.
constexpr std::uint64_t kBlockBytes = 64u << 10;

// In all the memory that the index is made for.
std::uint64_t BlocksOf(const StoreContext& context, const arena::IndexSpace& index) {
  const std::uint64_t most = context.options.max_blocks;
  const std::uint64_t slot_bytes = context.slots.arena().geometry().min_slot_bytes();
  return most > 0 ? most : index.slot_count() * slot_bytes / kBlockBytes;
}

}  // namespace

Residents::Residents(const StoreContext& context, const arena::IndexSpace& index)
    : context_(context),
      index_(context.words, index),
      order_(context.options.eviction, BlocksOf(context, index)),
      expiry_(context.catalog.max_records()) {}

catalog::RecordId Residents::FirstOf(catalog::BlockId block) const {
  const catalog::Block& b = context_.forest.block(block);
  catalog::RecordId record = b.folded() ? catalog::kNoId : b.first_record;
  while (record != catalog::kNoId && !order_.Contains(record)) record = context_.forest.record(record).next;
  return record;
}

void Residents::Enter(catalog::RecordId record, std::uint32_t entry, const policy::Standing& standing) {
  catalog::Record& r = context_.forest.record(record);
  r.entry = entry;
  context_.forest.SetAt(r.place, record);
  catalog::NamespaceCounters& counted = context_.catalog.counted().At(context_.forest.block(r.block).tree);
  order_.Insert(record, context_.slots.KindAt(r.place), standing, counted.group);
  fresh_.Note(record, r);
  used_[order_.group(record)] += r.body_bytes;
  if (r.expiry != 0) expiry_.Set(record, r.expiry);
  bytes_ += r.body_bytes;
  ++count_;
  counted.memory_bytes += r.body_bytes;
  ++counted.memory_records;
  if (r.references > 0) referenced_bytes_ += context_.slots.SlotBytes(r.place);
}

std::optional<std::uint32_t> Residents::AddEntry(const arena::Fingerprint& fingerprint,
                                                 const arena::Found& found) {
  const auto entry = index_.Insert(fingerprint, found);
  if (!entry) return std::nullopt;
  return static_cast<std::uint32_t>(*entry);
}

bool Residents::AddEntry(catalog::RecordId record, const arena::Fingerprint& fingerprint) {
  catalog::Record& r = context_.forest.record(record);
  const auto entry = AddEntry(fingerprint, FoundOf(r));
  if (entry) r.entry = *entry;
  return entry.has_value();
}

void Residents::AddReference(catalog::RecordId record) {
  catalog::Record& r = context_.forest.record(record);
  if (r.references++ == 0 && r.in_memory()) {
    context_.slots.Pin(r.place);
    referenced_bytes_ += context_.slots.SlotBytes(r.place);
  }
  context_.steps.Count();
}

void Residents::DropReference(catalog::RecordHandle handle, Used used) {
  catalog::Record& r = context_.forest.record(handle.record);
  context_.steps.Count();
  if (!context_.catalog.Lives(handle)) return;  // dropped before the reference ended
  if (--r.references > 0) return;
  if (!r.in_memory()) {
    context_.forest.Fold(handle.record);
    return;
  }
  context_.slots.Unpin(r.place);
  referenced_bytes_ -= context_.slots.SlotBytes(r.place);
  if (order_.Parked(handle.record)) order_.Unpark(handle.record);
  if (used == Used::kYes && r.is(catalog::Record::kTransient)) MakeColdest(handle.record);
}

// The index entry first (R9), then the generation, then the slot.
void Residents::Leave(catalog::RecordId record) {
  catalog::Record& r = context_.forest.record(record);
  context_.steps.Count(4);
  if (r.entry != catalog::kNoId) index_.Clear(std::exchange(r.entry, catalog::kNoId));
  if (order_.Contains(record)) {
    LetGo(record);
    used_[order_.group(record)] -= r.body_bytes;
    order_.Remove(record);
  }
  expiry_.Remove(record);
  if (!r.in_memory()) return;
  arena::Retire(context_.words, context_.slots.arena(), r.place);
  if (r.references > 0) {
    context_.slots.Unpin(r.place);
    referenced_bytes_ -= context_.slots.SlotBytes(r.place);
  }
  bytes_ -= r.body_bytes;
  --count_;
  catalog::NamespaceCounters& counted = context_.catalog.counted().At(context_.forest.block(r.block).tree);
  counted.memory_bytes -= r.body_bytes;
  --counted.memory_records;
  const arena::Place place = std::exchange(r.place, catalog::kNowhere);
  r.generation = 0;
  r.uses = 0;
  r.flags &= static_cast<std::uint8_t>(~catalog::Record::kOfMemory);
  FreeSlot(place);
}

void Residents::Hold(catalog::RecordId record) {
  if (order_.Held(record)) return;
  order_.Hold(record);
  if (order_.Held(record)) held_bytes_ += context_.slots.SlotBytes(context_.forest.record(record).place);
}

void Residents::LetGo(catalog::RecordId record) {
  if (!order_.Held(record)) return;
  order_.LetGo(record);
  held_bytes_ -= context_.slots.SlotBytes(context_.forest.record(record).place);
}

void Residents::Regroup(catalog::RecordId record) {
  if (!order_.Contains(record)) return;
  const catalog::Record& r = context_.forest.record(record);
  context_.steps.Count(2);
  used_[order_.group(record)] -= r.body_bytes;
  order_.Regroup(record, context_.catalog.counted().At(context_.forest.block(r.block).tree).group);
  used_[order_.group(record)] += r.body_bytes;
}

void Residents::Relocate(catalog::RecordId record, const record::SealView& seal, arena::Place to,
                         std::uint64_t generation) {
  const arena::ArenaSpace& arena = context_.slots.arena();
  catalog::Record& r = context_.forest.record(record);
  const BlockKey key = r.key;
  const record::SealCopy copy(seal);
  arena::Publish(context_.words, arena, to, generation,
                 {.seal = copy.seal(),
                  .sequence = context_.sequences.Next(),
                  .born = r.born,
                  .expiry = r.expiry,
                  .conversation = context_.conversations.Of(context_.forest.block(r.block).tree, key)});
  context_.steps.Count(8);
  // The old entry's place in the bucket serves the new one; between them the block is missed, not wrong.
  index_.Clear(r.entry);
  if (order_.Held(record)) held_bytes_ += context_.slots.SlotBytes(to) - context_.slots.SlotBytes(r.place);
  const arena::Place from = std::exchange(r.place, to);
  r.generation = generation;
  const auto entry = index_.Insert(arena::FingerprintOf(seal.incarnation(), r.group, key), FoundOf(r));
  CISTERN_ASSERT(entry);
  arena::Retire(context_.words, arena, from);
  r.entry = static_cast<std::uint32_t>(*entry);
  r.flags |= catalog::Record::kVerified;
  context_.forest.SetAt(to, record);
  if (order_.Contains(record)) {
    // Where the order has no shelf left, the record counts for no quota from now on.
    used_[order_.group(record)] -= r.body_bytes;
    order_.Reclass(record, context_.slots.KindAt(to));
    used_[order_.group(record)] += r.body_bytes;
  }
  FreeSlot(from);
}

void Residents::EndUse(arena::Place place) {
  const auto user = users_.find(place);
  if (--user->second.count > 0) return;
  const bool orphaned = user->second.orphaned;
  users_.erase(user);
  if (orphaned) context_.slots.Free(place);
  context_.slots.loosened().Pulse();
}

void Residents::FreeSlot(arena::Place place) {
  if (!users_.empty()) {
    if (const auto user = users_.find(place); user != users_.end()) {
      user->second.orphaned = true;
      return;
    }
  }
  context_.slots.Free(place);
}

bool Residents::DropOneEnded() {
  const auto handle = context_.leases.NextEnded();
  if (!handle) return false;
  DropReference(*handle);
  return true;
}

Status Residents::CheckLease(const OwnerToken& owner, std::size_t blocks, std::uint64_t bytes) const {
  Status room = context_.leases.CheckRoom(owner, blocks);
  if (!room.ok()) return room;
  const std::uint64_t kept = referenced_bytes_ + context_.pending.bytes();
  return context_.leases.CheckBytes(owner, bytes, kept, context_.slots.bytes());
}

bool Residents::EndOneLease(Instant now) {
  if (!context_.leases.EndOneDue(now)) return false;
  context_.steps.Count();
  context_.counters.leases_ended.Add();
  return true;
}

Task<void> Residents::DropAllEnded() {
  while (EndOneLease(context_.clock.Now()) || DropOneEnded()) {
    if (context_.steps.Spent()) co_await Yield();
  }
}

Task<std::uint32_t> Residents::DropLost(std::span<RecordReference> references, std::uint32_t cuts) {
  constexpr int kPasses = 4;  // who drops at every step does not keep this from its end
  for (int pass = 0;; ++pass) {
    // Who waits for this adds its lease in the same step: where that is spent it would be a later one.
    if (context_.steps.Spent()) co_await Yield();
    if (cuts == context_.forest.cuts() || pass > kPasses) break;
    cuts = context_.forest.cuts();
    for (RecordReference& reference : references) {
      if (context_.steps.Spent()) co_await Yield();
      if (!reference.holds()) continue;
      bool unsure = false;
      bool stands = pass < kPasses && context_.catalog.Stands(reference.handle(), &unsure);
      if (unsure) {
        const catalog::Block& b =
            context_.forest.block(context_.forest.record(reference.handle().record).block);
        co_await context_.catalog.LearnStanding(b.tree, b.key_hash());
        stands = context_.catalog.Stands(reference.handle());
      }
      if (!stands) reference.Drop();
    }
  }
  co_return cuts;
}

Task<Result<std::uint64_t>> Residents::CheckGrant(OwnerToken owner, std::span<RecordReference> references,
                                                  std::span<const std::uint64_t> bytes, std::uint32_t cuts) {
  for (bool ended = false;; ended = true) {
    cuts = co_await DropLost(references, cuts);
    std::size_t left = 0;
    std::uint64_t kept = 0;
    for (std::size_t i = 0; i < references.size(); ++i) {
      if (!references[i].holds()) continue;
      ++left;
      kept += bytes[i];
    }
    // Nothing is kept then, whatever else its owner keeps.
    const Status room = left == 0 ? Status() : CheckLease(owner, left, kept);
    if (room.ok()) co_return kept;
    if (ended) co_return std::unexpected(room);
    co_await DropAllEnded();
  }
}

void Residents::RepairEntry(catalog::RecordId record) {
  const catalog::Record& r = context_.forest.record(record);
  const catalog::Block& b = context_.forest.block(r.block);
  if (r.entry == catalog::kNoId) return;
  context_.steps.Count(2);
  const arena::Fingerprint fingerprint =
      arena::FingerprintOf(context_.forest.tree(b.tree)->incarnation, r.group, r.key);
  index_.Repair(r.entry, fingerprint, FoundOf(r));
}

std::vector<std::byte> Residents::TrailerAt(arena::Place place, const catalog::Record& record) const {
  const arena::ArenaSpace& arena = context_.slots.arena();
  std::vector<std::byte> trailer(
      arena::RoundUp(record::TrailerBoundBytes(record.body_bytes, record.part_count()), 8));
  arena::LoadWords(context_.words,
                   arena.slot(place) + record::TrailerOffset(record.body_bytes, arena.geometry().alignment),
                   trailer);
  return trailer;
}

}  // namespace cistern::residency
