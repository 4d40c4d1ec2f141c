// SPDX-License-Identifier: Apache-2.0
// What DRAM an index of blocks that lie on flash takes, everything counted: ten million of them, in chains of
// eight, and the resident memory of this process before and after. And what finding them costs.
#include <cstring>
#include <fstream>
#include <string>

#include "base/format.h"
#include "catalog/forest.h"
#include "measure.h"

namespace cistern {
namespace {

constexpr std::uint64_t kIndexBlocks = 10'000'000;
constexpr std::uint64_t kChainBlocks = 8;
constexpr std::uint64_t kFinds = 2'000'000;
constexpr double kMostBytes = 64;  // a block, of DESIGN.md

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

void Fill(catalog::Forest& forest, catalog::TreeId tree) {
  catalog::BlockId parent = catalog::kNoId;
  for (std::uint64_t n = 0; n < kIndexBlocks; ++n) {
    const bool first = n % kChainBlocks == 0;
    const catalog::BlockId block =
        forest.Add(tree, catalog::KeyHashOf(tree, Key(n)), first ? forest.tree(tree)->root : parent);
    const catalog::RecordId record = forest.AddRecord(block, 0);
    catalog::Record& r = forest.record(record);
    r.location = {.high = static_cast<std::uint32_t>(n >> 16), .low = static_cast<std::uint32_t>(n & 0xffff)};
    r.body_bytes = 65536;
    CISTERN_ASSERT(forest.Fold(record));
    parent = block;
  }
}

}  // namespace

Status BenchIndex(BenchOptions& options) {
  options.progress(Text("an index of ", kIndexBlocks, " blocks on flash"));
  const std::uint64_t before = ResidentBytes();
  catalog::Forest forest(static_cast<std::uint32_t>(kIndexBlocks + 1),
                         arena::Geometry{.alignment = 4096, .header_count = 1});
  const catalog::TreeId tree = forest.AddTree(0, 1);
  Fill(forest, tree);
  const double bytes = static_cast<double>(ResidentBytes() - before) / static_cast<double>(kIndexBlocks);
  options.row({.name = Text("index_", kIndexBlocks, "_bytes_a_block"),
               .value = bytes,
               .unit = "B",
               .limit = "the most that is promised",
               .limit_value = kMostBytes,
               .ratio = bytes / kMostBytes});
  Stopwatch watch;
  Random random(1);
  for (std::uint64_t i = 0; i < kFinds; ++i) {
    const std::uint64_t n = random.Below(kIndexBlocks);
    const catalog::BlockId found = forest.Find(tree, Key(n));
    if (found == catalog::kNoId || forest.block(found).location_low != (n & 0xffff))
      return Status(Code::kMiss, Text("block ", n, " of the index was not found where it is"));
  }
  options.row({.name = Text("index_", kIndexBlocks, "_find"),
               .value = static_cast<double>(watch.Ns()) / static_cast<double>(kFinds),
               .unit = "ns"});
  return Status();
}

}  // namespace cistern
