// SPDX-License-Identifier: Apache-2.0
// The way down: what is wanted on flash is gathered in batches and written from its slots, beside everything
// else; no put waits for it. What is on flash may leave memory at any time.
#include <algorithm>
#include <array>

#include "record/seal.h"
#include "store/impl.h"

namespace cistern {

namespace {
constexpr std::size_t kMaxDown = 65'536;  // records that wait to be written
constexpr std::uint32_t kWriters = 8;     // batches under way
// The core stands still while the kernel takes a transfer: 40 us for this much, 60 to 180 for 4 MiB, which
// every put in that moment feels. Much smaller ones come so often that as many feel them. A device that takes
// 254 segments of 4 KiB in a request, as is common, takes it whole.
constexpr std::uint64_t kDownBatchBytes = 896u << 10;
// What is being written cannot go, so all of it is no more than this share of memory.
constexpr std::uint64_t kDownShare = 4;
constexpr std::uint32_t kCleanLooks = 4096;  // of the coldest, at a tick
constexpr std::uint32_t kAncestorLooks = 64;
constexpr std::uint64_t kRecordsARegion = 4;  // at least: a larger record is not written
}  // namespace

std::uint64_t BlockStore::Impl::RecordBytesOf(const NamespaceEntry& entry, std::uint16_t group,
                                              std::uint64_t body_bytes) const {
  const std::uint32_t alignment = slots_.arena().geometry().alignment;
  const std::vector<std::uint32_t>& parts = entry.groups[group].part_bytes;
  if (parts.empty()) return RecordBytes(body_bytes, alignment);
  return RecordBytes(body_bytes, SegmentCount(parts), static_cast<std::uint32_t>(parts.size()), alignment);
}

std::uint64_t BlockStore::Impl::RecordBytesOf(RealmId realm, std::uint16_t group,
                                              std::uint64_t body_bytes) const {
  // Of a namespace that was dropped the list is what it was.
  const Realm* found = tree_.realm(realm);
  const NamespaceEntry* entry = found == nullptr ? nullptr : names_.at(found->slot);
  return entry == nullptr ? 0 : RecordBytesOf(*entry, group, body_bytes);
}

void BlockStore::Impl::ForgetFlash(RealmId realm, const Tree::Copy& copy) {
  if (tier_ == nullptr || copy.flash.none()) return;
  tier_->Forget(copy.flash, RecordBytesOf(realm, copy.group, copy.body_bytes));
}

void BlockStore::Impl::WantBelow(RecordId record) {
  QueueDown(record);
  StartWriters();
}

void BlockStore::Impl::QueueDown(RecordId record) {
  Record& r = tree_.record(record);
  if (tier_ == nullptr || !r.in_memory() || r.on_flash() || r.is(Record::kQueued)) return;
  if (std::uint64_t{r.body_bytes} * kRecordsARegion > tier_->region_bytes()) {
    counters_.down_too_large.Add();
    return;
  }
  if (down_.size() >= kMaxDown) {
    counters_.down_overflow.Add();
    return;
  }
  r.flags |= Record::kQueued;
  down_.push_back(HeldOf(record));
}

bool BlockStore::Impl::MayWriteMore() const {
  const std::uint64_t blocks = options_.max_blocks > 0 ? options_.max_blocks : max_records_;
  const std::uint64_t bytes = slots_.arena().geometry().slots_bytes();
  return writing_ == 0 || (writing_ < blocks / kDownShare && writing_bytes_ < bytes / kDownShare);
}

void BlockStore::Impl::StartWriters() {
  if (down_.empty() || writers_ >= kWriters || !MayWriteMore() || lower_.closed()) return;
  ++writers_;
  lower_.Spawn(WriteDown());
}

Task<void> BlockStore::Impl::WriteDown() {
  const std::uint64_t begun = devices_lost_;
  // What else comes in this step goes along.
  co_await Yield();
  while (!down_.empty()) {
    std::deque<DownItem> items;
    co_await GatherDown(items);
    if (items.empty()) break;
    co_await Yield();
    const std::vector<Outgoing> batch = LeaveOutTheDead(items);
    if (batch.empty()) continue;
    auto places = co_await tier_->Append(batch);
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (Spent()) co_await Yield();
      WrittenDown(items[i], places ? (*places)[i] : FlashPlace{});
    }
    if (!places) {
      counters_.down_failed.Add(items.size());
      // The next tick tries again.
      for (const DownItem& item : items) {
        if (Spent()) co_await Yield();
        if (Lives(item.held)) QueueDown(item.held.record);
      }
      break;
    }
    counters_.written_down.Add(items.size());
  }
  // Where a device went meanwhile, this one's place was given to another.
  if (begun == devices_lost_) --writers_;
}

// In one step with the append that follows: a record that was dropped before it is on its way must not go, or
// it would come with a number that its tombstone does not wait for (R10).
std::vector<Outgoing> BlockStore::Impl::LeaveOutTheDead(std::deque<DownItem>& items) {
  std::vector<Outgoing> batch;
  std::deque<DownItem> living;
  for (DownItem& item : items) {
    Count();
    if (!Lives(item.held) || tree_.record(item.held.record).place != item.place) {
      EndWriting(item);
      DropHold(item.held);
      continue;
    }
    living.push_back(std::move(item));
  }
  items = std::move(living);
  for (DownItem& item : items) {
    item.outgoing.sequence = sequence_++;
    batch.push_back(item.outgoing);
  }
  return batch;
}

Task<void> BlockStore::Impl::GatherDown(std::deque<DownItem>& items) {
  std::uint64_t bytes = 0;
  const std::uint64_t most = std::min(kDownBatchBytes, tier_->region_bytes() / kRecordsARegion);
  while (!down_.empty() && MayWriteMore() && items.size() < kBatchRecords && bytes < most) {
    if (Spent()) co_await Yield();
    if (down_.empty()) break;
    const Held held = down_.front();
    Count();
    if (!Lives(held)) {
      down_.pop_front();
      continue;
    }
    Record& r = tree_.record(held.record);
    const RealmId realm = tree_.block(r.block).realm;
    const std::uint64_t record_bytes = RecordBytesOf(realm, r.group, r.body_bytes);
    const bool wanted =
        r.in_memory() && !r.on_flash() && !Expired(r.expiry, NowS()) && EntryOf(realm) != nullptr;
    const Tier::Room room = wanted ? tier_->RoomFor(bytes + record_bytes) : Tier::Room::kYes;
    if (room == Tier::Room::kNoFreeRegion) break;
    down_.pop_front();
    r.flags &= static_cast<std::uint8_t>(~Record::kQueued);
    if (!wanted || room != Tier::Room::kYes) {
      if (room == Tier::Room::kNoBudget) counters_.down_over_budget.Add();
      if (r.holds == 0 && order_.Parked(held.record)) order_.Unpark(held.record);
      continue;
    }
    if (AddToBatch(held, record_bytes, items)) bytes += record_bytes;
  }
}

bool BlockStore::Impl::AddToBatch(Held held, std::uint64_t record_bytes, std::deque<DownItem>& items) {
  const Record r = tree_.record(held.record);
  const ArenaSpace& arena = slots_.arena();
  const std::vector<std::byte> trailer = TrailerAt(r.place, r);
  const auto seal = CheckSeal(trailer);
  if (!seal || !seal->HasKey(r.key)) {
    LoseBad(held.record);
    return false;
  }
  DownItem& item = items.emplace_back();
  item.held = held;
  item.place = r.place;
  item.record_bytes = record_bytes;
  item.devices_lost = devices_lost_;
  item.seal.emplace(*seal);
  AddHold(held.record);
  BeginWriting(item);
  Count(2 + seal->segment_count() / 16);
  item.outgoing = {.body = arena.slot(r.place),
                   .seal = item.seal->seal(),
                   .born = r.born,
                   .expiry = r.expiry,
                   .conversation = conversations_.Of(tree_.block(r.block).realm, r.key)};
  return true;
}

void BlockStore::Impl::BeginWriting(const DownItem& item) {
  BeginIo(item.place);
  ++writing_;
  writing_bytes_ += item.record_bytes;
}

void BlockStore::Impl::EndWriting(const DownItem& item) {
  EndIo(item.place);
  if (item.devices_lost != devices_lost_) return;
  --writing_;
  writing_bytes_ -= item.record_bytes;
}

void BlockStore::Impl::WrittenDown(const DownItem& item, FlashPlace flash) {
  Count(2);
  EndWriting(item);
  const bool lives = Lives(item.held);
  if (!flash.none()) {
    Record& r = tree_.record(item.held.record);
    // Its device may have gone in this very moment, and what was on it is forgotten already.
    const bool there = tier_->EstimateUs(flash, 1) != Tier::kNever;
    if (there && lives && r.in_memory() && !r.on_flash()) {
      r.flash = flash;
      r.flags &= static_cast<std::uint8_t>(~Record::kTouched);
    } else {
      tier_->Forget(flash, item.record_bytes);
    }
  }
  DropHold(item.held);
  // It may go now, whatever descends from it.
  if (lives && tree_.record(item.held.record).holds == 0 && order_.Parked(item.held.record)) {
    order_.Unpark(item.held.record);
  }
}

// The coldest are written before they have to go, what they descend from before them: else a reboot finds
// blocks without their chain.
void BlockStore::Impl::WantWithAncestors(RecordId record) {
  std::array<RecordId, kAncestorLooks> above;
  std::size_t count = 0;
  const std::uint16_t group = tree_.record(record).group;
  for (BlockId at = tree_.block(tree_.record(record).block).parent; at != kNoId && count < above.size();
       at = tree_.block(at).parent) {
    Count();
    const RecordId parent = tree_.FindRecord(at, group);
    if (parent == kNoId || tree_.record(parent).on_flash() || !tree_.record(parent).in_memory()) break;
    above[count++] = parent;
  }
  while (count > 0) WantBelow(above[--count]);
  WantBelow(record);
}

bool BlockStore::Impl::CleanSome() {
  if (tier_ == nullptr || tier_->RoomFor(1) != Tier::Room::kYes || down_.size() >= kMaxDown / 2) {
    cleaning_ = std::nullopt;
    return false;
  }
  for (; clean_looks_ < kCleanLooks && !Spent(); ++clean_looks_) {
    cleaning_ = cleaning_ && order_.Contains(*cleaning_) && !order_.Parked(*cleaning_)
                    ? order_.Warmer(*cleaning_)
                    : std::nullopt;
    if (clean_looks_ == 0) cleaning_ = order_.Coldest();
    if (!cleaning_) break;
    Count();
    const Record& r = tree_.record(*cleaning_);
    if (!r.on_flash() && r.holds == 0 && Wanted(LowerOf(r), r.uses)) WantWithAncestors(*cleaning_);
  }
  const bool more = cleaning_ && clean_looks_ < kCleanLooks;
  if (!more) clean_looks_ = 0;
  return more;
}

// Out of memory, but still on flash.
void BlockStore::Impl::Demote(RecordId record) {
  counters_.demoted.Add();
  LeaveMemory(record);
  tree_.Fold(record);
}

// All that waits to be written may be lost instead: a put does not wait for a device.
BlockStore::Impl::Step BlockStore::Impl::EvictUnwritten(std::optional<Shelf> shelf) {
  for (; down_looked_ < down_.size(); ++down_looked_) {
    if (Spent()) return Step::kSpent;
    const Held held = down_.front();
    down_.pop_front();
    Count();
    if (!Lives(held)) continue;
    const Record& r = tree_.record(held.record);
    const bool right = r.in_memory() && (!shelf || slots_.SizeNumber(r.place) == *shelf);
    if (!right || !MayGo(held.record)) {
      down_.push_back(held);
      continue;
    }
    down_looked_ = 0;
    Evict(held.record);
    return Step::kDone;
  }
  down_looked_ = 0;
  return Step::kWaits;
}

}  // namespace cistern
