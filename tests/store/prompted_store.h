// SPDX-License-Identifier: Apache-2.0
// A store that is asked as an engine asks: prompts are matched, what is found is read, the rest is put.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "store/block_store_fixture.h"
#include "tier/simulated_tier.h"

namespace cistern {

// A node with so many blocks of memory over a lower tier that holds everything.
class PromptedStore : public store::BlockStoreTest {
 protected:
  static constexpr std::size_t kBytes = 512;

  void Begin(std::uint64_t blocks, Promotion promote, std::uint64_t read_ahead_bytes = 0) {
    store::TestStoreOptions options;
    options.headers = 4;
    options.alignment = 512;
    options.store.max_blocks = blocks;
    options.store.max_lower_blocks = 1u << 17;
    options.store.read_ahead_bytes = read_ahead_bytes;
    options.store.lower.promote = promote;
    options.store.eviction = EvictionPolicy::kReuse;
    options.store.eviction_time_ms = [this] { return NowMs(); };
    options.tier = [this](store::TestStore& store, const tier::JournalView& journal) {
      return Open(store.loop->executor(), journal);
    };
    Make(options);
  }
  Task<Result<std::unique_ptr<tier::Tier>>> Open(Executor& on, tier::JournalView journal) {
    below_.suffers = [this](tier::TierFault fault, const tier::Location&) {
      return suffers_ && suffers_(fault);
    };
    auto tier =
        std::make_unique<tier::SimulatedTier>(tier::SimulatedTier::Parts{on, *media_, 1}, below_, journal);
    tier_ = tier.get();
    co_return tier;
  }
  std::vector<MatchRun> Runs(const std::vector<std::uint64_t>& chain) {
    std::vector<BlockKey> keys;
    for (const std::uint64_t n : chain) keys.push_back(store::Key(n));
    auto runs = t->Run(t->store->MatchRest(ns.slot, 0, keys));
    EXPECT_TRUE(runs.has_value());
    return *runs;
  }
  // A match as a client tells it: the chain's blocks, the first of them that memory does not have, and the
  // first that is new.
  void Name(const std::vector<std::uint64_t>& chain, std::size_t in_memory, std::size_t known, bool partial,
            const PromptHints& hints) {
    store::MatchedPrompt prompt{
        .first_new = known, .first_asked = in_memory, .matched = known, .hints = hints, .partial = partial};
    for (const std::uint64_t n : chain) prompt.keys.push_back(store::Key(n));
    t->store->NotePrompt(ns.slot, std::move(prompt));
  }
  void Read(std::uint64_t n) { ReadLeased(n, kBytes); }
  static Task<void> Sleep(Executor&, Instant until) { co_await SleepUntil(until); }
  void SleepTo(Instant until) {
    t->Run(Sleep(t->loop->executor(), until));
    t->Tick();
  }
  void PassUs(std::int64_t us) { SleepTo(t->clock.Now().PlusUs(us)); }
  bool AllWritten() {
    const Counter& written = t->store->counters().written_down;
    for (int round = 0; written.value() < stored_ && round < 1'000; ++round) PassUs(10);
    return written.value() == stored_;
  }
  // The trace's time goes by, in which what is due is done. It stands still during a request, however long
  // that takes.
  void PassTo(std::uint64_t now_ms) {
    began_ = t->clock.Now();
    SleepTo(began_->PlusUs(static_cast<std::int64_t>(now_ms - now_ms_) * 1'000));
    began_.reset();
    now_ms_ = now_ms;
    const Counter& fetched = t->store->counters().fetched;
    for (std::uint64_t before = ~std::uint64_t{0}; std::exchange(before, fetched.value()) != before;)
      PassUs(2'000);
  }
  std::uint64_t NowMs() const {
    return now_ms_ + (began_ ? static_cast<std::uint64_t>(t->clock.Now().UsSince(*began_)) / 1'000 : 0);
  }
  // One request: its match, the reads of what lies below one after the other, its puts, its touches.
  void Ask(std::uint64_t now_ms, const std::vector<std::uint64_t>& chain, bool partial,
           const PromptHints& hints) {
    PassTo(now_ms);
    std::size_t known = 0, in_memory = 0;
    for (const MatchRun& run : Runs(chain)) {
      if (run.where == Where::kMemory && known == in_memory) in_memory += run.blocks;
      known += run.blocks;
      (run.where == Where::kMemory ? memory_hits_ : lower_hits_) += run.blocks;
    }
    Name(chain, in_memory, known, partial, hints);
    for (std::size_t i = 0; i < known; ++i) {
      if (!Here(chain[i])) Read(chain[i]);
    }
    for (std::size_t i = known; i < chain.size(); ++i) {
      ASSERT_EQ(Put(chain[i], i == 0 ? std::nullopt : std::optional(chain[i - 1]), kBytes),
                store::State::kPublished);
      bodies_.clear();
      ++stored_;
      ASSERT_TRUE(!writes_all_ || AllWritten());
    }
    std::vector<BlockKey> keys;
    for (std::size_t i = chain.size(); i-- > 0;) keys.push_back(store::Key(chain[i]));
    t->Run(t->store->Touch(ns.slot, keys));
  }

  void TearDown() override { t.reset(); }  // before its media

  std::optional<Instant> began_;
  std::uint64_t now_ms_ = 0, memory_hits_ = 0, lower_hits_ = 0, stored_ = 0;
  tier::SimulatedTierOptions below_{.rooms = 64, .room_bytes = 4u << 20, .least_us = 1, .most_us = 1};
  std::function<bool(tier::TierFault)> suffers_;  // beside below_.faults
  std::optional<tier::SimulatedMedia> media_;
  tier::SimulatedTier* tier_ = nullptr;
  bool writes_all_ = true;  // a block is written before the next is put
};

}  // namespace cistern
