// SPDX-License-Identifier: Apache-2.0
// The records that are in memory: their slots, index entries, order of eviction, expiry and byte counts, and
// the references that keep them where they are. A record becomes resident by Enter, changes its slot by
// Relocate and leaves by Leave; no other class writes an index entry (recovery clears them all) or the
// directory entry of a published record.
//
// A reference keeps a record in its slot (and, in the lower tier, from being folded): each lease has one,
// and so has work under way with the record. A slot user keeps a slot whose record left from being given out
// again before the last transfer or copy has ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "arena/index.h"
#include "arena/protocol.h"
#include "base/task.h"
#include "catalog/deadline_heap.h"
#include "policy/cooling.h"
#include "policy/order.h"
#include "residency/context.h"
#include "residency/fresh_records.h"

namespace cistern::residency {

class RecordReference;

class Residents final {
 public:
  Residents(const StoreContext& context, const arena::IndexSpace& index);
  Residents(const Residents&) = delete;
  Residents& operator=(const Residents&) = delete;

  Executor& executor() { return context_.executor; }

  enum class Used : bool { kNo, kYes };

  // The node died, in simulation: guards give nothing back from now on.
  void Abandon() { abandoned_ = true; }
  bool abandoned() const { return abandoned_; }

  // ---- references: by RecordReference, and by leases ----
  void AddReference(catalog::RecordId record);
  // Used::kNo: the record was not read under this reference, so a transient one is not yet evicted first.
  void DropReference(catalog::RecordHandle handle, Used used = Used::kYes);
  // Of the slots whose records have references: they cannot go.
  std::uint64_t referenced_bytes() const { return referenced_bytes_; }
  // The index entry is cleared first (R9), then the generation changes, then the slot is freed. No effect on
  // a record that is not in memory.
  void Leave(catalog::RecordId record);
  // One step: a reader finds the record in its old slot or in `to`, which holds its body, or misses it.
  void Relocate(catalog::RecordId record, const record::SealView& seal, arena::Place to,
                std::uint64_t generation);
  void EndUse(arena::Place place);
  // The slot is free now, or when its last user ends.
  void FreeSlot(arena::Place place);
  // ---- leases: their references ----
  // kBusy where a lease of so many records, which have its references already and take so many bytes of
  // memory, would pass a bound or the owner's share of one.
  Status CheckLease(const OwnerToken& owner, std::size_t blocks, std::uint64_t bytes) const;
  // Drops one reference of an ended lease; true: there was one.
  bool DropOneEnded();
  // Ends one lease past its deadline; true: there was one.
  bool EndOneLease(Instant now);
  // Leases past their deadline end now, not at the next tick: for a caller that reached a bound of leases.
  Task<void> DropAllEnded();
  // What a lease of the references needs in the step that adds it. Those whose records were lost, or cut off
  // from their root, after the forest had had `cuts` cuts are dropped; `bytes` are what each keeps of memory.
  // The bytes of the rest, for which there is room, or what CheckLease says.
  Task<Result<std::uint64_t>> CheckGrant(OwnerToken owner, std::span<RecordReference> references,
                                         std::span<const std::uint64_t> bytes, std::uint32_t cuts);
  // ---- reading ----
  // Rewrites the entry of a sound record that a reader reached by a damaged one.
  void RepairEntry(catalog::RecordId record);
  // Seal and stamp of the record in a slot.
  std::vector<std::byte> TrailerAt(arena::Place place, const catalog::Record& record) const;
  // The index entry of the record.
  static arena::Found FoundOf(const catalog::Record& record) {
    return {.place = record.place,
            .body_bytes = record.body_bytes,
            .expiry = record.expiry,
            .generation_low = static_cast<std::uint32_t>(record.generation) & arena::kGenerationLowMask};
  }

  // ---- slots: used through SlotUse ----
  void BeginUse(arena::Place place) { ++users_[place].count; }
  // ---- slots that are being filled: counted through SlotFill ----
  void BeginFill() { ++fills_; }
  void EndFill() {
    --fills_;
    context_.slots.loosened().Pulse();
  }
  void BeginSearch() { ++searches_; }
  void EndSearch() { --searches_; }
  // Some have their slot.
  bool filling() const { return fills_ > searches_; }
  // A transfer or a copy out of a slot is under way.
  bool slots_used() const { return !users_.empty(); }

  // ---- entering ----
  // A record, whose fields but its index entry are set, is found from now on: `entry` is its number in the
  // index, kNoId as long as it has none.
  void Enter(catalog::RecordId record, std::uint32_t entry, const policy::Standing& standing);
  // Number of a new index entry; none: both of its buckets are full (Evictor::AddEntry).
  std::optional<std::uint32_t> AddEntry(const arena::Fingerprint& fingerprint, const arena::Found& found);
  // The same for a record that entered without an entry, after a start; false: there is no room.
  bool AddEntry(catalog::RecordId record, const arena::Fingerprint& fingerprint);

  // ---- order ----
  policy::Order& order() { return order_; }
  const policy::Order& order() const { return order_; }
  // The order's ages are told by now, until the next call.
  void NoteTime() { order_.SetNow(NowMs()); }
  std::uint64_t NowMs() const {
    const auto& told = context_.options.eviction_time_ms;
    return told ? told() : static_cast<std::uint64_t>(context_.clock.Now().ns) / 1'000'000;
  }
  // The block's record in memory that stands for all of them; kNoId where there is none.
  catalog::RecordId FirstOf(catalog::BlockId block) const;
  // What a block in memory is held to be, for its children; the default for any other.
  policy::Standing StandingOf(catalog::BlockId block) const {
    const catalog::RecordId record = block == catalog::kNoId ? catalog::kNoId : FirstOf(block);
    return record == catalog::kNoId ? policy::Standing() : order_.StandingOf(record);
  }
  // The record may be evicted again, if it was coldest and could not be.
  void Unpark(catalog::RecordId record) {
    if (order_.Parked(record)) order_.Unpark(record);
    context_.slots.loosened().Pulse();
  }
  // The record is evicted before others.
  void MakeColdest(catalog::RecordId record) {
    LetGo(record);
    order_.MakeColdest(record, context_.slots.KindAt(context_.forest.record(record).place));
  }
  // The record, which is in memory, is held for a turn to come (policy::Order::Hold); and no longer, if it
  // is.
  void Hold(catalog::RecordId record);
  void LetGo(catalog::RecordId record);
  std::uint64_t held_bytes() const { return held_bytes_; }  // of their slots
  // Whether FirstExpired gives a record that is not in memory, once it has: something of it is.
  void WatchExpiry(catalog::RecordId record, bool watched) {
    if (context_.forest.record(record).in_memory()) return;
    expiry_.Remove(record);
    const std::uint32_t expiry = context_.forest.record(record).expiry;
    if (watched && expiry != 0) expiry_.Set(record, expiry);
  }
  // A record that has expired by `now_s`, kNoId when there is none.
  catalog::RecordId FirstExpired(std::uint64_t now_s) const {
    if (expiry_.empty() || static_cast<std::uint64_t>(expiry_.first_when()) > now_s) return catalog::kNoId;
    return expiry_.first();
  }

  arena::IndexWriter<arena::Words>& index() { return index_; }
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t count() const { return count_; }

  // ---- quotas ----
  // Of bodies, by the group that their record counts for.
  const policy::QuotaTable::Used& used() const { return used_; }
  // A resident counts for its namespace's group from now on.
  void Regroup(catalog::RecordId record);

  // ---- what came or was used lately ----
  FreshRecords& fresh() { return fresh_; }
  policy::Cooling& cooling() { return cooling_; }

 private:
  // The count of cuts after which the references that are left were seen to stand.
  Task<std::uint32_t> DropLost(std::span<RecordReference> references, std::uint32_t cuts);
  const StoreContext context_;
  arena::IndexWriter<arena::Words> index_;
  policy::Order order_;
  FreshRecords fresh_;
  policy::Cooling cooling_;
  catalog::DeadlineHeap expiry_;
  std::uint64_t bytes_ = 0;  // of bodies
  std::uint64_t count_ = 0;
  policy::QuotaTable::Used used_{};
  std::uint64_t referenced_bytes_ = 0;
  std::uint64_t held_bytes_ = 0;
  bool abandoned_ = false;
  struct SlotUsers {
    std::uint32_t count = 0;
    bool orphaned = false;  // its record left: the slot is free when the last user ends
  };
  std::unordered_map<arena::Place, SlotUsers> users_;
  std::uint64_t fills_ = 0;
  std::uint64_t searches_ = 0;  // of the fills, those without a slot
};

// Guards of references and slot uses. A guard that is destroyed because its node died (BlockStore::Abandon,
// in simulation) gives nothing back: a dead process writes nothing.

// A reference on a record: the record stays in its slot, and is not folded in the lower tier.
class RecordReference final {
 public:
  RecordReference() = default;
  RecordReference(Residents& residents, catalog::RecordHandle handle)
      : residents_(&residents), handle_(handle) {
    residents.AddReference(handle.record);
  }
  RecordReference(RecordReference&& other) noexcept
      : residents_(std::exchange(other.residents_, nullptr)), handle_(other.handle_) {}
  RecordReference& operator=(RecordReference&& other) noexcept {
    RecordReference old(std::move(*this));
    residents_ = std::exchange(other.residents_, nullptr);
    handle_ = other.handle_;
    return *this;
  }
  ~RecordReference() { Drop(); }

  bool holds() const { return residents_ != nullptr; }
  const catalog::RecordHandle& handle() const { return handle_; }
  void Drop(Residents::Used used = Residents::Used::kYes) {
    Residents* const residents = std::exchange(residents_, nullptr);
    if (residents != nullptr && !residents->abandoned()) residents->DropReference(handle_, used);
  }
  // The reference goes on without a guard: it is a lease's, and Residents::DropReference ends it.
  catalog::RecordHandle Detach() {
    residents_ = nullptr;
    return handle_;
  }

 private:
  Residents* residents_ = nullptr;  // null: no reference
  catalog::RecordHandle handle_;
};

// The references of a lease, which ends them one by one.
inline std::vector<catalog::RecordHandle> DetachAll(std::vector<RecordReference>& references) {
  std::vector<catalog::RecordHandle> handles;
  handles.reserve(references.size());
  for (RecordReference& reference : references) handles.push_back(reference.Detach());
  return handles;
}

// A use of a slot by a transfer or a copy: if its record leaves, the slot is not given out again before the
// use ends.
class SlotUse final {
 public:
  SlotUse(Residents& residents, arena::Place place) : residents_(&residents), place_(place) {
    residents.BeginUse(place);
  }
  SlotUse(SlotUse&& other) noexcept
      : residents_(std::exchange(other.residents_, nullptr)), place_(other.place_) {}
  ~SlotUse() { End(); }
  void End() {
    Residents* const residents = std::exchange(residents_, nullptr);
    if (residents != nullptr && !residents->abandoned()) residents->EndUse(place_);
  }

 private:
  Residents* residents_;
  arena::Place place_;
};

// A slot is searched for (Room::Make), and then filled until it has a record that may go.
class SlotFill final {
 public:
  explicit SlotFill(Residents& residents) : residents_(&residents) { residents.BeginFill(); }
  SlotFill(SlotFill&& other) noexcept : residents_(std::exchange(other.residents_, nullptr)) {}
  SlotFill& operator=(SlotFill&& other) noexcept {
    std::swap(residents_, other.residents_);
    return *this;
  }
  ~SlotFill() {
    if (residents_ != nullptr && !residents_->abandoned()) residents_->EndFill();
  }

  // The time until the slot is found.
  class Search final {
   public:
    explicit Search(const SlotFill& fill) : residents_(fill.residents_) { residents_->BeginSearch(); }
    Search(const Search&) = delete;
    Search& operator=(const Search&) = delete;
    ~Search() {
      if (!residents_->abandoned()) residents_->EndSearch();
    }

   private:
    Residents* residents_;
  };

 private:
  Residents* residents_;
};

}  // namespace cistern::residency
