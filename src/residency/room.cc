// SPDX-License-Identifier: Apache-2.0
#include "residency/room.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/format.h"

namespace cistern::residency {

namespace {
// Chunks left as they are because a lease was taken during the emptying, before the put gives up.
constexpr int kLeasedMeanwhile = 16;
// How long a record that moves away waits for room, before another one's turn.
constexpr std::int64_t kAwayUs = 100'000;
// How long a put waits for the next header of memory that grows before others leave for it.
constexpr std::int64_t kHeaderUs = 250'000;
constexpr std::string_view kNoRoomNow = "memory has no room for it now";
}  // namespace

std::optional<arena::Place> Room::MakeAtOnce(std::uint64_t record_bytes, const RoomFor& whom) {
  if (evictor_.Over(whom.group, whom.adds ? record_bytes : 0)) return std::nullopt;
  context_.steps.Count();
  const auto place = context_.slots.Allocate(record_bytes, whom.node);
  return place ? std::optional(*place) : std::nullopt;
}

Task<Result<arena::Place>> Room::Make(const SlotFill& fill, std::uint64_t record_bytes, Instant deadline,
                                      RoomFor whom) {
  const SlotFill::Search searching(fill);
  const memory::SlotSize size =
      memory::SlotSize::For(record_bytes, context_.slots.arena().geometry().alignment);
  Request request{.record_bytes = record_bytes,
                  .deadline = deadline,
                  .whom = whom,
                  .wanted = context_.slots.KindFor(record_bytes, whom.node),
                  .enough = std::uint64_t{size.chunk_headers} * arena::kHeaderSpanBytes,
                  .headers = context_.slots.headers()};
  int in_vain = 0;
  bool first = true;
  bool idle = !emptying_ && context_.slots.OthersIdle(record_bytes, whom.node);
  const std::uint64_t more = whom.adds ? record_bytes : 0;
  // Whether what may not go now may go later.
  const auto more_later = [this] { return residents_.filling() || evictor_.MoreMayGo(); };
  for (;;) {
    if (!context_.slots.CanHold(record_bytes))
      co_return Error(Code::kBusy, "write: all of memory is less than what such a block takes");
    const bool more_to_come = more_later();
    const policy::QuotaGroups groups = evictor_.MayLeaveFor(whom.group, more);
    const bool over = evictor_.Over(whom.group, more);
    if (!over) {
      auto place = context_.slots.Allocate(record_bytes, whom.node);
      context_.steps.Count();
      if (place || place.error().code() != Code::kBusy) co_return place;
    }
    if (context_.clock.Now() >= deadline)
      co_return Error(Code::kTooLate, "write: the deadline passed while it waited for room");
    // Nothing leaves for what has a chunk in a moment, or has none whatever leaves.
    const bool only_grown = context_.slots.FitsOnlyGrown(record_bytes);
    if (Grows(request, only_grown) && !over) {
      (void)co_await context_.slots.loosened().Wait(only_grown ? deadline
                                                               : std::min(deadline, request.stands_at));
      continue;
    }
    if (only_grown)
      co_return Error(Code::kBusy, "write: memory has not grown yet to what such a block takes");
    // A spare record does not wait, and no chunk is given up for it.
    if (whom.age && (over || request.went >= request.enough))
      co_return Error(Code::kBusy, std::string(kNoSpareRoom));
    if (over) {
      // One of its own leaves, whatever its size: the bytes count.
      const Step step = evictor_.EvictOne({.standing = whom.standing, .groups = groups});
      if (step == Step::kDone) context_.counters.evicted_over_quota.Add();
      if (step == Step::kSpent || context_.steps.Spent()) co_await Yield();
      if (step != Step::kWaits) continue;
    } else {
      // Idle partial copies in slots of the wanted size are ended first.
      if (partial_copies_.EndIdle(size)) {
        if (context_.steps.Spent()) co_await Yield();
        continue;
      }
      if (std::exchange(idle, false)) {
        if (!emptying_) co_await EmptyAChunk(request, true);
        continue;
      }
      // Then one idle copy of another size, which may be the coldest: its chunk is given up in time.
      if (std::exchange(first, false) && partial_copies_.EndIdle()) continue;
      Step step = Step::kWaits;
      if (request.went < request.enough) {
        bool stays_out = false;
        step = co_await GiveUpOne(request, groups, &stays_out);
        if (stays_out && whom.age) co_return Error(Code::kBusy, std::string(kNoSpareRoom));
        if (stays_out) {
          context_.counters.stayed_out.Add();
          co_return Error(Code::kBusy, std::string(kStaysOut));
        }
        if (step == Step::kWaits && !whom.evicts) co_return Error(Code::kBusy, std::string(kNoRoomNow));
        // No record of that class may leave; the class has no coldest any more.
        if (step == Step::kWaits && request.giver) continue;
      }
      if (step == Step::kSpent || context_.steps.Spent()) co_await Yield();
      if (step != Step::kWaits || partial_copies_.EndIdle()) continue;
      if (!whom.waits && emptying_) co_return Error(Code::kBusy, std::string(kNoRoomNow));
      while (emptying_ && context_.clock.Now() < deadline) {
        if (Status waited = co_await emptied_.Wait(deadline); !waited.ok()) break;
      }
      if (emptying_) continue;
      const bool served = co_await EmptyAChunk(request, false);
      const bool again = served || (request.went > 0 && ++in_vain < 2);
      request.went = 0;
      request.giver.reset();
      if (again) continue;
      in_vain = 0;
    }
    // Nothing may go now. What is on its way in or out, or waits to be written, may go when it arrived; what
    // did so while this looked has its look too.
    if (!whom.waits) co_return Error(Code::kBusy, std::string(kNoRoomNow));
    if (more_later()) {
      (void)co_await context_.slots.loosened().Wait(deadline);
    } else if (!more_to_come) {
      break;
    }
  }
  if (whom.put) context_.counters.writes_without_room.Add();
  co_return Error(Code::kBusy,
                  "write: no room, and nothing may go: all that is here is leased, in use, or has "
                  "something below it that is");
}

bool Room::Grows(Request& request, bool only_grown) {
  const std::uint32_t headers = context_.slots.headers();
  if (std::exchange(request.headers, headers) != headers || request.stands_at.IsNever())
    request.stands_at = context_.clock.Now().PlusUs(kHeaderUs);
  request.grows = request.grows && !request.whom.age &&
                  context_.slots.FitsSoon(request.record_bytes, request.whom.node) &&
                  (only_grown || context_.clock.Now() < request.stands_at);
  return request.grows;
}

Task<Step> Room::GiveUpOne(Request& request, policy::QuotaGroups groups, bool* stays_out) {
  const RoomFor& whom = request.whom;
  std::optional<policy::SizeClass>& giver = request.giver;
  const std::uint64_t before = context_.slots.used_bytes_beside(whom.node);
  if (!giver || *giver == request.wanted || !residents_.order().Oldest(*giver, groups))
    giver = evictor_.SizeClassToGo(request.wanted, groups);
  Step step = Step::kWaits;
  if (context_.slots.plan().near() < context_.slots.plan().nodes() && !far_memory_.Has(request.wanted))
    step = co_await MoveOneFar(giver, groups, whom, stays_out);
  if (step == Step::kWaits && !*stays_out && whom.evicts) {
    step = evictor_.EvictOne({giver, whom.standing, groups, whom.age, far_memory_.SideOf(request.wanted)},
                             stays_out);
  }
  const std::uint64_t now = context_.slots.used_bytes_beside(whom.node);
  request.went += before > now ? before - now : 0;  // others may have come while one moved
  co_return step;
}

Task<Step> Room::MoveOneFar(std::optional<policy::SizeClass> kind, policy::QuotaGroups groups, RoomFor whom,
                            bool* stays_out) {
  policy::Order& order = residents_.order();
  std::optional<catalog::RecordId> coldest;
  do {
    if (context_.steps.Spent()) co_return Step::kSpent;
    // As in EvictOne.
    if (residents_.DropOneEnded()) continue;
    coldest = kind ? order.Coldest(*kind) : order.ColdestOf(far_memory_.near());
    if (!coldest) co_return Step::kWaits;
    context_.steps.Count();
    // Where the order has no shelf left for its kind one that lies far stands among the near.
    const catalog::Record& its = context_.forest.record(*coldest);
    if (its.references > 0 || context_.slots.IsFar(its.place))
      order.Park(*std::exchange(coldest, std::nullopt));
  } while (!coldest);
  const catalog::RecordId record = *coldest;
  const catalog::Record r = context_.forest.record(record);
  const catalog::RecordHandle handle = context_.catalog.HandleOf(record);
  // What leaves before all others takes no room there.
  const bool goes = r.is(catalog::Record::kTransient) || r.is(catalog::Record::kBehind);
  if (goes && evictor_.MayGo(record)) co_return Step::kWaits;
  if (whom.age && order.Age(record) <= *whom.age) co_return Step::kWaits;
  std::vector<std::byte> trailer;
  const auto seal = SealOf(record, trailer);
  if (!seal) co_return Step::kDone;
  const SlotFill fill(residents_);
  const std::uint64_t bytes = RecordBytesOf(r, *seal);
  auto to = context_.slots.Allocate(bytes, memory::kAnyFar);
  if (!to) {
    const policy::Standing newcomer = evictor_.keeps_all() ? policy::Standing() : whom.standing;
    const auto way = policy::WayOf(order, newcomer, record, order.ColdestOf(far_memory_.far(), groups));
    *stays_out = way == policy::NearWay::kNewStaysOut;
    if (*stays_out || (way == policy::NearWay::kLeaves && evictor_.MayGo(record))) co_return Step::kWaits;
    const RoomFor there{.group = order.group(record),
                        .adds = false,
                        .node = memory::kAnyFar,
                        .age = whom.age,
                        .waits = false};
    to = co_await Make(fill, bytes, context_.clock.Now().PlusUs(kAwayUs), there);
    if (!to) co_return Step::kWaits;
  }
  co_await MoveIfThere(handle, r, *seal, *to);
  co_return Step::kDone;
}

Task<bool> Room::EmptyAChunk(const Request& request, bool idle_only) {
  emptying_ = true;
  bool served = false;
  int leased = 0;
  // A single look covers part of the arena only.
  for (int looks = idle_only ? 63 : 0; looks < 64 && !served && context_.clock.Now() < request.deadline;
       ++looks) {
    const auto range = context_.slots.BestToEmpty(request.record_bytes, idle_only, request.whom.node);
    context_.steps.Count(16);
    if (range) {
      served = co_await EmptyRange(*range, evictor_.MayLeaveFor(request.whom.group, 0));
      if (!served && ++leased == kLeasedMeanwhile) break;
    }
    if (context_.steps.Spent()) co_await Yield();
  }
  emptying_ = false;
  emptied_.Pulse();
  co_return served;
}

Task<bool> Room::EmptyRange(memory::HeaderRange range, policy::QuotaGroups groups) {
  context_.slots.StartEmptying(range);
  std::uint64_t cursor = 0;
  std::array<arena::Place, 32> places;
  bool left = false;
  for (std::size_t n; !left && (n = context_.slots.UsedIn(range, &cursor, places)) > 0;) {
    for (std::size_t i = 0; i < n && !left; ++i) {
      if (context_.steps.Spent()) co_await Yield();
      context_.steps.Count();
      // The range may be free as a whole, and another size's chunk by now.
      if (context_.slots.emptying() != range) co_return true;
      if (!context_.slots.used(places[i])) continue;
      const catalog::RecordId record = context_.forest.At(places[i]);
      if (record == catalog::kNoId || context_.forest.record(record).references > 0) {
        left = true;
      } else {
        const bool moved = co_await Move(record);
        if (moved) continue;
        if (context_.slots.emptying() != range) co_return true;
        // A record without a free slot elsewhere is evicted if it may leave, whatever its turn.
        const catalog::RecordId now = context_.forest.At(places[i]);
        if (now != catalog::kNoId && evictor_.MayGo(now) &&
            (groups >> residents_.order().group(now) & 1) != 0)
          evictor_.Evict(now);
        left = context_.slots.used(places[i]);
      }
    }
  }
  context_.slots.StopEmptying();
  co_return !left;
}

std::optional<record::SealView> Room::SealOf(catalog::RecordId record, std::vector<std::byte>& trailer) {
  const catalog::Record& r = context_.forest.record(record);
  trailer = residents_.TrailerAt(r.place, r);
  const auto seal = record::CheckSeal(trailer);
  if (seal) return *seal;
  evictor_.LoseBad(record);
  return std::nullopt;
}

Task<bool> Room::Move(catalog::RecordId record) {
  std::vector<std::byte> trailer;
  const auto seal = SealOf(record, trailer);
  if (!seal) co_return true;
  const catalog::Record& r = context_.forest.record(record);
  const std::uint64_t bytes = RecordBytesOf(r, *seal);
  auto to = context_.slots.Allocate(bytes, context_.slots.NodeOf(r.place));
  if (!to)
    to = context_.slots.Allocate(bytes, context_.slots.IsFar(r.place) ? memory::kAnyNode : memory::kAnyFar);
  if (!to) co_return false;
  co_return co_await MoveTo(record, *seal, *to);
}

Task<void> Room::MoveAway(catalog::RecordId record) {
  co_await MoveFor(record, {.node = context_.slots.NodeOf(context_.forest.record(record).place)});
}

Task<void> Room::MoveNear(catalog::RecordId record) {
  co_await MoveFor(record, {.waits = false, .evicts = false});
}

Task<void> Room::MoveFor(catalog::RecordId record, RoomFor whom) {
  const catalog::Record r = context_.forest.record(record);
  const catalog::RecordHandle handle = context_.catalog.HandleOf(record);
  std::vector<std::byte> trailer;
  const auto seal = SealOf(record, trailer);
  if (!seal) co_return;
  const std::uint64_t bytes = RecordBytesOf(r, *seal);
  if (!context_.slots.CanHold(bytes)) {
    co_await EvictLeafFirst(handle);
    co_return;
  }
  const SlotFill fill(residents_);
  const policy::Order& order = residents_.order();
  whom.group = order.Contains(record) ? order.group(record) : policy::QuotaGroup{0};
  whom.adds = false;
  const auto to = co_await Make(fill, bytes, context_.clock.Now().PlusUs(kAwayUs), whom);
  if (to) co_await MoveIfThere(handle, r, *seal, *to);
}

Task<void> Room::EvictLeafFirst(catalog::RecordHandle handle) {
  const catalog::TreeId tree = context_.forest.block(context_.forest.record(handle.record).block).tree;
  catalog::BlockId at = catalog::kNoId;  // on the way down to a leaf
  while (context_.catalog.Lives(handle)) {
    const catalog::Record& r = context_.forest.record(handle.record);
    if (!r.in_memory() || r.references > 0) co_return;
    if (evictor_.MayGo(handle.record)) {
      evictor_.Evict(handle.record);
      co_return;
    }
    if (at == catalog::kNoId) at = r.block;
    context_.steps.Count();
    const catalog::Block& b = context_.forest.block(at);
    if (b.first_child != catalog::kNoId) {
      at = b.first_child;
    } else {
      catalog::RecordId leaf = b.folded() ? catalog::kNoId : b.first_record;
      while (leaf != catalog::kNoId && !(context_.forest.record(leaf).in_memory() && evictor_.MayGo(leaf)))
        leaf = context_.forest.record(leaf).next;
      if (leaf == catalog::kNoId) co_return;
      evictor_.Evict(leaf);
      at = catalog::kNoId;
    }
    if (!context_.steps.Spent()) continue;
    // The id may be another block's in the next step.
    const bool on_the_way = at != catalog::kNoId && context_.forest.block(at).has_key();
    const catalog::KeyHash key_hash = on_the_way ? context_.forest.block(at).key_hash() : 0;
    co_await Yield();
    at = on_the_way ? context_.catalog.FindKeyHash(tree, key_hash) : catalog::kNoId;
  }
}

Task<void> Room::MoveIfThere(catalog::RecordHandle handle, catalog::Record was, const record::SealView& seal,
                             arena::Place to) {
  const catalog::Record& now = context_.forest.record(handle.record);
  if (context_.catalog.Lives(handle) && now.place == was.place && now.generation == was.generation &&
      now.references == 0) {
    co_await MoveTo(handle.record, seal, to);
  } else {
    context_.slots.Free(to);
  }
}

Task<bool> Room::MoveTo(catalog::RecordId record, const record::SealView& seal, arena::Place to) {
  const catalog::Record r = context_.forest.record(record);
  const catalog::RecordHandle handle = context_.catalog.HandleOf(record);
  const arena::ArenaSpace& arena = context_.slots.arena();
  context_.slots.Pin(to);
  RecordReference reference(residents_, handle);
  SlotUse use(residents_, r.place);
  const std::uint64_t generation = arena::BeginFill(context_.words, arena, to);
  std::vector<std::uint32_t> crcs(seal.segment_count());
  for (std::uint32_t i = 0; i < seal.part_count(); ++i) {
    const record::SealView::PartPlace part = seal.part(i);
    const std::span<const std::byte> from[] = {{arena.slot(r.place) + part.offset, part.bytes}};
    memory::FillTask fill(context_.movers,
                          {arena.slot(to) + part.offset, from,
                           std::span(crcs).subspan(part.first_segment, record::SegmentsOfPart(part.bytes))});
    co_await fill;
  }
  use.End();
  context_.slots.Unpin(to);
  const bool sound = record::CrcsMatch(seal, 0, crcs);
  const catalog::Record& now = context_.forest.record(record);
  const bool same = context_.catalog.Lives(handle) && now.place == r.place;
  const bool wanted = same && sound && now.references == 1;
  reference.Drop(Residents::Used::kNo);
  if (!wanted) {
    context_.slots.Free(to);
    if (same && !sound) evictor_.LoseBad(record);
    // A lease took a reference during the copy: the record stays, and so does its chunk.
    co_return !(same && sound);
  }
  if (context_.slots.IsFar(to) != context_.slots.IsFar(r.place))
    (context_.slots.IsFar(to) ? context_.counters.moved_far : context_.counters.moved_near).Add();
  residents_.Relocate(record, seal, to, generation);
  co_return true;
}

}  // namespace cistern::residency
