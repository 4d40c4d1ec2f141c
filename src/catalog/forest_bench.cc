// SPDX-License-Identifier: Apache-2.0
// What DRAM an index of blocks that lie on flash takes, everything counted: ten million of them, in chains of
// eight, and the resident memory of this process before and after. And what finding them costs.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "base/random.h"
#include "catalog/forest.h"

namespace cistern::catalog {
namespace {

constexpr std::uint64_t kChainBlocks = 8;

BlockKey Key(std::uint64_t n) {
  BlockKey key;
  key.length = 32;
  const std::uint64_t words[] = {SplitMix(n), SplitMix(~n), n, n};
  std::memcpy(key.bytes.data(), words, 32);
  return key;
}

std::uint64_t ResidentBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::uint64_t kib = 0;
    if (word == "VmRSS:" && status >> kib) return kib << 10;
  }
  return 0;
}

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int Main(int argc, char** argv) {
  const std::uint64_t blocks = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 10'000'000;
  if (blocks < kChainBlocks || blocks > 1'000'000'000) {
    std::fprintf(stderr, "index_bench: blocks: is %s and has to be from 8 to 1000000000\n", argv[1]);
    return 2;
  }
  const std::uint64_t before = ResidentBytes();
  Forest forest(static_cast<std::uint32_t>(blocks + 1),
                arena::Geometry{.alignment = 4096, .header_count = 1});
  const TreeId tree = forest.AddTree(0, 1);
  BlockId parent = kNoId;
  double began = Now();
  for (std::uint64_t n = 0; n < blocks; ++n) {
    const BlockId block =
        forest.Add(tree, KeyHashOf(tree, Key(n)), n % kChainBlocks == 0 ? forest.tree(tree)->root : parent);
    const RecordId record = forest.AddRecord(block, 0);
    Record& r = forest.record(record);
    r.location = {.high = static_cast<std::uint32_t>(n >> 16), .low = static_cast<std::uint32_t>(n & 0xffff)};
    r.body_bytes = 65536;
    if (!forest.Fold(record)) std::abort();
    parent = block;
  }
  const double filled = Now() - began;
  const auto bytes = static_cast<double>(ResidentBytes() - before);
  const auto table = static_cast<double>(forest.table_bytes());
  const auto count = static_cast<double>(blocks);
  std::printf("bytes a block: %.2f resident, of which %zu for the block and %.2f for the table\n",
              bytes / count, sizeof(Block), table / count);
  began = Now();
  Random random(1);
  constexpr std::uint64_t kFinds = 2'000'000;
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < kFinds; ++i) {
    const std::uint64_t n = random.Below(blocks);
    const BlockId found = forest.Find(tree, Key(n));
    wrong += found == kNoId || forest.block(found).location_low != (n & 0xffff);
  }
  std::printf("ns a block: %.0f to add and fold, %.0f to find; %llu found wrong\n", filled / count * 1e9,
              (Now() - began) / static_cast<double>(kFinds) * 1e9, static_cast<unsigned long long>(wrong));
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace cistern::catalog

int main(int argc, char** argv) { return cistern::catalog::Main(argc, argv); }
