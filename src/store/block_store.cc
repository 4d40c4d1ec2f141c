// SPDX-License-Identifier: Apache-2.0
#include "store/block_store.h"

#include <algorithm>

#include "store/impl.h"

namespace cistern {
namespace {

std::uint32_t MaxRecords(const Geometry& geometry) {
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(geometry.slots_bytes() / geometry.min_slot_bytes(), Lru::kMaxEntries - 1));
}

constexpr std::uint64_t kNoteTimeS = 60;
constexpr std::uint64_t kPassageShare = 8;  // of the slots
// Of private memory for what is on its way to them.
constexpr std::uint64_t kMaxPassingBytes = 64u << 20;
constexpr std::uint64_t kPassingShare = 16;

}  // namespace

BlockStore::Impl::Impl(const Parts& parts, const BlockStoreOptions& options)
    : executor_(parts.executor),
      clock_(parts.clock),
      words_(parts.words),
      slots_(parts.slots),
      index_(parts.words, parts.index),
      movers_(parts.movers),
      journal_(parts.journal),
      log_(parts.log),
      options_(options),
      open_tier_(parts.open_tier),
      max_records_(MaxRecords(parts.slots.arena().geometry())),
      max_record_ids_(std::min<std::uint32_t>(Lru::kMaxEntries - max_records_ - 2, options.max_lower_blocks) +
                      max_records_ + 1),
      // Besides those with records: roots, and ghosts, for which a quarter is plenty.
      tree_(max_record_ids_ + max_records_ / 4 + 2 * kMaxNamespaces, parts.slots.arena().geometry()),
      pending_(options.max_pending),
      leases_(options.max_leases, options.max_leased_blocks),
      expiry_(max_record_ids_),
      conversations_(options.max_noted_blocks),
      passages_(parts.slots.arena().geometry().slots_bytes() / kPassageShare),
      max_passing_bytes_(
          std::min(kMaxPassingBytes, parts.slots.arena().geometry().slots_bytes() / kPassingShare)),
      lower_(parts.executor) {
  order_.Reserve(max_records_ + 1);
}

std::uint32_t BlockStore::Impl::TakeLongestStep() { return std::exchange(longest_step_, 0); }

BlockStore::Occupancy BlockStore::Impl::occupancy() const {
  Occupancy o;
  o.records = resident_;
  o.bytes = bytes_;
  o.pending = pending_.size();
  o.leases = leases_.size();
  o.leased_blocks = leases_.leased_blocks();
  o.namespaces = names_.size();
  o.tombstones = journal_.tombstones();
  o.blocks = tree_.blocks() - tree_.realms();
  o.conversations = conversations_.talks();
  o.passages = passages_.size();
  return o;
}

bool BlockStore::Impl::Tick() {
  const Instant now = clock_.Now();
  while (!Spent() && EndOneLease(now)) continue;
  for (PutSlot put; !Spent() && (put = pending_.FirstDue(now)) != kNoId;) {
    counters_.pending_dropped.Add();
    EndPut(put, Code::kTooLate);
  }
  const std::uint64_t now_s = NowS();
  const auto expired = [&] {
    return !expiry_.empty() && static_cast<std::uint64_t>(expiry_.first_when()) <= now_s;
  };
  while (!Spent() && expired()) Cut(tree_.record(expiry_.first()).block, Reason::kExpired);
  while (!Spent() && LetGoOfEnded()) continue;
  if (!Spent()) Reap();
  const bool more = !Spent() ? Collect() : true;
  const bool to_clean = TendLower();
  return more || to_clean || expired() || !reap_.empty() || pending_.FirstDue(now) != kNoId;
}

// Whether there is more to look at.
bool BlockStore::Impl::TendLower() {
  StartScrub();
  if (tier_ == nullptr) return false;
  tier_->Tick();
  StartReclaim();
  StartWriters();
  // What is fetched and written down takes numbers without any put.
  if (LowOnSequences() && !reserving_ && !lower_.closed()) lower_.Spawn(ReserveSequences());
  const bool due =
      !collected_tombstones_.empty() && *collected_tombstones_.begin() < tier_->oldest_sequence();
  if (!ending_tombstones_ && !lower_.closed() && (due || tier_->device_ids() != journaled_devices_)) {
    lower_.Spawn(EndTombstones());
  }
  const std::uint64_t now_s = NowS();
  if ((expired_something_ || now_s >= noted_time_s_ + kNoteTimeS) && now_s > noted_time_s_ && !noting_time_ &&
      !lower_.closed()) {
    lower_.Spawn(NoteTime());
  }
  return !Spent() && CleanSome();
}

// The arena knows how late it was, but flash outlives it.
Task<void> BlockStore::Impl::NoteTime() {
  noting_time_ = true;
  expired_something_ = false;
  const std::uint64_t now_s = NowS();
  const Status status = co_await journal_.PutTime(now_s);
  if (status.ok()) noted_time_s_ = now_s;
  noting_time_ = false;
}

Task<void> BlockStore::Impl::Close() {
  down_.clear();
  co_await lower_.Close();
  co_await EndPassages(false);
  if (tier_ != nullptr) co_await tier_->Close();
}

BlockStore::BlockStore(const Parts& parts, const BlockStoreOptions& options)
    : impl_(std::make_unique<Impl>(parts, options)) {}
BlockStore::~BlockStore() = default;

Task<void> BlockStore::Close() { return impl_->Close(); }
Tier* BlockStore::tier() { return impl_->tier(); }

Task<Status> BlockStore::Recover() { return impl_->Recover(); }
Task<Result<Attached>> BlockStore::Attach(const NamespaceSpec& spec) { return impl_->Attach(spec); }
Status BlockStore::CheckNamespace(std::uint32_t slot, std::uint64_t incarnation) const {
  return impl_->CheckNamespace(slot, incarnation);
}
Task<Result<std::vector<MatchedRun>>> BlockStore::MatchRest(std::uint32_t slot, std::uint32_t matched,
                                                            std::span<const BlockKey> rest) {
  return impl_->MatchRest(slot, matched, rest);
}
Task<Result<LeaseId>> BlockStore::Hold(const Caller& caller, std::uint32_t slot,
                                       std::span<const BlockKey> chain, std::int64_t hold_us) {
  return impl_->Hold(caller, slot, chain, hold_us);
}
Task<Result<AcquireGrant>> BlockStore::Acquire(const Caller& caller, std::uint32_t slot,
                                               std::span<const BlockName> blocks, std::int64_t lease_us,
                                               Instant deadline, std::int64_t worth_us) {
  return impl_->Acquire(caller, slot, blocks, lease_us, deadline, worth_us);
}
Status BlockStore::Release(const Caller& caller, LeaseId lease) { return impl_->Release(caller, lease); }
Task<std::vector<PartOutcome>> BlockStore::Write(const Caller& caller, std::uint32_t slot,
                                                 std::vector<PartWrite> parts, Instant deadline) {
  return impl_->Write(caller, slot, std::move(parts), deadline);
}
Task<Result<std::uint32_t>> BlockStore::Publish(const Caller& caller, std::uint32_t slot,
                                                std::span<const PutId> puts) {
  return impl_->EndHeld(caller, slot, puts, true);
}
Task<Result<std::uint32_t>> BlockStore::Abandon(const Caller& caller, std::uint32_t slot,
                                                std::span<const PutId> puts) {
  return impl_->EndHeld(caller, slot, puts, false);
}
Task<std::uint32_t> BlockStore::Touch(std::uint32_t slot, std::span<const BlockKey> keys,
                                      std::uint64_t conversation) {
  return impl_->Touch(slot, keys, conversation);
}
void BlockStore::TouchPlace(std::uint32_t place, std::uint32_t generation_low) {
  impl_->TouchPlace(place, generation_low);
}
Task<Result<std::uint64_t>> BlockStore::Drop(std::uint32_t slot, std::span<const BlockKey> keys) {
  return impl_->Drop(slot, keys);
}
Task<Result<std::uint64_t>> BlockStore::EndConversation(std::uint32_t slot, std::uint64_t conversation) {
  return impl_->EndConversation(slot, conversation);
}
Task<Result<std::pair<std::uint64_t, std::uint64_t>>> BlockStore::DropNamespace(std::uint32_t slot) {
  return impl_->DropNamespace(slot);
}
Task<Status> BlockStore::ReportBad(std::uint32_t slot, std::span<const BlockName> blocks) {
  return impl_->ReportBad(slot, blocks);
}
Task<void> BlockStore::SessionEnded(const Caller& caller, bool last_of_owner) {
  return impl_->SessionEnded(caller, last_of_owner);
}
bool BlockStore::Tick() { return impl_->Tick(); }
BlockStore::Occupancy BlockStore::occupancy() const { return impl_->occupancy(); }
const StoreCounters& BlockStore::counters() const { return impl_->counters(); }
std::uint32_t BlockStore::TakeLongestStep() { return impl_->TakeLongestStep(); }

}  // namespace cistern
