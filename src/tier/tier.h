// SPDX-License-Identifier: Apache-2.0
// A tier below memory that is the node's own: it takes records in, gives them back, and says after a start
// what it holds. It knows locations, bytes and what its media say; which block is where, what stays and what
// may go is its owner's (tier/owner.h). Implementations: flash (src/flash), simulated (simulated_tier.h).
//
// Belongs to the core's thread. Nothing here blocks; what waits is a task. Sequence numbers come in.
//
//   - What was appended is found after a SIGKILL, in the order of its acknowledgements (R7).
//   - What a reclaim gave up is durably gone before its room counts as free, so that nothing older than a
//     tombstone is left unnoticed (R10).
//   - A device that fails, hangs or lies goes out of service with one message; the rest goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/task.h"
#include "cistern/status.h"
#include "record/seal.h"
#include "tier/entry.h"
#include "tier/journal_view.h"
#include "tier/location.h"
#include "tier/owner.h"

namespace cistern::tier {

// A record to be appended. Borrowed until the append that it is given to has ended.
struct AppendRequest {
  const std::byte* body = nullptr;  // aligned to the unit; readable up to the next unit after body_bytes
  record::Seal seal;                // its spans too are borrowed
  std::uint64_t sequence = 0;       // of this placement
  std::uint64_t born = 0;
  std::uint32_t expiry = 0;
  std::uint64_t conversation = 0;
};

// What a read found, checked: the seal and the stamp hold, and the stamp names the place where it was found.
// The body is not checked yet, nor whether the key is the one that was asked for. Borrows the bytes.
struct FetchedRecord {
  record::SealView seal;
  record::Stamp stamp;
};

inline constexpr std::size_t kMaxBatchRecords = 256;

class Tier {
 public:
  virtual ~Tier() = default;

  // Borrowed; told before Recover, and not changed.
  virtual void SetOwner(TierOwner& owner) = 0;
  // Ids of the media in service. A tombstone waits for these (R10); the journal keeps them.
  virtual std::vector<std::uint64_t> media_ids() const = 0;
  // The furthest mark of the journal that any of its media had when they were opened. Further than the
  // journal's own: that one is an older copy, and all media were begun anew.
  virtual JournalMark newest_mark() const = 0;
  // The media in service say from now on that the journal has come so far; a power cut may take it back. An
  // error: one that is still in service may not say so. One at a time; another may begin once a device that
  // held one up has left service.
  virtual Task<Status> Mark(JournalMark mark) = 0;

  // ---- recovery ----
  // All that the tier holds, a batch at a time. Awaited once, before any append. What the owner does not keep
  // it need not forget: nothing counts as live before Adopt.
  using Found = std::function<Task<void>(std::span<const TierEntry>)>;
  virtual Task<Status> Recover(Found found) = 0;
  virtual void Adopt(const Location& location, std::uint64_t record_bytes) = 0;

  // ---- taking in ----
  // Whether an append of so many bytes would find room now, and the endurance budget for it.
  enum class Room : std::uint8_t { kYes, kNoRoom, kNoBudget, kNoDevice };
  virtual Room RoomFor(std::uint64_t record_bytes) const = 0;
  // A record, or the records of an append, of more bytes are better not written.
  virtual std::uint64_t max_append_bytes() const = 0;
  // Appends the records, at most kMaxBatchRecords, together; locations in their order. All or none is
  // written. kBusy: no room, or the day's budget is spent. kIoError: after another device was tried as well.
  // Several appends may be under way; each has its own buffers.
  virtual Task<Result<std::vector<Location>>> Append(std::span<const AppendRequest> records) = 0;
  // What was acknowledged before is found after a power cut, too. An error: not all of it, and the device that
  // could not is out of service, or hangs and will be.
  virtual Task<Status> MakeDurable() = 0;
  // A record that was appended or adopted is not looked for any more. Does nothing when its device is out.
  virtual void Forget(const Location& location, std::uint64_t record_bytes) = 0;

  // What writing there costs.
  struct WriteCosts {
    double turn_ms = 0;            // how long records lie there; 0: there is room for more
    double moved = 0;              // bytes that reclaim writes again, for each byte that is new
    double budget_bytes_a_ms = 0;  // endurance; 0: without a limit
    double saved = 0;              // of the budget, in hours
  };
  virtual WriteCosts write_costs() const { return {}; }

  // ---- giving back ----
  // How long a read of so many bytes there would take from now on, in microseconds; kNever when its device is
  // out of service.
  static constexpr std::int64_t kNever = INT64_MAX;
  virtual std::int64_t EstimateUs(const Location& location, std::uint64_t bytes) const = 0;
  // Reads the whole record: `into` is aligned to the unit and of record_bytes. kMiss: what lies there is no
  // such record (counted against the device). kIoError: the device.
  // `arrived`, where not null and until the task ends: bytes of it are there already, while others are still
  // on their way. It may be told of none, and is never told of the last.
  using Arrived = std::function<void(std::span<const std::byte> bytes)>;
  virtual Task<Result<FetchedRecord>> Fetch(Location location, std::span<std::byte> into,
                                            const Arrived* arrived) = 0;
  // Reads of a record of `record_bytes` its last units, which hold seal and stamp, into `trailer`, and beside
  // that what lies `offset` bytes into it, into `body`: all of them whole units, and aligned to one. As Fetch
  // for the rest.
  virtual Task<Result<FetchedRecord>> FetchSome(Location location, std::uint64_t record_bytes,
                                                std::span<std::byte> trailer, std::uint64_t offset,
                                                std::span<std::byte> body) = 0;
  // A body that came from here failed its checks.
  virtual void ReportBad(const Location& location) = 0;
  // For messages: "flash region 17, unit 208".
  virtual std::string Describe(const Location& location) const = 0;
  // "flash device /mnt/nvme0".
  virtual std::string DescribeMedium(const Location& location) const = 0;

  // ---- room ----
  // Begins to give up room where appends need some soon, or where it is `wanted` all the same (so that
  // tombstones end); one reclaim at a time. To be called as often as Tick, not before recovery has ended.
  virtual void Reclaim(bool wanted) = 0;
  // Bytes of records that may stay at every reclaim: others still leave enough room.
  virtual std::uint64_t reservable_bytes() const = 0;
  // The smallest sequence that a record on the media may have; UINT64_MAX when there is none. No tombstone at
  // or above it may be forgotten.
  virtual std::uint64_t oldest_sequence() const = 0;

  // ---- trouble ----
  // Notices transfers that hang; to be called some ten times a second.
  virtual void Tick() = 0;
  // The owner knows no place any more in the range that DeviceOut told it. The device is not brought back
  // before.
  virtual void Forgotten(const LocationRange& range) = 0;
  // Ends reclaim, makes durable what was acknowledged and waits for what is under way; nothing may be asked
  // of the tier any more. Awaited before it goes, unless the loop crashed. A transfer that hangs keeps it
  // waiting: its memory is the kernel's until then (R6).
  virtual Task<void> Close() = 0;
};

}  // namespace cistern::tier
