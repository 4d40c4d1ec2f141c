// SPDX-License-Identifier: Apache-2.0
// The way up: a block that lies on flash alone is read straight into a slot, checked, and published there.
// One read serves all who wait for the block, and goes on without them.
#include <algorithm>

#include "record/seal.h"
#include "store/impl.h"
#include "store/lower_bytes.h"

namespace cistern {

namespace {
constexpr std::size_t kMaxReadAhead = 256;  // fetches under way
}  // namespace

void BodyCheck::Move(Words& words) {
  for (std::uint32_t p = 0; p < seal_.part_count(); ++p) {
    const SealView::PartPlace part = seal_.part(p);
    std::uint32_t segment = part.first_segment;
    for (std::uint64_t at = 0; at < part.bytes; at += kSegmentBytes, ++segment) {
      if (segment < segments_.first || segment >= segments_.end()) continue;
      const std::size_t bytes = std::min<std::uint64_t>(kSegmentBytes, part.bytes - at);
      if (words.Checksum(body_ + part.offset + at, bytes, 0) != seal_.segment_crc(segment)) return;
    }
  }
  sound_ = true;
}

std::int64_t BlockStore::Impl::ReadyInUs(const FlashPlace& place, std::uint64_t bytes) const {
  return tier_ == nullptr ? Tier::kNever : tier_->EstimateUs(place, bytes);
}

// When a fetch is asked for that is not under way yet: it may be by several who read parts of one block.
void BlockStore::Impl::DecidePassing(RecordId record) {
  if (fetching_.contains(record)) return;
  Record& r = tree_.record(record);
  r.flags &= static_cast<std::uint8_t>(~Record::kPassing);
  if (!Promoted(options_.lower, r.is(Record::kTouched))) r.flags |= Record::kPassing;
}

std::shared_ptr<BlockStore::Impl::Fetching> BlockStore::Impl::StartFetch(RecordId record) {
  if (const auto found = fetching_.find(record); found != fetching_.end()) return found->second;
  auto fetching = std::make_shared<Fetching>();
  if (lower_.closed()) {
    fetching->status = Status(Code::kGone, "fetch: the node ends");
    fetching->done.Set();
    return fetching;
  }
  fetching_.emplace(record, fetching);
  AddHold(record);
  lower_.Spawn(Fetch({record, tree_.record(record).serial}, fetching));
  return fetching;
}

Task<void> BlockStore::Impl::Fetch(Held held, std::shared_ptr<Fetching> fetching) {
  co_await Yield();
  Status status;
  // Once more where the block was moved to another region meanwhile.
  for (int tries = 0; tries < 2; ++tries) {
    if (!Lives(held)) {
      status = Status(Code::kMiss, "fetch: the block went meanwhile");
      break;
    }
    const FlashPlace from = tree_.record(held.record).flash;
    status = co_await BringUp(held);
    if (status.ok() || !Lives(held) || tree_.record(held.record).flash == from) break;
  }
  if (!status.ok() && Lives(held)) LostBelow(held.record, status);
  counters_.fetched.Add(status.ok() ? 1 : 0);
  counters_.fetch_failed.Add(status.ok() ? 0 : 1);
  if (const auto found = fetching_.find(held.record); found != fetching_.end() && found->second == fetching)
    fetching_.erase(found);
  fetching->status = std::move(status);
  fetching->done.Set();
  DropHold(held, Used::kNo);
}

// Only what was found bad goes; a device that is gone takes its blocks along in another way.
void BlockStore::Impl::LostBelow(RecordId record, const Status& status) {
  const bool lost = status.code() == Code::kMiss || status.code() == Code::kIoError;
  const Record& r = tree_.record(record);
  if (!lost || r.in_memory() || EntryOf(tree_.block(r.block).realm) == nullptr) return;
  counters_.cut_bad.Add();
  log_.Log(LogLevel::kWarning,
           "a block on flash cannot be read, it goes with what descends from it: ", status.message());
  Cut(r.block, Reason::kBad);
}

std::vector<std::byte> BlockStore::Impl::TrailerAt(Place place, const Record& record) const {
  const ArenaSpace& arena = slots_.arena();
  std::vector<std::byte> trailer(RoundUp(TrailerBoundBytes(record.body_bytes, record.part_count()), 8));
  LoadWords(words_, arena.slot(place) + TrailerOffset(record.body_bytes, arena.geometry().alignment),
            trailer);
  return trailer;
}

bool BlockStore::Impl::IsSealOf(const Record& record, const SealView& seal) const {
  const Block& block = tree_.block(record.block);
  const NamespaceEntry* entry = EntryOf(block.realm);
  return entry != nullptr && seal.incarnation() == entry->incarnation && seal.group() == record.group &&
         seal.body_bytes() == record.body_bytes && seal.part_count() == record.part_count() &&
         TagOf(block.realm, seal.key()) == block.tag() && (record.key.none() || seal.HasKey(record.key));
}

Task<Status> BlockStore::Impl::BringUp(Held held) {
  const Record r = tree_.record(held.record);
  if (r.in_memory()) co_return Status();
  const RealmId realm = tree_.block(r.block).realm;
  const std::uint64_t record_bytes = RecordBytesOf(realm, r.group, r.body_bytes);
  auto place = co_await MakeRoom(record_bytes, clock_.Now().PlusUs(kRoomUs));
  if (!place)
    co_return place.error().code() == Code::kTooLate ? Status(Code::kBusy, "fetch: no room in memory")
                                                     : std::move(place.error());
  const ArenaSpace& arena = slots_.arena();
  slots_.Pin(*place);
  Status status(Code::kMiss, "fetch: the block went meanwhile");
  if (Lives(held) && !tree_.record(held.record).in_memory()) {
    const FlashPlace from = tree_.record(held.record).flash;
    const std::uint64_t generation = BeginFill(words_, arena, *place);
    auto fetched = co_await tier_->Fetch(from, std::span(arena.slot(*place), record_bytes));
    if (fetched) {
      status = co_await Enter(held, from, *place, generation, *fetched);
    } else {
      status = std::move(fetched.error());
    }
  }
  if (status.ok()) co_return status;
  slots_.Unpin(*place);
  slots_.Free(*place);
  co_return status;
}

// The seal is that of the block that was asked for, its body is what the seal says, and the block is still
// wanted: then it is published here as it is there.
Task<Status> BlockStore::Impl::Enter(Held held, FlashPlace from, Place place, std::uint64_t generation,
                                     Fetched fetched) {
  if (!Lives(held)) co_return Status(Code::kMiss, "fetch: the block went meanwhile");
  const Stamp stamp = fetched.stamp;
  const Record r = tree_.record(held.record);
  const ArenaSpace& arena = slots_.arena();
  const std::vector<std::byte> trailer = TrailerAt(place, r);
  const auto seal = CheckSeal(trailer);
  const auto not_it = [&](std::string_view why) {
    tier_->ReportBad(from);
    return Status(Code::kMiss, Text("flash region ", from.region, ", unit ", from.unit, ": ", why));
  };
  const BlockId block = r.block;
  const RealmId realm = tree_.block(block).realm;
  const NamespaceEntry* entry = EntryOf(realm);
  if (entry == nullptr) co_return Status(Code::kMiss, "fetch: the namespace was dropped meanwhile");
  const std::uint64_t incarnation = entry->incarnation;
  if (!seal || !IsSealOf(r, *seal)) {
    co_return not_it("holds another block than the one that was written there");
  }
  BodyCheck check(movers_, arena.slot(place), *seal);
  co_await check;
  if (!check.sound()) co_return not_it("its record fails its seal");
  if (!Lives(held)) co_return Status(Code::kMiss, "fetch: the block went meanwhile");
  if (tree_.record(held.record).in_memory()) co_return Status(Code::kBusy, "fetch: it is here already");
  while (options_.max_blocks > 0 && resident_ >= options_.max_blocks) {
    const Step step = EvictOne();
    if (step == Step::kWaits) co_return Status(Code::kBusy, "fetch: memory is full and nothing may go");
    if (step == Step::kDone) continue;
    co_await Yield();
    if (!Lives(held)) co_return Status(Code::kMiss, "fetch: the block went meanwhile");
    if (tree_.record(held.record).in_memory()) co_return Status(Code::kBusy, "fetch: it is here already");
  }
  std::uint32_t number = 0;
  const BlockKey key = seal->key();
  const Found found{.place = place,
                    .body_bytes = r.body_bytes,
                    .expiry = stamp.expiry,
                    .generation_low = static_cast<std::uint32_t>(generation) & kGenerationLowMask};
  if (!EnterIndex(FingerprintOf(incarnation, r.group, key), found, block, &number)) {
    co_return Status(Code::kBusy, "fetch: the index has no room for it, and nothing there may go");
  }
  const SealCopy copy(*seal);
  cistern::Publish(words_, arena, place, generation,
                   {.seal = copy.seal(),
                    .sequence = sequence_++,
                    .born = stamp.born,
                    .expiry = stamp.expiry,
                    .conversation = conversations_.Of(realm, key)});
  Count(8);
  Record& now = tree_.record(held.record);
  now.key = key;
  now.place = place;
  now.generation = generation;
  now.born = stamp.born;
  now.expiry = stamp.expiry;
  now.entry = number;
  now.flags |= Record::kVerified | Record::kTouched;
  tree_.SetAt(place, held.record);
  order_.Insert(held.record, slots_.SizeNumber(place));
  if (now.is(Record::kPassing)) counters_.passing.Add();
  if (now.expiry != 0) expiry_.Set(held.record, now.expiry);
  bytes_ += now.body_bytes;
  ++resident_;
  EndPassage(held.record);  // who has a view of that finds the block here
  // The pin that it was filled under is its hold's from now on.
  CISTERN_ASSERT(now.holds > 0);
  co_return Status();
}

// Of a chain that was matched what lies on flash is brought up before it is asked for, as far as that is
// little beside what memory holds.
void BlockStore::Impl::ReadAhead(RealmId realm, std::span<const BlockKey> chain) {
  std::uint64_t bytes = 0;
  const NamespaceEntry* entry = EntryOf(realm);
  for (std::size_t i = 0; i < chain.size() && bytes < options_.read_ahead_bytes; ++i) {
    if (Spent() || fetching_.size() >= kMaxReadAhead) return;
    const BlockId block = Find(realm, chain[i]);
    if (block == kNoId) return;
    for (std::uint16_t g = 0; g < entry->groups.size(); ++g) {
      const auto copy = tree_.See(block, g);
      Count();
      if (!copy || copy->in_memory) continue;
      bytes += copy->body_bytes;
      counters_.read_ahead.Add();
      const RecordId record = tree_.Take(block, g);
      DecidePassing(record);
      StartFetch(record);
    }
  }
}

}  // namespace cistern
