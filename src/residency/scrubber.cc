// SPDX-License-Identifier: Apache-2.0
#include "residency/scrubber.h"

#include <algorithm>

#include "base/format.h"
#include "residency/aligned_bytes.h"

namespace cistern::residency {

namespace {
// Longest idle time whose bytes may be spent at once.
constexpr std::int64_t kMostSavedUs = 1'000'000;
// Beyond what any host reads, and no sum of it overflows.
constexpr std::uint64_t kMostBytesPerS = INT64_MAX / kMostSavedUs;
}  // namespace

void Scrubber::Start() {
  if (context_.options.scrub_bytes_per_s == 0 || running_ == lower_.outs() || lower_.closed()) return;
  const Instant now = context_.clock.Now();
  const std::int64_t us = std::min(now.UsSince(counted_at_.value_or(now)), kMostSavedUs);
  counted_at_ = now;
  const auto per_s = static_cast<std::int64_t>(std::min(context_.options.scrub_bytes_per_s, kMostBytesPerS));
  bytes_ = std::min(bytes_ + per_s * us / 1'000'000, per_s);
  if (bytes_ <= 0 || context_.forest.blocks() == 0) return;
  running_ = lower_.outs();
  lower_.Spawn(Scrub());
}

// A round goes from block to block by their ids.
Task<void> Scrubber::Scrub() {
  const std::uint64_t outs = lower_.outs();
  co_await Yield();
  const catalog::BlockId begun = at_;
  const auto goes_on = [&] { return bytes_ > 0 && !lower_.closed() && outs == lower_.outs(); };
  for (bool first = true; goes_on() && (first || at_ != begun); first = false) {
    if (context_.steps.Spent()) co_await Yield();
    context_.steps.Count();
    if (at_ >= context_.forest.block_end()) {
      at_ = 0;
      context_.counters.scrub_rounds.Add();
      if (begun == 0) break;
      continue;
    }
    const catalog::BlockId block = at_++;
    if (!context_.forest.block(block).has_key() || context_.forest.block(block).is(catalog::Block::kCut) ||
        context_.forest.block(block).placeholder())
      continue;
    const catalog::KeyHash key_hash = context_.forest.block(block).key_hash();
    for (std::uint16_t group = 0; group < kMaxGroups; ++group) {
      // The id may be another block's after each group.
      if (block >= context_.forest.block_end() || context_.forest.block(block).key_hash() != key_hash) break;
      const auto copy = context_.forest.See(block, group);
      context_.steps.Count();
      if (!copy || (copy->record != catalog::kNoId && fetcher_.fetching(copy->record))) continue;
      if (copy->in_memory && context_.forest.record(copy->record).references == 0)
        co_await ScrubMemory(context_.catalog.HandleOf(copy->record), copy->body_bytes);
      if (block >= context_.forest.block_end() || context_.forest.block(block).key_hash() != key_hash) break;
      const auto left = context_.forest.See(block, group);
      if (left && !left->location.none()) co_await ScrubLower(block, *left);
    }
  }
  if (outs != lower_.outs()) co_return;  // another goes on from here
  // The round is over: the next one begins when there are bytes to spend again.
  bytes_ = std::min<std::int64_t>(bytes_, 0);
  running_.reset();
}

void Scrubber::NoteRead(std::uint32_t bytes) {
  bytes_ -= bytes;
  context_.counters.scrubbed_bytes.Add(bytes);
}

Task<void> Scrubber::ScrubMemory(catalog::RecordHandle handle, std::uint32_t body_bytes) {
  NoteRead(body_bytes);
  RecordReference reference(residents_, handle);
  co_await verifier_.Verify(handle);
  reference.Drop(Residents::Used::kNo);
}

Task<void> Scrubber::ScrubLower(catalog::BlockId block, catalog::Forest::Copy copy) {
  const catalog::TreeId tree = context_.forest.block(block).tree;
  const std::uint64_t bytes = context_.catalog.RecordBytesOf(tree, copy.group, copy.body_bytes);
  if (bytes == 0) co_return;
  NoteRead(copy.body_bytes);
  const AlignedBytes buffer(bytes);
  auto fetched = co_await lower_->FetchSome(copy.location, bytes, buffer.span(), 0, {});
  bool sound = false;
  if (fetched && fetched->seal.body_bytes() == copy.body_bytes) {
    memory::VerifyBodyTask check(context_.movers, buffer.span().data(), fetched->seal);
    co_await check;
    sound = check.sound();
  }
  if (sound || (!fetched && fetched.error().code() == Code::kBusy)) co_return;
  if (fetched) lower_->ReportBad(copy.location);
  // The id may be another block's by now, or the record may have moved.
  if (block >= context_.forest.block_end() || context_.forest.block(block).is(catalog::Block::kCut))
    co_return;
  const auto now = context_.forest.See(block, copy.group);
  if (!now || now->location != copy.location) co_return;
  // A device that left service is said to have, and its blocks are come by.
  if (!fetched && lower_.Gone(copy.location)) co_return;
  context_.log.Log(
      LogLevel::kWarning, lower_->Describe(copy.location), ": the scrubber ",
      fetched ? "found a record that fails its seal"
              : Text("could not read a record (", fetched.error().message(), ")"),
      now->in_memory ? "; it is written again from memory" : "; it goes with what descends from it");
  if (now->in_memory) {
    lower_records_.GiveUpCopy(block, *now, LowerRecords::Why::kLost);
    co_return;
  }
  const bool bad = fetched || fetched.error().code() == Code::kMiss;
  (bad ? context_.counters.cut_bad : context_.counters.lost_below).Add();
  owner_.Lose(block, LossReason::kBad);
}

}  // namespace cistern::residency
