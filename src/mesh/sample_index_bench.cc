// SPDX-License-Identifier: Apache-2.0
// The walk of the index for a prompt of 1,000 blocks, with the samples of 7 other members, each of 1e7 blocks
// of 16 tokens: what a match pays when nobody knows the prompt, and when one member does.
#include <array>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <memory>
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

// Of the processor: what a core spends, on a host that does other things too.
double SecondsSince(std::clock_t began) { return static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC; }

// A walk in microseconds.
double WalkUs(const Filled& filled, bool known, std::size_t* blocks) {
  constexpr int kRounds = 200;
  const std::clock_t began = std::clock();
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t at = known ? 0 : 1; at < kPrompts; at += 2)
      *blocks += filled.index.Find(1, filled.chains[at], 0, 16, MemberSet().set()).blocks;
  }
  return SecondsSince(began) * 1e6 / (kRounds * kPrompts / 2);
}

int Run() {
  const std::clock_t began = std::clock();
  const auto filled = std::make_unique<Filled>();
  const double filled_s = SecondsSince(began);
  std::size_t blocks = 0;
  const double unknown_us = WalkUs(*filled, false, &blocks);
  const double known_us = WalkUs(*filled, true, &blocks);
  std::printf("entries               %12llu\n", static_cast<unsigned long long>(filled->index.entries()));
  std::printf("MiB                   %12.1f\n", static_cast<double>(filled->index.bytes()) / (1 << 20));
  std::printf("s to add one member's %12.3f\n", filled_s / kOthers);
  std::printf("us a walk, unknown    %12.3f\n", unknown_us);
  std::printf("us a walk, known      %12.3f\n", known_us);
  return blocks > 0 ? 0 : 1;
}

}  // namespace
}  // namespace cistern::mesh

int main() { return cistern::mesh::Run(); }
