// SPDX-License-Identifier: Apache-2.0
// Choice of the record that leaves memory: the forest says which may, the policy's order which is next. A
// copy that is not the last may leave at any time; the last copy only as a leaf.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "arena/index.h"
#include "policy/far_memory.h"
#include "residency/block_owner.h"
#include "residency/context.h"
#include "residency/lower_tier.h"
#include "residency/removal.h"
#include "residency/residents.h"
#include "residency/write_queue.h"
#include "residency/write_worth.h"

namespace cistern::residency {

// Outcome of a piece of work; kSpent: it goes on in another step of the core.
enum class Step : std::uint8_t { kDone, kWaits, kSpent };

// Who room is made for, and from where.
struct Newcomer {
  std::optional<policy::SizeClass> size_class{};  // none: a record of any size leaves
  // What is worth less than the one that would leave stays out; by default nothing does.
  policy::Standing standing{};
  // Groups of which one may leave.
  policy::QuotaGroups groups = policy::kAllGroups;
  // As RoomFor::age.
  std::optional<std::uint64_t> age{};
  // Where it leaves, without a size class; none: wherever it lies.
  std::optional<policy::FarMemory::Side> side{};
};

inline constexpr std::string_view kStaysOut =
    "write: the block is worth less than all that would leave for it; it is computed again when it is asked "
    "for";

inline constexpr std::string_view kNoSpareRoom =
    "spare put: memory has no free room, and nothing that was used longer ago";

class Evictor final {
 public:
  Evictor(const StoreContext& context, BlockOwner& owner, LowerTier& lower, Residents& residents,
          WriteQueue& queue, Removal& removal, const WriteWorth& worth)
      : context_(context),
        far_memory_(context.slots.first_far_kind()),
        owner_(owner),
        lower_(lower),
        residents_(residents),
        queue_(queue),
        removal_(removal),
        worth_(worth) {}
  Evictor(const Evictor&) = delete;
  Evictor& operator=(const Evictor&) = delete;

  bool MayGo(catalog::RecordId record) const;
  // A lower tier has what leaves: no newcomer stays out.
  bool keeps_all() const { return lower_.present(); }
  // Some record may go later that may not now, whatever clients do: one that is being copied or transferred,
  // or waits to be written to the lower tier.
  bool MoreMayGo() const { return residents_.slots_used() || !queue_.empty(); }
  // kDone: one record was evicted, the next of all or of a size class. kWaits: none may be evicted, or the
  // newcomer stays out: then `*stays_out` is set.
  Step EvictOne(const Newcomer& newcomer, bool* stays_out = nullptr);
  // The size class to evict from, so that a slot of the wanted class becomes free; near or far, as that one
  // is; none when no record there may leave.
  std::optional<policy::SizeClass> SizeClassToGo(policy::SizeClass wanted,
                                                 policy::QuotaGroups groups = policy::kAllGroups) const;
  // Groups of which some may leave for a record of a group with so many bytes.
  policy::QuotaGroups MayLeaveFor(policy::QuotaGroup group, std::uint64_t bytes) const {
    return context_.options.quotas.MayLeaveFor(group, bytes, residents_.used());
  }
  // So many bytes more of the group would pass its quota.
  bool Over(policy::QuotaGroup group, std::uint64_t more) const {
    return context_.options.quotas.Over(group, residents_.used(), more);
  }
  // By Promotion::kWorth, with a lower tier: memory is full with this record, and what would leave for it, or
  // for the next one where it is there already, is worth more. So it is to leave before all others.
  bool Passes(catalog::RecordId record, const policy::Standing& standing);
  // Evicts one of a group that has more than its quota; kWaits: none has, or nothing of it may go now.
  Step TrimOne();
  // Evicts a record that may leave: to the lower tier alone, or for good if this was its last copy.
  void Evict(catalog::RecordId record);
  // Residents::AddEntry; when both buckets are full, a record of another block is evicted from them. None
  // when no occupant may leave.
  std::optional<std::uint32_t> AddEntry(const arena::Fingerprint& fingerprint, const arena::Found& found,
                                        catalog::BlockId block);
  // The copy in memory is damaged: it is removed, and if it was the last copy the block is lost with its
  // descendants.
  void LoseBad(catalog::RecordId record);

 private:
  // The record may go now, and no better time is near: what waits to be written goes only when nothing else
  // can.
  bool MayGoNow(catalog::RecordId record) const {
    return MayGo(record) && !context_.forest.record(record).is(catalog::Record::kQueued);
  }
  bool AllGoneBelow(const catalog::Block& block) const;
  void NoteHeldUp(catalog::RecordId record);
  void Demote(catalog::RecordId record);
  Step EvictUnwritten(const Newcomer& newcomer);

  std::optional<catalog::RecordId> ColdestFor(const Newcomer& newcomer) const;

  const StoreContext context_;
  const policy::FarMemory far_memory_;
  BlockOwner& owner_;
  LowerTier& lower_;
  Residents& residents_;
  WriteQueue& queue_;
  Removal& removal_;
  const WriteWorth& worth_;
};

}  // namespace cistern::residency
