// SPDX-License-Identifier: Apache-2.0
// Room: the tree says what may go, the policy's order says what goes next.
#include <algorithm>
#include <array>

#include "record/seal.h"
#include "store/impl.h"

namespace cistern {

namespace {
// How often a put without anything to evict empties a chunk that others then take.
constexpr int kEmptiedForOthers = 3;
// How many chunks in which somebody took a lease meanwhile are left as they are before none is emptied.
constexpr int kLeasedMeanwhile = 16;
}  // namespace

bool BlockStore::Impl::MayGo(RecordId record) const {
  const Record& r = tree_.record(record);
  if (r.holds > 0) return false;
  // Not the last copy.
  if (r.on_flash()) return true;
  if (r.is(Record::kBehind)) return true;
  const Block& b = tree_.block(r.block);
  if (b.first_child != kNoId) return false;
  // What waits to be published below a block keeps it, and with it its ancestors.
  return pending_.size() == 0 || pending_.NextBelow(b.realm, b.tag(), kNoId) == kNoId;
}

BlockStore::Impl::Step BlockStore::Impl::EvictOne(std::optional<Shelf> shelf) {
  for (;;) {
    if (Spent()) return Step::kSpent;
    // What nobody holds any more is back in the order before its coldest is chosen.
    if (LetGoOfEnded()) continue;
    const auto coldest = shelf ? order_.Coldest(*shelf) : order_.Coldest();
    if (!coldest) return EvictUnwritten(shelf);
    Count();
    // What waits to be written goes only where nothing else does.
    if (!MayGo(*coldest) || tree_.record(*coldest).is(Record::kQueued)) {
      order_.Park(*coldest);
      continue;
    }
    Evict(*coldest);
    return Step::kDone;
  }
}

void BlockStore::Impl::Evict(RecordId record) {
  const Record& r = tree_.record(record);
  if (r.on_flash()) {
    Demote(record);
    return;
  }
  counters_.evicted.Add();
  if (tier_ != nullptr && Wanted(LowerOf(r), r.uses)) counters_.evicted_unwritten.Add();
  Remove(record);
}

// The index entry first (R9), then the generation, then the slot.
void BlockStore::Impl::LeaveMemory(RecordId record) {
  Record& r = tree_.record(record);
  Count(4);
  if (r.entry != kNoId) index_.Clear(std::exchange(r.entry, kNoId));
  if (order_.Contains(record)) order_.Remove(record);
  expiry_.Remove(record);
  if (!r.in_memory()) return;
  Retire(words_, slots_.arena(), r.place);
  if (r.holds > 0) slots_.Unpin(r.place);
  tree_.ClearAt(r.place);
  bytes_ -= r.body_bytes;
  --resident_;
  const Place place = std::exchange(r.place, kNowhere);
  r.generation = 0;
  r.uses = 0;
  r.flags &= static_cast<std::uint8_t>(~(Record::kVerified | Record::kQueued | Record::kPassing));
  FreeSlot(place);
}

void BlockStore::Impl::RemoveRecordOnly(RecordId record) {
  EndPassage(record);
  if (!fetching_.empty()) fetching_.erase(record);  // its id may be another's before that ends
  LeaveMemory(record);
  const Record& r = tree_.record(record);
  if (r.on_flash()) ForgetFlash(tree_.block(r.block).realm, Tree::CopyOf(record, r));
  tree_.RemoveRecord(record);
}

void BlockStore::Impl::RemoveRecordsOf(BlockId block) {
  if (tree_.block(block).folded()) {
    Count();
    const RealmId realm = tree_.block(block).realm;
    ForgetFlash(realm, tree_.ForgetFolded(block));
  }
  while (!tree_.block(block).ghost()) RemoveRecordOnly(tree_.block(block).first_record);
}

void BlockStore::Impl::Remove(RecordId record) {
  const BlockId block = tree_.record(record).block;
  RemoveRecordOnly(record);
  Settle(block);
}

void BlockStore::Impl::Unpark(BlockId block) {
  if (tree_.block(block).folded()) return;
  for (RecordId r = tree_.block(block).first_record; r != kNoId; r = tree_.record(r).next) {
    Count();
    if (order_.Parked(r)) order_.Unpark(r);
  }
}

void BlockStore::Impl::Settle(BlockId block) {
  for (int levels = 0; block != kNoId; ++levels) {
    if (!tree_.Empty(block) || tree_.block(block).is(Block::kCut)) {
      if (tree_.block(block).first_child == kNoId) Unpark(block);
      return;
    }
    if (levels == 32) {
      if (!tree_.block(block).is(Block::kReaping)) reap_.push_back(block);
      tree_.block(block).flags |= Block::kReaping;
      return;
    }
    if (tree_.block(block).is(Block::kReaping)) return;
    Count();
    const BlockId parent = tree_.Free(block);
    // What is being collected may be evicted beside it.
    if (!graves_.empty() && graves_.front()->at == block) graves_.front()->at = parent;
    block = parent;
  }
}

void BlockStore::Impl::Reap() {
  while (!reap_.empty() && !Spent()) {
    const BlockId block = reap_.back();
    reap_.pop_back();
    tree_.block(block).flags &= static_cast<std::uint16_t>(~Block::kReaping);
    Settle(block);
  }
}

bool BlockStore::Impl::LetGoOfEnded() {
  const auto held = leases_.NextEnded();
  if (!held) return false;
  DropHold(*held);
  return true;
}

bool BlockStore::Impl::EndOneLease(Instant now) {
  if (!leases_.EndOneDue(now)) return false;
  Count();
  counters_.leases_ended.Add();
  return true;
}

Task<void> BlockStore::Impl::LetGoOfAllEnded() {
  while (EndOneLease(clock_.Now()) || LetGoOfEnded()) {
    if (Spent()) co_await Yield();
  }
}

void BlockStore::Impl::FreeSlot(Place place) {
  if (!io_.empty()) {
    if (const auto io = io_.find(place); io != io_.end()) {
      io->second.dead = true;
      return;
    }
  }
  slots_.Free(place);
}

void BlockStore::Impl::EndIo(Place place) {
  const auto io = io_.find(place);
  if (--io->second.users > 0) return;
  const bool dead = io->second.dead;
  io_.erase(io);
  if (dead) slots_.Free(place);
}

// What goes serves a newcomer at once only where its slot has the same size. So it is one of those, as long
// as no other size keeps what has not been touched for twice as long: then that one gives up a chunk. A
// size's only chunk takes along what is warm in it, so it goes where all of it is as old, or nothing else
// can.
std::optional<Shelf> BlockStore::Impl::ShelfToGo(Shelf wanted) const {
  const auto own = order_.Coldest(wanted);
  const std::uint64_t old = own ? 2 * order_.Age(*own) : 0;
  auto other = order_.ColdestOf([&](Shelf shelf) {
    return shelf != wanted && (slots_.chunks(shelf) > 1 || (own && order_.Age(*order_.Warmest(shelf)) > old));
  });
  if (own && (!other || order_.Age(*other) <= old)) return wanted;
  if (!other) other = order_.Coldest();
  return other ? std::optional(order_.shelf(*other)) : std::nullopt;
}

Task<Result<Place>> BlockStore::Impl::MakeRoom(std::uint64_t record_bytes, Instant deadline) {
  const std::uint32_t alignment = slots_.arena().geometry().alignment;
  const SlotSize size = SlotSize::For(record_bytes, alignment);
  const Shelf wanted = size.Number(alignment);
  // As many slots of one other size as make up a chunk: then one chunk's records fit where the others went.
  const std::uint64_t enough = std::uint64_t{size.chunk_heads} * kHeadSpanBytes;
  std::uint64_t went = 0;
  std::optional<Shelf> giver;
  int emptied = 0, in_vain = 0;
  bool first = true;
  bool idle = !emptying_ && slots_.OthersIdle(record_bytes);
  for (;;) {
    auto place = slots_.Allocate(record_bytes);
    Count();
    if (place || place.error().code() != Code::kBusy) co_return place;
    if (clock_.Now() >= deadline) {
      co_return Error(Code::kTooLate, "write: the deadline passed while it waited for room");
    }
    // What passes through has no place that something else wants.
    if (EndIdlePassage(size)) {
      if (Spent()) co_await Yield();
      continue;
    }
    if (std::exchange(idle, false)) {
      if (!emptying_) co_await EmptyAChunk(record_bytes, deadline, true);
      continue;
    }
    // Nor one that others are warmer than: of another size its chunk is given up by and by.
    if (std::exchange(first, false) && EndIdlePassage()) continue;
    Step step = Step::kWaits;
    if (went < enough) {
      const std::uint64_t before = slots_.counts().used_bytes;
      if (!giver || *giver == wanted || !order_.Coldest(*giver)) giver = ShelfToGo(wanted);
      step = EvictOne(giver);
      went += before - slots_.counts().used_bytes;
      // Nothing of that shelf may go; it has no coldest any more.
      if (step == Step::kWaits && giver) continue;
    }
    if (step == Step::kSpent || Spent()) co_await Yield();
    if (step != Step::kWaits || EndIdlePassage()) continue;
    while (emptying_ && clock_.Now() < deadline) {
      if (Status waited = co_await emptied_.Wait(deadline); !waited.ok()) break;
      emptied = 0;
    }
    if (emptying_) continue;
    // Nothing may go, and what was emptied was others' each time.
    if (emptied == kEmptiedForOthers) break;
    const bool served = co_await EmptyAChunk(record_bytes, deadline, false);
    if (!served && (went == 0 || ++in_vain == 2)) break;
    if (went < enough) ++emptied;
    went = 0;
    giver.reset();
  }
  counters_.writes_without_room.Add();
  counters_.busy.Add();
  co_return Error(Code::kBusy,
                  "write: no room, and nothing may go: all that is here is leased, in use, or has "
                  "something below it that is");
}

Task<bool> BlockStore::Impl::EmptyAChunk(std::uint64_t record_bytes, Instant deadline, bool idle_only) {
  emptying_ = true;
  bool served = false;
  int leased = 0;
  // One look goes over part of the arena only.
  for (int looks = idle_only ? 63 : 0; looks < 64 && !served && clock_.Now() < deadline; ++looks) {
    const auto range = slots_.BestToEmpty(record_bytes, idle_only);
    Count(16);
    if (range) {
      served = co_await EmptyRange(*range);
      if (!served && ++leased == kLeasedMeanwhile) break;
    }
    if (Spent()) co_await Yield();
  }
  emptying_ = false;
  emptied_.Pulse();
  co_return served;
}

Task<bool> BlockStore::Impl::EmptyRange(HeadRange range) {
  slots_.StartEmptying(range);
  std::uint64_t cursor = 0;
  std::array<Place, 32> places;
  bool left = false;
  for (std::size_t n; !left && (n = slots_.UsedIn(range, &cursor, places)) > 0;) {
    for (std::size_t i = 0; i < n && !left; ++i) {
      if (Spent()) co_await Yield();
      Count();
      // Freed whole, and perhaps another's chunk by now.
      if (slots_.emptying() != range) co_return true;
      if (!slots_.used(places[i])) continue;
      const RecordId record = tree_.At(places[i]);
      if (record == kNoId || tree_.record(record).holds > 0) {
        left = true;
      } else {
        const bool moved = co_await Move(record);
        if (moved) continue;
        if (slots_.emptying() != range) co_return true;
        // No slot for it elsewhere: it goes if it may, whatever its turn.
        const RecordId now = tree_.At(places[i]);
        if (now != kNoId && MayGo(now)) Evict(now);
        left = slots_.used(places[i]);
      }
    }
  }
  slots_.StopEmptying();
  co_return !left;
}

// What is in memory is damaged: that goes, and where it was the last copy the block with what descends from
// it.
void BlockStore::Impl::LoseBad(RecordId record) {
  const Record& r = tree_.record(record);
  counters_.cut_bad.Add();
  if (r.on_flash()) {
    LeaveMemory(record);
    tree_.Fold(record);
  } else {
    Cut(r.block, Reason::kBad);
  }
}

Task<bool> BlockStore::Impl::Move(RecordId record) {
  const Record r = tree_.record(record);
  const Held held = HeldOf(record);
  const ArenaSpace& arena = slots_.arena();
  const std::uint32_t alignment = arena.geometry().alignment;
  const std::vector<std::byte> trailer = TrailerAt(r.place, r);
  const auto seal = CheckSeal(trailer);
  if (!seal) {
    LoseBad(record);
    co_return true;
  }
  const auto to =
      slots_.Allocate(RecordBytes(r.body_bytes, seal->segment_count(), seal->part_count(), alignment));
  if (!to) co_return false;
  slots_.Pin(*to);
  AddHold(record);
  BeginIo(r.place);
  const std::uint64_t generation = BeginFill(words_, arena, *to);
  std::vector<std::uint32_t> crcs(seal->segment_count());
  for (std::uint32_t i = 0; i < seal->part_count(); ++i) {
    const SealView::PartPlace part = seal->part(i);
    const std::span<const std::byte> from[] = {{arena.slot(r.place) + part.offset, part.bytes}};
    FillTask fill(movers_, {arena.slot(*to) + part.offset, from,
                            std::span(crcs).subspan(part.first_segment, SegmentsOfPart(part.bytes))});
    co_await fill;
  }
  EndIo(r.place);
  slots_.Unpin(*to);
  bool sound = true;
  for (std::uint32_t i = 0; i < crcs.size(); ++i) sound = sound && crcs[i] == seal->segment_crc(i);
  const Record& now = tree_.record(record);
  const bool same = Lives(held) && now.place == r.place;
  const bool wanted = same && sound && now.holds == 1;
  DropHold(held);
  if (!wanted) {
    slots_.Free(*to);
    if (same && !sound) LoseBad(record);
    // Held by a lease since: it stays, and so does its chunk.
    co_return same&& sound ? false : true;
  }
  Relocate(record, *seal, *to, generation);
  co_return true;
}

// All in one step: who looks meanwhile finds it in the one place or misses it.
void BlockStore::Impl::Relocate(RecordId record, const SealView& seal, Place to, std::uint64_t generation) {
  const ArenaSpace& arena = slots_.arena();
  Record& r = tree_.record(record);
  const BlockKey key = r.key;
  const SealCopy copy(seal);
  cistern::Publish(words_, arena, to, generation,
                   {.seal = copy.seal(),
                    .sequence = sequence_++,
                    .born = r.born,
                    .expiry = r.expiry,
                    .conversation = conversations_.Of(tree_.block(r.block).realm, key)});
  Count(8);
  // The old entry's place in the bucket serves the new one; between them the block is missed, not wrong.
  index_.Clear(r.entry);
  const auto entry =
      index_.Insert(FingerprintOf(seal.incarnation(), r.group, key),
                    {.place = to,
                     .body_bytes = r.body_bytes,
                     .expiry = r.expiry,
                     .generation_low = static_cast<std::uint32_t>(generation) & kGenerationLowMask});
  CISTERN_ASSERT(entry);
  const Place from = r.place;
  Retire(words_, arena, from);
  tree_.ClearAt(from);
  r.place = to;
  r.generation = generation;
  r.entry = static_cast<std::uint32_t>(*entry);
  r.flags |= Record::kVerified;
  tree_.SetAt(to, record);
  FreeSlot(from);
}

}  // namespace cistern
