// SPDX-License-Identifier: Apache-2.0
// A million blocks dropped by one call while another thread reads them: no core step over its counted work,
// every read exact or a miss, and nothing once the drop is acknowledged.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/random.h"
#include "store/test_store.h"

namespace cistern {
namespace {

constexpr std::uint64_t kChains = 1000;
constexpr std::uint64_t kChainBlocks = 1000;
constexpr std::size_t kBytes = 64;

BlockKey KeyAt(std::uint64_t chain, std::uint64_t depth) {
  BlockKey key;
  key.length = 16;
  const std::uint64_t words[2] = {chain * kChainBlocks + depth + 1, 0x9e3779b97f4a7c15 * (chain + depth + 1)};
  std::memcpy(key.bytes.data(), words, sizeof(words));
  return key;
}

struct Target {
  store::TestStore store;
  std::uint32_t slot = 0;
  BlockKey root = KeyAt(kChains, 0);
  std::vector<std::byte> body = std::vector<std::byte>(kBytes, std::byte{0x5c});

  store::PartWrite Part(const BlockKey& key, const BlockKey& parent, std::uint64_t put) {
    store::PartWrite part;
    part.key = key;
    part.parent = parent;
    part.put_id = {1, put};
    part.from = body;
    return part;
  }
  void Write(std::vector<store::PartWrite> parts) {
    const std::size_t count = parts.size();
    const Instant deadline = store.clock.Now().PlusUs(60'000'000);
    const catalog::Caller caller{1, {}};
    std::vector<store::PartOutcome> outcomes =
        store.Run(store.store->Write(caller, slot, std::move(parts), deadline));
    ASSERT_EQ(outcomes.size(), count);
    for (const store::PartOutcome& outcome : outcomes) {
      ASSERT_EQ(outcome.state, store::PartOutcome::State::kPublished) << outcome.status.ToString();
    }
  }
  void Fill() {
    NamespaceSpec spec;
    spec.fields = {{"name", "large"}};
    spec.groups = {{.name = "all"}};
    slot = store.Run(store.store->Attach(spec))->slot;
    Write({Part(root, BlockKey(), 1)});
    for (std::uint64_t chain = 0; chain < kChains; ++chain) {
      std::vector<store::PartWrite> parts;
      for (std::uint64_t depth = 0; depth < kChainBlocks; ++depth) {
        const BlockKey parent = depth == 0 ? root : KeyAt(chain, depth - 1);
        parts.push_back(Part(KeyAt(chain, depth), parent, 2 + chain * kChainBlocks + depth));
      }
      Write(std::move(parts));
    }
  }
};

// Reads blocks all over, until told to stop.
struct ReaderThread {
  explicit ReaderThread(Target& target)
      : thread([this, &target] {
          Random random(1);
          while (!stop) {
            const std::uint64_t chain = random.Below(kChains), depth = random.Below(kChainBlocks);
            const bool was_dropped = dropped;
            const auto got = target.store.Read(target.slot, KeyAt(chain, depth));
            if (got && *got != target.body) wrong++;
            if (got && was_dropped) risen++;
            if (got) hits++;
            reads++;
          }
        }) {}
  ~ReaderThread() {
    stop = true;
    thread.join();
  }
  std::atomic<std::uint64_t> reads = 0, hits = 0, wrong = 0, risen = 0;
  std::atomic<bool> dropped = false, stop = false;
  std::thread thread;
};

TEST(LargeDrop, P5NoStepIsOverItsCountWhileAMillionBlocksGo) {
  Target target{.store = store::TestStore({.headers = 126, .alignment = 512})};
  target.Fill();
  ASSERT_EQ(target.store.store->occupancy().records, kChains * kChainBlocks + 1);
  ReaderThread reader(target);
  while (reader.hits < 1000) std::this_thread::yield();
  target.store.store->TakeLongestStep();
  Task<Result<std::uint64_t>> drop = target.store.store->Drop(target.slot, std::span(&target.root, 1));
  while (!drop.done()) target.store.loop->Turn();
  reader.dropped = true;
  const Result<std::uint64_t> count = drop.Take();
  ASSERT_TRUE(count.has_value()) << count.error().ToString();
  EXPECT_EQ(*count, kChains * kChainBlocks + 1);
  const std::uint64_t reads = reader.reads;
  while (reader.reads < reads + 10'000) std::this_thread::yield();
  target.store.Tick();
  EXPECT_LE(target.store.store->TakeLongestStep(), kStepTouches);
  EXPECT_EQ(reader.wrong, 0u);
  EXPECT_EQ(reader.risen, 0u);
  EXPECT_EQ(target.store.store->occupancy().records, 0u);
}

}  // namespace
}  // namespace cistern
