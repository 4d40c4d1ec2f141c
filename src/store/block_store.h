// SPDX-License-Identifier: Apache-2.0
// The core of a node: it decides what is published, found, kept, evicted, dropped. One thread owns it (the
// executor's), so nothing in it has a lock; it reads no clock, no random device and no thread id directly.
// Bytes are moved by movers. Shared memory is touched through Words only. No step does more than
// kStepTouches forest or index touches or copies more than kStepBytes; longer work yields.
//
// Its parts, each a class of its own: namespaces, writer and publisher (puts), matcher, acquirer, deletions
// and drops, recovery. They stand on src/residency (records in memory, fetches and write-backs) and
// src/catalog (facts about blocks).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "arena/index.h"
#include "arena/words.h"
#include "base/clock.h"
#include "base/executor.h"
#include "base/log.h"
#include "base/task.h"
#include "catalog/catalog.h"
#include "catalog/store_counters.h"
#include "catalog/store_options.h"
#include "cistern/key.h"
#include "cistern/namespace.h"
#include "cistern/options.h"
#include "cistern/status.h"
#include "residency/lower_tier.h"
#include "store/block_look.h"
#include "store/namespaces.h"
#include "store/requests.h"
#include "store/source_puts.h"
#include "store/survey.h"
#include "store/switches.h"
#include "tier/tier.h"

namespace cistern {
class CallStations;
class SlowCalls;
}  // namespace cistern

namespace cistern::residency {
class Resizer;
}  // namespace cistern::residency

namespace cistern::memory {
class Movers;
class Slots;
}  // namespace cistern::memory

namespace cistern::catalog {
class Journal;
}  // namespace cistern::catalog

namespace cistern::store {

class CellDrops;
class Drain;
class WholeChains;
struct WalkOrder;

class BlockStore final {
 public:
  struct Parts {  // borrowed; outlive the store
    Executor& executor;
    const Clock& clock;
    arena::Words& words;
    memory::Slots& slots;     // knows no chunk yet: Recover() fills it
    arena::IndexSpace index;  // of that arena
    memory::Movers& movers;
    catalog::Journal& journal;  // not opened yet
    Logger& log;
    residency::OpenTierCall open_tier = nullptr;  // null: the node has memory alone
    SlowCalls* slow_calls = nullptr;              // is told of slow fetches; null: nobody
    const Clock* boot = nullptr;                  // the host's boot clock; null: `clock` stands for it
  };

  BlockStore(const Parts& parts, const catalog::StoreOptions& options);
  // No call is under way, or all of its tasks were dropped (a simulated crash, after Abandon).
  ~BlockStore();
  // The node dies, in simulation: tasks that are dropped from now on give nothing back.
  void Abandon();
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;

  // Reads the journal and the headers, builds the forest of what is reachable (R10, R11), clears and refills
  // the index. To be awaited before anything else.
  Task<Status> Recover();

  // What is asked of namespaces beside Attach, Turn and DropNamespace; and what each of them has.
  Namespaces& namespaces();
  const Namespaces& namespaces() const;
  Survey& survey();
  // As Namespaces::Attach.
  Task<Result<Attached>> Attach(const NamespaceSpec& spec, const catalog::Caller& caller = {},
                                IfNew if_new = IfNew::kMake, Instant deadline = Instant::Never());
  // kMiss when the slot number is unknown or has another incarnation by now.
  Status CheckNamespace(std::uint32_t slot, std::uint64_t incarnation) const;

  // Readable blocks after the first `matched` of a chain, in any tier; those in the lower tier are fetched
  // ahead as far as StoreOptions::read_ahead_bytes goes. As Matcher::MatchRest and NoteMisses.
  Task<Result<std::vector<MatchRun>>> MatchRest(std::uint32_t slot, std::uint32_t matched,
                                                std::span<const BlockKey> rest,
                                                Unmatched* unmatched = nullptr);
  void NoteMisses(std::uint32_t slot, std::span<const BlockKey> rest, std::size_t had, Unmatched unmatched);

  // As Matcher::LookAt.
  std::optional<BlockLook> LookAt(std::uint32_t slot, const BlockKey& key);
  // Leases a matched chain (keys from block 0 on) until the deadline. kMiss if some of its blocks are lost
  // already.
  Task<Result<catalog::LeaseId>> Hold(const catalog::Caller& caller, std::uint32_t slot,
                                      std::span<const BlockKey> chain, std::int64_t hold_us);
  // Verifies blocks that were not checked since the restart, fetches those in the lower tier, side by side,
  // and leases the blocks that are then in memory. kTooLate for a block that would not be, or was not, in
  // memory by the deadline or after `worth_us` from now on. What it waits for is told to `stations`, here and
  // below; null: to nobody.
  Task<Result<AcquireGrant>> Acquire(const catalog::Caller& caller, std::uint32_t slot,
                                     std::span<const catalog::BlockName> blocks, std::int64_t lease_us,
                                     Instant deadline, std::int64_t worth_us = kNoWorthLimit,
                                     CallStations* stations = nullptr);
  // The same within this step, where that is possible (Acquirer::AcquireAtOnce).
  std::optional<catalog::LeaseId> AcquireAtOnce(const catalog::Caller& caller, std::uint32_t slot,
                                                std::span<const catalog::BlockName> blocks,
                                                std::int64_t lease_us, std::span<ViewGrant> views);
  Status Release(const catalog::Caller& caller, catalog::LeaseId lease);
  // Release, and what ended leases kept is let go of as far as this step goes, not at the next tick.
  Status ReleaseAtOnce(const catalog::Caller& caller, catalog::LeaseId lease);

  // Completes when no mover holds the bytes any more; outcomes one a part. The deadline ends waiting for
  // room, never a copy under way.
  Task<std::vector<PartOutcome>> Write(const catalog::Caller& caller, std::uint32_t slot,
                                       std::vector<PartWrite> parts, Instant deadline,
                                       CallStations* stations = nullptr);
  Task<Result<std::uint32_t>> Publish(const catalog::Caller& caller, std::uint32_t slot,
                                      std::span<const PutId> puts);
  Task<Result<std::uint32_t>> Abandon(const catalog::Caller& caller, std::uint32_t slot,
                                      std::span<const PutId> puts);

  // What a match named; it becomes a request's with what follows (prompts.h).
  void NotePrompt(std::uint32_t slot, MatchedPrompt prompt);
  // In order; the last becomes the most recently used. `conversation`, if not 0, uses the blocks.
  Task<std::uint32_t> Touch(std::uint32_t slot, std::span<const BlockKey> keys,
                            std::uint64_t conversation = 0);
  // Slot used by a client, from a reader's lossy ring: range-checked, ignored unless the generation matches.
  void TouchPlace(std::uint32_t place, std::uint32_t generation_low);

  Task<Result<std::uint64_t>> Drop(std::uint32_t slot, std::span<const BlockKey> keys,
                                   CallStations* stations = nullptr);
  // As Drops::EndConversation.
  Task<Result<std::uint64_t>> EndConversation(std::uint32_t slot, std::uint64_t conversation,
                                              CallStations* stations = nullptr);
  Task<Result<std::pair<std::uint64_t, std::uint64_t>>> DropNamespace(
      std::uint32_t slot);  // blocks, incarnation

  // Up to when, on the boot clock, the node's membership of its cell stands: strict namespaces are read no
  // longer. Where nobody says it they are read for ever after Recover, unless the journal knows of a cell.
  void SetTerm(Instant end);
  // Whether reads of the namespace are answered now: they are not switched off, and if it is strict the
  // node's membership stands.
  bool Serves(std::uint32_t slot) const;
  // Drops that a cell has decided; from Recover on.
  CellDrops& cell_drops();
  // Puts of what other nodes give.
  SourcePuts& source_puts();
  // Is told which blocks this node has from now on; null: nobody is. What is here already it is not told.
  void ListenToBlocks(catalog::BlockListener* listener);
  // A walk of what is here now; the store outlives it.
  std::unique_ptr<WholeChains> WalkChains(WalkOrder order);
  // Whether it is noted which blocks come to memory or are used there (residency::FreshRecords), for walks of
  // these; and whether any were since the last one began.
  void NoteFresh(bool wanted);
  bool any_fresh() const;
  // For a walk of what has cooled in memory (policy::Cooling): that is all which has until now and was not
  // settled. False: nothing has. Settled it is not asked for again.
  bool TakeCooled();
  void SettleCooled();
  const catalog::Forest& forest() const;

  // A reader saw a body fail its seal: a mover verifies it again, then the block is cut with its
  // descendants. A sound one has its index entry written again, which may be the damaged part.
  Task<Status> ReportBad(std::uint32_t slot, std::span<const catalog::BlockName> blocks);

  // Ends the session's leases; its pending puts end too when no other session of the owner is left.
  Task<void> SessionEnded(const catalog::Caller& caller, bool last_of_owner);

  // As Namespaces::Turn.
  Task<Result<std::uint32_t>> Turn(Switch which, bool on, std::string target);
  const Switches& switches() const;
  // So many blocks were asked for and not looked for, since somebody switched the asker's reads off.
  void NoteSwitchedOff(std::uint64_t blocks);
  // The namespace in a slot, and what was counted of it; null: the slot is free. Below namespace_slots().
  const catalog::NamespaceEntry* NamespaceAt(std::uint32_t slot) const;
  const catalog::NamespaceCounters& CountedAt(std::uint32_t slot) const;
  // As NamespaceTable::Fingerprint, which is computed once.
  std::uint64_t FingerprintAt(std::uint32_t slot) const;
  std::uint32_t namespace_slots() const;
  // As NamespaceTable::puts and NamespaceTable::PutNumberOf.
  std::uint64_t namespace_puts() const;
  std::uint64_t NamespacePutNumberOf(std::uint32_t slot) const;

  // Ends leases and pending puts past their time and cuts expired blocks, a slice a call; true: there are
  // more.
  bool Tick();

  // From now on: lower, quotas, read_ahead_bytes and scrub_bytes_per_s of these options. The others stay as
  // they are. Quotas hold as soon as all that is there was looked at; what is above one leaves then.
  void SetOptions(const catalog::StoreOptions& options);

  // Its way out of service, from Recover on.
  Drain& drain();
  const Drain& drain() const;

  // The size of memory, from Recover on.
  residency::Resizer& resizer();
  const residency::Resizer& resizer() const;
  // As they were set last, and bytes of each in memory and in the lower tier.
  const policy::QuotaTable& quotas() const;
  const policy::QuotaTable::Used& used() const;
  const policy::QuotaTable::Used& below() const;

  // Ends the tasks between memory and the lower tier; awaited before the store's end where there is a tier.
  Task<void> Close();
  // Null where the node has memory alone. From Recover on.
  tier::Tier* tier();

  // How much there is now; the table of metrics (store_metrics.cc) says the same to people.
  struct Occupancy {
    std::uint64_t records = 0;  // in memory, one for each group of a block
    std::uint64_t bytes = 0;    // of their bodies
    std::uint64_t pending = 0;  // puts that wait for parts, parent or Publish
    std::uint64_t leases = 0;
    std::uint64_t leased_blocks = 0;   // of all leases
    std::uint64_t namespaces = 0;      // that are known
    std::uint64_t tombstones = 0;      // dropped keys of which an older record may remain
    std::uint64_t blocks = 0;          // in the tree, in any tier
    std::uint64_t conversations = 0;   // that wrote a block which may be here, and were not ended
    std::uint64_t fetches = 0;         // blocks that are being read from the lower tier into memory
    std::uint64_t awaited_turns = 0;   // turns to come that callers told of
    std::uint64_t held_bytes = 0;      // of slots whose records were fetched for such turns
    std::uint64_t partial_copies = 0;  // blocks of which some segments lie in a slot, or are on their way
    std::uint64_t write_queue = 0;     // records that wait to be written to the lower tier
    std::uint64_t cleaner_looked = 0;  // of the coldest records in memory, those looked at last
    std::uint64_t cleaner_ready = 0;   // of these, that may leave at once
  };
  Occupancy occupancy() const;
  const catalog::StoreCounters& counters() const;
  // The most touches that one step did since the last call; R16 asserts it in simulation.
  std::uint32_t TakeLongestStep();

 private:
  struct Rooms;
  std::unique_ptr<Rooms> rooms_;
};

}  // namespace cistern::store
