// SPDX-License-Identifier: Apache-2.0
#include "residency/room.h"

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "base/format.h"

namespace cistern::residency {

namespace {
// Chunks left as they are because a lease was taken during the emptying, before the put gives up.
constexpr int kLeasedMeanwhile = 16;
// How long a record that moves away waits for room, before another one's turn.
constexpr std::int64_t kAwayUs = 100'000;
}  // namespace

Task<Result<arena::Place>> Room::Make(const SlotFill& fill, std::uint64_t record_bytes, Instant deadline,
                                      RoomFor whom) {
  const SlotFill::Search searching(fill);
  const std::uint32_t alignment = slots_.arena().geometry().alignment;
  const memory::SlotSize size = memory::SlotSize::For(record_bytes, alignment);
  const policy::SizeClass wanted = slots_.KindFor(record_bytes, whom.node);
  // Bytes of one other size class that make up a chunk: once that many are freed, one chunk's records fit
  // into them.
  const std::uint64_t enough = std::uint64_t{size.chunk_headers} * arena::kHeaderSpanBytes;
  std::uint64_t went = 0;
  std::optional<policy::SizeClass> giver;
  int in_vain = 0;
  bool first = true;
  bool idle = !emptying_ && slots_.OthersIdle(record_bytes);
  const std::uint64_t more = whom.adds ? record_bytes : 0;
  bool grows = true;
  for (;;) {
    const policy::QuotaGroups groups = evictor_.MayLeaveFor(whom.group, more);
    const bool over = evictor_.Over(whom.group, more);
    if (!over) {
      auto place = slots_.Allocate(record_bytes, whom.node);
      steps_.Count();
      if (place || place.error().code() != Code::kBusy) co_return place;
    }
    // Nothing leaves for what has a chunk in a moment, or has none whatever leaves.
    grows = grows && !whom.age && slots_.FitsSoon(record_bytes);
    if (grows && !over && clock_.Now() < deadline) {
      (void)co_await slots_.loosened().Wait(deadline);
      continue;
    }
    if (slots_.FitsOnlyGrown(record_bytes) && clock_.Now() < deadline)
      co_return Error(Code::kBusy, "write: memory has not grown yet to what such a block takes");
    if (clock_.Now() >= deadline) {
      co_return Error(Code::kTooLate, "write: the deadline passed while it waited for room");
    }
    // A spare record does not wait, and no chunk is given up for it.
    if (whom.age && (over || went >= enough)) co_return Error(Code::kBusy, std::string(kNoSpareRoom));
    if (over) {
      // One of its own leaves, whatever its size: the bytes count.
      const Step step = evictor_.EvictOne({.standing = whom.standing, .groups = groups});
      if (step == Step::kDone) counters_.evicted_over_quota.Add();
      if (step == Step::kSpent || steps_.Spent()) co_await Yield();
      if (step != Step::kWaits) continue;
      if (!residents_.filling() && !evictor_.MoreMayGo()) break;
      (void)co_await slots_.loosened().Wait(deadline);
      continue;
    }
    // Idle partial copies in slots of the wanted size are ended first.
    if (partial_copies_.EndIdle(size)) {
      if (steps_.Spent()) co_await Yield();
      continue;
    }
    if (std::exchange(idle, false)) {
      if (!emptying_) co_await EmptyAChunk(record_bytes, deadline, whom, true);
      continue;
    }
    // Then one idle copy of another size, which may be the coldest: its chunk is given up in time.
    if (std::exchange(first, false) && partial_copies_.EndIdle()) continue;
    Step step = Step::kWaits;
    if (went < enough) {
      const std::uint64_t before = slots_.counts().used_bytes;
      if (!giver || *giver == wanted || !residents_.order().Oldest(*giver, groups))
        giver = evictor_.SizeClassToGo(wanted, groups);
      bool stays_out = false;
      step = evictor_.EvictOne({giver, whom.standing, groups, whom.age}, &stays_out);
      if (stays_out && whom.age) co_return Error(Code::kBusy, std::string(kNoSpareRoom));
      if (stays_out) {
        counters_.stayed_out.Add();
        co_return Error(Code::kBusy, std::string(kStaysOut));
      }
      went += before - slots_.counts().used_bytes;
      // No record of that class may leave; the class has no coldest any more.
      if (step == Step::kWaits && giver) continue;
    }
    if (step == Step::kSpent || steps_.Spent()) co_await Yield();
    if (step != Step::kWaits || partial_copies_.EndIdle()) continue;
    while (emptying_ && clock_.Now() < deadline) {
      if (Status waited = co_await emptied_.Wait(deadline); !waited.ok()) break;
    }
    if (emptying_) continue;
    const bool served = co_await EmptyAChunk(record_bytes, deadline, whom, false);
    if (!served && (went == 0 || ++in_vain == 2)) {
      // Nothing may go now. What is on its way in or out, or waits to be written, may go when it arrived.
      if (!residents_.filling() && !evictor_.MoreMayGo()) break;
      (void)co_await slots_.loosened().Wait(deadline);
      in_vain = 0;
    }
    went = 0;
    giver.reset();
  }
  counters_.writes_without_room.Add();
  counters_.busy.Add();
  co_return Error(Code::kBusy,
                  "write: no room, and nothing may go: all that is here is leased, in use, or has "
                  "something below it that is");
}

Task<bool> Room::EmptyAChunk(std::uint64_t record_bytes, Instant deadline, RoomFor whom, bool idle_only) {
  emptying_ = true;
  bool served = false;
  int leased = 0;
  // A single look covers part of the arena only.
  for (int looks = idle_only ? 63 : 0; looks < 64 && !served && clock_.Now() < deadline; ++looks) {
    const auto range = slots_.BestToEmpty(record_bytes, idle_only);
    steps_.Count(16);
    if (range) {
      served = co_await EmptyRange(*range, evictor_.MayLeaveFor(whom.group, 0));
      if (!served && ++leased == kLeasedMeanwhile) break;
    }
    if (steps_.Spent()) co_await Yield();
  }
  emptying_ = false;
  emptied_.Pulse();
  co_return served;
}

Task<bool> Room::EmptyRange(memory::HeaderRange range, policy::QuotaGroups groups) {
  slots_.StartEmptying(range);
  std::uint64_t cursor = 0;
  std::array<arena::Place, 32> places;
  bool left = false;
  for (std::size_t n; !left && (n = slots_.UsedIn(range, &cursor, places)) > 0;) {
    for (std::size_t i = 0; i < n && !left; ++i) {
      if (steps_.Spent()) co_await Yield();
      steps_.Count();
      // The range may be free as a whole, and another size's chunk by now.
      if (slots_.emptying() != range) co_return true;
      if (!slots_.used(places[i])) continue;
      const catalog::RecordId record = forest_.At(places[i]);
      if (record == catalog::kNoId || forest_.record(record).references > 0) {
        left = true;
      } else {
        const bool moved = co_await Move(record);
        if (moved) continue;
        if (slots_.emptying() != range) co_return true;
        // A record without a free slot elsewhere is evicted if it may leave, whatever its turn.
        const catalog::RecordId now = forest_.At(places[i]);
        if (now != catalog::kNoId && evictor_.MayGo(now) &&
            (groups >> residents_.order().group(now) & 1) != 0)
          evictor_.Evict(now);
        left = slots_.used(places[i]);
      }
    }
  }
  slots_.StopEmptying();
  co_return !left;
}

std::optional<record::SealView> Room::SealOf(catalog::RecordId record, std::vector<std::byte>& trailer) {
  const catalog::Record& r = forest_.record(record);
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
  const catalog::Record& r = forest_.record(record);
  const auto to = slots_.Allocate(RecordBytesOf(r, *seal), slots_.NodeOf(r.place));
  if (!to) co_return false;
  co_return co_await MoveTo(record, *seal, *to);
}

Task<void> Room::MoveAway(catalog::RecordId record) {
  const catalog::Record r = forest_.record(record);
  const catalog::RecordHandle handle = catalog_.HandleOf(record);
  std::vector<std::byte> trailer;
  const auto seal = SealOf(record, trailer);
  if (!seal) co_return;
  const SlotFill fill(residents_);
  const policy::Order& order = residents_.order();
  const RoomFor whom{.group = order.Contains(record) ? order.group(record) : policy::QuotaGroup{0},
                     .adds = false,
                     .node = slots_.NodeOf(r.place)};
  const auto to = co_await Make(fill, RecordBytesOf(r, *seal), clock_.Now().PlusUs(kAwayUs), whom);
  if (!to) co_return;
  const catalog::Record& now = forest_.record(record);
  if (catalog_.Lives(handle) && now.place == r.place && now.generation == r.generation &&
      now.references == 0) {
    co_await MoveTo(record, *seal, *to);
  } else {
    slots_.Free(*to);
  }
}

Task<bool> Room::MoveTo(catalog::RecordId record, const record::SealView& seal, arena::Place to) {
  const catalog::Record r = forest_.record(record);
  const catalog::RecordHandle handle = catalog_.HandleOf(record);
  const arena::ArenaSpace& arena = slots_.arena();
  slots_.Pin(to);
  RecordReference reference(residents_, handle);
  SlotUse use(residents_, r.place);
  const std::uint64_t generation = arena::BeginFill(words_, arena, to);
  std::vector<std::uint32_t> crcs(seal.segment_count());
  for (std::uint32_t i = 0; i < seal.part_count(); ++i) {
    const record::SealView::PartPlace part = seal.part(i);
    const std::span<const std::byte> from[] = {{arena.slot(r.place) + part.offset, part.bytes}};
    memory::FillTask fill(movers_,
                          {arena.slot(to) + part.offset, from,
                           std::span(crcs).subspan(part.first_segment, record::SegmentsOfPart(part.bytes))});
    co_await fill;
  }
  use.End();
  slots_.Unpin(to);
  const bool sound = record::CrcsMatch(seal, 0, crcs);
  const catalog::Record& now = forest_.record(record);
  const bool same = catalog_.Lives(handle) && now.place == r.place;
  const bool wanted = same && sound && now.references == 1;
  reference.Drop();
  if (!wanted) {
    slots_.Free(to);
    if (same && !sound) evictor_.LoseBad(record);
    // A lease took a reference during the copy: the record stays, and so does its chunk.
    co_return !(same && sound);
  }
  residents_.Relocate(record, seal, to, generation);
  co_return true;
}

}  // namespace cistern::residency
