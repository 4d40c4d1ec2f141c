// SPDX-License-Identifier: Apache-2.0
#include "store/acquirer.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/call_stations.h"
#include "base/format.h"
#include "policy/placement.h"
#include "store/namespaces.h"

namespace cistern::store {
namespace {

constexpr std::uint32_t kAtOnceTouches = 3 * kAtOnce;  // which leaves room for the lease

// Of a record in memory.
ViewGrant ViewOf(const catalog::Record& record) {
  return {
      .code = Code::kOk, .place = record.place, .bytes = record.body_bytes, .generation = record.generation};
}

}  // namespace

Acquirer::Acquisition::Acquisition(std::size_t blocks) {
  views.reserve(blocks);
  references.reserve(blocks);
  bytes.reserve(blocks);
  leased.reserve(blocks);
}

void Acquirer::Acquisition::Lease(std::size_t block, residency::RecordReference reference,
                                  std::uint64_t record_bytes) {
  references.push_back(std::move(reference));
  bytes.push_back(record_bytes);
  leased.push_back(block);
}

Task<Result<AcquireGrant>> Acquirer::Acquire(catalog::Caller caller, std::uint32_t slot,
                                             std::span<const catalog::BlockName> blocks,
                                             std::int64_t lease_us, Instant deadline, std::int64_t worth_us,
                                             CallStations* stations) {
  const catalog::TreeId tree = context_.catalog.TreeOf(slot);
  if (context_.catalog.EntryOf(tree) == nullptr) co_return std::unexpected(UnknownNamespace(slot));
  if (lease_us <= 0)
    co_return Error(Code::kInvalid, Text("lease_us: is ", lease_us, " and has to be at least 1"));
  if (!switches_.on(Switch::kReads, slot) || !term_.Serves(*context_.catalog.EntryOf(tree)))
    co_return AcquireGrant{.views = std::vector<ViewGrant>(blocks.size())};
  if (!context_.leases.CheckRoom(caller.owner, blocks.size()).ok()) co_await residents_.DropAllEnded();
  if (Status room = context_.leases.CheckRoom(caller.owner, blocks.size()); !room.ok()) {
    context_.counters.busy.Add();
    co_return std::unexpected(std::move(room));
  }
  Acquisition call(blocks.size());
  const Instant worth =
      worth_us == kNoWorthLimit ? deadline : std::min(deadline, context_.clock.Now().PlusUs(worth_us));
  const std::uint32_t cuts = context_.forest.cuts();
  co_await Find(tree, blocks, deadline, worth, stations, &call);
  co_await AwaitFetches(blocks, worth, stations, &call);
  co_return co_await Grant(caller, lease_us, cuts, &call);
}

Task<void> Acquirer::Find(catalog::TreeId tree, std::span<const catalog::BlockName> blocks, Instant deadline,
                          Instant worth, CallStations* stations, Acquisition* call) {
  const std::uint64_t now_s = context_.catalog.NowS();
  std::array<catalog::BlockId, catalog::Catalog::kFoundAhead> ahead;
  std::uint64_t kept = 0;           // of memory, once what is fetched is there
  std::uint64_t found_in_step = 0;  // a record found in an earlier step may have left since
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (context_.steps.Spent()) co_await Yield();
    ViewGrant& view = call->views.emplace_back();
    if (i % catalog::Catalog::kFoundAhead == 0) {
      context_.catalog.FindAhead(tree, blocks.subspan(i), ahead);
      found_in_step = context_.steps.step();
    }
    catalog::BlockId block = context_.steps.step() == found_in_step
                                 ? ahead[i % catalog::Catalog::kFoundAhead]
                                 : context_.catalog.Find(tree, blocks[i].key);
    if (block == catalog::kNoId && context_.forest.collecting()) {
      co_await context_.catalog.LearnStanding(tree, catalog::KeyHashOf(tree, blocks[i].key));
      block = context_.catalog.Find(tree, blocks[i].key);
    }
    const catalog::RecordId record = block == catalog::kNoId
                                         ? catalog::kNoId
                                         : context_.catalog.ReadableRecord(block, blocks[i].group, now_s);
    if (record == catalog::kNoId) {
      // What was found with it may hang below it.
      if (block != catalog::kNoId && deletions_.CutExpired(block, blocks[i].group, now_s)) found_in_step = 0;
      continue;
    }
    if (!context_.forest.record(record).in_memory()) {
      if (prompts_.AwaitsRead(tree, blocks[i].key)) {
        // From then on it is known what its blocks are worth; this one is looked for again.
        context_.forest.Fold(record);
        co_await prompts_.TakeInAtRead(tree, blocks[i].key);
        call->views.pop_back();
        --i;
        continue;
      }
      PendingView one{.index = i};
      if (StartFetch(blocks[i], record, worth, &kept, &one, &view)) call->pending.push_back(std::move(one));
      continue;
    }
    const catalog::RecordHandle handle = context_.catalog.HandleOf(record);
    const bool verified = context_.forest.record(record).is(catalog::Record::kVerified);
    if (!verified && context_.clock.Now() >= deadline) {
      view.code = Code::kTooLate;
      continue;
    }
    residency::RecordReference reference(residents_, handle);
    if (!verified) {
      const AtStation at(stations, Station::kCheck);
      const bool sound = co_await verifier_.Verify(handle);
      if (!sound || !context_.catalog.Lives(handle) || !context_.forest.record(record).in_memory()) continue;
    }
    view = ViewOf(context_.forest.record(record));
    const std::uint64_t bytes = context_.slots.SlotBytes(view.place);
    kept += bytes;
    call->Lease(i, std::move(reference), bytes);
  }
}

Task<void> Acquirer::AwaitFetches(std::span<const catalog::BlockName> blocks, Instant worth,
                                  CallStations* stations, Acquisition* call) {
  for (PendingView& one : call->pending) {
    if (context_.steps.Spent()) co_await Yield();
    ViewGrant& view = call->views[one.index];
    std::uint64_t bytes = 0;
    const Status status = co_await Await(one, blocks[one.index].key, worth, &view, &bytes, stations);
    if (status.ok()) {
      call->Lease(one.index, std::move(one.reference), bytes);
      continue;
    }
    view.code = status.code();
    one.reference.Drop();
  }
}

Task<Result<AcquireGrant>> Acquirer::Grant(const catalog::Caller& caller, std::int64_t lease_us,
                                           std::uint32_t cuts, Acquisition* call) {
  // Meanwhile other callers may have taken the room, and what was found may have been lost.
  std::vector<residency::RecordReference>& references = call->references;
  const Result<std::uint64_t> bytes =
      co_await residents_.CheckGrant(caller.owner, references, call->bytes, cuts);
  if (!bytes) {
    for (residency::RecordReference& reference : references) {
      if (context_.steps.Spent()) co_await Yield();
      reference.Drop();
    }
    context_.counters.busy.Add();
    co_return Error(bytes.error());
  }
  for (std::size_t i = 0; i < references.size(); ++i) {
    if (!references[i].holds()) call->views[call->leased[i]] = {.code = Code::kMiss};
  }
  std::erase_if(references, [](const residency::RecordReference& reference) { return !reference.holds(); });
  AcquireGrant grant{.views = std::move(call->views)};
  if (references.empty()) co_return grant;
  context_.counters.leases_granted.Add();
  grant.ends = context_.clock.Now().PlusUs(std::min(lease_us, kMaxLeaseUs));
  grant.lease = context_.leases.Add(caller, residency::DetachAll(references), *bytes, grant.ends);
  co_return grant;
}

bool Acquirer::FindAtOnce(catalog::TreeId tree, std::span<const catalog::BlockName> blocks,
                          std::span<catalog::RecordId> records) {
  const std::uint64_t now_s = context_.catalog.NowS();
  std::array<catalog::BlockId, catalog::Catalog::kFoundAhead> ahead;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (context_.steps.Spent(kAtOnceTouches)) return false;
    if (i % ahead.size() == 0) context_.catalog.FindAhead(tree, blocks.subspan(i), ahead);
    const catalog::BlockId block = ahead[i % ahead.size()];
    records[i] = catalog::kNoId;
    if (block == catalog::kNoId && context_.forest.collecting()) return false;
    const auto copy = block == catalog::kNoId ? std::nullopt : context_.forest.See(block, blocks[i].group);
    if (!copy) continue;
    // A folded record is in the lower tier alone.
    records[i] = copy->record;
    if (records[i] == catalog::kNoId || catalog::Catalog::Expired(copy->expiry, now_s)) return false;
    const catalog::Record& r = context_.forest.record(records[i]);
    if (!r.in_memory() || !r.is(catalog::Record::kVerified)) return false;
  }
  return true;
}

std::optional<catalog::LeaseId> Acquirer::AcquireAtOnce(const catalog::Caller& caller, std::uint32_t slot,
                                                        std::span<const catalog::BlockName> blocks,
                                                        std::int64_t lease_us, std::span<ViewGrant> views) {
  const catalog::TreeId tree = context_.catalog.TreeOf(slot);
  std::array<catalog::RecordId, kAtOnce> records;
  if (blocks.size() > records.size() || lease_us <= 0 || context_.catalog.EntryOf(tree) == nullptr ||
      !switches_.on(Switch::kReads, slot) || !term_.Serves(*context_.catalog.EntryOf(tree)) ||
      !context_.leases.CheckRoom(caller.owner, blocks.size()).ok() || !FindAtOnce(tree, blocks, records))
    return std::nullopt;
  std::vector<catalog::RecordHandle> leased;
  leased.reserve(blocks.size());
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    views[i] = ViewGrant();
    if (records[i] == catalog::kNoId) continue;
    residents_.AddReference(records[i]);
    leased.push_back(context_.catalog.HandleOf(records[i]));
    views[i] = ViewOf(context_.forest.record(records[i]));
    bytes += context_.slots.SlotBytes(views[i].place);
  }
  if (leased.empty()) return 0;
  // The long way ends leases that are due, and says which bound it is.
  if (!residents_.CheckLease(caller.owner, leased.size(), bytes).ok()) {
    for (const catalog::RecordHandle& handle : leased) {
      residents_.DropReference(handle, residency::Residents::Used::kNo);
    }
    return std::nullopt;
  }
  context_.counters.leases_granted.Add();
  return context_.leases.Add(caller, std::move(leased), bytes,
                             context_.clock.Now().PlusUs(std::min(lease_us, kMaxLeaseUs)));
}

Task<Status> Acquirer::ReportBad(std::uint32_t slot, std::span<const catalog::BlockName> blocks) {
  const catalog::TreeId tree = context_.catalog.TreeOf(slot);
  for (const catalog::BlockName& name : blocks) {
    if (context_.steps.Spent()) co_await Yield();
    if (context_.catalog.EntryOf(tree) == nullptr) co_return UnknownNamespace(slot);
    bool unsure = false;
    catalog::BlockId block = context_.catalog.Find(tree, name.key, &unsure);
    if (unsure) {
      co_await context_.catalog.LearnStanding(tree, catalog::KeyHashOf(tree, name.key));
      block = context_.catalog.Find(tree, name.key);
    }
    const catalog::RecordId record =
        block == catalog::kNoId ? catalog::kNoId : context_.forest.FindRecord(block, name.group);
    if (record == catalog::kNoId) continue;
    if (!context_.forest.record(record).in_memory()) {
      if (const residency::PartialCopyPtr copy = partial_copies_.Find(record))
        co_await partial_fetch_.Verify(copy);
      continue;
    }
    const residency::RecordReference reference(residents_, context_.catalog.HandleOf(record));
    const bool sound = co_await verifier_.Verify(reference.handle());
    (sound ? context_.counters.reported_good : context_.counters.reported_bad).Add();
    if (sound && context_.catalog.Lives(reference.handle())) residents_.RepairEntry(record);
  }
  co_return Status();
}

std::uint64_t Acquirer::SlotBytesOf(const catalog::Record& r) const {
  const catalog::TreeId tree = context_.forest.block(r.block).tree;
  const std::uint64_t bytes = context_.catalog.RecordBytesOf(tree, r.group, r.body_bytes);
  return memory::SlotSize::For(bytes, context_.slots.arena().geometry().alignment).bytes;
}

bool Acquirer::StartFetch(const catalog::BlockName& asked, catalog::RecordId record, Instant worth,
                          std::uint64_t* kept, PendingView* pending, ViewGrant* view) {
  catalog::Record& r = context_.forest.record(record);
  const std::uint64_t slot_bytes = SlotBytesOf(r);
  if (*kept + slot_bytes > context_.slots.bytes()) {
    // It would wait for room in vain, and hold others up with it.
    context_.counters.busy.Add();
    view->code = Code::kBusy;
    context_.forest.Fold(record);
    return false;
  }
  const record::BodySpan span = context_.catalog.SpanOf(r, asked.asked);
  const std::uint64_t asked_bytes = span.bytes;
  const std::int64_t worth_us = worth.UsSince(context_.clock.Now());
  const auto late = [&](std::int64_t us) {
    return us == tier::Tier::kNever || policy::Refused(us, worth_us);
  };
  residency::PartialCopyPtr copy = partial_copies_.Find(record);
  // The partial copy has every segment asked for, or fetches them.
  const bool passes = copy != nullptr && asked_bytes < r.body_bytes &&
                      !copy->Any(asked.asked, residency::PartialCopy::State::kAbsent);
  const std::int64_t whole_us = lower_.ReadyInUs(r.location, r.body_bytes);
  const std::int64_t asked_us = passes ? 0 : lower_.ReadyInUs(r.location, asked_bytes);
  const bool on_its_way = fetcher_.fetching(record);
  // A reader of another share of a partial copy has the first reader's reason.
  fetcher_.DecidePromotion(record);
  const bool promoted = copy == nullptr && !r.is(catalog::Record::kTransient);
  r.flags |= catalog::Record::kTouched;
  if (r.uses < UINT8_MAX) ++r.uses;
  context_.steps.Count(3);
  policy::FetchChoice way = passes ? policy::FetchChoice::kSegments : policy::FetchChoice::kWhole;
  if (!passes && (!on_its_way || whole_us == tier::Tier::kNever)) {
    way = policy::ChooseFetch(promoted, asked_bytes, r.body_bytes, late(whole_us), late(asked_us));
    if (way == policy::FetchChoice::kSegments) {
      copy = partial_fetch_.Open(record, span);
      if (copy == nullptr) way = late(whole_us) ? policy::FetchChoice::kNone : policy::FetchChoice::kWhole;
    }
  }
  view->ready_in_us = way == policy::FetchChoice::kSegments ? asked_us : whole_us;
  if (way == policy::FetchChoice::kNone) {
    context_.counters.fetch_refused.Add();
    const catalog::NamespaceEntry* entry = context_.catalog.EntryOf(context_.forest.block(r.block).tree);
    if (entry != nullptr && catalog::Counts(*entry, asked)) context_.counters.miss_too_late.Add();
    view->code = Code::kTooLate;
    context_.forest.Fold(record);
    return false;
  }
  *kept += slot_bytes;
  pending->reference = residency::RecordReference(residents_, context_.catalog.HandleOf(record));
  if (way == policy::FetchChoice::kWhole) {
    pending->fetch = fetcher_.Start(record);
  } else {
    partial_copies_.Asked(record);
    partial_fetch_.Request(copy, asked.asked);
    pending->copy = std::move(copy);
    pending->asked = asked.asked;
  }
  return true;
}

Task<Status> Acquirer::Await(const PendingView& pending, const BlockKey& key, Instant worth, ViewGrant* view,
                             std::uint64_t* bytes, CallStations* stations) {
  Status status;
  const Instant from = context_.clock.Now();
  if (pending.copy != nullptr) {
    residency::PartialCopy& copy = *pending.copy;
    while (status.ok() && !copy.ended && copy.Any(pending.asked, residency::PartialCopy::State::kFetching)) {
      status = co_await copy.changed.Wait(worth);
    }
    context_.steps.Count(1 + pending.asked.count / 16);
    if (stations != nullptr) stations->Add(Station::kFlash, from, context_.clock.Now());
  } else {
    status = co_await pending.fetch->done.Wait(worth);
    if (stations != nullptr) pending.fetch->AddTo(*stations, from, context_.clock.Now());
  }
  if (!status.ok()) co_return Status(Code::kTooLate, "acquire: it was not read in time");
  const catalog::Record& r = context_.forest.record(pending.reference.handle().record);
  const residency::PartialCopy* copy = pending.copy.get();
  if (!context_.catalog.Lives(pending.reference.handle()))
    co_return Status(Code::kMiss, "acquire: it went meanwhile");
  const bool here =
      copy != nullptr && !copy->ended && copy->All(pending.asked, residency::PartialCopy::State::kPresent);
  if (!r.in_memory() && !here) {
    const bool no_room = copy == nullptr ? pending.fetch->status.code() == Code::kBusy : copy->no_room;
    co_return Status(no_room ? Code::kBusy : Code::kMiss, "acquire: it was not read");
  }
  // Of a record that was not in memory, only what was read has the key.
  if (r.key != key) co_return Status(Code::kMiss, "acquire: it went meanwhile");
  *view = ViewOf(r);
  if (!r.in_memory()) {
    view->place = copy->place;
    view->generation = copy->generation;
  }
  // In this step: in the next, whose record was dropped may have left its chunk, and that the memory.
  *bytes = context_.slots.SlotBytes(view->place);
  co_return Status();
}

}  // namespace cistern::store
