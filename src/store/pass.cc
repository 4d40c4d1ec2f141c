// SPDX-License-Identifier: Apache-2.0
// The way past memory: of a block that is not to stay there only the segments that were asked for are read,
// and copied into a slot that nothing leads to but the views of who asked. The seal comes along, so that each
// segment is checked by that copy and once more by its reader. A device never writes into such a slot: what
// it reads are whole units, of which a neighbour that somebody was told of may have a share.
#include <algorithm>

#include "store/impl.h"
#include "store/lower_bytes.h"

namespace cistern {

namespace {
constexpr std::size_t kIdleLooks = 32;
constexpr int kMostEnded = 16;  // for a new one

// What a device reads for it.
BodySpan UnitsOf(const BodySpan& span, std::uint32_t unit) {
  const std::uint64_t begin = span.offset / unit * unit;
  return {begin, RoundUp(span.offset + span.bytes, unit) - begin};
}

Status Went() { return Status(Code::kMiss, "fetch: the block went meanwhile"); }
Status Dropped() { return Status(Code::kGone, "fetch: the namespace was dropped meanwhile"); }
}  // namespace

BodySpan BlockStore::Impl::SpanOf(const Record& record, const SegmentSpan& segments) const {
  const BodySpan all{0, record.body_bytes};
  const NamespaceEntry* entry = EntryOf(tree_.block(record.block).realm);
  if (entry == nullptr || segments.count == 0) return all;
  const std::vector<std::uint32_t>& parts = entry->groups[record.group].part_bytes;
  const BodySpan span =
      parts.empty() ? BytesOf(std::span(&record.body_bytes, 1), segments) : BytesOf(parts, segments);
  return span.bytes == 0 ? all : span;
}

// What a read takes of private memory.
std::uint64_t BlockStore::Impl::PassingBytes(const Record& record, BodySpan span,
                                             std::uint64_t record_bytes) const {
  const std::uint32_t unit = slots_.arena().geometry().alignment;
  return UnitsOf(span, unit).bytes + record_bytes - TrailerOffset(record.body_bytes, unit);
}

PassagePtr BlockStore::Impl::OpenPassage(RecordId record, BodySpan asked) {
  const Record& r = tree_.record(record);
  const RealmId realm = tree_.block(r.block).realm;
  const NamespaceEntry* entry = EntryOf(realm);
  if (entry == nullptr || lower_.closed()) return nullptr;
  const std::uint64_t record_bytes = RecordBytesOf(*entry, r.group, r.body_bytes);
  if (passing_bytes_ + PassingBytes(r, asked, record_bytes) > max_passing_bytes_) return nullptr;
  if (PassagePtr there = passages_.Find(record)) return there;
  for (int ended = 0; !passages_.RoomFor(record_bytes); ++ended) {
    if (ended == kMostEnded || !EndIdlePassage()) return nullptr;
  }
  const std::vector<std::uint32_t>& parts = entry->groups[r.group].part_bytes;
  auto passage = std::make_shared<Passage>();
  passage->held = HeldOf(record);
  passage->record_bytes = record_bytes;
  passage->segments.resize(parts.empty() ? SegmentsOfPart(r.body_bytes) : SegmentCount(parts));
  AddHold(record);
  passages_.Add(passage);
  return passage;
}

void BlockStore::Impl::AskFor(const PassagePtr& passage, const SegmentSpan& segments) {
  Count(2 + segments.count / 16);
  const SegmentSpan away = passage->Away(segments);
  if (away.count == 0 || lower_.closed()) return;
  PassRead read{.segments = away, .own = std::vector<bool>(away.count)};
  for (std::uint32_t i = 0; i < away.count; ++i) {
    Passage::State& state = passage->segments[away.first + i];
    if (state != Passage::State::kAway) continue;
    state = Passage::State::kComing;
    read.own[i] = true;
  }
  const Record& r = tree_.record(passage->held.record);
  read.bytes = PassingBytes(r, SpanOf(r, away), passage->record_bytes);
  passing_bytes_ += read.bytes;
  ++passage->reads;
  lower_.Spawn(Pass(passage, std::move(read)));
}

Task<void> BlockStore::Impl::Pass(PassagePtr passage, PassRead read) {
  co_await Yield();
  const RecordId record = passage->held.record;
  Status status = Went();
  // Once more where the block was moved to another region meanwhile.
  for (int tries = 0; tries < 2 && !passage->ended; ++tries) {
    const FlashPlace from = tree_.record(record).flash;
    status = co_await PassOnce(passage, read, from);
    if (status.ok() || passage->ended || tree_.record(record).flash == from) break;
  }
  --passage->reads;
  passing_bytes_ -= read.bytes;
  std::uint64_t passed = 0;
  for (std::uint32_t i = 0; i < read.segments.count; ++i) {
    if (!read.own[i]) continue;
    passage->segments[read.segments.first + i] = status.ok() ? Passage::State::kHere : Passage::State::kAway;
    ++passed;
  }
  Count(1 + read.segments.count / 16);
  counters_.passed_segments.Add(status.ok() ? passed : 0);
  counters_.fetch_failed.Add(status.ok() ? 0 : 1);
  if (!status.ok() && !passage->ended) LostBelow(record, status);
  passage->changed.Pulse();
}

// Where several ask for their first segments at a time, one of them finds the slot.
Task<Status> BlockStore::Impl::PlacePassage(PassagePtr passage) {
  while (passage->placing) co_await passage->changed.Wait();
  if (passage->place != kNowhere || passage->ended) co_return Status();
  passage->placing = true;
  auto place = co_await MakeRoom(passage->record_bytes, clock_.Now().PlusUs(kRoomUs));
  passage->placing = false;
  passage->changed.Pulse();
  if (!place) co_return Status(Code::kBusy, "fetch: no room in memory");
  if (passage->ended) {
    slots_.Free(*place);
    co_return Went();
  }
  slots_.Pin(*place);
  passage->place = *place;
  passage->generation = BeginFill(words_, slots_.arena(), *place);
  passages_.Placed(*passage);
  co_return Status();
}

Task<Status> BlockStore::Impl::PassOnce(PassagePtr passage, const PassRead& read, FlashPlace from) {
  Status placed = co_await PlacePassage(passage);
  if (!placed.ok()) co_return placed;
  if (passage->ended) co_return Went();
  const RecordId record = passage->held.record;
  const Place place = passage->place;
  const std::uint32_t unit = slots_.arena().geometry().alignment;
  const Record r = tree_.record(record);
  const RealmId realm = tree_.block(r.block).realm;
  if (EntryOf(realm) == nullptr) co_return Dropped();
  const BodySpan span = SpanOf(r, read.segments);
  const BodySpan units = UnitsOf(span, unit);
  const AlignedBytes trailer(passage->record_bytes - TrailerOffset(r.body_bytes, unit));
  const AlignedBytes body(units.bytes);
  const auto fetched =
      co_await tier_->FetchSome(from, passage->record_bytes, trailer.span(), units.offset, body.span());
  if (!fetched) co_return fetched.error();
  if (passage->ended) co_return Went();
  if (EntryOf(realm) == nullptr) co_return Dropped();
  const SealView& seal = fetched->seal;
  std::vector<std::uint32_t> parts(seal.part_count());
  for (std::uint32_t i = 0; i < parts.size(); ++i) parts[i] = seal.part_bytes(i);
  const auto not_it = [&](std::string_view why) {
    tier_->ReportBad(from);
    return Status(Code::kMiss, Text("flash region ", from.region, ", unit ", from.unit, ": ", why));
  };
  if (!IsSealOf(r, seal) || BytesOf(parts, read.segments) != span) {
    co_return not_it("holds another block than the one that was written there");
  }
  BeginIo(place);
  const bool sound =
      co_await FillOwn(place, read, seal, span, body.span().data() + (span.offset - units.offset));
  EndIo(place);
  if (passage->ended) co_return Went();
  if (!sound) co_return not_it("its record fails its seal");
  Count(4);
  if (passage->published) co_return Status();
  const SealCopy copy(seal);
  const BlockKey key = seal.key();
  const Stamp& stamp = fetched->stamp;
  PublishPassing(words_, slots_.arena(), place, passage->generation,
                 {.seal = copy.seal(),
                  .sequence = stamp.sequence,
                  .born = stamp.born,
                  .expiry = stamp.expiry,
                  .conversation = stamp.conversation});
  tree_.record(record).key = key;
  passage->published = true;
  co_return Status();
}

Task<bool> BlockStore::Impl::FillOwn(Place place, const PassRead& read, const SealView& seal, BodySpan span,
                                     const std::byte* from) {
  std::byte* slot = slots_.arena().slot(place);
  const SegmentSpan& all = read.segments;
  for (std::uint32_t p = 0; p < seal.part_count(); ++p) {
    const SealView::PartPlace part = seal.part(p);
    const std::uint32_t count = SegmentsOfPart(part.bytes);
    std::uint32_t at = std::max(all.first, part.first_segment);
    const std::uint32_t end = std::min(all.end(), part.first_segment + count);
    while (at < end) {
      // A stretch of its own segments in this part, for one copy.
      const std::uint32_t first = at;
      while (at < end && read.own[at - all.first]) ++at;
      if (at == first) {
        ++at;
        continue;
      }
      const std::uint64_t in_part = std::uint64_t{first - part.first_segment} * kSegmentBytes;
      const std::uint64_t to_part =
          std::min<std::uint64_t>(std::uint64_t{at - part.first_segment} * kSegmentBytes, part.bytes);
      const std::uint64_t offset = part.offset + in_part;
      const std::span<const std::byte> piece[] = {{from + (offset - span.offset), to_part - in_part}};
      std::vector<std::uint32_t> crcs(at - first);
      FillTask fill(movers_, {slot + offset, piece, crcs});
      co_await fill;
      for (std::uint32_t i = 0; i < crcs.size(); ++i) {
        if (crcs[i] != seal.segment_crc(first + i)) co_return false;
      }
    }
  }
  co_return true;
}

Task<void> BlockStore::Impl::VerifyPassage(PassagePtr passage) {
  if (!passage->published || passage->ended) co_return;
  const RecordId record = passage->held.record;
  const Record r = tree_.record(record);
  const ArenaSpace& arena = slots_.arena();
  const std::vector<std::byte> trailer = TrailerAt(passage->place, r);
  const auto seal = CheckSeal(trailer);
  bool sound = seal && IsSealOf(r, *seal) && seal->segment_count() == passage->segments.size();
  const Place place = passage->place;
  BeginIo(place);
  for (std::uint32_t i = 0; sound && i < passage->segments.size(); ++i) {
    if (passage->segments[i] != Passage::State::kHere) continue;
    BodyCheck check(movers_, arena.slot(place), *seal, {i, 1});
    co_await check;
    sound = check.sound();
  }
  EndIo(place);
  if (passage->ended) co_return;
  (sound ? counters_.reported_good : counters_.reported_bad).Add();
  if (sound) co_return;
  EndPassage(record);
  tree_.Fold(record);
}

void BlockStore::Impl::EndPassage(RecordId record) {
  const PassagePtr passage = passages_.Find(record);
  if (passage == nullptr) return;
  Count(2);
  passages_.Remove(record);
  passage->ended = true;
  if (passage->place != kNowhere) {
    Retire(words_, slots_.arena(), passage->place);
    slots_.Unpin(passage->place);
    FreeSlot(passage->place);
  }
  --tree_.record(record).holds;
  passage->changed.Pulse();
}

bool BlockStore::Impl::EndPassageIfIdle(RecordId record) {
  const PassagePtr passage = passages_.Find(record);
  if (passage == nullptr || passage->reads > 0 || tree_.record(record).holds > 1) return false;
  EndPassage(record);
  return true;
}

bool BlockStore::Impl::EndIdlePassage(std::optional<SlotSize> size) {
  const std::uint32_t alignment = slots_.arena().geometry().alignment;
  std::vector<RecordId> busy;
  RecordId idle = kNoId;
  std::size_t looks = 0;
  for (const PassagePtr& passage : passages_.order()) {
    if (looks >= kIdleLooks || Spent()) break;
    Count();
    const RecordId record = passage->held.record;
    if (size && SlotSize::For(passage->record_bytes, alignment).bytes != size->bytes) continue;
    ++looks;
    if (EndPassageIfIdle(record)) {
      idle = record;
      break;
    }
    busy.push_back(record);
  }
  // Those are not in the way of the next look.
  for (const RecordId record : busy) passages_.Asked(record);
  if (idle == kNoId) return false;
  tree_.Fold(idle);
  return true;
}

Task<void> BlockStore::Impl::EndPassages(bool reading_only) {
  for (std::size_t left = passages_.size(); left > 0; --left) {
    if (Spent()) co_await Yield();
    if (passages_.order().empty()) co_return;
    Count();
    const PassagePtr passage = passages_.order().front();
    const RecordId record = passage->held.record;
    if (reading_only && passage->reads == 0) {
      passages_.Asked(record);
      continue;
    }
    EndPassage(record);
    tree_.Fold(record);
  }
}

}  // namespace cistern
