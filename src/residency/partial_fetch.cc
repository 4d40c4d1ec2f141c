// SPDX-License-Identifier: Apache-2.0
#include "residency/partial_fetch.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "base/format.h"
#include "record/seal_copy.h"
#include "residency/aligned_bytes.h"

namespace cistern::residency {

namespace {
constexpr int kMostEnded = 16;  // idle copies ended to make room for a new one
// Bound on the private memory of reads under way.
constexpr std::uint64_t kMaxReadingBytes = 64u << 20;
constexpr std::uint64_t kReadingShare = 16;  // of the slots

// The device's whole units that a span touches.
record::BodySpan UnitsOf(const record::BodySpan& span, std::uint32_t unit) {
  const std::uint64_t begin = span.offset / unit * unit;
  return {begin, arena::RoundUp(span.offset + span.bytes, unit) - begin};
}

Status Went() { return Status(Code::kMiss, "fetch: the block went meanwhile"); }
Status Dropped() { return Status(Code::kGone, "fetch: the namespace was dropped meanwhile"); }
}  // namespace

PartialFetch::PartialFetch(const StoreContext& context, LowerTier& lower, Residents& residents,
                           PartialCopies& partial_copies, Room& room, Fetcher& fetcher)
    : context_(context),
      lower_(lower),
      residents_(residents),
      partial_copies_(partial_copies),
      room_(room),
      fetcher_(fetcher) {}

PartialCopyPtr PartialFetch::Open(catalog::RecordId record, record::BodySpan asked) {
  const catalog::Record& r = context_.forest.record(record);
  const catalog::TreeId tree = context_.forest.block(r.block).tree;
  const catalog::NamespaceEntry* entry = context_.catalog.EntryOf(tree);
  if (entry == nullptr || lower_.closed()) return nullptr;
  const std::uint64_t record_bytes = context_.catalog.RecordBytesOf(*entry, r.group, r.body_bytes);
  const std::uint64_t most = std::min(kMaxReadingBytes, context_.slots.bytes() / kReadingShare);
  if (reading_bytes_ + BufferBytes(r, asked, record_bytes) > most) return nullptr;
  if (PartialCopyPtr there = partial_copies_.Find(record)) return there;
  for (int ended = 0; !partial_copies_.RoomFor(record_bytes); ++ended) {
    if (ended == kMostEnded || !partial_copies_.EndIdle()) return nullptr;
  }
  const std::vector<std::uint32_t>& parts = entry->groups[r.group].part_bytes;
  auto copy = std::make_shared<PartialCopy>();
  copy->handle = context_.catalog.HandleOf(record);
  copy->record_bytes = record_bytes;
  copy->segments.resize(parts.empty() ? record::SegmentsOfPart(r.body_bytes) : record::SegmentCount(parts));
  residents_.AddReference(record);
  partial_copies_.Add(copy);
  return copy;
}

void PartialFetch::Request(const PartialCopyPtr& copy, const record::SegmentSpan& segments) {
  context_.steps.Count(2 + segments.count / 16);
  const record::SegmentSpan absent = copy->Absent(segments);
  if (absent.count == 0 || lower_.closed()) return;
  SegmentRead read{.segments = absent, .own = std::vector<bool>(absent.count)};
  for (std::uint32_t i = 0; i < absent.count; ++i) {
    PartialCopy::State& state = copy->segments[absent.first + i];
    if (state != PartialCopy::State::kAbsent) continue;
    state = PartialCopy::State::kFetching;
    read.own[i] = true;
  }
  const catalog::Record& r = context_.forest.record(copy->handle.record);
  read.bytes = BufferBytes(r, context_.catalog.SpanOf(r, absent), copy->record_bytes);
  reading_bytes_ += read.bytes;
  ++copy->reads;
  lower_.Spawn(OutOfLanes(context_.executor, [&] { return Read(copy, std::move(read)); }));
}

Task<void> PartialFetch::Verify(PartialCopyPtr copy) {
  if (!copy->published || copy->ended) co_return;
  const catalog::RecordId record = copy->handle.record;
  const catalog::Record r = context_.forest.record(record);
  const arena::ArenaSpace& arena = context_.slots.arena();
  const std::vector<std::byte> trailer = residents_.TrailerAt(copy->place, r);
  const auto seal = record::CheckSeal(trailer);
  bool sound = seal && context_.catalog.IsSealOf(r, *seal) && seal->segment_count() == copy->segments.size();
  const arena::Place place = copy->place;
  SlotUse use(residents_, place);
  for (std::uint32_t i = 0; sound && i < copy->segments.size(); ++i) {
    if (copy->segments[i] != PartialCopy::State::kPresent) continue;
    memory::VerifyBodyTask check(context_.movers, arena.slot(place), *seal, {i, 1});
    co_await check;
    sound = check.sound();
  }
  use.End();
  if (copy->ended) co_return;
  (sound ? context_.counters.reported_good : context_.counters.reported_bad).Add();
  if (sound) co_return;
  partial_copies_.End(record);
  context_.forest.Fold(record);
}

std::uint64_t PartialFetch::BufferBytes(const catalog::Record& record, record::BodySpan span,
                                        std::uint64_t record_bytes) const {
  const std::uint32_t unit = context_.slots.arena().geometry().alignment;
  return UnitsOf(span, unit).bytes + record_bytes - record::TrailerOffset(record.body_bytes, unit);
}

Task<void> PartialFetch::Read(PartialCopyPtr copy, SegmentRead read) {
  co_await Yield();
  const catalog::RecordId record = copy->handle.record;
  Status status = Went();
  // A second try, for a block that moved to another location during the first.
  for (int tries = 0; tries < 2 && !copy->ended; ++tries) {
    const tier::Location from = context_.forest.record(record).location;
    status = co_await ReadOnce(copy, read, from);
    if (status.ok() || copy->ended || context_.forest.record(record).location == from) break;
  }
  --copy->reads;
  reading_bytes_ -= read.bytes;
  std::uint64_t passed = 0;
  for (std::uint32_t i = 0; i < read.segments.count; ++i) {
    if (!read.own[i]) continue;
    copy->segments[read.segments.first + i] =
        status.ok() ? PartialCopy::State::kPresent : PartialCopy::State::kAbsent;
    ++passed;
  }
  context_.steps.Count(1 + read.segments.count / 16);
  context_.counters.passed_segments.Add(status.ok() ? passed : 0);
  context_.counters.fetch_failed.Add(status.ok() ? 0 : 1);
  if (!status.ok() && !copy->ended) fetcher_.Unreadable(record, status);
  copy->changed.Pulse();
}

// One of several callers that ask for their first segments at a time finds the slot.
Task<Status> PartialFetch::GetSlot(PartialCopyPtr copy) {
  while (copy->placing) co_await copy->changed.Wait();
  if (copy->place != catalog::kNowhere || copy->ended) co_return Status();
  copy->placing = true;
  const SlotFill fill(residents_);
  auto place = co_await room_.Make(fill, copy->record_bytes, context_.clock.Now().PlusUs(kRoomUs));
  copy->placing = false;
  copy->no_room = !place;
  copy->changed.Pulse();
  if (!place) co_return Status(Code::kBusy, "fetch: no room in memory");
  if (copy->ended) {
    context_.slots.Free(*place);
    co_return Went();
  }
  context_.slots.Pin(*place);
  copy->place = *place;
  copy->generation = arena::BeginFill(context_.words, context_.slots.arena(), *place);
  partial_copies_.Placed(*copy);
  co_return Status();
}

Task<Status> PartialFetch::ReadOnce(PartialCopyPtr copy, const SegmentRead& read, tier::Location from) {
  Status placed = co_await GetSlot(copy);
  if (!placed.ok()) co_return placed;
  if (copy->ended) co_return Went();
  const catalog::RecordId record = copy->handle.record;
  const arena::Place place = copy->place;
  const std::uint32_t unit = context_.slots.arena().geometry().alignment;
  const catalog::Record r = context_.forest.record(record);
  // While it waited for its slot: another record may be there by now, which is no fault of the device's.
  if (r.location != from) co_return Status(Code::kMiss, "fetch: it was moved meanwhile");
  const catalog::TreeId tree = context_.forest.block(r.block).tree;
  if (context_.catalog.EntryOf(tree) == nullptr) co_return Dropped();
  const record::BodySpan span = context_.catalog.SpanOf(r, read.segments);
  const record::BodySpan units = UnitsOf(span, unit);
  const AlignedBytes trailer(copy->record_bytes - record::TrailerOffset(r.body_bytes, unit));
  const AlignedBytes body(units.bytes);
  const auto fetched =
      co_await lower_->FetchSome(from, copy->record_bytes, trailer.span(), units.offset, body.span());
  if (!fetched) co_return fetched.error();
  if (copy->ended) co_return Went();
  if (context_.catalog.EntryOf(tree) == nullptr) co_return Dropped();
  const record::SealView& seal = fetched->seal;
  std::vector<std::uint32_t> parts(seal.part_count());
  for (std::uint32_t i = 0; i < parts.size(); ++i) parts[i] = seal.part_bytes(i);
  const auto not_it = [&](std::string_view why) {
    lower_->ReportBad(from);
    return Status(Code::kMiss, Text(lower_->Describe(from), ": ", why));
  };
  if (!context_.catalog.IsSealOf(r, seal) || record::BytesOf(parts, read.segments) != span) {
    co_return not_it("holds another block than the one that was written there");
  }
  SlotUse use(residents_, place);
  const bool sound =
      co_await FillOwn(place, read, seal, span, body.span().data() + (span.offset - units.offset));
  use.End();
  if (copy->ended) co_return Went();
  if (!sound) co_return not_it("its record fails its seal");
  context_.steps.Count(4);
  if (copy->published) co_return Status();
  const record::SealCopy seal_copy(seal);
  const BlockKey key = seal.key();
  const record::Stamp& stamp = fetched->stamp;
  arena::PublishPassing(context_.words, context_.slots.arena(), place, copy->generation,
                        {.seal = seal_copy.seal(),
                         .sequence = stamp.sequence,
                         .born = stamp.born,
                         .expiry = stamp.expiry,
                         .conversation = stamp.conversation});
  context_.forest.record(record).key = key;
  copy->published = true;
  residents_.WatchExpiry(record, true);
  co_return Status();
}

Task<bool> PartialFetch::FillOwn(arena::Place place, const SegmentRead& read, const record::SealView& seal,
                                 record::BodySpan span, const std::byte* from) {
  std::byte* slot = context_.slots.arena().slot(place);
  const record::SegmentSpan& all = read.segments;
  for (std::uint32_t at = all.first; at < all.end();) {
    if (!read.own[at - all.first]) {
      ++at;
      continue;
    }
    // A run of the read's own segments in a part, for one copy.
    const record::Segments rest(seal, record::SegmentSpan{at, all.end() - at});
    const record::Segment first = *rest.begin();
    std::uint32_t end = at;
    std::uint64_t bytes = 0;
    for (const record::Segment& segment : rest) {
      if (segment.part != first.part || !read.own[end - all.first]) break;
      bytes += segment.bytes;
      ++end;
    }
    const std::span<const std::byte> piece[] = {{from + (first.offset - span.offset), bytes}};
    std::vector<std::uint32_t> crcs(end - at);
    memory::FillTask fill(context_.movers, {slot + first.offset, piece, crcs});
    co_await fill;
    if (!record::CrcsMatch(seal, at, crcs)) co_return false;
    at = end;
  }
  co_return true;
}

}  // namespace cistern::residency
