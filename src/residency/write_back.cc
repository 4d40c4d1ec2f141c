// SPDX-License-Identifier: Apache-2.0
#include "residency/write_back.h"

#include <algorithm>
#include <utility>

namespace cistern::residency {

namespace {
constexpr std::uint32_t kWriters = 8;  // batches under way
// Bytes of a batch. Its transfer is handed in by a worker of the kernel's (io), which takes a processor from
// somebody each time, and longer for more. Of puts of 64 KiB faster than a disk of 2.4 GB/s takes them, on
// two processors (docs/bench.md), p99 as a multiple of that beside a program that writes, four runs: 192
// KiB 1.63 to 1.96, 512 KiB 1.43 to 1.75, 1 MiB 1.40 to 1.97, 1.5 MiB 1.47 to 2.14. Longer records are
// batches of their own.
constexpr std::uint64_t kBatchBytes = 512u << 10;
// A record that is being written cannot be evicted, so their bytes are no more than this share of memory.
constexpr std::uint64_t kWriteShare = 4;
constexpr std::uint32_t kCleanLooks = 4096;  // records looked at in a tick, coldest first
constexpr std::uint32_t kChildLooks = 8;
}  // namespace

void WriteBack::DeviceOut() {
  ++devices_out_;
  writers_ = 0;
  writing_.clear();
  writing_bytes_ = 0;
  writing_rewrites_ = 0;
  writing_of_ = {};
}

void WriteBack::Want(catalog::RecordId record) {
  const Above above = AboveOf(record);
  if (above.too_large) return;
  for (std::size_t i = above.count; i-- > 0;)
    Queue(above.records[i], above.more && i + 1 == above.count ? More::kYes : More::kNo);
  Queue(record, More::kNo);
  Start();
}

// Up to the first that lies there, or is on its way.
WriteBack::Above WriteBack::AboveOf(catalog::RecordId record) const {
  Above above;
  const catalog::Record& r = context_.forest.record(record);
  for (catalog::BlockId at = context_.forest.block(r.block).parent; at != catalog::kNoId;
       at = context_.forest.block(at).parent) {
    context_.steps.Count();
    const catalog::RecordId parent = context_.forest.FindRecord(at, r.group);
    if (parent == catalog::kNoId || Comes(parent)) break;
    if (lower_.present() && !worth_.Fits(context_.forest.record(parent))) {
      above.too_large = true;
      break;
    }
    if (above.count == above.records.size()) {
      above.more = true;
      break;
    }
    above.records[above.count++] = parent;
  }
  return above;
}

bool WriteBack::Comes(catalog::RecordId record) const {
  const catalog::Record& r = context_.forest.record(record);
  return !r.in_memory() || r.in_lower_tier() || r.is(catalog::Record::kBehind) ||
         r.is(catalog::Record::kQueued) || writing_.contains(r.serial);
}

void WriteBack::NotePut(catalog::RecordId record) {
  if (!lower_.present()) return;
  const catalog::Record& r = context_.forest.record(record);
  if (!worth_.Fits(r)) {
    if (context_.counters.down_too_large.value() == 0) {
      context_.log.Log(LogLevel::kWarning, "flash takes blocks of at most ", lower_->max_append_bytes(),
                       " bytes: one of ", r.body_bytes,
                       " stays in memory alone, and so do others of its size; flash that is made anew on "
                       "larger devices takes larger ones");
    }
    context_.counters.down_too_large.Add();
    return;
  }
  if (!worth_.NotePut(record)) context_.counters.down_not_worth.Add();
  rewrites_.NotePut(r.body_bytes, context_.slots.bytes());
  NoteFound(record);
}

void WriteBack::NoteFound(catalog::RecordId record) {
  if (lower_.present() && worth_.WrittenAtUse(record, 0)) Want(record);
}

void WriteBack::NoteUse(catalog::RecordId record) {
  const catalog::Record& r = context_.forest.record(record);
  if (!lower_.present() || r.in_lower_tier() || !worth_.WrittenAtUse(record, r.uses)) return;
  if (!r.given_up || MayRewriteStaying()) Want(record);
}

void WriteBack::NoteGivenUp(catalog::RecordId record) {
  context_.forest.record(record).given_up = true;
  queue_.NoteGivenUp(context_.catalog.HandleOf(record));
}

void WriteBack::NoteLost(catalog::RecordId record) {
  if (worth_.WrittenAnew(record)) {
    Want(record);
  } else {
    queue_.NoteHeldUp(context_.catalog.HandleOf(record));
  }
}

void WriteBack::Start() {
  if (queue_.empty() || writers_ >= kWriters || !MayWriteMore() || lower_.closed()) return;
  ++writers_;
  lower_.Spawn(OutOfLanes(context_.executor, [this] { return WriteBatches(); }));
}

bool WriteBack::Clean() {
  const policy::Order& order = residents_.order();
  worth_.Refresh();
  if (!lower_.present() ||
      lower_->RoomFor(std::min(kBatchBytes, lower_->max_append_bytes())) != tier::Tier::Room::kYes ||
      queue_.size() >= WriteQueue::kMostRecords / 2) {
    cleaning_ = std::nullopt;
    return false;
  }
  WriteHeldUp();
  WriteGivenUp();
  for (; clean_looks_ < kCleanLooks && !context_.steps.Spent(); ++clean_looks_) {
    if (clean_looks_ == 0) {
      cleaning_ = std::nullopt;
      looking_ = {};
      next_shelf_ = 0;
      looks_a_shelf_ = kCleanLooks / std::max<std::size_t>(order.shelves_in_use(), 1);
    }
    const bool goes_on =
        cleaning_ && shelf_looks_ > 0 && order.Contains(*cleaning_) && !order.Parked(*cleaning_);
    cleaning_ = goes_on ? order.Warmer(*cleaning_) : std::nullopt;
    if (!cleaning_) {
      const auto first = order.FirstOf(next_shelf_);
      if (!first) break;
      cleaning_ = first->id;
      next_shelf_ = std::size_t{first->shelf} + 1;
      shelf_looks_ = looks_a_shelf_;
    }
    --shelf_looks_;
    context_.steps.Count();
    const catalog::Record& r = context_.forest.record(*cleaning_);
    ++looking_.looked;
    if (r.in_lower_tier() || !(worth_.Wanted(*cleaning_) || ExtendedBelow(r))) {
      ++looking_.ready;
    } else if (r.references == 0 && (!r.given_up || MayRewriteLeaving()) && !OverQuota(r)) {
      Want(*cleaning_);
    }
  }
  const bool more = cleaning_ && clean_looks_ < kCleanLooks;
  if (!more) {
    clean_looks_ = 0;
    reserve_ = looking_;
  }
  return more;
}

void WriteBack::WriteHeldUp() {
  while (!context_.steps.Spent()) {
    const std::optional<catalog::RecordHandle> handle = queue_.TakeHeldUp();
    if (!handle) return;
    context_.steps.Count();
    if (!context_.catalog.Lives(*handle)) continue;
    const catalog::Record& r = context_.forest.record(handle->record);
    if (r.in_memory() && !r.in_lower_tier() && ExtendedBelow(r)) Want(handle->record);
  }
}

void WriteBack::WriteGivenUp() {
  while (!context_.steps.Spent() && MayRewriteStaying()) {
    const std::optional<catalog::RecordHandle> handle = queue_.TakeGivenUp();
    if (!handle) return;
    context_.steps.Count();
    if (!context_.catalog.Lives(*handle)) continue;
    const catalog::Record& r = context_.forest.record(handle->record);
    const bool again = r.in_memory() && !r.in_lower_tier();
    if (again && (worth_.WrittenAnew(handle->record) || ExtendedBelow(r))) Want(handle->record);
  }
}

// Without a copy there the record could not leave memory before those, and a reboot would not reach them.
bool WriteBack::ExtendedBelow(const catalog::Record& record) const {
  catalog::BlockId child = context_.forest.block(record.block).first_child;
  for (std::uint32_t look = 0; look < kChildLooks && child != catalog::kNoId; ++look) {
    context_.steps.Count();
    const catalog::Block& block = context_.forest.block(child);
    if (block.folded() || block.placeholder()) return true;
    for (catalog::RecordId r = block.first_record; r != catalog::kNoId; r = context_.forest.record(r).next) {
      if (context_.forest.record(r).in_lower_tier()) return true;
    }
    child = block.next_sibling;
  }
  return false;
}

bool WriteBack::MayQueue(catalog::RecordId record) {
  catalog::Record& r = context_.forest.record(record);
  if (!worth_.Fits(r) || !r.in_memory() || r.in_lower_tier() || r.is(catalog::Record::kQueued) ||
      writing_.contains(r.serial))
    return false;
  if (queue_.full()) {
    context_.counters.down_overflow.Add();
    return false;
  }
  r.flags |= catalog::Record::kQueued;
  return true;
}

WriteQueue::Entry WriteBack::EntryOf(catalog::RecordId record, bool more_above) const {
  const catalog::Record& r = context_.forest.record(record);
  return {context_.catalog.HandleOf(record), more_above, Rewrites(r) ? r.body_bytes : 0};
}

void WriteBack::Queue(catalog::RecordId record, More more) {
  if (MayQueue(record)) queue_.Push(EntryOf(record, more == More::kYes));
}

// The front's ancestors that were not looked at yet take its place, the topmost first.
void WriteBack::QueueMoreAbove() {
  WriteQueue::Entry below = queue_.front();
  queue_.Pop();
  below.more_above = false;
  queue_.PushFront(below);
  const Above above = AboveOf(below.record.record);
  for (std::size_t i = 0; i < above.count && !above.too_large; ++i) {
    if (MayQueue(above.records[i]))
      queue_.PushFront(EntryOf(above.records[i], above.more && i + 1 == above.count));
  }
}

bool WriteBack::MayWriteMore() const {
  const std::uint64_t blocks = context_.options.max_blocks > 0 ? context_.options.max_blocks
                                                               : context_.catalog.max_records_in_memory();
  const std::uint64_t bytes = context_.slots.bytes();
  return writing_.empty() || (writing_.size() < blocks / kWriteShare && writing_bytes_ < bytes / kWriteShare);
}

bool WriteBack::OverQuota(const catalog::Record& record) {
  if (context_.options.quotas.empty()) return false;
  const policy::QuotaGroup group = context_.catalog.GroupOf(context_.forest.block(record.block).tree);
  return context_.options.quotas.OverBelow(group, context_.catalog.counted().below(),
                                           writing_of_[group] + record.body_bytes);
}

Task<void> WriteBack::WriteBatches() {
  const std::uint64_t begun = devices_out_;
  // Records queued later in this step join the batch.
  co_await Yield();
  while (!queue_.empty()) {
    std::deque<BatchItem> items;
    co_await Gather(items);
    if (items.empty()) break;
    co_await Yield();
    const std::vector<tier::AppendRequest> batch = WithoutDead(items);
    if (batch.empty()) break;  // the next tick tries again
    auto places = co_await lower_->Append(batch);
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (context_.steps.Spent()) co_await Yield();
      Written(items[i], places ? (*places)[i] : tier::Location{});
    }
    if (!places) {
      // Busy: others took the room, or what was left of the budget, since this was gathered.
      if (places.error().code() != Code::kBusy) context_.counters.down_failed.Add(items.size());
      // The next tick tries again.
      for (const BatchItem& item : items) {
        if (context_.steps.Spent()) co_await Yield();
        const catalog::RecordHandle handle = item.reference.handle();
        if (context_.catalog.Lives(handle)) Queue(handle.record, More::kNo);
      }
      break;
    }
  }
  // After a device left service, this writer's place was given to another.
  if (begun == devices_out_) --writers_;
}

Task<void> WriteBack::Gather(std::deque<BatchItem>& items) {
  std::uint64_t bytes = 0;
  const std::uint64_t most = std::min(kBatchBytes, lower_->max_append_bytes());
  while (!queue_.empty() && MayWriteMore() && items.size() < kBatchRecords && bytes < most) {
    if (context_.steps.Spent()) co_await Yield();
    if (queue_.empty()) break;
    const catalog::RecordHandle handle = queue_.front().record;
    context_.steps.Count();
    if (!context_.catalog.Lives(handle)) {
      queue_.Pop();
      continue;
    }
    catalog::Record& r = context_.forest.record(handle.record);
    const catalog::TreeId tree = context_.forest.block(r.block).tree;
    const std::uint64_t record_bytes = context_.catalog.RecordBytesOf(tree, r.group, r.body_bytes);
    const bool due = r.in_memory() && !r.in_lower_tier() && !context_.catalog.Expired(r.expiry) &&
                     context_.catalog.EntryOf(tree) != nullptr;
    if (due && queue_.front().more_above) {
      QueueMoreAbove();
      continue;
    }
    const bool wanted = due && ReachedBelow(r);
    const tier::Tier::Room room = wanted ? lower_->RoomFor(bytes + record_bytes) : tier::Tier::Room::kYes;
    if (room == tier::Tier::Room::kNoRoom) break;
    const std::uint64_t rewrite_bytes = queue_.front().rewrite_bytes;
    queue_.Pop();
    r.flags &= static_cast<std::uint8_t>(~catalog::Record::kQueued);
    const bool over = wanted && OverQuota(r);
    if (!wanted || over || room != tier::Tier::Room::kYes) {
      if (over)
        context_.counters.down_over_quota.Add();
      else if (room == tier::Tier::Room::kNoBudget)
        context_.counters.down_over_budget.Add();
      if (r.references == 0) residents_.Unpark(handle.record);
      continue;
    }
    if (!AddToBatch(handle, record_bytes, items)) continue;
    bytes += record_bytes;
    writing_rewrites_ += items.back().rewrite_bytes = rewrite_bytes;
  }
}

// An ancestor that was refused keeps what extends it from being written: found below it would be reached by
// nobody, and the ancestor could not leave memory before it.
bool WriteBack::ReachedBelow(const catalog::Record& record) const {
  const catalog::BlockId above = context_.forest.block(record.block).parent;
  const catalog::RecordId parent =
      above == catalog::kNoId ? catalog::kNoId : context_.forest.FindRecord(above, record.group);
  return parent == catalog::kNoId || Comes(parent);
}

bool WriteBack::AddToBatch(catalog::RecordHandle handle, std::uint64_t record_bytes,
                           std::deque<BatchItem>& items) {
  const catalog::Record r = context_.forest.record(handle.record);
  const arena::ArenaSpace& arena = context_.slots.arena();
  const std::vector<std::byte> trailer = residents_.TrailerAt(r.place, r);
  const auto seal = record::CheckSeal(trailer);
  if (!seal || !seal->HasKey(r.key)) {
    evictor_.LoseBad(handle.record);
    return false;
  }
  const policy::QuotaGroup group = context_.catalog.GroupOf(context_.forest.block(r.block).tree);
  BatchItem& item = items.emplace_back(RecordReference(residents_, handle), SlotUse(residents_, r.place),
                                       r.place, record_bytes, group, r.body_bytes, devices_out_);
  item.seal.emplace(*seal);
  writing_.insert(handle.serial);
  writing_bytes_ += record_bytes;
  writing_of_[group] += r.body_bytes;
  context_.steps.Count(2 + seal->segment_count() / 16);
  item.request = {.body = arena.slot(r.place), .seal = item.seal->seal(), .born = r.born, .expiry = r.expiry};
  return true;
}

// One step with the append that follows: a record that was dropped before its append is left out, also one
// that is yet to be collected, or it would be written with a sequence that its tombstone does not wait for
// (R10). Of what is being collected a step can tell so much; the rest has its turn later.
std::vector<tier::AppendRequest> WriteBack::WithoutDead(std::deque<BatchItem>& items) {
  std::vector<tier::AppendRequest> batch;
  std::deque<BatchItem> living;
  for (BatchItem& item : items) {
    context_.steps.Count();
    const catalog::RecordHandle handle = item.reference.handle();
    const bool lives =
        context_.catalog.Lives(handle) && context_.forest.record(handle.record).place == item.place;
    const bool told = !context_.forest.collecting() || !context_.steps.Spent();
    if (lives && told && context_.catalog.Stands(handle)) {
      living.push_back(std::move(item));
      continue;
    }
    EndWriting(item);
    item.reference.Drop(Residents::Used::kNo);
    if (lives) Queue(handle.record, More::kNo);
  }
  items = std::move(living);
  for (BatchItem& item : items) {
    const catalog::Record& record = context_.forest.record(item.reference.handle().record);
    item.request.sequence = context_.sequences.Next();
    item.request.conversation =
        context_.conversations.Of(context_.forest.block(record.block).tree, record.key);
    batch.push_back(item.request);
  }
  return batch;
}

void WriteBack::EndWriting(BatchItem& item) {
  item.use.End();
  if (item.devices_out != devices_out_) return;
  writing_.erase(item.reference.handle().serial);
  writing_bytes_ -= item.record_bytes;
  writing_rewrites_ -= item.rewrite_bytes;
  writing_of_[item.group] -= item.body_bytes;
}

void WriteBack::Written(BatchItem& item, tier::Location location) {
  context_.steps.Count(2);
  const catalog::RecordHandle handle = item.reference.handle();
  EndWriting(item);
  const bool lives = context_.catalog.Lives(handle);
  if (!location.none()) {
    context_.counters.written_down.Add();  // in one step with the record's location, for who counts both
    catalog::Record& r = context_.forest.record(handle.record);
    // The device may have left service in this very step, and its records are forgotten already.
    const bool there = lower_->EstimateUs(location, 1) != tier::Tier::kNever;
    if (there && lives && r.in_memory() && !r.in_lower_tier()) {
      r.location = location;
      rewrites_.Take(item.rewrite_bytes);
      r.given_up = false;
      lower_.NoteThere(context_.forest.block(r.block).tree, r.body_bytes, item.record_bytes);
      r.flags &= static_cast<std::uint8_t>(~catalog::Record::kTouched);
    } else {
      lower_->Forget(location, item.record_bytes);
    }
  }
  item.reference.Drop(Residents::Used::kNo);
  // The record may be evicted now, whatever descends from it.
  if (lives && context_.forest.record(handle.record).references == 0) residents_.Unpark(handle.record);
}

}  // namespace cistern::residency
