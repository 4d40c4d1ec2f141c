// SPDX-License-Identifier: Apache-2.0
// The store's side of the lower tier's records: which of them stay when the tier gives up room, where they
// moved, and which were lost with a device.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/task.h"
#include "residency/block_owner.h"
#include "residency/context.h"
#include "residency/lower_tier.h"
#include "residency/partial_copies.h"
#include "residency/removal.h"
#include "residency/tombstones.h"
#include "residency/write_back.h"
#include "tier/owner.h"

namespace cistern::residency {

class LowerRecords final : public tier::TierOwner {
 public:
  LowerRecords(const StoreContext& context, BlockOwner& owner, LowerTier& lower,
               PartialCopies& partial_copies, Removal& removal, WriteBack& write_back, Tombstones& tombstones)
      : context_(context),
        owner_(owner),
        lower_(lower),
        partial_copies_(partial_copies),
        removal_(removal),
        write_back_(write_back),
        tombstones_(tombstones) {}
  LowerRecords(const LowerRecords&) = delete;
  LowerRecords& operator=(const LowerRecords&) = delete;

  Executor& executor() { return context_.executor; }

  Task<bool> Keep(const tier::TierEntry& entry, std::uint64_t kept_bytes, std::uint64_t room_bytes) override;
  std::optional<tier::MoveStamp> StampOf(const tier::TierEntry& entry) override;
  void Moved(const tier::TierEntry& entry, tier::Location to) override;
  Task<void> Lose(tier::LocationRange range) override { return LoseAll(range, Why::kNoRoom); }
  Task<void> Reclaimed() override;
  void DeviceOut(tier::LocationRange range) override;

  // Why memory alone has a record from now on.
  enum class Why : std::uint8_t { kLost, kNoRoom };
  void GiveUpCopy(catalog::BlockId block, const catalog::Forest::Copy& copy, Why why);
  // Memory goes with its host before long: what it has needs its copy in the lower tier.
  void SetMemoryGoes(bool goes) { memory_goes_ = goes; }
  // Copies of records in memory that were given up with their room or their device, or were bad, ever.
  std::uint64_t gave_up() const { return gave_up_; }
  // A device left service, and not all that was on it is counted yet.
  bool losing() const { return losing_ > 0; }

  // Recovery is over: blocks that a device took along during it are lost from now on.
  void Recovered();

 private:
  // The block whose record lies at the entry's location, and the record's facts; kNoId for none. It may be
  // waiting to be collected.
  std::pair<catalog::BlockId, catalog::Forest::Copy> FindThere(const tier::TierEntry& entry);
  // What the group has in the lower tier stays where room is given up.
  bool Reserved(policy::QuotaGroup group);
  Task<void> LoseAll(tier::LocationRange range, Why why);
  void Lost(tier::LocationRange range);
  Task<void> MediumLost(tier::LocationRange range);

  const StoreContext context_;
  BlockOwner& owner_;
  LowerTier& lower_;
  PartialCopies& partial_copies_;
  Removal& removal_;
  WriteBack& write_back_;
  Tombstones& tombstones_;
  bool memory_goes_ = false;
  std::uint64_t gave_up_ = 0;
  std::size_t losing_ = 0;  // devices
  bool recovering_ = true;
  std::vector<tier::LocationRange> lost_;  // during recovery
};

}  // namespace cistern::residency
