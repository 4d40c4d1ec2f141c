// SPDX-License-Identifier: Apache-2.0
// The store put together: its parts, each with those that it calls, and the work of a tick.
#include "store/block_store.h"

#include <utility>

#include "residency/awaited_turns.h"
#include "residency/evictor.h"
#include "residency/far_uses.h"
#include "residency/fetcher.h"
#include "residency/journal_marks.h"
#include "residency/lower_records.h"
#include "residency/partial_copies.h"
#include "residency/partial_fetch.h"
#include "residency/quota_sweep.h"
#include "residency/removal.h"
#include "residency/residents.h"
#include "residency/resizer.h"
#include "residency/room.h"
#include "residency/scrubber.h"
#include "residency/tombstones.h"
#include "residency/uses.h"
#include "residency/verifier.h"
#include "residency/write_back.h"
#include "residency/write_queue.h"
#include "store/acquirer.h"
#include "store/cell_drops.h"
#include "store/deletions.h"
#include "store/drain.h"
#include "store/drops.h"
#include "store/matcher.h"
#include "store/namespaces.h"
#include "store/open_puts.h"
#include "store/prompts.h"
#include "store/publisher.h"
#include "store/recovery.h"
#include "store/source_puts.h"
#include "store/survey.h"
#include "store/term.h"
#include "store/whole_chains.h"
#include "store/writer.h"

namespace cistern::store {
namespace {

constexpr std::uint64_t kNoteTimeS = 60;

// Residency is constructed before the deletions, its BlockOwner.
class LateOwner final : public residency::BlockOwner {
 public:
  void Set(residency::BlockOwner& owner) { owner_ = &owner; }
  void Lose(catalog::BlockId block, residency::LossReason reason) override { owner_->Lose(block, reason); }
  void Freed(catalog::BlockId block, catalog::BlockId parent) override { owner_->Freed(block, parent); }
  bool Collect() override { return owner_->Collect(); }

 private:
  residency::BlockOwner* owner_ = nullptr;
};

}  // namespace

struct BlockStore::Rooms {
  Rooms(const Parts& parts, const catalog::StoreOptions& store_options)
      : options(store_options),
        steps(parts.executor),
        boot(parts.boot == nullptr ? parts.clock : *parts.boot),
        catalog({.clock = parts.clock,
                 .boot = boot,
                 .words = parts.words,
                 .arena = parts.slots.arena(),
                 .memory_bytes = parts.index.slot_count() * parts.slots.arena().geometry().min_slot_bytes(),
                 .journal = parts.journal,
                 .steps = steps,
                 .options = options}),
        context{.executor = parts.executor,
                .clock = parts.clock,
                .words = parts.words,
                .slots = parts.slots,
                .movers = parts.movers,
                .journal = parts.journal,
                .log = parts.log,
                .options = options,
                .counters = counters,
                .steps = steps,
                .catalog = catalog,
                .slow_calls = parts.slow_calls},
        residents(context, parts.index),
        partial_copies(context, residents),
        removal(context, owner, lower, residents, partial_copies),
        write_worth(context, lower, residents),
        evictor(context, owner, lower, residents, queue, removal, write_worth),
        room(context, residents, partial_copies, evictor),
        resizer(context, partial_copies, room),
        verifier(context, residents, evictor),
        write_back(context, lower, residents, queue, evictor, write_worth),
        far_uses(context, lower, residents, room),
        uses(context, residents, partial_copies, evictor, write_back, far_uses),
        fetcher(context, owner, lower, residents, partial_copies, evictor, room),
        partial_fetch(context, lower, residents, partial_copies, room, fetcher),
        turns(context, lower, residents, fetcher),
        tombstones(context, lower),
        journal_marks(context, lower),
        lower_records(context, owner, lower, partial_copies, removal, write_back, tombstones),
        scrubber(context, owner, lower, residents, verifier, fetcher, lower_records),
        quota_sweep(context, lower, partial_copies, removal),
        puts(context, removal),
        deletions(context, removal, puts),
        publisher(context, lower, residents, removal, evictor, write_back, puts, deletions),
        term(parts.words, parts.slots.arena(), boot),
        namespaces(context, residents, deletions, switches),
        survey(context, namespaces),
        prompts(context, residents, turns),
        writer(context, lower, residents, room, removal, uses, prompts, puts, deletions, publisher, switches),
        source_puts(context, residents, room, removal, puts, deletions, publisher, switches),
        matcher(context, lower, residents, uses, prompts, fetcher, deletions, switches, term),
        acquirer(context, lower, residents, partial_copies, verifier, fetcher, partial_fetch, prompts,
                 deletions, switches, term),
        drops(context, lower, tombstones, deletions),
        cell_drops(context, drops, namespaces),
        drain(context, lower, lower_records, write_back, queue, namespaces, switches),
        recovery(context, lower, residents, write_back, tombstones, journal_marks, lower_records, deletions,
                 parts.open_tier),
        lower(parts.executor, catalog) {
    owner.Set(deletions);
    catalog.pending().SetMemory(parts.slots.bytes());
    const std::uint64_t most =
        std::min<std::uint64_t>(catalog.max_records_in_memory(), parts.index.slot_count());
    residents.order().Reserve(static_cast<policy::EntryId>(most + 1));
  }

  Executor& executor() { return context.executor; }
  bool Tick();
  bool TendLowerTier();
  Task<Status> Recover();
  // One change at a time; until it is through no quota holds.
  Task<void> TakeQuotas();
  Task<void> NoteTime();
  Task<void> SessionEnded(catalog::Caller caller, bool last_of_owner);
  Task<void> Close();

  catalog::StoreOptions options;  // its rooms see it as it is at each step
  catalog::StoreCounters counters;
  StepBudget steps;
  const Clock& boot;
  catalog::Catalog catalog;
  const residency::StoreContext context;

  LateOwner owner;
  residency::Residents residents;
  residency::PartialCopies partial_copies;
  residency::Removal removal;
  residency::WriteQueue queue;
  residency::WriteWorth write_worth;
  residency::Evictor evictor;
  residency::Room room;
  residency::Resizer resizer;
  residency::Verifier verifier;
  residency::WriteBack write_back;
  residency::FarUses far_uses;
  residency::Uses uses;
  residency::Fetcher fetcher;
  residency::PartialFetch partial_fetch;
  residency::AwaitedTurns turns;
  residency::Tombstones tombstones;
  residency::JournalMarks journal_marks;
  residency::LowerRecords lower_records;
  residency::Scrubber scrubber;
  residency::QuotaSweep quota_sweep;

  OpenPuts puts;
  Deletions deletions;
  Publisher publisher;
  Switches switches;
  Term term;
  Namespaces namespaces;
  Survey survey;
  Prompts prompts;
  Writer writer;
  SourcePuts source_puts;
  Matcher matcher;
  Acquirer acquirer;
  Drops drops;
  CellDrops cell_drops;
  Drain drain;
  StoreRecovery recovery;

  policy::QuotaTable quotas;  // what is wanted; options has what holds
  bool taking_quotas = false;
  // The arena knows how late it was, but the lower tier outlives it.
  bool noting_time = false;
  bool expired = false;  // a block expired since the journal was told the time
  std::uint64_t noted_time_s = 0;

  residency::LowerTier lower;  // last: its tasks end first
};

bool BlockStore::Rooms::Tick() {
  residents.NoteTime();
  const Instant now = context.clock.Now();
  catalog.counted().SetTime(now);
  catalog::PendingPuts& pending = catalog.pending();
  while (!steps.Spent() && residents.EndOneLease(now)) continue;
  for (catalog::PutIndex put; !steps.Spent() && (put = pending.FirstDue(now)) != catalog::kNoId;) {
    counters.pending_dropped.Add();
    puts.End(put, Code::kTooLate);
  }
  const std::uint64_t now_s = catalog.NowS();
  for (catalog::RecordId record;
       !steps.Spent() && (record = residents.FirstExpired(now_s)) != catalog::kNoId;) {
    deletions.Cut(catalog.forest().record(record).block, residency::LossReason::kExpired);
  }
  while (!steps.Spent() && residents.DropOneEnded()) continue;
  while (!steps.Spent() && evictor.TrimOne() == residency::Step::kDone) continue;
  while (!steps.Spent() && turns.TrimOne()) continue;
  if (!steps.Spent()) removal.Reap();
  bool more = steps.Spent() || deletions.Collect();
  if (!steps.Spent() && deletions.empty()) publisher.CascadeSlice();
  more = more || publisher.cascade_waits();
  const bool to_clean = TendLowerTier();
  return more || to_clean || residents.FirstExpired(now_s) != catalog::kNoId || removal.to_reap() ||
         pending.FirstDue(now) != catalog::kNoId;
}

// True: there are more.
bool BlockStore::Rooms::TendLowerTier() {
  scrubber.Start();
  far_uses.Start();
  if (!lower.present()) return false;
  turns.Start();
  lower->Tick();
  if (!lower.closed()) {
    // The forest has blocks for less than flash has room for where the host has little memory beside it.
    const std::uint32_t most = context.forest.max_blocks();
    const bool forest_fills = context.forest.blocks() > most - most / 16;
    lower->Reclaim(forest_fills || context.journal.tombstones() > options.max_tombstones / 4 * 3);
  }
  write_back.Start();
  // Fetches and write-backs take sequence numbers without any put.
  catalog::Sequences& sequences = catalog.sequences();
  if (sequences.low() && !sequences.reserving() && !lower.closed()) lower.Spawn(sequences.Reserve());
  if (tombstones.due() && !lower.closed()) lower.Spawn(tombstones.End());
  if (journal_marks.due() && !lower.closed()) lower.Spawn(journal_marks.TellMedia());
  const std::uint64_t now_s = catalog.NowS();
  expired = deletions.TakeExpired() || expired;
  if ((expired || now_s >= noted_time_s + kNoteTimeS) && now_s > noted_time_s && !noting_time &&
      !lower.closed()) {
    lower.Spawn(NoteTime());
  }
  if (steps.Spent()) return false;
  return quota_sweep.Sweep() || write_back.Clean();
}

Task<Status> BlockStore::Rooms::Recover() {
  quotas = std::exchange(options.quotas, {});
  // What an earlier start has left there is not this one's membership.
  term.SetEnd({});
  Status status = co_await recovery.Recover();
  if (status.ok() && context.journal.standing().history == 0) term.SetEnd(Instant::Never());
  if (status.ok() && !quotas.empty()) co_await TakeQuotas();
  co_return status;
}

Task<void> BlockStore::Rooms::TakeQuotas() {
  taking_quotas = true;
  options.quotas = {};
  std::vector<policy::Quota> taken;
  do {
    taken = quotas.quotas();
    co_await namespaces.SetQuotas(quotas);
  } while (taken != quotas.quotas());
  for (std::size_t i = 0; i < taken.size(); ++i) {
    if (residents.used()[i + 1] <= taken[i].memory_bytes) continue;
    context.log.Log(LogLevel::kInfo, "quota ", policy::ToString(taken[i]), ": ", residents.used()[i + 1],
                    " bytes are there, so the coldest of them leave");
  }
  options.quotas = quotas;
  taking_quotas = false;
}

Task<void> BlockStore::Rooms::NoteTime() {
  noting_time = true;
  expired = false;
  const std::uint64_t now_s = catalog.NowS();
  const Status status = co_await context.journal.PutTime(now_s);
  if (status.ok()) {
    noted_time_s = now_s;
  } else {
    expired = true;  // the next tick tries again
  }
  noting_time = false;
}

Task<void> BlockStore::Rooms::SessionEnded(catalog::Caller caller, bool last_of_owner) {
  while (catalog.leases().EndOneOf(caller.session)) {
    counters.leases_ended.Add();
    steps.Count();
    if (steps.Spent()) co_await Yield();
  }
  while (residents.DropOneEnded()) {
    if (steps.Spent()) co_await Yield();
  }
  if (!last_of_owner) co_return;
  catalog::PendingPuts& pending = catalog.pending();
  for (catalog::PutIndex put = 0; put < pending.end(); ++put) {
    steps.Count();
    if (steps.Spent()) co_await Yield();
    const catalog::Put& p = pending[put];
    if (p.name.tree == catalog::kNoId || p.state != catalog::Put::State::kOpen ||
        p.name.owner != caller.owner)
      continue;
    counters.pending_dropped.Add();
    puts.End(put, Code::kGone);
  }
}

Task<void> BlockStore::Rooms::Close() {
  write_back.Stop();
  turns.Stop();
  co_await lower.tasks().Close();
  co_await partial_copies.EndAll(false);
  if (lower.present()) co_await lower->Close();
}

BlockStore::BlockStore(const Parts& parts, const catalog::StoreOptions& options)
    : rooms_(std::make_unique<Rooms>(parts, options)) {}
BlockStore::~BlockStore() = default;
void BlockStore::Abandon() { rooms_->residents.Abandon(); }

Drain& BlockStore::drain() { return rooms_->drain; }
const Drain& BlockStore::drain() const { return rooms_->drain; }
residency::Resizer& BlockStore::resizer() { return rooms_->resizer; }
const residency::Resizer& BlockStore::resizer() const { return rooms_->resizer; }
const policy::QuotaTable& BlockStore::quotas() const { return rooms_->quotas; }
const policy::QuotaTable::Used& BlockStore::used() const { return rooms_->residents.used(); }
const policy::QuotaTable::Used& BlockStore::below() const { return rooms_->catalog.counted().below(); }

Task<void> BlockStore::Close() { return rooms_->Close(); }
tier::Tier* BlockStore::tier() { return rooms_->lower.get(); }

Task<Status> BlockStore::Recover() { return rooms_->Recover(); }
Namespaces& BlockStore::namespaces() { return rooms_->namespaces; }
const Namespaces& BlockStore::namespaces() const { return rooms_->namespaces; }
Survey& BlockStore::survey() { return rooms_->survey; }
Task<Result<Attached>> BlockStore::Attach(const NamespaceSpec& spec, const catalog::Caller& caller,
                                          IfNew if_new, Instant deadline) {
  return rooms_->namespaces.Attach(spec, caller, if_new, deadline);
}
Status BlockStore::CheckNamespace(std::uint32_t slot, std::uint64_t incarnation) const {
  return rooms_->namespaces.Check(slot, incarnation);
}
Task<Result<std::vector<MatchRun>>> BlockStore::MatchRest(std::uint32_t slot, std::uint32_t matched,
                                                          std::span<const BlockKey> rest,
                                                          Unmatched* unmatched) {
  return rooms_->matcher.MatchRest(slot, matched, rest, unmatched);
}
void BlockStore::NoteMisses(std::uint32_t slot, std::span<const BlockKey> rest, std::size_t had,
                            Unmatched unmatched) {
  rooms_->matcher.NoteMisses(slot, rest, had, unmatched);
}

std::optional<BlockLook> BlockStore::LookAt(std::uint32_t slot, const BlockKey& key) {
  return rooms_->matcher.LookAt(slot, key);
}
Task<Result<catalog::LeaseId>> BlockStore::Hold(const catalog::Caller& caller, std::uint32_t slot,
                                                std::span<const BlockKey> chain, std::int64_t hold_us) {
  return rooms_->matcher.Hold(caller, slot, chain, hold_us);
}
Task<Result<AcquireGrant>> BlockStore::Acquire(const catalog::Caller& caller, std::uint32_t slot,
                                               std::span<const catalog::BlockName> blocks,
                                               std::int64_t lease_us, Instant deadline, std::int64_t worth_us,
                                               CallStations* stations) {
  return rooms_->acquirer.Acquire(caller, slot, blocks, lease_us, deadline, worth_us, stations);
}
std::optional<catalog::LeaseId> BlockStore::AcquireAtOnce(const catalog::Caller& caller, std::uint32_t slot,
                                                          std::span<const catalog::BlockName> blocks,
                                                          std::int64_t lease_us, std::span<ViewGrant> views) {
  return rooms_->acquirer.AcquireAtOnce(caller, slot, blocks, lease_us, views);
}
Status BlockStore::Release(const catalog::Caller& caller, catalog::LeaseId lease) {
  return rooms_->catalog.leases().End(caller, lease);
}
Status BlockStore::ReleaseAtOnce(const catalog::Caller& caller, catalog::LeaseId lease) {
  Status status = Release(caller, lease);
  while (!rooms_->steps.Spent() && rooms_->residents.DropOneEnded()) continue;
  return status;
}
Task<std::vector<PartOutcome>> BlockStore::Write(const catalog::Caller& caller, std::uint32_t slot,
                                                 std::vector<PartWrite> parts, Instant deadline,
                                                 CallStations* stations) {
  return rooms_->writer.Write(caller, slot, std::move(parts), deadline, stations);
}
Task<Result<std::uint32_t>> BlockStore::Publish(const catalog::Caller& caller, std::uint32_t slot,
                                                std::span<const PutId> puts) {
  return rooms_->writer.EndHeld(caller, slot, puts, true);
}
Task<Result<std::uint32_t>> BlockStore::Abandon(const catalog::Caller& caller, std::uint32_t slot,
                                                std::span<const PutId> puts) {
  return rooms_->writer.EndHeld(caller, slot, puts, false);
}
void BlockStore::NotePrompt(std::uint32_t slot, MatchedPrompt prompt) {
  rooms_->prompts.Note(slot, std::move(prompt));
}
Task<std::uint32_t> BlockStore::Touch(std::uint32_t slot, std::span<const BlockKey> keys,
                                      std::uint64_t conversation) {
  return rooms_->matcher.Touch(slot, keys, conversation);
}
void BlockStore::TouchPlace(std::uint32_t place, std::uint32_t generation_low) {
  rooms_->uses.UseSlot(place, generation_low);
}
Task<Result<std::uint64_t>> BlockStore::Drop(std::uint32_t slot, std::span<const BlockKey> keys,
                                             CallStations* stations) {
  return rooms_->drops.Drop(slot, keys, stations);
}
Task<Result<std::uint64_t>> BlockStore::EndConversation(std::uint32_t slot, std::uint64_t conversation,
                                                        CallStations* stations) {
  return rooms_->drops.EndConversation(slot, conversation, stations);
}
Task<Result<std::pair<std::uint64_t, std::uint64_t>>> BlockStore::DropNamespace(std::uint32_t slot) {
  return rooms_->namespaces.Drop(slot);
}
void BlockStore::SetTerm(Instant end) { rooms_->term.SetEnd(end); }
bool BlockStore::Serves(std::uint32_t slot) const {
  const catalog::NamespaceEntry* entry = NamespaceAt(slot);
  return entry != nullptr && rooms_->switches.on(Switch::kReads, slot) && rooms_->term.Serves(*entry);
}
CellDrops& BlockStore::cell_drops() { return rooms_->cell_drops; }
SourcePuts& BlockStore::source_puts() { return rooms_->source_puts; }
void BlockStore::ListenToBlocks(catalog::BlockListener* listener) {
  rooms_->catalog.forest().ListenTo(listener);
}
std::unique_ptr<WholeChains> BlockStore::WalkChains(WalkOrder order) {
  return std::make_unique<WholeChains>(rooms_->context, rooms_->residents, rooms_->fetcher, std::move(order));
}
void BlockStore::NoteFresh(bool wanted) { rooms_->residents.fresh().Want(wanted); }
bool BlockStore::any_fresh() const { return rooms_->residents.fresh().any(); }
bool BlockStore::TakeCooled() { return rooms_->residents.cooling().Advance(rooms_->residents.order()); }
void BlockStore::SettleCooled() { rooms_->residents.cooling().Settle(); }
const catalog::Forest& BlockStore::forest() const { return rooms_->catalog.forest(); }
Task<Status> BlockStore::ReportBad(std::uint32_t slot, std::span<const catalog::BlockName> blocks) {
  return rooms_->acquirer.ReportBad(slot, blocks);
}
Task<void> BlockStore::SessionEnded(const catalog::Caller& caller, bool last_of_owner) {
  return rooms_->SessionEnded(caller, last_of_owner);
}
Task<Result<std::uint32_t>> BlockStore::Turn(Switch which, bool on, std::string target) {
  return rooms_->namespaces.Turn(which, on, std::move(target));
}
void BlockStore::NoteSwitchedOff(std::uint64_t blocks) { rooms_->counters.miss_off.Add(blocks); }
const Switches& BlockStore::switches() const { return rooms_->switches; }
const catalog::NamespaceEntry* BlockStore::NamespaceAt(std::uint32_t slot) const {
  return rooms_->catalog.namespaces().at(slot);
}
const catalog::NamespaceCounters& BlockStore::CountedAt(std::uint32_t slot) const {
  return rooms_->catalog.counted().of(slot);
}
std::uint64_t BlockStore::FingerprintAt(std::uint32_t slot) const {
  return rooms_->catalog.FingerprintOf(slot);
}
std::uint32_t BlockStore::namespace_slots() const { return rooms_->catalog.namespaces().end(); }
std::uint64_t BlockStore::namespace_puts() const { return rooms_->catalog.namespaces().puts(); }
std::uint64_t BlockStore::NamespacePutNumberOf(std::uint32_t slot) const {
  return rooms_->catalog.namespaces().PutNumberOf(slot);
}
void BlockStore::SetOptions(const catalog::StoreOptions& options) {
  rooms_->options.lower = options.lower;
  rooms_->options.read_ahead_bytes = options.read_ahead_bytes;
  rooms_->options.scrub_bytes_per_s = options.scrub_bytes_per_s;
  if (options.quotas.quotas() == rooms_->quotas.quotas()) return;
  rooms_->quotas = options.quotas;
  if (!rooms_->taking_quotas && !rooms_->lower.closed()) rooms_->lower.Spawn(rooms_->TakeQuotas());
}
bool BlockStore::Tick() { return rooms_->Tick(); }
BlockStore::Occupancy BlockStore::occupancy() const {
  catalog::Catalog& catalog = rooms_->catalog;
  Occupancy o;
  o.records = rooms_->residents.count();
  o.bytes = rooms_->residents.bytes();
  o.pending = catalog.pending().size();
  o.leases = catalog.leases().size();
  o.leased_blocks = catalog.leases().leased_blocks();
  o.namespaces = catalog.namespaces().size();
  o.tombstones = rooms_->context.journal.tombstones();
  o.blocks = catalog.forest().blocks() - catalog.forest().trees();
  o.conversations = catalog.conversations().talks();
  o.partial_copies = rooms_->partial_copies.size();
  o.fetches = rooms_->fetcher.under_way();
  o.awaited_turns = rooms_->turns.size();
  o.held_bytes = rooms_->residents.held_bytes();
  o.write_queue = rooms_->queue.size();
  o.cleaner_looked = rooms_->write_back.reserve().looked;
  o.cleaner_ready = rooms_->write_back.reserve().ready;
  return o;
}
const catalog::StoreCounters& BlockStore::counters() const { return rooms_->counters; }
std::uint32_t BlockStore::TakeLongestStep() { return rooms_->steps.TakeLongest(); }

}  // namespace cistern::store
