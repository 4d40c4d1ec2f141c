// SPDX-License-Identifier: Apache-2.0
#include "server/ring.h"

#include <atomic>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/spin.h"

namespace cistern::server {
namespace {

std::uint64_t Load(const std::uint64_t& word) {
  return std::atomic_ref(const_cast<std::uint64_t&>(word)).load(std::memory_order_acquire);
}
void Store(std::uint64_t& word, std::uint64_t value) {
  std::atomic_ref(word).store(value, std::memory_order_release);
}

}  // namespace

NodeRing::Took NodeRing::Take(wire::Submission& entry) {
  std::uint64_t submitted = Load(memory_->submitted);
  if (submitted == taken_) return Took::kNothing;
  if (submitted - taken_ > wire::kRingEntries) return Took::kForged;
  if (in_flight_ >= wire::kRingEntries) return Took::kNothing;
  std::memcpy(&entry, &memory_->submissions[taken_ % wire::kRingEntries], sizeof(entry));
  // The copy is all that counts from here on: without this the compiler may look at the shared bytes again.
  asm volatile("" ::: "memory");
  taken_++;
  in_flight_++;
  Store(memory_->taken, taken_);
  return Took::kEntry;
}

bool NodeRing::HasSubmission() const { return Load(memory_->submitted) != taken_; }

bool NodeRing::TakeAnnounced() {
  const std::uint64_t now = Load(memory_->announced);
  return std::exchange(announced_, now) != now;
}

NodeRing::Put NodeRing::Complete(const wire::Completion& completion) {
  CISTERN_ASSERT(in_flight_ > 0);
  in_flight_--;
  std::uint64_t waiting = completed_ - Load(memory_->collected);
  if (waiting > wire::kRingEntries) return Put::kForged;
  if (waiting == wire::kRingEntries) return Put::kLost;
  std::memcpy(&memory_->completions[completed_ % wire::kRingEntries], &completion, sizeof(completion));
  completed_++;
  Store(memory_->completed, completed_);
  return Put::kDone;
}

bool NodeRing::ClientSleeps() const {
  FullFence();
  return Load(memory_->client_sleeps) != 0;
}

bool NodeRing::ClientLocks() const { return Load(memory_->locks) != 0; }

NodeRing::Counts NodeRing::Counted() const {
  const wire::SessionMemory& m = *memory_;
  return {.reads = {Load(m.reads.asked_blocks), Load(m.reads.indexed_blocks), Load(m.reads.read_blocks),
                    Load(m.reads.read_bytes)},
          .engine = {Load(m.engine.promised_tokens), Load(m.engine.delivered_tokens), Load(m.engine.saved_us),
                     Load(m.engine.spent_us)}};
}

bool NodeRing::HasTouches() const { return Load(memory_->touched) != touches_taken_; }

std::size_t NodeRing::TakeTouches(std::span<std::uint64_t> out, std::uint64_t& lost) {
  std::uint64_t touched = Load(memory_->touched);
  std::uint64_t ahead = touched - touches_taken_;
  if (ahead > wire::kTouchEntries) {
    lost += ahead - wire::kTouchEntries;
    touches_taken_ = touched - wire::kTouchEntries;
    ahead = wire::kTouchEntries;
  }
  std::size_t count = ahead < out.size() ? ahead : out.size();
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = Load(memory_->touches[(touches_taken_ + i) % wire::kTouchEntries]);
  }
  touches_taken_ += count;
  return count;
}

void NodeRing::SetCoreSleeps(bool sleeps) { Store(memory_->core_sleeps, sleeps ? 1 : 0); }

void NodeRing::SetEnded() { Store(memory_->ended, 1); }

void NodeRing::SetHasLower(bool has) { Store(memory_->has_lower, has ? 1 : 0); }
void NodeRing::SetTakesLast() { Store(memory_->takes_last, 1); }
void NodeRing::SetTakesHints() { Store(memory_->takes_hints, 1); }
void NodeRing::SetTakesChain(bool takes) { Store(memory_->takes_chain, takes ? 1 : 0); }
void NodeRing::SetEngineReads(bool on) {
  Store(memory_->engine_state, wire::kEngineKnown | (on ? 0 : wire::kEngineReadsOff));
}
void NodeRing::SetClocks(Instant monotonic, Instant boot) {
  memory_->monotonic_ns = monotonic.ns;
  memory_->boot_ns = boot.ns;
}
void NodeRing::SetTakesStagingBack() { Store(memory_->takes_staging_back, 1); }

}  // namespace cistern::server
