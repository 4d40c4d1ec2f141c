// SPDX-License-Identifier: Apache-2.0
// Slots for records that have none: a free one, an idle partial copy's, an evicted record's, one of a record
// that moved to far memory (policy/far_memory.h), or one of a chunk that was emptied by moving its records
// elsewhere (R14).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/event.h"
#include "base/task.h"
#include "residency/context.h"
#include "residency/evictor.h"
#include "residency/partial_copies.h"
#include "residency/residents.h"

namespace cistern::residency {

// What a slot is for.
struct RoomFor {
  policy::Standing standing{};
  policy::QuotaGroup group = 0;
  bool adds = true;                           // to what its group has; not so a record that moves
  memory::NodeIndex node = memory::kAnyNode;  // where it would best lie; far, if that is
  // Only what was used longer ago leaves (policy::Order::Age); none: whatever the policy says.
  std::optional<std::uint64_t> age{};
  bool waits = true;   // for what may go later
  bool evicts = true;  // else room is what moves far
  bool put = false;    // counted where nothing may go for it
};

class Room final {
 public:
  Room(const StoreContext& context, Residents& residents, PartialCopies& partial_copies, Evictor& evictor)
      : context_(context),
        far_memory_(context.slots.first_far_kind()),
        residents_(residents),
        partial_copies_(partial_copies),
        evictor_(evictor) {}
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

  Executor& executor() { return context_.executor; }

  // Waits until the deadline as long as some record may go later. kBusy: none may, now or later. kTooLate: no
  // slot by the deadline. Nothing leaves for what all of memory is too small for.
  // The caller keeps `fill` until the slot has a record, or is free again. kBusy also for what stays out
  // because it is worth less than all that it would displace. What leaves is of a group whose quota says so.
  Task<Result<arena::Place>> Make(const SlotFill& fill, std::uint64_t record_bytes, Instant deadline,
                                  RoomFor whom = {});
  // A slot that is free now, and may be taken without anything leaving; none: Make finds one, or says why
  // not.
  std::optional<arena::Place> MakeAtOnce(std::uint64_t record_bytes, const RoomFor& whom);
  // Moves a record, which nobody holds, out of a closed slot, for which the coldest leave; or it is among
  // them, or leaves alone where memory has no slot for it any more. No effect where nothing may leave now, or
  // where it is held meanwhile.
  Task<void> MoveAway(catalog::RecordId record);
  // Moves a record, which nobody holds, out of far memory, for which the coldest near one moves there. No
  // effect as with MoveAway.
  Task<void> MoveNear(catalog::RecordId record);

 private:
  // A call of Make, and what it has come to.
  struct Request {
    const std::uint64_t record_bytes;
    const Instant deadline;
    const RoomFor whom;
    const policy::SizeClass wanted;
    // Bytes of one other size class that make up a chunk: once that many are freed, one chunk's records fit
    // into them.
    const std::uint64_t enough;
    std::uint64_t went = 0;  // bytes that were freed for it
    std::optional<policy::SizeClass> giver{};
    // Of memory that grows: a header on its way is waited for until `stands_at`.
    bool grows = true;
    std::uint32_t headers = 0;
    Instant stands_at = Instant::Never();
  };
  // Whether memory grows to what it takes, and that is worth waiting for. A reservation that stands, as on a
  // host that swaps, keeps nobody out. `only_grown`: nothing else makes room for it.
  bool Grows(Request& request, bool only_grown);
  // As Evictor::EvictOne of the class that gives its room, but for what moves to far memory instead.
  Task<Step> GiveUpOne(Request& request, policy::QuotaGroups groups, bool* stays_out);
  // kDone: the coldest near record of the kind, or of all, lies in far memory, or is not the coldest any
  // more. kWaits: it is to leave; or the newcomer stays out: then `*stays_out` is set.
  Task<Step> MoveOneFar(std::optional<policy::SizeClass> kind, policy::QuotaGroups groups, RoomFor whom,
                        bool* stays_out);
  // Moves a record, which nobody holds, to a slot that is made for it, if it can be.
  Task<void> MoveFor(catalog::RecordId record, RoomFor whom);
  // A record for which memory has no slot leaves, after what descends from it where it is the last copy; it
  // stays where one of these may not go.
  Task<void> EvictLeafFirst(catalog::RecordHandle handle);
  // A record that was `was`, and is held meanwhile by nobody, to `to`, which is free again where it stays.
  Task<void> MoveIfThere(catalog::RecordHandle handle, catalog::Record was, const record::SealView& seal,
                         arena::Place to);
  // `idle_only`: one look, for a chunk whose records all fit elsewhere.
  Task<bool> EmptyAChunk(const Request& request, bool idle_only);
  Task<bool> EmptyRange(memory::HeaderRange range, policy::QuotaGroups groups);
  // The seal of a record in memory, which borrows `trailer`; none where it is damaged: the record is lost
  // then.
  std::optional<record::SealView> SealOf(catalog::RecordId record, std::vector<std::byte>& trailer);
  // Moves a record to another slot of its size; false where it stays.
  Task<bool> Move(catalog::RecordId record);
  // The same to `to`, which is free again where it stays. The seal is the record's.
  Task<bool> MoveTo(catalog::RecordId record, const record::SealView& seal, arena::Place to);
  // Bytes of a record in a slot, all units counted.
  std::uint64_t RecordBytesOf(const catalog::Record& record, const record::SealView& seal) const {
    return record::RecordBytes(record.body_bytes, seal.segment_count(), seal.part_count(),
                               context_.slots.arena().geometry().alignment);
  }

  const StoreContext context_;
  const policy::FarMemory far_memory_;
  Residents& residents_;
  PartialCopies& partial_copies_;
  Evictor& evictor_;
  bool emptying_ = false;
  Event emptied_;
};

}  // namespace cistern::residency
