// SPDX-License-Identifier: Apache-2.0
// Flash below memory: records appended to regions of preallocated files or raw devices, read back with one
// transfer, given up by whole regions. It knows places, bytes and what the media say; which block is where,
// what is kept and what may go is decided above it, by the store. docs/formats/flash.md has the format.
//
// Belongs to the core's thread. Nothing here blocks; what waits is a task. Time, random numbers and sequence
// numbers come in. The rules it keeps:
//
//   - A region is open, then closed and never appended to again until it was released; its header with a new
//     epoch is durable before anything is written behind it (R11), and what a release gave up is durably gone
//     before the region counts as free, so that nothing older than a tombstone is left unnoticed (R10).
//   - Appends of a region are acknowledged in their order: what was acknowledged is found after SIGKILL.
//   - A region that is being read or written is not opened again before that ended.
//   - A device that fails, hangs or lies goes out of service with one message; the rest goes on. What was on
//     it is lost. It comes back formatted anew.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/task.h"
#include "cistern/status.h"
#include "flash/entry.h"
#include "flash/place.h"
#include "io/loop.h"
#include "record/seal.h"

namespace cistern {

// A file or block device of the tier.
struct FlashDeviceOptions {
  std::string path;              // a directory, in which the file `flash` is made; or a block device
  std::uint64_t size_bytes = 0;  // of the file; for a block device 0: all of it
};

struct FlashOptions {
  std::vector<FlashDeviceOptions> devices;  // 1 to kMaxFlashDevices
  std::uint32_t unit = 4096;                // the arena's alignment: of places and transfers
  std::uint64_t region_bytes = 0;           // 0: chosen from the size of the devices (RegionBytesFor)
  std::uint64_t budget_bytes_a_day = 0;     // endurance: of what is written, 0: without a limit
  bool discard_foreign = false;             // overwrite what is not this tier's
  std::int64_t hang_us = 10'000'000;        // a transfer that takes longer takes its device out of service
  std::uint32_t read_depth = 64;            // transfers at a device at a time; the rest waits in order
  std::uint32_t write_depth = 8;

  // kInvalid names the field, its value and its limit.
  Status Validate() const;
};

inline constexpr std::size_t kMaxFlashDevices = 16;
inline constexpr std::size_t kMaxBatchRecords = 256;
inline constexpr std::uint64_t kMinRegionBytes = 64u << 10;  // for simulation; a node takes 16 MiB and more
inline constexpr std::uint64_t kMaxRegionBytes = 1ull << 30;

// 256 MiB to 1 GiB where there are 64 of them, down to 16 MiB on a small device.
std::uint64_t RegionBytesFor(std::uint64_t smallest_device_bytes);

// A record on its way down. Borrowed until the append that it is given to has ended.
struct Outgoing {
  const std::byte* body = nullptr;  // aligned to the unit; readable up to the next unit after body_bytes
  Seal seal;                        // its spans too are borrowed
  std::uint64_t sequence = 0;       // of this placement
  std::uint64_t born = 0;
  std::uint32_t expiry = 0;
  std::uint64_t conversation = 0;
};

// What a read found, checked: the seal and the stamp hold, and the stamp names the place and the region's
// epoch. The body is not checked yet, nor whether the key is the one that was asked for. Borrows the bytes.
struct Fetched {
  SealView seal;
  Stamp stamp;
};

class Tier final {
 public:
  struct Parts {  // borrowed; outlive the tier
    Loop& loop;
    Logger& log;
    // Random 64 bits: ids of devices and the first epochs of a new one.
    std::function<std::uint64_t()> random;
    Executor& executor() const { return loop.executor(); }
  };
  // A device left service, or is about to: what lies in [first, last) of the regions is lost. Called once a
  // device; the store forgets these places in slices.
  using DeviceOut = std::function<void(std::uint32_t first_region, std::uint32_t last_region)>;

  // Opens every device, takes its lock (kept by the loop until its last transfer has ended, R8), formats what
  // is empty. `known` are the ids of devices that the journal `journal_id` has waited for (R10): only these
  // are believed, any other of ours is formatted anew with a note. Nothing is touched before all was checked.
  // Where devices are known, one whose lock is not free within 2 s is left out of service, untouched (R8).
  // kInvalid, kMismatch (foreign data, another version), kBusy (locked, no room), kIoError, each by name.
  static Task<Result<std::unique_ptr<Tier>>> Open(Parts parts, FlashOptions options, std::uint64_t journal_id,
                                                  std::vector<std::uint64_t> known);
  // Closes the open regions and waits for what is under way; nothing may be asked of it any more. Awaited
  // before it goes, unless the loop crashed. A transfer that hangs keeps it waiting: its memory is the
  // kernel's until then (R6).
  Task<void> Close();
  // Close was awaited, or the loop crashed and whoever waited for it was dropped.
  ~Tier();
  Tier(const Tier&) = delete;
  Tier& operator=(const Tier&) = delete;

  // Ids of the devices in service, for the journal.
  std::vector<std::uint64_t> device_ids() const;
  void set_on_device_out(DeviceOut hook);
  // The store knows no place on the device that begins with this region any more. It is not brought back
  // before.
  void Forgotten(std::uint32_t first_region);

  // ---- recovery ----
  // All that the tables of closed regions and the batches of one that was open say, a batch at a time;
  // regions that were open are closed. Awaited once, before any append. Damaged regions are noted and freed.
  // What the caller does not keep it need not forget: nothing counts as live before Adopt.
  Task<Status> Recover(std::function<Task<void>(std::span<const FlashEntry>)> found);
  void Adopt(const FlashPlace& place, std::uint64_t record_bytes);

  // ---- down ----
  // Whether an append of so many bytes would find room now, and the budget for it.
  enum class Room : std::uint8_t { kYes, kNoFreeRegion, kNoBudget, kNoDevice };
  Room RoomFor(std::uint64_t record_bytes) const;
  // Appends the records, at most kMaxBatchRecords, together; places in their order. All or none is written.
  // kBusy: no region is free, or the day's budget is spent (counted). kIoError: after another device was
  // tried as well.
  // Several appends may be under way; each has its own buffers.
  // What reclaim moves is not refused for the budget, and has a region that nothing new is written to:
  // without that, giving up a region would lose what was to be kept.
  enum class Purpose : std::uint8_t { kNew, kMove };
  Task<Result<std::vector<FlashPlace>>> Append(std::span<const Outgoing> records,
                                               Purpose purpose = Purpose::kNew);
  // A record that was appended or adopted is not looked for any more. Does nothing when its device is out.
  void Forget(const FlashPlace& place, std::uint64_t record_bytes);

  // ---- up ----
  // How long a read of so many bytes there would take from now on, in microseconds; kNever when its device is
  // out of service.
  static constexpr std::int64_t kNever = INT64_MAX;
  std::int64_t EstimateUs(const FlashPlace& place, std::uint64_t bytes) const;
  // Reads the whole record: `into` is aligned to the unit and of record_bytes. kMiss: what lies there is no
  // such record (counted against the device). kIoError: the device.
  Task<Result<Fetched>> Fetch(FlashPlace place, std::span<std::byte> into);
  // Reads of a record of `record_bytes` its last units, which hold seal and stamp, into `trailer`, and beside
  // that what lies `offset` bytes into it, into `body`: all of them whole units, and aligned to one. As Fetch
  // for the rest.
  Task<Result<Fetched>> FetchSome(FlashPlace place, std::uint64_t record_bytes, std::span<std::byte> trailer,
                                  std::uint64_t offset, std::span<std::byte> body);
  // A body that came from here failed its checks.
  void ReportBad(const FlashPlace& place);

  // ---- reclaim ----
  std::uint32_t free_regions() const;
  std::uint32_t regions() const;
  // Whether there are fewer free regions than appends need soon.
  bool WantsReclaim() const;
  // The next region to be given up: the oldest closed one, or one in which nothing lives. It is the caller's
  // until Release or GiveBack. None: no region is closed.
  std::optional<std::uint32_t> TakeVictim();
  // Its table. kIoError: not all of it can be read; what the caller has there it then finds by itself.
  Task<Result<std::vector<FlashEntry>>> Entries(std::uint32_t region);
  // Nothing of it lives any more (asserted: live_bytes is 0), but reads may still be under way: ends when it
  // is free, durably.
  Task<Status> Release(std::uint32_t region);
  void GiveBack(std::uint32_t region);
  std::uint64_t live_bytes(std::uint32_t region) const;
  // The smallest sequence that a record on the media may have, of all regions; UINT64_MAX when there is none.
  // No tombstone at or above it may be forgotten.
  std::uint64_t oldest_sequence() const;

  // ---- trouble ----
  // Notices transfers that hang; to be called some ten times a second.
  void Tick();
  // Takes a device out of service by hand, or brings one back, formatted anew. kMiss: no such path. Not
  // before the caller has forgotten all places of its old life: of a device that is out Forget and Adopt do
  // nothing. kBusy: transfers of its old life have not ended; try again.
  Status TakeOut(const std::string& path);
  Task<Status> BringBack(std::string path);

  struct DeviceState {
    std::string path;
    std::uint64_t id = 0;
    bool in_service = true;
    std::string why;  // it is out
    std::uint64_t size_bytes = 0;
    std::uint64_t read_bytes = 0, written_bytes = 0, reads = 0, writes = 0, errors = 0, bad_records = 0;
    std::uint32_t in_flight = 0;
    std::int64_t read_estimate_us = 0;  // of 64 KiB, now
  };
  std::vector<DeviceState> devices() const;
  struct Counters {
    Counter appended_records, appended_bytes, device_written_bytes, fetched_records, fetched_bytes,
        released_regions, refused_by_budget, refused_no_region, bad_records, io_errors;
  };
  const Counters& counters() const;
  std::uint64_t capacity_bytes() const;
  std::uint64_t live_bytes() const;
  std::uint64_t region_bytes() const;
  // What the budget lets be written now; UINT64_MAX without one.
  std::uint64_t budget_left_bytes() const;

 private:
  class Impl;
  explicit Tier(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cistern
