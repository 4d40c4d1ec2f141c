// SPDX-License-Identifier: Apache-2.0
// How much of the memory holds blocks when blocks of several sizes press into it, and what that hits: chains
// of blocks of 4 KiB to 1 MiB are asked for at random, what is missing is put. A working set that fits but
// for its chunks shows what classes of slots cost; one that does not fit shows whether eviction takes more
// than it needs.
#include <cstdio>
#include <cstdlib>

#include "base/random.h"
#include "store/test_store.h"

namespace cistern::store {
namespace {

constexpr std::uint64_t kChainBlocks = 8;

struct Space {
  std::uint64_t block_bytes;
  std::uint64_t chains;
};

BlockKey Key(std::uint64_t space, std::uint64_t chain, std::uint64_t block) {
  BlockKey key;
  key.length = 16;
  const std::uint64_t n = space << 40 | chain << 8 | block;
  const std::uint64_t words[] = {SplitMix(n), SplitMix(~n)};
  std::memcpy(key.bytes.data(), words, 16);
  return key;
}

struct Tally {
  std::uint64_t asked = 0, hits = 0, refused = 0, resident = 0, used = 0, samples = 0;
};

void Ask(TestStore& t, std::uint32_t slot, const Space& space, std::uint64_t number, Random& random,
         Tally& tally) {
  static const std::vector<std::byte> body(1u << 20);
  // Some chains are asked for more often than others.
  const std::uint64_t chain = random.Below(1 + random.Below(space.chains));
  std::vector<BlockKey> keys;
  for (std::uint64_t i = kChainBlocks; i-- > 0;) keys.push_back(Key(number, chain, i));
  std::uint64_t here = 0;
  arena::Reader<arena::RealWords> reader(t.words, t.arena, t.index);
  const arena::ReadCall call = reader.Begin(slot, 0);
  while (here < kChainBlocks && reader.Find(call, 0, keys[kChainBlocks - 1 - here])) ++here;
  tally.asked += kChainBlocks;
  tally.hits += here;
  std::vector<PartWrite> parts;
  for (std::uint64_t i = here; i < kChainBlocks; ++i) {
    PartWrite& part = parts.emplace_back();
    part.key = keys[kChainBlocks - 1 - i];
    if (i > 0) part.parent = keys[kChainBlocks - i];
    part.put_id = {1, i};
    part.from = std::span(body).first(space.block_bytes);
  }
  if (!parts.empty()) {
    for (const PartOutcome& outcome :
         t.Run(t.store->Write({1, {}}, slot, std::move(parts), Instant::Never()))) {
      tally.refused += !outcome.status.ok();
    }
  }
  t.Run(t.store->Touch(slot, keys));
}

void Press(const char* what, std::uint32_t headers, std::uint64_t requests, std::span<const Space> spaces) {
  TestStore t({.headers = headers});
  NamespaceSpec spec;
  spec.name = "bench";
  spec.groups = {{.name = "full"}};
  const std::uint32_t slot = t.Run(t.store->Attach(spec))->slot;
  Random random(7);
  Tally tally;
  for (std::uint64_t n = 0; n < requests; ++n) {
    const std::uint64_t space = random.Below(spaces.size());
    Tally warming;
    Ask(t, slot, spaces[space], space, random, n < requests / 2 ? warming : tally);
    if (n < requests / 2) continue;
    tally.resident += t.store->occupancy().bytes;
    tally.used += t.slots->counts().used_bytes;
    ++tally.samples;
  }
  std::uint64_t working_set = 0;
  for (const Space& space : spaces) working_set += space.block_bytes * space.chains * kChainBlocks;
  const double mib = 1 << 20, memory = static_cast<double>(t.geometry.slots_bytes());
  const auto mean = [&](std::uint64_t sum) {
    return static_cast<double>(sum) / static_cast<double>(tally.samples);
  };
  std::printf(
      "%-14s memory %.0f MiB, working set %.0f MiB: resident %.1f MiB (%.3f of the memory), slots in use "
      "%.3f, "
      "hits %.3f, evicted %lu, carvings %lu, refused %lu, longest step %u\n",
      what, memory / mib, static_cast<double>(working_set) / mib, mean(tally.resident) / mib,
      mean(tally.resident) / memory, mean(tally.used) / memory,
      static_cast<double>(tally.hits) / static_cast<double>(tally.asked),
      static_cast<unsigned long>(t.store->counters().evicted.value()),
      static_cast<unsigned long>(t.slots->counts().carvings), static_cast<unsigned long>(tally.refused),
      t.store->TakeLongestStep());
}

int Main(std::uint64_t requests) {
  constexpr std::uint64_t kKiB = 1024;
  // What tests/kill asks for, and the same weights in a memory of more chunks.
  const Space kill[] = {
      {4 * kKiB, 192}, {16 * kKiB, 96}, {64 * kKiB, 36}, {256 * kKiB, 24}, {1024 * kKiB, 24}};
  Press("kill loop", 7, requests, kill);
  const Space even[] = {{16 * kKiB, 4000}, {64 * kKiB, 1000}, {256 * kKiB, 250}, {1024 * kKiB, 62}};
  Press("even bytes", 24, 2 * requests, even);
  const Space large[] = {{4 * kKiB, 400}, {16 * kKiB, 200}, {256 * kKiB, 400}, {1024 * kKiB, 150}};
  Press("mostly large", 24, 2 * requests, large);
  return 0;
}

}  // namespace
}  // namespace cistern::store

int main(int argc, char** argv) {
  return cistern::store::Main(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 3'000);
}
