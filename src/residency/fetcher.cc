// SPDX-License-Identifier: Apache-2.0
#include "residency/fetcher.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/format.h"
#include "base/slow_calls.h"
#include "policy/placement.h"
#include "record/seal_copy.h"

namespace cistern::residency {

namespace {
constexpr std::size_t kMaxReadAhead = 256;  // fetches under way
}  // namespace

void PendingFetch::AddTo(CallStations& stations, Instant from, Instant until) const {
  const auto reached = [&](Instant at) { return at == Instant() ? until : std::clamp(at, from, until); };
  stations.Add(Station::kRoom, from, reached(slot_at));
  stations.Add(Station::kFlash, reached(slot_at), reached(read_at));
  stations.Add(Station::kCheck, reached(read_at), until);
}

std::shared_ptr<PendingFetch> Fetcher::Start(catalog::RecordId record) {
  const catalog::RecordHandle handle = context_.catalog.HandleOf(record);
  if (const auto found = fetches_.find(handle.serial); found != fetches_.end()) return found->second;
  auto fetch = std::make_shared<PendingFetch>();
  if (lower_.closed()) {
    fetch->status = Status(Code::kGone, "fetch: the node ends");
    fetch->done.Set();
    return fetch;
  }
  fetches_.emplace(handle.serial, fetch);
  lower_.Spawn(
      OutOfLanes(context_.executor, [&] { return Fetch(RecordReference(residents_, handle), fetch); }));
  return fetch;
}

void Fetcher::DecidePromotion(catalog::RecordId record, bool ahead) {
  if (fetching(record)) return;
  catalog::Record& r = context_.forest.record(record);
  r.flags &= static_cast<std::uint8_t>(~catalog::Record::kTransient);
  const bool passes = ahead ? context_.options.lower.promote == Promotion::kWorth
                            : evictor_.Passes(record, StandingOf(context_.forest.block(r.block)));
  if (!policy::Promoted(context_.options.lower, r.is(catalog::Record::kTouched), passes))
    r.flags |= catalog::Record::kTransient;
}

policy::Standing Fetcher::StandingOf(const catalog::Block& block) const {
  return residents_.order().StandingBelow(block.key_hash(), residents_.StandingOf(block.parent));
}

void Fetcher::Unreadable(catalog::RecordId record, const Status& status) {
  const bool bad = status.code() == Code::kMiss;
  const bool lost = bad || status.code() == Code::kIoError;
  const catalog::Record& r = context_.forest.record(record);
  if (!lost || r.in_memory() || lower_.Gone(r.location) ||
      context_.catalog.EntryOf(context_.forest.block(r.block).tree) == nullptr)
    return;
  (bad ? context_.counters.cut_bad : context_.counters.lost_below).Add();
  context_.log.Log(
      LogLevel::kWarning,
      "a block in the lower tier cannot be read, it goes with what descends from it: ", status.message());
  owner_.Lose(r.block, LossReason::kBad);
}

void Fetcher::ReadAhead(catalog::TreeId tree, std::span<const BlockKey> chain) {
  std::uint64_t bytes = 0;
  const catalog::NamespaceEntry* entry = context_.catalog.EntryOf(tree);
  for (std::size_t i = 0; i < chain.size() && bytes < context_.options.read_ahead_bytes; ++i) {
    if (context_.steps.Spent() || fetches_.size() >= kMaxReadAhead) return;
    const catalog::BlockId block = context_.catalog.Find(tree, chain[i]);
    if (block == catalog::kNoId) return;
    for (std::uint16_t g = 0; g < entry->groups.size(); ++g) {
      const auto copy = context_.forest.See(block, g);
      context_.steps.Count();
      if (!copy || copy->in_memory) continue;
      bytes += copy->body_bytes;
      const catalog::RecordId record = context_.forest.Take(block, g);
      if (fetching(record)) continue;
      DecidePromotion(record, true);
      Start(record)->ahead = true;
    }
  }
}

Task<void> Fetcher::Fetch(RecordReference reference, std::shared_ptr<PendingFetch> fetch) {
  const catalog::RecordHandle handle = reference.handle();
  const std::uint32_t bytes = context_.forest.record(handle.record).body_bytes;
  const std::size_t others = lower_.FetchBegan();
  const Instant began = context_.clock.Now();
  double read_us = 0;
  co_await Yield();
  Status status;
  // A second try, for a block that moved to another location during the first.
  for (int tries = 0; tries < 2; ++tries) {
    if (!context_.catalog.Lives(handle)) {
      status = Status(Code::kMiss, "fetch: the block went meanwhile");
      break;
    }
    const tier::Location from = context_.forest.record(handle.record).location;
    status = co_await FetchOnce(handle, *fetch, &read_us);
    if (status.ok() || !context_.catalog.Lives(handle) ||
        context_.forest.record(handle.record).location == from)
      break;
  }
  if (!status.ok() && context_.catalog.Lives(handle)) Unreadable(handle.record, status);
  const Instant ended = context_.clock.Now();
  const std::int64_t took_ns = ended.NsSince(began);
  const double us = static_cast<double>(took_ns) / 1e3;
  if (status.ok()) context_.counters.fetch_ns.Record(static_cast<std::uint64_t>(took_ns));
  lower_.FetchEnded(bytes, others, status.ok() && read_us > 0 ? std::optional(us - read_us) : std::nullopt);
  context_.counters.fetched.Add(status.ok() ? 1 : 0);
  context_.counters.read_ahead.Add(status.ok() && fetch->ahead ? 1 : 0);
  context_.counters.fetch_failed.Add(status.ok() ? 0 : 1);
  fetches_.erase(handle.serial);
  fetch->status = std::move(status);
  if (context_.slow_calls != nullptr && context_.slow_calls->Slow(took_ns))
    NoteTime(*fetch, handle, began, ended);
  fetch->done.Set();
  reference.Drop(Residents::Used::kNo);
}

void Fetcher::NoteTime(const PendingFetch& fetch, catalog::RecordHandle handle, Instant began,
                       Instant ended) {
  SlowCall call{.kind = CallKind::kFetch,
                .stations = CallStations(context_.clock, began),
                .ended = ended,
                .code = fetch.status.code(),
                .count = 1};
  fetch.AddTo(call.stations, began, ended);
  if (context_.catalog.Lives(handle)) {
    const catalog::TreeId tree = context_.forest.block(context_.forest.record(handle.record).block).tree;
    if (context_.catalog.EntryOf(tree) != nullptr)
      call.namespace_fingerprint = context_.catalog.FingerprintOf(context_.forest.tree(tree)->slot);
  }
  context_.slow_calls->Note(std::move(call));
}

std::vector<std::uint32_t> Fetcher::PartsOf(const catalog::Record& record) const {
  const catalog::NamespaceEntry* entry = context_.catalog.EntryOf(context_.forest.block(record.block).tree);
  if (entry == nullptr || entry->groups[record.group].body_bytes != record.body_bytes)
    return {record.body_bytes};
  return entry->groups[record.group].part_bytes;
}

Task<Status> Fetcher::FetchOnce(catalog::RecordHandle handle, PendingFetch& fetch, double* read_us) {
  const catalog::Record r = context_.forest.record(handle.record);
  if (r.in_memory()) co_return Status();
  const catalog::TreeId tree = context_.forest.block(r.block).tree;
  const std::uint64_t record_bytes = context_.catalog.RecordBytesOf(tree, r.group, r.body_bytes);
  const SlotFill fill(residents_);
  fetch.slot_at = fetch.read_at = Instant();
  auto place = co_await room_.Make(fill, record_bytes, context_.clock.Now().PlusUs(kRoomUs),
                                   {.group = context_.catalog.GroupOf(tree)});
  if (!place)
    co_return place.error().code() == Code::kTooLate ? Status(Code::kBusy, "fetch: no room in memory")
                                                     : std::move(place.error());
  const arena::ArenaSpace& arena = context_.slots.arena();
  context_.slots.Pin(*place);
  Status status(Code::kMiss, "fetch: the block went meanwhile");
  if (context_.catalog.Lives(handle) && !context_.forest.record(handle.record).in_memory()) {
    const tier::Location from = context_.forest.record(handle.record).location;
    const std::uint64_t generation = arena::BeginFill(context_.words, arena, *place);
    ArrivalCheck check(context_.executor, context_.movers, arena.slot(*place), PartsOf(r));
    context_.steps.Count(2 + r.body_bytes / record::kSegmentBytes / 16);
    const tier::Tier::Arrived arrived = [&check](std::span<const std::byte> bytes) { check.Arrived(bytes); };
    fetch.slot_at = context_.clock.Now();
    auto fetched = co_await lower_->Fetch(from, std::span(arena.slot(*place), record_bytes), &arrived);
    fetch.read_at = context_.clock.Now();
    *read_us += static_cast<double>(fetch.read_at.NsSince(fetch.slot_at)) / 1e3;
    co_await check.Finish(fetched.has_value());
    if (fetched) {
      status = co_await Publish(handle, fetch, from, *place, generation, *fetched, check);
    } else {
      status = std::move(fetched.error());
    }
  }
  if (status.ok()) co_return status;
  context_.slots.Unpin(*place);
  context_.slots.Free(*place);
  co_return status;
}

Task<Status> Fetcher::Publish(catalog::RecordHandle handle, const PendingFetch& fetch, tier::Location from,
                              arena::Place place, std::uint64_t generation, tier::FetchedRecord fetched,
                              const ArrivalCheck& check) {
  if (!context_.catalog.Lives(handle)) co_return Status(Code::kMiss, "fetch: the block went meanwhile");
  const record::Stamp stamp = fetched.stamp;
  const catalog::Record r = context_.forest.record(handle.record);
  const arena::ArenaSpace& arena = context_.slots.arena();
  const std::vector<std::byte> trailer = residents_.TrailerAt(place, r);
  const auto seal = record::CheckSeal(trailer);
  const auto not_it = [&](std::string_view why) {
    lower_->ReportBad(from);
    return Status(Code::kMiss, Text(lower_->Describe(from), ": ", why));
  };
  const catalog::BlockId block = r.block;
  const catalog::TreeId tree = context_.forest.block(block).tree;
  const catalog::NamespaceEntry* entry = context_.catalog.EntryOf(tree);
  if (entry == nullptr) co_return Status(Code::kMiss, "fetch: the namespace was dropped meanwhile");
  const std::uint64_t incarnation = entry->incarnation;
  if (!seal || !context_.catalog.IsSealOf(r, *seal)) {
    co_return not_it("holds another block than the one that was written there");
  }
  if (!check.Sound(*seal)) co_return not_it("its record fails its seal");
  const Status already(Code::kBusy, "fetch: it is here already");
  if (context_.forest.record(handle.record).in_memory()) co_return already;
  while (context_.options.max_blocks > 0 && residents_.count() >= context_.options.max_blocks) {
    const Step step = evictor_.EvictOne({.groups = evictor_.MayLeaveFor(context_.catalog.GroupOf(tree), 0)});
    if (step == Step::kWaits) co_return Status(Code::kBusy, "fetch: memory is full and nothing may go");
    if (step == Step::kDone) continue;
    co_await Yield();
    if (!context_.catalog.Lives(handle)) co_return Status(Code::kMiss, "fetch: the block went meanwhile");
    if (context_.forest.record(handle.record).in_memory()) co_return already;
  }
  const BlockKey key = seal->key();
  const arena::Found found{
      .place = place,
      .body_bytes = r.body_bytes,
      .expiry = stamp.expiry,
      .generation_low = static_cast<std::uint32_t>(generation) & arena::kGenerationLowMask};
  const auto number = evictor_.AddEntry(arena::FingerprintOf(incarnation, r.group, key), found, block);
  if (!number) co_return Status(Code::kBusy, "fetch: the index has no room for it, and nothing there may go");
  const record::SealCopy copy(*seal);
  arena::Publish(context_.words, arena, place, generation,
                 {.seal = copy.seal(),
                  .sequence = context_.sequences.Next(),
                  .born = stamp.born,
                  .expiry = stamp.expiry,
                  .conversation = context_.conversations.Of(tree, key)});
  context_.steps.Count(8);
  catalog::Record& now = context_.forest.record(handle.record);
  now.key = key;
  now.place = place;
  now.generation = generation;
  now.born = stamp.born;
  now.expiry = stamp.expiry;
  now.flags |= catalog::Record::kVerified;
  const policy::Standing standing = StandingOf(context_.forest.block(block));
  if (fetch.held) {
    now.flags &= static_cast<std::uint8_t>(~catalog::Record::kTransient);
  } else if (evictor_.Passes(handle.record, standing)) {
    now.flags |= catalog::Record::kTransient;
  }
  residents_.Enter(handle.record, *number, standing);
  if (fetch.held) residents_.Hold(handle.record);
  if (now.is(catalog::Record::kTransient)) context_.counters.passing.Add();
  partial_copies_.End(handle.record);  // a reader with a view of the partial copy finds the block here
  // The reference takes over the pin under which the slot was filled.
  CISTERN_ASSERT(now.references > 0);
  co_return Status();
}

}  // namespace cistern::residency
