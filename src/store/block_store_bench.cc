// SPDX-License-Identifier: Apache-2.0
// What the core's own work costs, beside the copy: puts, puts that evict, touches, holds, a drop of
// everything, and recovery of a million blocks.
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "base/random.h"
#include "store/test_store.h"

namespace cistern::store {
namespace {

BlockKey Key(std::uint64_t n) {
  BlockKey key;
  key.length = 16;
  const std::uint64_t words[] = {SplitMix(n), SplitMix(~n)};
  std::memcpy(key.bytes.data(), words, 16);
  return key;
}

// Of this thread's processor time: what others do with the machine meanwhile does not count.
double Now() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}
double Seconds(double from) { return Now() - from; }

std::uint64_t now_ms = 0;  // by which the order tells ages

// Chains of 1,000 blocks, whose prompts a match named before, or not. How many are there then.
std::uint64_t Put(TestStore& t, std::uint32_t slot, std::uint64_t first, std::uint64_t count,
                  std::size_t bytes, bool named = false) {
  const std::vector<std::byte> body(bytes);
  std::uint64_t put = 0;
  for (std::uint64_t n = first; n < first + count; n += 16) {
    const std::uint64_t chain = (n + 15) / 1000 * 1000, chain_end = (n + 16) / 1000 * 1000 + 1000;
    if (named && chain >= n) {
      now_ms += 1'000;
      MatchedPrompt prompt;
      for (std::uint64_t i = chain; i < chain + 1000; ++i) prompt.keys.push_back(Key(i));
      t.store->NotePrompt(slot, std::move(prompt));
    }
    std::vector<PartWrite> parts;
    for (std::uint64_t i = n; i < n + 16 && i < first + count; ++i) {
      PartWrite& part = parts.emplace_back();
      part.key = Key(i);
      if (i % 1000 != 0) part.parent = Key(i - 1);
      part.put_id = {1, i};
      part.from = body;
    }
    const auto outcomes = t.Run(t.store->Write({1, {}}, slot, std::move(parts), Instant::Never()));
    for (const PartOutcome& outcome : outcomes) {
      const bool there = outcome.state == PartOutcome::State::kPublished;
      CISTERN_ASSERT(there || named);
      put += there;
    }
    // `reuse` keeps such a block out, and then the rest of its chain is not put.
    if (outcomes.back().state != PartOutcome::State::kPublished) n = chain_end - 16;
  }
  return put;
}

std::uint32_t Attach(TestStore& t) {
  NamespaceSpec spec;
  spec.name = "bench";
  spec.groups = {{.name = "full"}};
  return t.Run(t.store->Attach(spec))->slot;
}

void AcquireAmong(TestStore& t, std::uint32_t slot, std::span<const BlockKey> keys) {
  constexpr int kCalls = 20'000;
  Random random(7);
  std::vector<catalog::BlockName> names(64);
  double acquiring = 0, releasing = 0;
  for (int call = 0; call < kCalls; ++call) {
    for (catalog::BlockName& name : names) name = {keys[random.Below(keys.size())], 0};
    auto from = Now();
    const auto grant = t.Run(t.store->Acquire({1, {}}, slot, names, 1'000'000, Instant::Never()));
    acquiring += Seconds(from);
    from = Now();
    CISTERN_ASSERT(t.store->Release({1, {}}, grant->lease).ok());
    for (; t.store->occupancy().leased_blocks > 0; t.loop->PollOnce()) {
      t.loop->executor().Post([] {});
      t.store->Tick();
    }
    releasing += Seconds(from);
  }
  std::printf("views of 64 among %zu: %.1f us, their release %.1f us\n", keys.size(),
              acquiring / kCalls * 1e6, releasing / kCalls * 1e6);
}

// What a match that asks the core pays for it.
void NamePrompts(TestStore& t, std::uint32_t slot, std::span<const BlockKey> keys) {
  constexpr std::size_t kPrompts = 200, kRounds = 50, kBlocks = 500;
  Random random(9);
  double naming = 0;
  for (std::size_t round = 0; round < kRounds; ++round) {
    std::vector<MatchedPrompt> prompts(kPrompts);
    for (MatchedPrompt& prompt : prompts) {
      const std::span<const BlockKey> chain = keys.subspan(random.Below(keys.size() - kBlocks), kBlocks);
      prompt.keys.assign(chain.begin(), chain.end());
    }
    const auto from = Now();
    for (MatchedPrompt& prompt : prompts) t.store->NotePrompt(slot, std::move(prompt));
    naming += Seconds(from);
  }
  std::printf("naming a prompt of %zu blocks: %.0f ns\n", kBlocks, naming / (kRounds * kPrompts) * 1e9);
}

int Main(std::uint64_t blocks, EvictionPolicy eviction) {
  {
    TestStore t(
        {.headers = 32,
         .alignment = 512,
         .store = {.max_blocks = 200'000, .eviction = eviction, .eviction_time_ms = [] { return now_ms; }}});
    const std::uint32_t slot = Attach(t);
    Put(t, slot, 0, 400'000, 64);
    auto from = Now();
    Put(t, slot, 1'000'000, 400'000, 64);
    std::printf("put of 64 bytes, 16 a batch, each evicts: %.0f ns\n", Seconds(from) / 400'000 * 1e9);
    std::vector<BlockKey> keys;
    for (std::uint64_t i = 1'200'000; i < 1'400'000; ++i) keys.push_back(Key(i));
    from = Now();
    t.Run(t.store->Touch(slot, keys));
    std::printf("touch by key: %.0f ns\n", Seconds(from) / 200'000 * 1e9);
    NamePrompts(t, slot, keys);
    for (const std::size_t among : {4096u, 200'000u}) AcquireAmong(t, slot, std::span(keys).first(among));
    (void)t.store->TakeLongestStep();
    from = Now();
    const std::uint64_t named = Put(t, slot, 1'400'000, 400'000, 64, true);
    std::printf("put of 64 bytes of prompts that were named: %.0f ns, %lu of them, longest step %u touches\n",
                Seconds(from) / static_cast<double>(named) * 1e9, static_cast<unsigned long>(named),
                t.store->TakeLongestStep());
    from = Now();
    t.Run(t.store->DropNamespace(slot));
    std::printf("drop of 200,000 blocks: %.0f ns a block, longest step %u touches\n",
                Seconds(from) / 200'000 * 1e9, t.store->TakeLongestStep());
  }
  const auto headers = static_cast<std::uint32_t>(blocks * 5120 / arena::kHeaderSpanBytes + 2);
  TestStore t({.headers = headers, .alignment = 512, .store = {.eviction = eviction}});
  std::uint32_t slot = Attach(t);
  auto from = Now();
  Put(t, slot, 0, blocks, 4096);
  std::printf("put of 4 KiB, 16 a batch, first touch of memory included: %.0f ns\n",
              Seconds(from) / blocks * 1e9);
  std::printf("%lu records, %lu evicted\n", static_cast<unsigned long>(t.store->occupancy().records),
              static_cast<unsigned long>(t.store->counters().evicted.value()));
  for (int i = 0; i < 3; ++i) {
    t.Stop();
    from = Now();
    t.Start();
    std::printf("recovery of %lu blocks of 4 KiB: %.3f s\n",
                static_cast<unsigned long>(t.store->occupancy().records), Seconds(from));
  }
  slot = Attach(t);
  from = Now();
  const BlockKey key = Key(blocks - 500);
  t.Run(t.store->Drop(slot, std::span(&key, 1)));
  std::printf("drop of 500 of %lu: %.0f us\n", static_cast<unsigned long>(blocks), Seconds(from) * 1e6);
  return 0;
}

}  // namespace
}  // namespace cistern::store

// Blocks, and `lru` or `reuse`.
int main(int argc, char** argv) {
  const auto eviction = cistern::ParseEvictionPolicy(argc > 2 ? argv[2] : "reuse");
  if (!eviction) return 2;
  return cistern::store::Main(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1'000'000, *eviction);
}
