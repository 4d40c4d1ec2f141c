// SPDX-License-Identifier: Apache-2.0
// Flash as the lower tier: records appended to regions of preallocated files or raw devices, read back with
// one transfer, given up by whole regions. docs/formats/flash.md has the format. Beside the promises of
// tier/tier.h:
//
//   - A region is open, then closed and never appended to again until it was released; its header with a new
//     epoch is durable before anything is written behind it (R11), and what a release gave up is durably gone
//     before the region counts as free (R10).
//   - A region that is being read or written is not opened again before that ended.
//   - A device that is out of service is lost. It comes back formatted anew.
//
// Its parts, each standing on those before it: device.h (transfers), device_regions.h (a device's regions and
// their states), media.h (all devices), table.h, then open.h, recovery.h, read.h and append.h, then
// reclaim.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/event.h"
#include "base/task.h"
#include "cistern/status.h"
#include "flash/figures.h"
#include "flash/options.h"
#include "tier/tier.h"

namespace cistern::flash {

class Appender;
class DeviceOpener;
class DeviceRegions;
class Media;
class Reclaim;
class RecordReader;
class Tables;

class FlashTier final : public tier::Tier {
 public:
  // Opens every device, takes its lock (kept by the loop until its last transfer has ended, R8), formats what
  // is empty. Only devices that the journal knows are believed (R10), any other of ours is formatted anew
  // with a note; one that was used under another journal is refused. Where one has seen a later state of the
  // journal than `journal` is, the journal is an older copy and all are formatted. Nothing is touched before
  // all was checked.
  // Where devices are known, one whose lock is not free within kLockWaitUs, each waited for in its turn, is
  // left out of service, untouched (R8); where none is known the start fails. One that hangs is left out of
  // service by the limit that holds later.
  // kInvalid, kMismatch (foreign data, another journal or version), kBusy (locked, no room), kIoError, each
  // by name.
  static Task<Result<std::unique_ptr<FlashTier>>> Open(FlashParts parts, FlashOptions options,
                                                       tier::JournalView journal);
  // Close was awaited, or the loop crashed and whoever waited for it was dropped.
  ~FlashTier() override;
  FlashTier(const FlashTier&) = delete;
  FlashTier& operator=(const FlashTier&) = delete;

  Executor& executor() const;

  // ---- Tier ----
  void SetOwner(tier::TierOwner& owner) override { owner_ = &owner; }
  std::vector<std::uint64_t> media_ids() const override;
  tier::JournalMark newest_mark() const override;
  Task<Status> Mark(tier::JournalMark mark) override;
  Task<Status> Recover(Found found) override;
  void Adopt(const tier::Location& location, std::uint64_t record_bytes) override;
  Room RoomFor(std::uint64_t record_bytes) const override;
  // A quarter of a region.
  std::uint64_t max_append_bytes() const override;
  WriteCosts write_costs() const override;
  Task<Result<std::vector<tier::Location>>> Append(std::span<const tier::AppendRequest> records) override;
  Task<Status> MakeDurable() override;
  void Forget(const tier::Location& location, std::uint64_t record_bytes) override;
  std::int64_t EstimateUs(const tier::Location& location, std::uint64_t bytes) const override;
  Task<Result<tier::FetchedRecord>> Fetch(tier::Location location, std::span<std::byte> into,
                                          const Arrived* arrived) override;
  Task<Result<tier::FetchedRecord>> FetchSome(tier::Location location, std::uint64_t record_bytes,
                                              std::span<std::byte> trailer, std::uint64_t offset,
                                              std::span<std::byte> body) override;
  void ReportBad(const tier::Location& location) override;
  std::string Describe(const tier::Location& location) const override;
  std::string DescribeMedium(const tier::Location& location) const override;
  void Reclaim(bool wanted) override;
  std::uint64_t reservable_bytes() const override;
  std::uint64_t oldest_sequence() const override;
  void Tick() override;
  void Forgotten(const tier::LocationRange& range) override;
  Task<void> Close() override;

  // ---- devices ----
  // Takes a device out of service by hand, or brings one back, formatted anew. kMiss: no such path. Not
  // before the owner has forgotten all locations of its old life: of a device that is out Forget and Adopt do
  // nothing. kBusy: transfers of its old life have not ended; try again.
  Status TakeOut(const std::string& path);
  Task<Status> BringBack(std::string path);

  // ---- figures ----
  std::vector<FlashDeviceState> devices() const;
  const FlashCounters& counters() const;
  std::uint64_t capacity_bytes() const;
  std::uint64_t live_bytes() const;
  std::uint64_t live_bytes(std::uint32_t region) const;
  std::uint32_t free_regions() const;
  std::uint32_t regions() const;
  std::uint64_t region_bytes() const;
  // What the budget lets be written now; UINT64_MAX without one.
  std::uint64_t budget_left_bytes() const;
  // As FlashOptions::budget_bytes_a_day, from now on.
  void SetBudget(std::uint64_t bytes_a_day);

 private:
  FlashTier(FlashParts parts, FlashOptions options, tier::JournalView journal);
  void DeviceOut(DeviceRegions& device);
  Task<void> TickUntil(Event& opened);

  tier::TierOwner* owner_ = nullptr;
  bool recovered_ = false;
  // In the order of standing on each other.
  std::unique_ptr<Media> media_;
  std::unique_ptr<Tables> tables_;
  std::unique_ptr<DeviceOpener> opener_;
  std::unique_ptr<RecordReader> reader_;
  std::unique_ptr<Appender> appender_;
  std::unique_ptr<flash::Reclaim> reclaim_;
};

// FlashTier::Open, for who knows lower tiers only.
Task<Result<std::unique_ptr<tier::Tier>>> OpenFlash(FlashParts parts, FlashOptions options,
                                                    tier::JournalView journal);

}  // namespace cistern::flash
