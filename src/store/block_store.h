// SPDX-License-Identifier: Apache-2.0
// The core of a node: it decides what is published, found, kept, evicted, dropped. One thread owns it (the
// executor's), so nothing in it has a lock; it reads no clock, no random device and no thread id directly.
// Bytes are moved by movers. Shared memory is touched through Words only. No step does more than
// kStepTouches tree or index touches or copies more than kStepBytes; longer work yields.
//
// Its rooms: names.h (namespaces and their lists), tree.h (blocks, parents, records), pending.h (puts that
// are not visible yet), leases.h, journal.h (what must survive: lists, incarnations, tombstones).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "arena/index.h"
#include "arena/words.h"
#include "base/clock.h"
#include "base/executor.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/task.h"
#include "cistern/key.h"
#include "cistern/namespace.h"
#include "cistern/options.h"
#include "cistern/status.h"
#include "policy/lower.h"
#include "record/segments.h"

namespace cistern {

class Slots;
class Movers;
class Journal;
class Tier;

inline constexpr std::uint32_t kStepTouches = 512;
inline constexpr std::uint32_t kStepBytes = 64u << 10;

using SessionId = std::uint64_t;
using LeaseId = std::uint64_t;

// Blocks whose records are gone and that something descends from (of namespaces without a full group, where
// what is behind the window goes first) are bounded with the rest at 1.25 times the records that the arena
// could hold. Past that a put evicts what frees some; a single chain longer than that finds nothing that
// does, and its puts are kBusy.
struct BlockStoreOptions {
  std::uint64_t max_blocks = 0;          // published records at most; 0: what fits
  std::uint32_t max_pending = 4096;      // puts not visible yet, over all sessions
  std::int64_t pending_us = 30'000'000;  // a pending put is dropped after this and counted
  std::uint32_t max_leases = 65'536;
  std::uint32_t max_leased_blocks = 1u << 20;
  std::uint32_t max_tombstones = 65'536;
  std::uint32_t max_noted_blocks = 262'144;  // of conversations; see conversations.h
  // A batch of more goes to movers; the core copies the rest itself, in steps of kStepBytes
  // (docs/decisions/0003-who-copies-a-put.md).
  std::uint64_t core_copy_bytes = 4u << 20;

  // ---- with a tier below memory ----
  LowerPolicy lower;
  // Blocks that may be there, which the tree has room for: what the smallest records would make of its bytes.
  std::uint32_t max_lower_blocks = 0;
  std::uint64_t read_ahead_bytes = 16u << 20;  // of a chain that was matched; 0: none
  std::uint64_t scrub_bytes_per_s = 0;         // read again in the background, in every tier; 0: none
};

// How a node opens what lies below its memory, told who the journal is and which devices its tombstones have
// waited for (see flash/tier.h).
using OpenTierCall = std::function<Task<Result<std::unique_ptr<Tier>>>(std::uint64_t journal_id,
                                                                       std::vector<std::uint64_t> known)>;

// Blocks of a match that follow each other in one tier.
struct MatchedRun {
  std::uint32_t blocks = 0;
  bool below = false;            // on flash
  std::int64_t ready_in_us = 0;  // what the device would take for them from now on
};

// A session as the store knows it: the process at the door, and the owner it belongs to.
struct Caller {
  SessionId session = 0;
  OwnerToken owner{};
};

struct Attached {
  std::uint32_t slot = 0;
  std::uint64_t incarnation = 0;
};

// One part of one block, its bytes in staging. The store is done with `from` when the write's task ends.
struct PartWrite {
  BlockKey key;
  BlockKey parent;  // none(): the chain's first block
  std::uint16_t group = 0;
  std::uint16_t part = 0;
  PutId put_id;
  std::span<const std::byte> from;
  // CRC32C of each segment of the part as the client computed it while it filled `from` (R6); empty: not
  // known.
  std::vector<std::uint32_t> checksums;
  std::uint32_t ttl_s = 0;
  bool held = false;
  std::uint64_t conversation = 0;  // 0: none
};

struct PartOutcome {
  Status status;
  enum class State : std::uint8_t { kNone = 0, kPublished, kPresent, kPending } state = State::kNone;
};

struct ViewGrant {
  Code code = Code::kMiss;
  std::uint32_t place = 0;
  std::uint64_t bytes = 0;
  std::uint64_t generation = 0;
  std::int64_t ready_in_us = 0;  // of one below memory, as it was estimated when it was asked for
};

struct AcquireGrant {
  LeaseId lease = 0;  // 0: nothing was there to lease
  std::vector<ViewGrant> views;
};

struct StoreCounters {
  Counter published, present, evicted, dropped, expired, cut_bad, pending_dropped, leases_granted,
      leases_ended, touches_applied, touches_refused, busy, writes_without_room, recovered, recovery_refused,
      reported_bad, reported_good;
  // Below memory. Demoted: left memory and are still there. Evicted unwritten: were wanted below and had to
  // go before they were written.
  Counter written_down, down_failed, down_too_large, down_overflow, down_over_budget, demoted,
      evicted_unwritten, fetched, fetch_failed, fetch_refused, read_ahead, passing, passed_segments,
      reclaimed, moved_below, evicted_below, cut_at_reclaim, lost_below, scrubbed_bytes, scrub_rounds;
};

class BlockStore {
 public:
  struct Parts {  // borrowed; outlive the store
    Executor& executor;
    const Clock& clock;
    Words& words;
    Slots& slots;      // knows no chunk yet: Recover() fills it
    IndexSpace index;  // of that arena
    Movers& movers;
    Journal& journal;  // not opened yet
    Logger& log;
    OpenTierCall open_tier = nullptr;  // none: memory is all there is
  };

  BlockStore(const Parts& parts, const BlockStoreOptions& options);
  // No call may be under way, or all of its tasks were dropped (a simulated crash).
  ~BlockStore();
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;

  // Reads the journal and the heads, builds the tree of what is reachable (R10, R11), clears and refills the
  // index. To be awaited before anything else.
  Task<Status> Recover();

  // kMismatch: the name stands for another list (message: the differing field, both values).
  Task<Result<Attached>> Attach(const NamespaceSpec& spec);
  // kMiss when the slot is unknown or has another incarnation by now.
  Status CheckNamespace(std::uint32_t slot, std::uint64_t incarnation) const;

  // Which further blocks after the first `matched` of a chain can be read, from whatever tier; what of them
  // is below memory is on its way up as far as BlockStoreOptions::read_ahead_bytes goes.
  Task<Result<std::vector<MatchedRun>>> MatchRest(std::uint32_t slot, std::uint32_t matched,
                                                  std::span<const BlockKey> rest);

  // Keeps a matched chain (keys from block 0 on) until the deadline. kMiss if some of it is gone already.
  Task<Result<LeaseId>> Hold(const Caller& caller, std::uint32_t slot, std::span<const BlockKey> chain,
                             std::int64_t hold_us);
  // Verifies what was not checked since the restart, fetches what lies below memory, all of it beside each
  // other, leases what is here then. kTooLate for what would not be, or was not, here by the deadline or
  // after `worth_us` from now on.
  // Who needs only some segments of a block that lies below memory says which: then no more than these may be
  // behind the view. None (count 0), or what its record has not: all of it.
  struct BlockName {
    BlockKey key;
    std::uint16_t group = 0;
    SegmentSpan asked{};
  };
  Task<Result<AcquireGrant>> Acquire(const Caller& caller, std::uint32_t slot,
                                     std::span<const BlockName> blocks, std::int64_t lease_us,
                                     Instant deadline, std::int64_t worth_us = kNoWorthLimit);
  Status Release(const Caller& caller, LeaseId lease);

  // Completes when no mover holds the bytes any more; outcomes one a part. The deadline ends waiting for
  // room, never a copy under way.
  Task<std::vector<PartOutcome>> Write(const Caller& caller, std::uint32_t slot, std::vector<PartWrite> parts,
                                       Instant deadline);
  Task<Result<std::uint32_t>> Publish(const Caller& caller, std::uint32_t slot, std::span<const PutId> puts);
  Task<Result<std::uint32_t>> Abandon(const Caller& caller, std::uint32_t slot, std::span<const PutId> puts);

  // In order; the last becomes the most recently used. `conversation`, if not 0, uses the blocks.
  Task<std::uint32_t> Touch(std::uint32_t slot, std::span<const BlockKey> keys,
                            std::uint64_t conversation = 0);
  // From a reader's lossy ring: range-checked, ignored unless the generation matches.
  void TouchPlace(std::uint32_t place, std::uint32_t generation_low);

  Task<Result<std::uint64_t>> Drop(std::uint32_t slot, std::span<const BlockKey> keys);
  // Drops what the conversation wrote and no other has used; blocks removed.
  Task<Result<std::uint64_t>> EndConversation(std::uint32_t slot, std::uint64_t conversation);
  Task<Result<std::pair<std::uint64_t, std::uint64_t>>> DropNamespace(
      std::uint32_t slot);  // blocks, incarnation

  // A reader saw a body fail its seal: verified again by a mover, then cut with all that descends from it.
  // One that is sound has its index entry written again, which may be what is damaged.
  Task<Status> ReportBad(std::uint32_t slot, std::span<const BlockName> blocks);

  // Ends its leases; its pending puts end too when no other session of the owner is left.
  Task<void> SessionEnded(const Caller& caller, bool last_of_owner);

  // Ends leases and pending puts past their time, cuts expired blocks, a slice a call; true: there is more.
  bool Tick();

  // Ends what goes on between memory and flash; awaited before the store goes where there is a tier.
  Task<void> Close();
  // Null where memory is all there is. From Recover on.
  Tier* tier();

  struct Occupancy {
    std::uint64_t records = 0, bytes = 0, pending = 0, leases = 0, leased_blocks = 0, namespaces = 0,
                  tombstones = 0, blocks = 0, conversations = 0, passages = 0;
  };
  Occupancy occupancy() const;
  const StoreCounters& counters() const;
  // The most touches that one step did since the last call; R16 asserts it in simulation.
  std::uint32_t TakeLongestStep();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cistern
