// SPDX-License-Identifier: Apache-2.0
// Fetches of blocks that lie in the lower tier alone: each is read straight into a slot, checked, and
// published there. One read serves all callers that wait for the block, and goes on without them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/call_stations.h"
#include "base/event.h"
#include "base/task.h"
#include "residency/arrival_check.h"
#include "residency/block_owner.h"
#include "residency/context.h"
#include "residency/evictor.h"
#include "residency/lower_tier.h"
#include "residency/partial_copies.h"
#include "residency/residents.h"
#include "residency/room.h"
#include "tier/tier.h"

namespace cistern::residency {

struct PendingFetch {
  Event done;
  Status status;
  // It is held from when it is there (Residents::Hold), and does not pass.
  bool held = false;
  bool ahead = false;  // a match began it, before anybody acquired the block
  // When it had a slot, and when the tier had read it; zero: not yet.
  Instant slot_at, read_at;

  // Where one who waited for it meanwhile has waited.
  void AddTo(CallStations& stations, Instant from, Instant until) const;
};

// Bound on a fetch's search for a slot; its callers have deadlines of their own.
inline constexpr std::int64_t kRoomUs = 5'000'000;

class Fetcher final {
 public:
  Fetcher(const StoreContext& context, BlockOwner& owner, LowerTier& lower, Residents& residents,
          PartialCopies& partial_copies, Evictor& evictor, Room& room)
      : context_(context),
        owner_(owner),
        lower_(lower),
        residents_(residents),
        partial_copies_(partial_copies),
        evictor_(evictor),
        room_(room) {}
  Fetcher(const Fetcher&) = delete;
  Fetcher& operator=(const Fetcher&) = delete;

  Executor& executor() { return context_.executor; }

  // The fetch of a record that is not in memory; all callers that ask before it ends share it.
  std::shared_ptr<PendingFetch> Start(catalog::RecordId record);
  // Decides whether the record will stay in memory: when a fetch is asked for that is not under way yet,
  // since several readers may fetch parts of one block. Of those that are asked for together each finds the
  // room that the others want too, so by worth one that is to stay is looked at again when it takes its
  // place. `ahead` of its prompt's request, if one comes: by worth it is decided when it is used.
  void DecidePromotion(catalog::RecordId record, bool ahead = false);
  // The error that a read at the record's location met: a record that is not what was written there, or that
  // its device did not give back, is lost. The blocks of a device that left service are lost through
  // LowerRecords::DeviceOut.
  void Unreadable(catalog::RecordId record, const Status& status);
  // Records of a matched chain that lie in the lower tier are fetched before a client acquires them, as far
  // as their bytes are few beside memory's.
  void ReadAhead(catalog::TreeId tree, std::span<const BlockKey> chain);
  std::size_t under_way() const { return fetches_.size(); }
  bool fetching(catalog::RecordId record) const {
    return fetches_.contains(context_.forest.record(record).serial);
  }

 private:
  policy::Standing StandingOf(const catalog::Block& block) const;
  Task<void> Fetch(RecordReference reference, std::shared_ptr<PendingFetch> fetch);
  // Adds to `read_us` how long the tier took.
  Task<Status> FetchOnce(catalog::RecordHandle handle, PendingFetch& fetch, double* read_us);
  void NoteTime(const PendingFetch& fetch, catalog::RecordHandle handle, Instant began, Instant ended);
  // Parts of the record, as its namespace has them.
  std::vector<std::uint32_t> PartsOf(const catalog::Record& record) const;
  // Publishes the record in the slot as it is, if the seal is that of the block that was asked for, the body
  // is what the seal says, and the block is still wanted.
  Task<Status> Publish(catalog::RecordHandle handle, const PendingFetch& fetch, tier::Location from,
                       arena::Place place, std::uint64_t generation, tier::FetchedRecord fetched,
                       const ArrivalCheck& check);

  const StoreContext context_;
  BlockOwner& owner_;
  LowerTier& lower_;
  Residents& residents_;
  PartialCopies& partial_copies_;
  Evictor& evictor_;
  Room& room_;
  std::unordered_map<std::uint64_t, std::shared_ptr<PendingFetch>> fetches_;  // by the record's serial
};

}  // namespace cistern::residency
