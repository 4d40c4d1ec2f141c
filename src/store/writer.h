// SPDX-License-Identifier: Apache-2.0
// Writes of puts: parts join a put, get a slot, are copied with checksums, and are committed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/task.h"
#include "residency/context.h"
#include "residency/lower_tier.h"
#include "residency/residents.h"
#include "residency/room.h"
#include "residency/uses.h"
#include "store/deletions.h"
#include "store/open_puts.h"
#include "store/prompts.h"
#include "store/publisher.h"
#include "store/requests.h"
#include "store/switches.h"

namespace cistern::store {

class Writer final {
 public:
  Writer(const residency::StoreContext& context, residency::LowerTier& lower, residency::Residents& residents,
         residency::Room& room, residency::Removal& removal, residency::Uses& uses, Prompts& prompts,
         OpenPuts& puts, Deletions& deletions, Publisher& publisher, const Switches& switches)
      : context_(context),
        lower_(lower),
        residents_(residents),
        room_(room),
        removal_(removal),
        uses_(uses),
        prompts_(prompts),
        puts_(puts),
        deletions_(deletions),
        publisher_(publisher),
        switches_(switches) {}
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  Executor& executor() { return context_.executor; }

  // Completes when no mover uses the bytes any more; one outcome a part. The deadline ends a wait for room,
  // never a copy under way. `stations` may be null.
  Task<std::vector<PartOutcome>> Write(catalog::Caller caller, std::uint32_t slot,
                                       std::vector<PartWrite> parts, Instant deadline,
                                       CallStations* stations);
  // Publishes held puts, or drops them; their number.
  Task<Result<std::uint32_t>> EndHeld(catalog::Caller caller, std::uint32_t slot, std::span<const PutId> puts,
                                      bool publish);

 private:
  struct PartJob;  // one PartWrite and its state
  struct WriteCall;

  Status CheckPart(const catalog::NamespaceEntry& entry, const PartWrite& part) const;
  std::string PendingFull(const OwnerToken& owner) const;
  // Whether one more of so many bytes leaves others something of the memory that neither leases nor pending
  // puts keep.
  bool LeavesMemory(const OwnerToken& owner, std::uint64_t record_bytes) const;
  // What the part's block is held to be.
  policy::Standing StandingOf(WriteCall& call, const PartWrite& part);
  // Finds or makes the put; kWaits where a collection hides whether the block is present.
  residency::Step JoinPut(const catalog::Caller& caller, WriteCall& call, PartJob& job);
  Task<void> JoinWhenSure(catalog::Caller caller, WriteCall& call, PartJob& job);
  Task<void> FindSlot(const residency::SlotFill& fill, PartJob& job, Instant deadline,
                      memory::NodeIndex node);
  // True if the part is to be copied: its put is open and has a slot, and the part is not written yet.
  bool BeginCopy(PartJob& job);
  Task<void> CopyByCore(PartJob& job);
  Task<void> CopyByMover(PartJob& job);
  void Commit(const WriteCall& call, PartJob& job);
  // Sets the part's outcome from its put's; the job is no user of the put any more.
  void Outcome(PartJob& job);
  // True if the part may join a put; else its outcome says why not.
  bool MayJoin(const WriteCall& call, PartJob& job) const;
  // Commits the copied bytes, and publishes the put if this was the last part.
  Task<void> Finish(WriteCall& call, PartJob& job);
  // As Publisher's; kDone for one that has ended.
  residency::Step TryPublish(catalog::PutIndex put);
  // Blocks being collected hide the put's parent, and it waits for the end of that.
  bool Unsure(catalog::PutIndex put) const {
    return context_.pending[put].unsure && context_.pending[put].state == catalog::Put::State::kOpen;
  }
  // Publishes it before that end where the parent stands.
  Task<void> PublishWhenSure(catalog::PutIndex put);
  void NoteRefused(WriteCall& call, const PartJob& job);

  const residency::StoreContext context_;
  residency::LowerTier& lower_;
  residency::Residents& residents_;
  residency::Room& room_;
  residency::Removal& removal_;
  residency::Uses& uses_;
  Prompts& prompts_;
  OpenPuts& puts_;
  Deletions& deletions_;
  Publisher& publisher_;
  const Switches& switches_;
};

}  // namespace cistern::store
