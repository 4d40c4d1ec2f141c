// SPDX-License-Identifier: Apache-2.0
// What the reader costs on top of the copy: 64 KiB blocks read in random order, checked, against the verified
// copy of the same bytes alone and against memcpy, interleaved; and 1,000 keys looked up among a million.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "arena/match.h"
#include "arena/protocol.h"
#include "arena/reader.h"
#include "arena/test_arena.h"

namespace cistern::arena {
namespace {

using Clock = std::chrono::steady_clock;

double UsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double Median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

std::byte* Map(std::uint64_t bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  CISTERN_ASSERT(at != MAP_FAILED);
  return static_cast<std::byte*>(at);
}

void Reads() {
  constexpr std::uint32_t kBytes = 64 << 10, kBlocks = 8000;
  RealWords words;
  Geometry geometry{4096, 18};
  ArenaSpace arena(Map(geometry.file_bytes()), geometry);
  IndexSpace index(Map(geometry.index_bytes()), geometry.bucket_count());
  IndexWriter<RealWords> writer(words, index);
  SetIncarnation(words, index, 0, kTestIncarnation);
  std::vector<BlockKey> keys;
  std::vector<Place> places;
  std::vector<std::byte> body = BodyOf(kBytes, 1);
  std::uint64_t slot_bytes = kBytes + 4096;
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    std::uint32_t a_chunk = static_cast<std::uint32_t>(kHeaderSpanBytes / slot_bytes);
    if (i % a_chunk == 0) Carve(words, arena, i / a_chunk, 1, slot_bytes);
    Place place = geometry.place(i / a_chunk * kHeaderSpanBytes + i % a_chunk * slot_bytes);
    keys.push_back(TestKey(i));
    places.push_back(place);
    std::uint64_t generation = BeginFill(words, arena, place);
    std::span<const std::byte> pieces[] = {body};
    std::uint32_t crcs[1], parts[] = {kBytes};
    RunFill(words, {arena.slot(place), pieces, crcs});
    NewRecord record;
    record.seal = {
        .incarnation = kTestIncarnation, .key = keys[i], .part_bytes = parts, .segment_crcs = crcs};
    Publish(words, arena, place, generation, record);
    CISTERN_ASSERT(
        writer.Insert(FingerprintOf(kTestIncarnation, 0, keys[i]),
                      {place, kBytes, 0, static_cast<std::uint32_t>(generation) & kGenerationLowMask}));
  }
  Reader<RealWords> reader(words, arena, index);
  auto record = std::make_unique<OpenRecord>();
  // Each way has its own destination: streaming stores into lines that memcpy left in the cache cost 1.5 us
  // more.
  std::byte* destinations = Map(4 * kBytes);
  std::mt19937 random(1);
  std::vector<double> get, open, copy, memory;
  for (int i = 0; i < 40'000; ++i) {
    std::uint32_t which = random() % kBlocks;
    std::byte* to = destinations + i % 4 * kBytes;
    std::span<std::byte> pieces[] = {{to, kBytes}};
    RangeCopy ranges[] = {{{0, 0, kBytes}, pieces}};
    auto start = Clock::now();
    switch (i % 4) {
      case 0:
        CISTERN_ASSERT(reader.Read(reader.Begin(0, 0), {keys[which]}, nullptr, ranges, *record) ==
                       ReadOutcome::kHit);
        get.push_back(UsSince(start));
        break;
      case 1:
        CISTERN_ASSERT(reader.Open(reader.Begin(0, 0), {keys[which]}, nullptr, *record) == ReadOutcome::kHit);
        open.push_back(UsSince(start));
        break;
      case 2:
        words.CopyOut(to, arena.slot(places[which]), kBytes, 0, 0);
        words.StoreFence();
        copy.push_back(UsSince(start));
        break;
      case 3:
        std::memcpy(to, arena.slot(places[which]), kBytes);
        memory.push_back(UsSince(start));
        break;
    }
  }
  std::printf(
      "get 64 KiB, checked, cold: %.2f us; verified copy alone: %.2f us; memcpy: %.2f us; all but the copy: "
      "%.2f us\n",
      Median(get), Median(copy), Median(memory), Median(open));
}

void Lookups() {
  constexpr std::uint64_t kKeys = 1'000'000;
  RealWords words;
  Geometry geometry{4096, 256};
  IndexSpace index(Map(geometry.index_bytes()), geometry.bucket_count());
  IndexWriter<RealWords> writer(words, index);
  std::vector<BlockKey> keys(kKeys);
  std::mt19937_64 random(1);
  for (std::uint64_t i = 0; i < kKeys; ++i) {
    keys[i].length = 16;
    for (int word = 0; word < 2; ++word) {
      std::uint64_t bits = random();
      std::memcpy(keys[i].bytes.data() + 8 * word, &bits, 8);
    }
    CISTERN_ASSERT(writer.Insert(FingerprintOf(1, 0, keys[i]), {static_cast<Place>(i), 1, 0, 0}));
  }
  std::vector<double> run, fingerprints, half;
  std::vector<Found> found(1000);
  std::vector<Fingerprint> out(1000);
  std::vector<BlockKey> chain(1000);
  for (int i = 0; i < 2000; ++i) {
    std::uint64_t first = random() % (kKeys - 1000);
    std::copy_n(keys.begin() + static_cast<std::ptrdiff_t>(first), 1000, chain.begin());
    auto start = Clock::now();
    switch (i % 3) {
      case 0:
        CISTERN_ASSERT(LongestRun(words, index, 1, 0, chain, 0, found) == 1000);
        run.push_back(UsSince(start));
        break;
      case 1:
        FingerprintsOf(1, 0, chain, out);
        fingerprints.push_back(UsSince(start));
        break;
      case 2:
        for (std::size_t k = 500; k < 1000; ++k) chain[k].bytes[0] ^= 1;
        start = Clock::now();
        CISTERN_ASSERT(LongestRun(words, index, 1, 0, chain, 0, found) == 500);
        half.push_back(UsSince(start));
        break;
    }
  }
  std::printf(
      "1,000 keys among %lu (index %lu MiB): %.1f us; of it fingerprints: %.1f us; the last 500 absent: %.1f "
      "us\n",
      kKeys, geometry.index_bytes() >> 20, Median(run), Median(fingerprints), Median(half));
}

}  // namespace
}  // namespace cistern::arena

int main() {
  cistern::arena::Reads();
  cistern::arena::Lookups();
}
