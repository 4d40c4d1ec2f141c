// SPDX-License-Identifier: Apache-2.0
// In the background, at a rate that nobody notices: every record is read again, wherever it lies, and what
// fails its seal goes before somebody asks for it.
#include <algorithm>

#include "store/impl.h"
#include "store/lower_bytes.h"

namespace cistern {

namespace {
// What may be saved up while nothing is looked at.
constexpr std::int64_t kMostSavedUs = 1'000'000;
}  // namespace

void BlockStore::Impl::StartScrub() {
  if (options_.scrub_bytes_per_s == 0 || scrubbing_ || lower_.closed()) return;
  const Instant now = clock_.Now();
  const std::int64_t us = std::min(now.UsSince(scrubbed_at_.value_or(now)), kMostSavedUs);
  scrubbed_at_ = now;
  scrub_bytes_ += static_cast<std::int64_t>(options_.scrub_bytes_per_s) * us / 1'000'000;
  scrub_bytes_ = std::min(scrub_bytes_, static_cast<std::int64_t>(options_.scrub_bytes_per_s));
  if (scrub_bytes_ <= 0 || tree_.blocks() == 0) return;
  scrubbing_ = true;
  lower_.Spawn(Scrub());
}

// From block to block by their ids; each round begins anew.
Task<void> BlockStore::Impl::Scrub() {
  co_await Yield();
  const BlockId begun = scrub_at_;
  for (bool first = true; scrub_bytes_ > 0 && !lower_.closed() && (first || scrub_at_ != begun);
       first = false) {
    if (Spent()) co_await Yield();
    Count();
    if (scrub_at_ >= tree_.block_end()) {
      scrub_at_ = 0;
      counters_.scrub_rounds.Add();
      if (begun == 0) break;
      continue;
    }
    const BlockId block = scrub_at_++;
    if (!tree_.block(block).has_key() || tree_.block(block).is(Block::kCut) || tree_.block(block).ghost())
      continue;
    const Tag tag = tree_.block(block).tag();
    for (std::uint16_t group = 0; group < kMaxGroups; ++group) {
      // Its id may be another's after each of them.
      if (block >= tree_.block_end() || tree_.block(block).tag() != tag) break;
      const auto copy = tree_.See(block, group);
      Count();
      if (!copy || fetching_.contains(copy->record)) continue;
      scrub_bytes_ -= copy->body_bytes;
      counters_.scrubbed_bytes.Add(copy->body_bytes);
      if (!copy->in_memory) {
        co_await ScrubBelow(block, *copy);
      } else if (tree_.record(copy->record).holds == 0) {
        const Held held = HeldOf(copy->record);
        AddHold(copy->record);
        co_await Verify(held);
        DropHold(held);
      }
    }
  }
  scrubbing_ = false;
}

Task<void> BlockStore::Impl::ScrubBelow(BlockId block, Tree::Copy copy) {
  const RealmId realm = tree_.block(block).realm;
  const std::uint64_t bytes = RecordBytesOf(realm, copy.group, copy.body_bytes);
  if (bytes == 0) co_return;
  const AlignedBytes buffer(bytes);
  auto fetched = co_await tier_->Fetch(copy.flash, buffer.span());
  bool sound = false;
  if (fetched && fetched->seal.body_bytes() == copy.body_bytes) {
    BodyCheck check(movers_, buffer.span().data(), fetched->seal);
    co_await check;
    sound = check.sound();
  }
  if (sound) co_return;
  if (fetched) tier_->ReportBad(copy.flash);
  // It may be another's by now, or have been moved.
  if (block >= tree_.block_end() || tree_.block(block).is(Block::kCut)) co_return;
  const auto now = tree_.See(block, copy.group);
  if (!now || now->flash != copy.flash || now->in_memory) co_return;
  counters_.cut_bad.Add();
  log_.Log(LogLevel::kWarning, "flash region ", copy.flash.region, ", unit ", copy.flash.unit,
           ": the scrubber found a record that fails its seal; it goes with what descends from it");
  Cut(block, Reason::kBad);
}

}  // namespace cistern
