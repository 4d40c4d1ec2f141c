// SPDX-License-Identifier: Apache-2.0
// The walk of the index for a prompt of 1,000 blocks, with the samples of 7 other members, each of 1e7 blocks
// of 16 tokens: what a match pays when nobody knows the prompt, and when one member does.
#include <benchmark/benchmark.h>

#include <array>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "mesh/sample_index.h"

namespace cistern::mesh {
namespace {

constexpr std::uint64_t kSamplesOfMember = 10'000'000 / 16;
constexpr MemberNumber kOthers = 7;
constexpr std::size_t kBlocks = 1'000, kPrompts = 500;

std::vector<BlockKey> ChainOf(std::uint64_t number) {
  std::vector<BlockKey> chain(kBlocks);
  for (std::size_t i = 0; i < kBlocks; ++i) {
    chain[i].length = 32;
    const std::array<std::uint64_t, 2> words = {SplitMix(number), SplitMix(i)};
    std::memcpy(chain[i].bytes.data(), words.data(), sizeof(words));
  }
  return chain;
}

struct Filled {
  Filled() {
    const SampleGrid grid(16);
    for (std::uint64_t number = 0; number < kPrompts; ++number) {
      chains.push_back(ChainOf(number));
      if (number % 2 != 0) continue;
      for (std::size_t depth = 0; depth < kBlocks; ++depth) {
        if (!grid.Sampled(depth)) continue;
        index.Add(static_cast<MemberNumber>(number % kOthers),
                  {SampleHash(1, chains.back()[depth].Hash()), grid.NumberOf(depth)});
      }
    }
    for (std::uint64_t n = 0; n < kSamplesOfMember * kOthers; ++n)
      index.Add(static_cast<MemberNumber>(n % kOthers), {SplitMix(n), 1});
  }
  SampleIndex index{{256u << 20, 1u << 16}};
  std::vector<std::vector<BlockKey>> chains;  // every second one is known
};

Filled& TheIndex() {
  static Filled filled;
  return filled;
}

void Walk(benchmark::State& state, bool known) {
  Filled& filled = TheIndex();
  std::size_t at = known ? 0 : 1, blocks = 0;
  for (auto _ : state) {
    blocks += filled.index.Find(1, filled.chains[at], 0, 16, MemberSet().set()).blocks;
    at = (at + 2) % kPrompts;
  }
  benchmark::DoNotOptimize(blocks);
  state.counters["entries"] = static_cast<double>(filled.index.entries());
  state.counters["MiB"] = static_cast<double>(filled.index.bytes()) / (1 << 20);
}

void BM_WalkUnknown(benchmark::State& state) { Walk(state, false); }
void BM_WalkKnown(benchmark::State& state) { Walk(state, true); }
BENCHMARK(BM_WalkUnknown);
BENCHMARK(BM_WalkKnown);

// What a snapshot of one member costs its receiver beside the way.
void BM_AddAndRemove(benchmark::State& state) {
  Filled& filled = TheIndex();
  std::uint64_t n = 1ull << 40;
  for (auto _ : state) {
    filled.index.Add(9, {SplitMix(++n), 1});
    filled.index.Remove(9, SplitMix(n - 1000));
  }
}
BENCHMARK(BM_AddAndRemove);

}  // namespace
}  // namespace cistern::mesh

BENCHMARK_MAIN();
