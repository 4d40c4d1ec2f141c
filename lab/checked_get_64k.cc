// SPDX-License-Identifier: Apache-2.0
// Tests: a checked get of a resident block (index, generations, seal, full key, one fetch with CRC32C of each
// 64 KiB) costs no more than libc's memcpy of the same blocks in the same order to the same destination.
#include <sys/wait.h>

#include <atomic>
#include <cstring>
#include <numeric>
#include <random>
#include <regex>
#include <span>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "crc32c_copy.h"
#include "lab.h"

namespace lab {
namespace {

constexpr std::string_view kHelp =
    "checked_get_64k: the checked get of a block in another process's shared memory against libc memcpy.\n"
    "Every variant copies the same blocks in the same random order, in rounds that take turns.\n"
    "example: checked_get_64k --block-kib 2048 --rounds 21 --only '(copy|get):z4-nt.*'";

constexpr std::size_t kUnit = 4096;
constexpr std::size_t kChunkBytes = 32u << 20;
constexpr std::size_t kHeadBytes = 2u << 20;
constexpr std::size_t kBucketEntries = 32;

struct Key {
  std::uint64_t words[4];
  bool operator==(const Key&) const = default;
};

struct Entry {
  std::uint64_t print[2];
  std::uint32_t slot_unit;  // 4 KiB units from the arena's start
  std::uint32_t generation_low;
  std::uint32_t expiry;
  std::uint32_t length_and_flags;
};
static_assert(sizeof(Entry) == 32);

struct Stamp {
  std::uint64_t region, epoch, sequence, born, expiry, conversation, spare;
  std::uint32_t seal_crc;
  std::uint32_t crc;
};
static_assert(sizeof(Stamp) == 64);

struct Seal {
  std::uint32_t magic, version;
  std::uint64_t name_space;
  std::uint32_t group, length;
  Key key, parent;
  std::uint64_t put_id;
  std::uint32_t segments;
  std::uint32_t crc;  // over everything else, segment CRCs included
};
static_assert(sizeof(Seal) == 104);

struct Head {
  std::atomic<std::uint64_t> carve;
  std::uint64_t slot_bytes;
  char pad[48];
  std::atomic<std::uint64_t> generations[kChunkBytes / kUnit];
};

struct Identity {
  std::uint64_t incarnation;
  std::uint64_t group;
  Key key;
};

XXH128_hash_t Print(const Key& key) {
  const Identity identity{7, 1, key};
  return XXH3_128bits(&identity, sizeof(identity));
}

Key KeyOf(std::uint64_t n) { return {{Mix(n), Mix(n + 1), Mix(n + 2), n}}; }

// Geometry, and where things lie in the one shared file: index, heads, bodies.
struct Layout {
  std::size_t block_bytes, slot_bytes, slots_a_chunk, chunks, blocks, buckets;
  std::size_t IndexBytes() const { return buckets * kBucketEntries * sizeof(Entry); }
  std::size_t HeadsAt() const { return IndexBytes(); }
  std::size_t BodiesAt() const { return HeadsAt() + chunks * kHeadBytes; }
  std::size_t Bytes() const { return BodiesAt() + chunks * kChunkBytes; }
  std::size_t SlotOffset(std::size_t block) const {
    return block / slots_a_chunk * kChunkBytes + block % slots_a_chunk * slot_bytes;
  }
};

Layout Plan(std::size_t block_bytes, std::size_t memory_bytes) {
  Layout l{};
  l.block_bytes = block_bytes;
  l.slot_bytes = block_bytes + kUnit;
  l.slots_a_chunk = kChunkBytes / l.slot_bytes;
  l.chunks = memory_bytes / kChunkBytes;
  l.blocks = l.chunks * l.slots_a_chunk;
  l.buckets = (2u << 20) / kBucketEntries;  // half full at a million entries
  return l;
}

struct View {
  const Layout& layout;
  std::byte* base;
  Entry* Index() const { return reinterpret_cast<Entry*>(base); }
  Head& HeadOf(std::size_t chunk) const {
    return *reinterpret_cast<Head*>(base + layout.HeadsAt() + chunk * kHeadBytes);
  }
  char* Body(std::size_t offset) const { return reinterpret_cast<char*>(base + layout.BodiesAt() + offset); }
};

struct Probe {
  Entry* first;
  Entry* second;
  std::size_t start;
};

Probe ProbeOf(const View& view, XXH128_hash_t print) {
  const std::size_t mask = view.layout.buckets - 1;
  return {view.Index() + (print.low64 & mask) * kBucketEntries,
          view.Index() + ((print.low64 >> 32) & mask) * kBucketEntries,
          (print.high64 >> 59) & ~std::size_t{1}};
}

Entry* FindIn(Entry* bucket, std::size_t start, std::uint64_t low, std::uint64_t high) {
  for (std::size_t i = 0; i < kBucketEntries; ++i) {
    Entry& entry = bucket[(start + i) % kBucketEntries];
    if (entry.print[0] == low && entry.print[1] == high) return &entry;
  }
  return nullptr;
}

void Insert(const View& view, const Key& key, std::uint32_t unit, std::uint32_t length) {
  const XXH128_hash_t print = Print(key);
  const Probe probe = ProbeOf(view, print);
  Entry* at = FindIn(probe.first, probe.start, 0, 0);
  if (at == nullptr) at = FindIn(probe.second, probe.start, 0, 0);
  if (at == nullptr) return;
  *at = {{print.low64, print.high64}, unit, 2, 0, length};
}

std::uint32_t SealCrc(Seal seal, std::span<const std::uint32_t> crcs) {
  seal.crc = 0;
  const std::uint32_t crc = Crc32cWords(0xffffffffu, &seal, sizeof(seal));
  return ~Crc32cWords(crc, crcs.data(), (crcs.size_bytes() + 7) & ~std::size_t{7});
}
std::uint32_t StampCrc(Stamp stamp) {
  stamp.crc = 0;
  return ~Crc32cWords(0xffffffffu, &stamp, sizeof(stamp));
}

using Segments = std::array<std::uint32_t, 32>;

void FillBlock(const View& view, std::size_t block) {
  const Layout& l = view.layout;
  const std::size_t offset = l.SlotOffset(block);
  for (std::size_t i = 0; i < l.block_bytes; i += 8) {
    const std::uint64_t word = Mix(block * 1'000'003 + i);
    std::memcpy(view.Body(offset) + i, &word, 8);
  }
  Segments crcs{};
  for (std::size_t s = 0; s * kSegmentBytes < l.block_bytes; ++s)
    crcs[s] = ~Crc32cWords(0xffffffffu, view.Body(offset) + s * kSegmentBytes, kSegmentBytes);
  Seal seal{0x4c414553,
            1,
            7,
            1,
            static_cast<std::uint32_t>(l.block_bytes),
            KeyOf(block),
            KeyOf(block - 1),
            block,
            static_cast<std::uint32_t>(l.block_bytes / kSegmentBytes),
            0};
  seal.crc = SealCrc(seal, {crcs.data(), seal.segments});
  Stamp stamp{0, 0, block, block, ~0ull, 0, 0, seal.crc, 0};
  stamp.crc = StampCrc(stamp);
  char* tail = view.Body(offset) + l.block_bytes;
  std::memcpy(tail, &stamp, sizeof(stamp));
  std::memcpy(tail + sizeof(stamp), &seal, sizeof(seal));
  std::memcpy(tail + sizeof(stamp) + sizeof(seal), crcs.data(), seal.segments * 4);
  Head& head = view.HeadOf(offset / kChunkBytes);
  head.slot_bytes = l.slot_bytes;
  head.generations[offset % kChunkBytes / kUnit].store(2, std::memory_order_release);
  head.carve.store(2, std::memory_order_release);
  Insert(view, seal.key, static_cast<std::uint32_t>(offset / kUnit), seal.length);
}

// The node: another process writes everything, then leaves.
void FillByAnotherProcess(const Layout& layout, int file, std::size_t entries) {
  const pid_t child = fork();
  if (child < 0) Die("fork");
  if (child == 0) {
    const View view{layout, Map(file, layout.Bytes(), PROT_READ | PROT_WRITE)};
    for (std::size_t b = 0; b < layout.blocks; ++b) FillBlock(view, b);
    for (std::size_t n = layout.blocks; n < entries; ++n) Insert(view, KeyOf(n + (1u << 30)), 0, 0);
    _exit(0);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) Die("the filling process");
}

using Kernel = std::uint32_t (*)(const char*, char*, bool last);

// Body lines are asked for before the seal is checked: their latency runs beside the head's and the seal's.
struct Shape {
  std::string name;
  Kernel kernel;
  bool get;
  int early_lines;  // at the start of each of early_runs equal parts of the block's first segment
  int early_runs;
  bool early_nta;
};

void PrefetchEarly(const Shape& shape, const char* at) {
  if (shape.early_nta)
    Prefetch<Hint::kNta>(at);
  else
    Prefetch<Hint::kT0>(at);
}

bool Get(const View& view, const Shape& shape, const Key& key, char* to) {
  const Layout& l = view.layout;
  const XXH128_hash_t print = Print(key);
  const Probe probe = ProbeOf(view, print);
  _mm_prefetch(reinterpret_cast<const char*>(probe.second + probe.start), _MM_HINT_T0);
  const Entry* found = FindIn(probe.first, probe.start, print.low64, print.high64);
  if (found == nullptr) found = FindIn(probe.second, probe.start, print.low64, print.high64);
  if (found == nullptr) return false;
  const std::uint64_t offset = std::uint64_t{found->slot_unit} * kUnit;
  const std::uint64_t length = found->length_and_flags;
  if (offset / kChunkBytes >= l.chunks || length != l.block_bytes ||
      offset % kChunkBytes + l.slot_bytes > kChunkBytes)
    return false;
  const Head& head = view.HeadOf(offset / kChunkBytes);
  const auto& slot_generation = head.generations[offset % kChunkBytes / kUnit];
  const char* body = view.Body(offset);
  _mm_prefetch(reinterpret_cast<const char*>(&head.carve), _MM_HINT_T0);
  _mm_prefetch(reinterpret_cast<const char*>(&slot_generation), _MM_HINT_T0);
  for (std::size_t i = 0; i < sizeof(Stamp) + sizeof(Seal) + 64; i += 64)
    _mm_prefetch(body + length + i, _MM_HINT_T0);
  for (int run = 0; run < shape.early_runs; ++run)
    for (int i = 0; i < shape.early_lines; ++i)
      PrefetchEarly(shape, body +
                               static_cast<std::size_t>(run) *
                                   (kSegmentBytes / static_cast<std::size_t>(shape.early_runs)) +
                               i * 64);
  const std::uint64_t carve = head.carve.load(std::memory_order_acquire);
  const std::uint64_t generation = slot_generation.load(std::memory_order_acquire);
  if ((carve & 1) != 0 || (generation & 1) != 0) return false;
  Stamp stamp;
  Seal seal;
  Segments crcs{};
  std::memcpy(&stamp, body + length, sizeof(stamp));
  std::memcpy(&seal, body + length + sizeof(stamp), sizeof(seal));
  if (seal.segments > crcs.size()) return false;
  std::memcpy(crcs.data(), body + length + sizeof(stamp) + sizeof(seal), seal.segments * 4);
  if (SealCrc(seal, {crcs.data(), seal.segments}) != seal.crc || StampCrc(stamp) != stamp.crc ||
      stamp.seal_crc != seal.crc)
    return false;
  if (seal.name_space != 7 || seal.group != 1 || !(seal.key == key) || seal.length != length) return false;
  bool good = true;
  for (std::size_t s = 0; s < seal.segments; ++s)
    good &= shape.kernel(body + s * kSegmentBytes, to + s * kSegmentBytes, s + 1 == seal.segments) == crcs[s];
  _mm_sfence();
  std::atomic_thread_fence(std::memory_order_acquire);
  return good && head.carve.load(std::memory_order_relaxed) == carve &&
         slot_generation.load(std::memory_order_relaxed) == generation;
}

template <int kWidth, int kStreams, int kAccs, Store kStore, int kAhead = 0, Hint kHint = Hint::kNone>
constexpr Kernel K() {
  return &CopySegment<kWidth, kStreams, kAccs, kStore, kAhead, kHint>;
}

struct Named {
  const char* name;
  Kernel kernel;
  int runs = 1;
};

// z, y, x: 64, 32, 16 byte registers; their number; x2: two runs at once; nt, c: streaming or cached stores;
// p: prefetched so far ahead. tile: through 4 KiB in L1. words: the crc32 instruction and 8-byte stores.
std::vector<Named> Kernels() {
  constexpr auto N = Store::kStream;
  constexpr auto C = Store::kCached;
  constexpr auto T0 = Hint::kT0;
  return {{"z4-nt", K<64, 1, 4, N>()},
          {"z4-nt-p2k", K<64, 1, 4, N, 2048, T0>()},
          {"z4-nt-p4k", K<64, 1, 4, N, 4096, T0>()},
          {"z4-nt-p8k", K<64, 1, 4, N, 8192, T0>()},
          {"z4-nt-p4k-t1", K<64, 1, 4, N, 4096, Hint::kT1>()},
          {"z4-nt-p2k-nta", K<64, 1, 4, N, 2048, Hint::kNta>()},
          {"z4-nt-p4k-nta", K<64, 1, 4, N, 4096, Hint::kNta>()},
          {"z4-c", K<64, 1, 4, C>()},
          {"z4-c-p4k-nta", K<64, 1, 4, C, 4096, Hint::kNta>()},
          {"z4x2-nt", K<64, 2, 4, N>(), 2},
          {"z4x2-c", K<64, 2, 4, C>(), 2},
          {"z2x4-nt", K<64, 4, 2, N>(), 4},
          {"z2x4-c", K<64, 4, 2, C>(), 4},
          {"y8-nt", K<32, 1, 8, N>()},
          {"y8-nt-p4k", K<32, 1, 8, N, 4096, T0>()},
          {"y8-nt-p4k-nta", K<32, 1, 8, N, 4096, Hint::kNta>()},
          {"x8-nt-p4k", K<16, 1, 8, N, 4096, T0>()},
          {"tile-nt", &CopySegmentByTiles<N, 0, Hint::kNone>},
          {"words-nt", &CopySegmentByWords<N>, 3},
          {"words-c", &CopySegmentByWords<C>, 3}};
}

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes = {{"memcpy", nullptr, false, 0, 0, false}};
  for (const Named& k : Kernels())
    shapes.push_back({std::string("copy:") + k.name, k.kernel, false, 0, 0, false});
  for (const Named& k : Kernels())
    for (auto [early, nta] : {std::pair(0, false), {16, false}, {32, false}, {16, true}, {32, true}})
      shapes.push_back({std::string("get:") + k.name + (nta ? "-n" : "-e") + std::to_string(early), k.kernel,
                        true, early / k.runs, k.runs, nta});
  return shapes;
}

// libc's memcpy by address, so that no compiler puts its own in its place.
void* (*volatile libc_memcpy)(void*, const void*, std::size_t) = &std::memcpy;

std::uint64_t Sum(const char* data, std::size_t bytes) {
  __m512i sum = _mm512_setzero_si512();
  for (std::size_t i = 0; i < bytes; i += 64) sum = _mm512_add_epi64(sum, _mm512_loadu_si512(data + i));
  return static_cast<std::uint64_t>(_mm512_reduce_add_epi64(sum));
}

struct Figures {
  std::vector<double> gb_s;
  std::vector<std::uint32_t> call_ticks;
  std::uint64_t wrong = 0;
};

struct Bench {
  const View& view;
  std::vector<char*> destinations;
  bool read;
  std::uint64_t sink = 0;

  void Round(const Shape& shape, std::span<const std::uint32_t> order, double ticks_per_ns, Figures& out) {
    const std::size_t bytes = view.layout.block_bytes;
    const std::uint64_t begin = Ticks();
    std::uint64_t last = begin;
    for (std::size_t i = 0; i < order.size(); ++i) {
      char* to = destinations[i % destinations.size()];
      if (shape.get) {
        out.wrong += !Get(view, shape, KeyOf(order[i]), to);
      } else if (shape.kernel == nullptr) {
        libc_memcpy(to, view.Body(view.layout.SlotOffset(order[i])), bytes);
      } else {
        const char* body = view.Body(view.layout.SlotOffset(order[i]));
        for (std::size_t s = 0; s < bytes; s += kSegmentBytes)
          sink += shape.kernel(body + s, to + s, s + kSegmentBytes == bytes);
        _mm_sfence();
      }
      if (read) sink += Sum(to, bytes);
      const std::uint64_t now = Ticks();
      out.call_ticks.push_back(static_cast<std::uint32_t>(now - last));
      last = now;
    }
    out.gb_s.push_back(static_cast<double>(bytes * order.size()) /
                       (static_cast<double>(last - begin) / ticks_per_ns));
  }
};

// Each shape's copy and CRC against the plain ones, before anything is timed.
void CheckKernels(const View& view, const std::vector<Shape>& shapes) {
  const char* body = view.Body(0);
  auto* to = static_cast<char*>(std::aligned_alloc(4096, kSegmentBytes));
  const std::uint32_t want = ~Crc32cWords(0xffffffffu, body, kSegmentBytes);
  for (const Shape& shape : shapes) {
    if (shape.kernel == nullptr) continue;
    std::memset(to, 0, kSegmentBytes);
    const bool same = shape.kernel(body, to, true) == want && shape.kernel(body, to, false) == want;
    if (!same || std::memcmp(body, to, kSegmentBytes) != 0) {
      std::fprintf(stderr, "%s: wrong copy or CRC\n", shape.name.c_str());
      std::exit(1);
    }
  }
  std::free(to);
}

// What one look in the index costs when it finds, and when both buckets must be read to say no.
void TimeIndex(const View& view, double ticks_per_ns) {
  for (bool present : {true, false}) {
    std::vector<std::uint32_t> ticks;
    for (std::uint64_t n = 0; n < 20'000; ++n) {
      const std::uint64_t id = Mix(n) % 900'000 + (present ? view.layout.blocks + (1u << 30) : 1ull << 40);
      const Key key = KeyOf(id);
      const std::uint64_t begin = Ticks();
      const XXH128_hash_t print = Print(key);
      const Probe probe = ProbeOf(view, print);
      _mm_prefetch(reinterpret_cast<const char*>(probe.second + probe.start), _MM_HINT_T0);
      const Entry* found = FindIn(probe.first, probe.start, print.low64, print.high64);
      if (found == nullptr) found = FindIn(probe.second, probe.start, print.low64, print.high64);
      if ((found != nullptr) != present) continue;
      ticks.push_back(static_cast<std::uint32_t>(Ticks() - begin));
    }
    std::printf("index, cold, one key %s: p50 %.0f ns, p99 %.0f ns (%zu of 20000 as expected)\n",
                present ? "present" : "absent", Percentile(ticks, 0.5) / ticks_per_ns,
                Percentile(ticks, 0.99) / ticks_per_ns, ticks.size());
  }
}

void Print(const Bench& bench, const std::vector<Shape>& shapes, std::vector<Figures>& figures,
           std::size_t a_round, double ticks_per_ns) {
  std::printf("%zu KiB, %zu blocks, %zu a round, destination %zu KiB in turn%s\n",
              bench.view.layout.block_bytes >> 10, bench.view.layout.blocks, a_round,
              bench.destinations.size() * bench.view.layout.block_bytes >> 10,
              bench.read ? ", caller reads the result" : "");
  std::printf("%-24s %8s %15s %7s %9s %9s %7s %7s %6s\n", "", "GB/s", "min..max", "ratio", "p50_us", "p99_us",
              "p50_x", "p99_x", "wrong");
  const double base_p50 = Percentile(figures[0].call_ticks, 0.5);
  const double base_p99 = Percentile(figures[0].call_ticks, 0.99);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    Figures& f = figures[i];
    std::vector<double> ratios;
    for (std::size_t r = 0; r < f.gb_s.size(); ++r) ratios.push_back(f.gb_s[r] / figures[0].gb_s[r]);
    const auto [low, high] = std::minmax_element(f.gb_s.begin(), f.gb_s.end());
    const double min = *low, max = *high;
    if (i == 0) std::ranges::fill(ratios, 1.0);
    const double p50 = Percentile(f.call_ticks, 0.5), p99 = Percentile(f.call_ticks, 0.99);
    std::vector<double> rates = f.gb_s;
    std::printf("%-24s %8.2f %7.2f..%-6.2f %7.3f %9.2f %9.2f %7.3f %7.3f %6lu\n", shapes[i].name.c_str(),
                Percentile(rates, 0.5), min, max, Percentile(ratios, 0.5), p50 / ticks_per_ns / 1e3,
                p99 / ticks_per_ns / 1e3, p50 / base_p50, p99 / base_p99, f.wrong);
  }
}

int Main(int argc, char** argv) {
  Flags flags(kHelp, {{"block-kib", "64"},
                      {"memory-mib", "1024"},
                      {"rounds", "15"},
                      {"round-mib", "128"},
                      {"entries", "1000000"},
                      {"destination-mib", "0"},
                      {"huge-destination", "off"},
                      {"read", "off"},
                      {"only", ".*"},
                      {"cpu", "1"}});
  flags.Parse(argc, argv);
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("vpclmulqdq")) {
    std::fprintf(stderr, "this program needs a CPU with AVX-512 and VPCLMULQDQ\n");
    return 1;
  }
  const Layout layout = Plan(flags.Number("block-kib") * 1024, flags.Number("memory-mib") << 20);
  if (layout.block_bytes % kSegmentBytes != 0 || layout.block_bytes / kSegmentBytes - 1 >= 32 ||
      layout.blocks == 0) {
    std::fprintf(stderr, "--block-kib takes a multiple of 64 up to 2048, --memory-mib 32 or more\n");
    return 2;
  }
  PinTo(static_cast<int>(flags.Number("cpu")));
  const int file = SharedFile("checked-get", layout.Bytes());
  FillByAnotherProcess(layout, file, flags.Number("entries"));
  const View view{layout, Map(file, layout.Bytes(), PROT_READ)};

  std::vector<Shape> shapes = Shapes();
  CheckKernels(view, shapes);
  const std::string& only = flags.Word("only");
  const std::regex wanted(only);
  std::erase_if(shapes,
                [&](const Shape& s) { return s.name != "memcpy" && !std::regex_match(s.name, wanted); });

  const std::size_t destination_bytes = std::max(flags.Number("destination-mib") << 20, layout.block_bytes);
  std::byte* destination = Map(-1, destination_bytes + (2u << 20), PROT_READ | PROT_WRITE);
  destination += -reinterpret_cast<std::uintptr_t>(destination) & ((2u << 20) - 1);
  if (flags.On("huge-destination")) madvise(destination, destination_bytes, MADV_HUGEPAGE);
  std::memset(destination, 1, destination_bytes);
  Bench bench{view, {}, flags.On("read")};
  for (std::size_t at = 0; at + layout.block_bytes <= destination_bytes; at += layout.block_bytes)
    bench.destinations.push_back(reinterpret_cast<char*>(destination + at));

  const double ticks_per_ns = TicksPerNs();
  TimeIndex(view, ticks_per_ns);
  std::vector<std::uint32_t> order(layout.blocks);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(1));
  const std::size_t a_round = std::min(order.size(), (flags.Number("round-mib") << 20) / layout.block_bytes);
  std::vector<Figures> figures(shapes.size());
  for (std::uint64_t round = 0; round < flags.Number("rounds"); ++round) {
    const std::size_t begin = round * a_round % (order.size() - a_round + 1);
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const std::size_t which = (i + round) % shapes.size();
      bench.Round(shapes[which], std::span(order).subspan(begin, a_round), ticks_per_ns, figures[which]);
    }
  }
  Print(bench, shapes, figures, a_round, ticks_per_ns);
  return bench.sink == 42 ? 3 : 0;
}

}  // namespace
}  // namespace lab

int main(int argc, char** argv) { return lab::Main(argc, argv); }
