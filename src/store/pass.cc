// SPDX-License-Identifier: Apache-2.0
// The way past memory: of a block that is not to stay there only the segments that were asked for are read,
// into a slot that nothing leads to but the views of who asked. The seal comes along, so that each segment is
// checked here and once more by its reader.
#include <algorithm>

#include "store/impl.h"
#include "store/lower_bytes.h"

namespace cistern {

namespace {
constexpr std::int64_t kRoomUs = 5'000'000;  // as a fetch
constexpr int kIdleLooks = 32;
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

PassagePtr BlockStore::Impl::OpenPassage(RecordId record) {
  const Record& r = tree_.record(record);
  const RealmId realm = tree_.block(r.block).realm;
  const NamespaceEntry* entry = EntryOf(realm);
  if (entry == nullptr || lower_.closed()) return nullptr;
  const std::uint64_t record_bytes = RecordBytesOf(*entry, r.group, r.body_bytes);
  while (!passages_.RoomFor(record_bytes)) {
    if (!EndIdlePassage()) return nullptr;
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
  Count(1 + segments.count / 16);
  if (lower_.closed()) return;
  for (;;) {
    const SegmentSpan away = passage->Away(segments);
    if (away.count == 0) return;
    passage->Set(away, Passage::State::kComing);
    ++passage->reads;
    lower_.Spawn(Pass(passage, away));
  }
}

Task<void> BlockStore::Impl::Pass(PassagePtr passage, SegmentSpan segments) {
  co_await Yield();
  const RecordId record = passage->held.record;
  Status status(Code::kMiss, "fetch: the block went meanwhile");
  // Once more where the block was moved to another region meanwhile.
  for (int tries = 0; tries < 2 && !passage->ended; ++tries) {
    const FlashPlace from = tree_.record(record).flash;
    status = co_await PassOnce(passage, segments, from);
    if (status.ok() || passage->ended || tree_.record(record).flash == from) break;
  }
  --passage->reads;
  passage->Set(segments, status.ok() ? Passage::State::kHere : Passage::State::kAway);
  Count(1 + segments.count / 16);
  counters_.passed_segments.Add(status.ok() ? segments.count : 0);
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
    co_return Status(Code::kMiss, "fetch: the block went meanwhile");
  }
  slots_.Pin(*place);
  passage->place = *place;
  passage->generation = BeginFill(words_, slots_.arena(), *place);
  tree_.SetAt(*place, passage->held.record);
  co_return Status();
}

Task<Status> BlockStore::Impl::PassOnce(PassagePtr passage, SegmentSpan segments, FlashPlace from) {
  Status placed = co_await PlacePassage(passage);
  if (!placed.ok()) co_return placed;
  const Status gone(Code::kMiss, "fetch: the block went meanwhile");
  if (passage->ended) co_return gone;
  const RecordId record = passage->held.record;
  const Place place = passage->place;
  const std::uint32_t unit = slots_.arena().geometry().alignment;
  const Record r = tree_.record(record);
  const BodySpan span = SpanOf(r, segments);
  const std::uint64_t begin = span.offset / unit * unit, end = RoundUp(span.offset + span.bytes, unit);
  const AlignedBytes trailer(passage->record_bytes - TrailerOffset(r.body_bytes, unit));
  std::byte* body = slots_.arena().slot(place);
  BeginIo(place);
  const auto fetched = co_await tier_->FetchSome(from, passage->record_bytes, trailer.span(), begin,
                                                 std::span(body + begin, end - begin));
  bool sound = false, same = false;
  if (fetched && !passage->ended) {
    const SealView& seal = fetched->seal;
    std::vector<std::uint32_t> parts(seal.part_count());
    for (std::uint32_t i = 0; i < parts.size(); ++i) parts[i] = seal.part_bytes(i);
    same = IsSealOf(r, seal) && BytesOf(parts, segments) == span;
    if (same) {
      BodyCheck check(movers_, body, seal, segments);
      co_await check;
      sound = check.sound();
    }
  }
  EndIo(place);
  if (!fetched) co_return fetched.error();
  if (passage->ended) co_return gone;
  if (!sound) {
    tier_->ReportBad(from);
    co_return Status(Code::kMiss, Text("flash region ", from.region, ", unit ", from.unit, ": ",
                                       same ? "its record fails its seal"
                                            : "holds another block than the one that was written there"));
  }
  if (!passage->published) {
    const SealCopy copy(fetched->seal);
    const BlockKey key = fetched->seal.key();
    const Stamp& stamp = fetched->stamp;
    PublishPassing(words_, slots_.arena(), place, passage->generation,
                   {.seal = copy.seal(),
                    .sequence = stamp.sequence,
                    .born = stamp.born,
                    .expiry = stamp.expiry,
                    .conversation = stamp.conversation});
    tree_.record(record).key = key;
    passage->published = true;
  }
  Count(4);
  co_return Status();
}

void BlockStore::Impl::EndPassage(RecordId record) {
  const PassagePtr passage = passages_.Find(record);
  if (passage == nullptr) return;
  Count(2);
  passages_.Remove(record);
  passage->ended = true;
  if (passage->place != kNowhere) {
    Retire(words_, slots_.arena(), passage->place);
    tree_.ClearAt(passage->place);
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

bool BlockStore::Impl::EndIdlePassage() {
  int looks = 0;
  for (const PassagePtr& passage : passages_.order()) {
    if (++looks > kIdleLooks) return false;
    Count();
    const RecordId record = passage->held.record;
    if (!EndPassageIfIdle(record)) continue;
    tree_.Fold(record);
    return true;
  }
  return false;
}

}  // namespace cistern
