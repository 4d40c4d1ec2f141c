// SPDX-License-Identifier: Apache-2.0
// Appends: batches into the open region of a device, opening regions and closing them.
//
// A region's header with a new epoch is durable before anything is written behind it (R11). Appends of a
// region are acknowledged in their order: recovery follows its batches and stops at the first that is not
// whole, so a batch counts when all before it do.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "base/task.h"
#include "base/task_group.h"
#include "flash/budget.h"
#include "flash/media.h"
#include "flash/table.h"
#include "flash/turn.h"
#include "tier/tier.h"

namespace cistern::flash {

class Appender final {
 public:
  Appender(Media& media, Tables& tables);
  ~Appender() { group_.Drop(); }
  Appender(const Appender&) = delete;
  Appender& operator=(const Appender&) = delete;

  Executor& executor() const { return media_.executor(); }

  // Records that reclaim moves are not refused for the budget, and have a region that nothing new is written
  // to: without that, giving up a region would lose what was to be kept.
  enum class Purpose : std::uint8_t { kNew, kMove };
  Task<Result<std::vector<tier::Location>>> Append(std::span<const tier::AppendRequest> records,
                                                   Purpose purpose);
  tier::Tier::Room RoomFor(std::uint64_t record_bytes) const;
  std::uint64_t budget_left_bytes() const { return budget_.Left(media_.Now()); }
  tier::Tier::WriteCosts write_costs() const;
  // 0: without a limit. What the day wrote so far is forgotten.
  void SetBudget(std::uint64_t bytes_a_day) { budget_ = Budget(bytes_a_day, media_.Now()); }
  // Of the appends that are under way; UINT64_MAX when there is none. They may go to another device than the
  // one on which they were begun.
  std::uint64_t oldest_sequence() const { return appending_.empty() ? UINT64_MAX : *appending_.begin(); }

  // Nothing more is acknowledged of what is being written to a device that has left service.
  void DeviceOut(DeviceRegions& device);
  // Closes the open regions and waits for what is under way. No append from now on.
  Task<void> Close();

 private:
  // The shape of a batch.
  struct Layout {
    std::uint32_t count = 0;
    std::uint32_t head_units = 0;
    std::uint32_t units = 0;
    std::uint64_t trailer_bytes = 0;
    std::uint64_t record_bytes = 0;
    std::uint64_t least_sequence = UINT64_MAX;
    std::vector<std::uint32_t> at;       // of each record, in units from the batch's start
    std::vector<std::uint32_t> trailer;  // of each record, in bytes
  };
  class Underway;

  Result<Layout> LayOut(std::span<const tier::AppendRequest> records) const;
  bool OpenFits(const DeviceRegions& device, const Layout& layout) const {
    return device.open() != kNoRegion &&
           device.at(device.open()).Fits(media_.geometry(), layout.units, layout.count);
  }
  // Whether a region may be opened for that; whether more may be written to the open one.
  bool MayOpen(Purpose purpose) const;
  bool MayFill(Purpose purpose) const;
  DeviceRegions* Choose(const Layout& layout, const DeviceRegions* avoid, Purpose purpose);
  std::uint32_t Reserve(DeviceRegions& device, const Layout& layout, std::uint32_t* unit);
  void Prepare(DeviceRegions& device, std::uint64_t first_sequence);
  Task<void> WriteFirst(DeviceRegions& device, std::uint32_t region);
  Task<Status> WriteBatch(DeviceRegions& device, std::uint32_t region, std::uint32_t unit,
                          const Layout& layout, std::span<const tier::AppendRequest> records);
  Task<Status> Transmit(DeviceRegions& device, std::uint32_t region, std::uint32_t unit, const Layout& layout,
                        std::span<const tier::AppendRequest> records, Buffer& buffer);
  void BatchEnded(DeviceRegions& device, std::uint32_t region, Batch& batch);
  void FailWriting(Writing& writing);

  void LetGo(DeviceRegions& device, std::uint32_t region);
  void BeginClosing(DeviceRegions& device);
  void WriterLeft(DeviceRegions& device, std::uint32_t region);
  Task<void> CloseRegion(DeviceRegions& device, std::uint32_t region);
  Task<void> EmptyAgain(DeviceRegions& device, std::uint32_t region);

  Media& media_;
  Tables& tables_;
  Budget budget_;
  Turn log_turn_;
  std::uint64_t next_epoch_;
  std::size_t turn_ = 0;                    // of the devices
  std::multiset<std::uint64_t> appending_;  // the least sequence of each append that is under way
  bool closing_ = false;
  TaskGroup group_;
};

}  // namespace cistern::flash
