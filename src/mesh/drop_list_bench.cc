// SPDX-License-Identifier: Apache-2.0
// The rule for each block of a chain of 10,000, as a reader asks it while they land one after the other:
// where their source has applied all drops that are listed, and where it lacks one.
#include <array>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <vector>

#include "base/random.h"
#include "mesh/drop_list.h"

namespace cistern::mesh {
namespace {

constexpr std::size_t kBlocks = 10'000;
constexpr std::size_t kStep = 512;

BlockKey KeyOf(std::uint64_t number) {
  BlockKey key;
  key.length = 32;
  const std::array<std::uint64_t, 2> words = {SplitMix(number), number};
  std::memcpy(key.bytes.data(), words.data(), sizeof(words));
  return key;
}

// Milliseconds of the processor for all blocks.
double RuleMs(const DropList& list, const std::vector<BlockKey>& chain, std::int64_t a, std::size_t* looked) {
  const SharedNamespace name{.tenant = "default"};
  const std::clock_t began = std::clock();
  for (std::size_t block = 0; block < kBlocks; ++block) {
    ChainCheck check(list, name, std::span(chain).first(block + 1), a);
    while (!check.Step(kStep)) continue;
    *looked += check.looked() + (check.verdict() == Verdict::kTake ? 0 : 1);
  }
  return static_cast<double>(std::clock() - began) * 1e3 / CLOCKS_PER_SEC;
}

int Run() {
  std::vector<BlockKey> chain;
  for (std::size_t i = 0; i < kBlocks; ++i) chain.push_back(KeyOf(i));
  DropList list(1);
  list.Add(1, {.what = CellDrop::What::kKeys, .name = {.tenant = "default"}, .keys = {KeyOf(1u << 30)}});
  std::size_t looked_all = 0, looked_but_one = 0;
  const double all_ms = RuleMs(list, chain, 1, &looked_all);
  const double but_one_ms = RuleMs(list, chain, 0, &looked_but_one);
  std::printf("ms, all drops applied   %10.2f, %zu names looked at\n", all_ms, looked_all);
  std::printf("ms, all drops but one   %10.2f, %zu names looked at\n", but_one_ms, looked_but_one);
  return 0;
}

}  // namespace
}  // namespace cistern::mesh

int main() { return cistern::mesh::Run(); }
