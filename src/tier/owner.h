// SPDX-License-Identifier: Apache-2.0
// What a lower tier asks and tells the one who knows which block is where. A tier has room for what it takes
// in by giving up room as a whole (flash: a region); which of the records in there stay is its owner's to
// say.
#pragma once

#include <cstdint>
#include <optional>

#include "base/task.h"
#include "tier/entry.h"
#include "tier/location.h"

namespace cistern::tier {

// What of a stamp is written anew when a record moves within its tier.
struct MoveStamp {
  std::uint64_t sequence = 0;
  std::uint64_t conversation = 0;
};

class TierOwner {
 public:
  // ---- reclaim, a room at a time; leaves are asked after before what they descend from ----
  // Whether the record moves elsewhere. `kept_bytes` of the room's `room_bytes` move already. For what does
  // not move the owner has called Forget, and looks for it no more, when the task ends.
  virtual Task<bool> Keep(const TierEntry& entry, std::uint64_t kept_bytes, std::uint64_t room_bytes) = 0;
  // In the step of the append that moves the record; none where it went or was written anew since. So no
  // dropped record is written with a number that its tombstone does not wait for (R10).
  virtual std::optional<MoveStamp> StampOf(const TierEntry& entry) = 0;
  // The record lies at `to` as well. The owner forgets one of the two places: the old one, or `to` where the
  // block went meanwhile.
  virtual void Moved(const TierEntry& entry, Location to) = 0;
  // Whatever is left in the range is lost; the owner has forgotten all of it when the task ends.
  virtual Task<void> Lose(LocationRange range) = 0;
  // A room is free again, durably: oldest_sequence() may have risen, and there is room to append.
  virtual Task<void> Reclaimed() = 0;

  // ---- trouble ----
  // A device left service, and what lies in the range is lost. Called once a device, from within any call of
  // the tier: the owner forgets these places later, in steps, and says so with Forgotten(). Who waits for a
  // transfer there may wait for ever.
  virtual void DeviceOut(LocationRange range) = 0;

 protected:
  ~TierOwner() = default;
};

}  // namespace cistern::tier
