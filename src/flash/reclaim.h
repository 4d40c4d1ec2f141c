// SPDX-License-Identifier: Apache-2.0
// Reclaim: a region is given up whole (R9). The owner is asked, from the end of the region's table on, which
// records stay; those are written again elsewhere. What is left is lost, and then the region is free.
//
// Children come after their parents in a table, so what goes makes leaves of what is asked after later.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/task.h"
#include "base/task_group.h"
#include "flash/append.h"
#include "flash/media.h"
#include "flash/read.h"
#include "flash/table.h"
#include "tier/owner.h"

namespace cistern::flash {

class Reclaim final {
 public:
  Reclaim(Media& media, Tables& tables, RecordReader& reader, Appender& appender)
      : media_(media), tables_(tables), reader_(reader), appender_(appender), group_(media.executor()) {}
  ~Reclaim() { group_.Drop(); }
  Reclaim(const Reclaim&) = delete;
  Reclaim& operator=(const Reclaim&) = delete;

  Executor& executor() const { return media_.executor(); }

  // Without giving anything up a region more could be filled than appends need soon: what is written takes
  // nobody's room.
  bool RoomLeft() const;
  // Half of the devices in service, and of each no more than leaves appends the regions that they need.
  std::uint64_t ReservableBytes() const;
  // Begins to give up a region where appends need one soon, or where it is `wanted`; one at a time.
  void Start(tier::TierOwner& owner, bool wanted);
  // A region on a device that went may never be given up: another may be meanwhile.
  void DeviceOut() {
    ++devices_out_;
    running_ = false;
  }
  // Waits until no region is being given up. None is from now on.
  Task<void> Close();

 private:
  struct Move;

  // Whether there are fewer free regions than appends need soon.
  bool Wanted() const;
  std::optional<std::uint32_t> TakeVictim();
  Task<void> Run(tier::TierOwner& owner);
  // Whether the region is free, durably.
  Task<bool> GiveUp(tier::TierOwner& owner, std::uint32_t region);
  // Whether some of it moves.
  Task<bool> Evacuate(tier::TierOwner& owner, std::span<const tier::TierEntry> entries);
  Task<void> MoveAll(tier::TierOwner& owner, std::span<const tier::TierEntry* const> entries);
  Task<void> MoveBatch(tier::TierOwner& owner, std::span<const tier::TierEntry* const> entries,
                       std::uint64_t bytes);
  // The region stays as it is.
  void GiveBack(std::uint32_t region);
  Task<Status> Release(std::uint32_t region);

  Media& media_;
  Tables& tables_;
  RecordReader& reader_;
  Appender& appender_;
  bool running_ = false;
  bool closing_ = false;
  std::uint64_t devices_out_ = 0;
  TaskGroup group_;
};

}  // namespace cistern::flash
