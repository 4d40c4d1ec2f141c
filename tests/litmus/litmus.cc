// SPDX-License-Identifier: Apache-2.0
// The publish and the read protocol on the real processor: a writer process that fills few slots again and
// again with streaming stores, and a reader process that must get exact bytes or a miss. The writer dies at
// random moments and a successor recovers the slots. Bytes are judged by their content alone: the reader
// accepts on generations without the checksums that would hide what the fences are for (in a sound run every
// other read is a product's read, with checksums).
//
// `--without-second-fence` and `--without-recheck` leave out one step; then there must be wrong bytes, and
// the program ends at the first. A processor may show them at once, or once in a minute or two.
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "arena/protocol.h"
#include "arena/reader.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/spin.h"
#include "memory/recovery.h"

namespace cistern {
namespace {

constexpr arena::Geometry kGeometry{4096, 1};
constexpr std::uint64_t kBuckets = 16;
constexpr std::uint32_t kKeys = 4;
constexpr std::uint32_t kSlots = 2;  // few, so that readers are nearly always in a slot that changes
constexpr std::uint64_t kIncarnation = 7;
// A short last segment: what was stored last is read first, as soon as the generation allows.
constexpr std::uint32_t kLastBytes = 1024;
constexpr std::uint32_t kBodyBytes[] = {8192, record::kSegmentBytes + kLastBytes, 20480};
constexpr std::uint32_t kMostBytes = record::kSegmentBytes + kLastBytes;

struct Options {
  int seconds = 10;
  bool second_fence = true;
  bool recheck = true;
  bool sound() const { return second_fence && recheck; }
};

// What the processes tell each other besides the arena.
struct Control {
  std::atomic<std::uint64_t> puts{0};
  std::atomic<std::uint64_t> hits{0};
  std::atomic<std::uint64_t> misses{0};
  std::atomic<std::uint64_t> bad{0};
  std::atomic<std::uint64_t> wrong{0};
  std::atomic<bool> stop{false};
};

struct Shared {
  arena::ArenaSpace arena;
  arena::IndexSpace index;
  Control* control;
};

// Accepts a read by generations alone.
struct ByGenerations {
  static constexpr bool kCheckBody = false;
  static constexpr bool kRecheck = true;
};
struct WithoutRecheck {
  static constexpr bool kCheckBody = false;
  static constexpr bool kRecheck = false;
};

// Real memory on which a copy's streaming stores come as late as they may: at the next fence, or, where that
// is left out, right before the next release, which nothing but a fence keeps from overtaking them. Without
// this the work between copy and release, half a microsecond, hides a missing fence nearly always.
class LateWords final {
 public:
  LateWords(arena::RealWords& words, bool fence) : words_(words), fence_(fence) {}

  std::uint64_t LoadRelaxed(const std::uint64_t* word) { return words_.LoadRelaxed(word); }
  void Store(std::uint64_t* word, std::uint64_t value) { words_.Store(word, value); }
  void StoreRelease(std::uint64_t* word, std::uint64_t value) {
    CopyNow();
    words_.StoreRelease(word, value);
  }
  void StoreFence() {
    if (!fence_) return;
    CopyNow();
    words_.StoreFence();
  }
  std::uint32_t CopyIn(void* to, const void* from, std::size_t bytes, std::uint32_t crc, std::size_t) {
    CopyNow();
    to_ = to;
    from_ = from;
    bytes_ = bytes;
    return words_.Checksum(from, bytes, crc);
  }

 private:
  void CopyNow() {
    if (bytes_ > 0) words_.CopyIn(to_, from_, bytes_, 0, 0);
    bytes_ = 0;
  }

  arena::RealWords& words_;
  const bool fence_;
  void* to_ = nullptr;
  const void* from_ = nullptr;
  std::size_t bytes_ = 0;
};

BlockKey KeyOf(std::uint32_t number) {
  BlockKey key;
  key.length = 16;
  for (std::uint8_t& byte : std::span(key.bytes).first(16))
    byte = static_cast<std::uint8_t>(SplitMix(number++));
  return key;
}

// Every word of a body is its key and put.
std::uint64_t WordOf(std::uint32_t key, std::uint64_t put) { return std::uint64_t{key} << 48 | put; }

class Writer {
 public:
  Writer(const Shared& shared, const Options& options)
      : shared_(shared),
        options_(options),
        index_(words_, shared.index),
        random_(shared.control->puts.load() + 1) {}

  // What a node does at start: empties the index and makes free what it does not keep, here everything.
  void Recover() {
    index_.ClearRange(0, shared_.index.entry_count());
    memory::Slots slots(words_, shared_.arena);
    memory::Recovery recovery(words_, slots);
    std::vector<memory::RecoveredBlock> blocks(16);
    while (!recovery.done()) {
      std::size_t count = recovery.Next(blocks);
      for (std::size_t i = 0; i < count; ++i) {
        arena::Retire(words_, shared_.arena, blocks[i].place);
        slots.Free(blocks[i].place);
      }
    }
    Recarve();
    arena::SetIncarnation(words_, shared_.index, 0, kIncarnation);
  }

  [[noreturn]] void Run() {
    Recover();
    for (;;) {
      std::uint32_t slot = static_cast<std::uint32_t>(random_.Below(kSlots));
      Remove(slot);
      if (random_.Below(64) == 0) {
        for (std::uint32_t i = 0; i < kSlots; ++i) Remove(i);
        Recarve();
      }
      Put(slot);
      // Somewhere in here the streaming stores of a put that was not fenced are still on their way.
      for (std::uint64_t spin = random_.Below(64); spin > 0; --spin) CpuRelax();
    }
  }

 private:
  struct Resident {
    bool there = false;
    std::uint32_t key = 0;
    std::uint64_t entry = 0;
  };

  arena::Place PlaceOf(std::uint32_t slot) const { return kGeometry.place(slot * slot_bytes_); }

  void Recarve() {
    slot_bytes_ =
        memory::SlotSize::For(record::RecordBytes(kMostBytes, 4096) + random_.Below(4) * 16384, 4096).bytes;
    arena::Carve(words_, shared_.arena, 0, 1, slot_bytes_);
  }

  void Remove(std::uint32_t slot) {
    if (!resident_[slot].there) return;
    index_.Clear(resident_[slot].entry);
    arena::Retire(words_, shared_.arena, PlaceOf(slot));
    resident_[slot].there = false;
  }

  void Put(std::uint32_t slot) {
    std::uint32_t key = static_cast<std::uint32_t>(random_.Below(kKeys));
    for (std::uint32_t i = 0; i < kSlots; ++i) {
      if (resident_[i].there && resident_[i].key == key) Remove(i);
    }
    std::uint64_t put = shared_.control->puts.fetch_add(1) + 1;
    std::uint32_t bytes = kBodyBytes[random_.Below(std::size(kBodyBytes))];
    std::span words = std::span(body_).first(bytes / 8);
    std::fill(words.begin(), words.end(), WordOf(key, put));

    arena::Place place = PlaceOf(slot);
    std::uint64_t generation = arena::BeginFill(words_, shared_.arena, place);
    // The index is a hint and may come early: then the reader waits at the generation for the record.
    std::optional<std::uint64_t> entry =
        index_.Insert(arena::FingerprintOf(kIncarnation, 0, KeyOf(key)),
                      {place, bytes, 0, static_cast<std::uint32_t>(generation) & arena::kGenerationLowMask});
    if (options_.second_fence && put % 2 == 0) {
      FillAndPublish(words_, place, generation, key, put, std::as_bytes(words));
    } else {
      LateWords late(words_, options_.second_fence);
      FillAndPublish(late, place, generation, key, put, std::as_bytes(words));
    }
    CISTERN_ASSERT(entry.has_value());
    resident_[slot] = {true, key, *entry};
  }

  template <class W>
  void FillAndPublish(W& words, arena::Place place, std::uint64_t generation, std::uint32_t key,
                      std::uint64_t put, std::span<const std::byte> body) {
    std::span<const std::byte> pieces[] = {body};
    std::uint32_t crcs[2];
    std::span sums = std::span(crcs).first(record::SegmentsOfPart(body.size()));
    arena::RunFill(words, {shared_.arena.slot(place), pieces, sums});
    std::uint32_t parts[] = {static_cast<std::uint32_t>(body.size())};
    arena::NewRecord record;
    record.seal = {.incarnation = kIncarnation, .key = KeyOf(key), .part_bytes = parts, .segment_crcs = sums};
    record.sequence = record.born = put;
    arena::Publish(words, shared_.arena, place, generation, record);
  }

  Shared shared_;
  Options options_;
  arena::RealWords words_;
  arena::IndexWriter<arena::RealWords> index_;
  Random random_;
  std::uint64_t slot_bytes_ = 0;
  Resident resident_[kSlots];
  std::vector<std::uint64_t> body_ = std::vector<std::uint64_t>(kMostBytes / 8);
};

template <class Policy>
void ReadOnce(const arena::Reader<arena::RealWords, Policy>& reader, std::uint32_t key,
              arena::OpenRecord& record, std::span<std::uint64_t> to, Control& control) {
  arena::ReadCall call = reader.Begin(0, 0);
  BlockKey name = KeyOf(key);
  std::optional<arena::Found> found = reader.Find(call, 0, name);
  std::uint32_t bytes = found ? found->body_bytes : 0;
  if (bytes == 0 || bytes > to.size_bytes()) {
    control.misses++;
    return;
  }
  std::span words = to.first(bytes / 8);
  const std::uint32_t last = bytes - kLastBytes;
  std::span<std::byte> whole[] = {std::as_writable_bytes(words).first(last)};
  std::span<std::byte> end[] = {std::as_writable_bytes(words).subspan(last)};
  arena::RangeCopy ranges[] = {{{0, last, kLastBytes}, end}, {{0, 0, last}, whole}};
  arena::ReadOutcome outcome = reader.Read(call, {name}, &*found, ranges, record);
  if (outcome == arena::ReadOutcome::kBad) control.bad++;
  if (outcome != arena::ReadOutcome::kHit) {
    control.misses++;
    return;
  }
  control.hits++;
  std::uint64_t expected = WordOf(key, record.stamp.born);
  for (std::uint64_t word : words) {
    if (word == expected) continue;
    control.wrong++;
    return;
  }
}

int ReaderMain(const Shared& shared, const Options& options) {
  arena::RealWords words;
  arena::Reader<arena::RealWords> product(words, shared.arena, shared.index);
  arena::Reader<arena::RealWords, ByGenerations> by_generations(words, shared.arena, shared.index);
  arena::Reader<arena::RealWords, WithoutRecheck> without_recheck(words, shared.arena, shared.index);
  auto record = std::make_unique<arena::OpenRecord>();
  std::vector<std::uint64_t> to(kMostBytes / 8);
  Random random(99);
  for (std::uint64_t i = 0; !shared.control->stop.load(std::memory_order_relaxed); ++i) {
    std::uint32_t key = static_cast<std::uint32_t>(random.Below(kKeys));
    if (!options.recheck) {
      ReadOnce(without_recheck, key, *record, to, *shared.control);
    } else if (options.sound() && i % 2 == 0) {
      ReadOnce(product, key, *record, to, *shared.control);
    } else {
      ReadOnce(by_generations, key, *record, to, *shared.control);
    }
    if (!options.sound() && shared.control->wrong.load(std::memory_order_relaxed) > 0) break;
  }
  return 0;
}

// Beside each other, or the order of stores is not seen.
void RunOn(int which) {
  cpu_set_t allowed, one;
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || which-- > 0) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    ::sched_setaffinity(0, sizeof(one), &one);
    return;
  }
}

template <class Body>
pid_t Fork(int processor, Body body) {
  pid_t child = ::fork();
  if (child != 0) return child;
  RunOn(processor);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::_exit(body());
}

std::byte* MapShared(std::uint64_t bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) {
    ::perror("litmus: mmap");
    ::exit(2);
  }
  return static_cast<std::byte*>(at);
}

int Main(const Options& options) {
  Shared shared{{MapShared(kGeometry.file_bytes()), kGeometry},
                {MapShared(arena::kIndexBucketsOffset +
                           kBuckets * arena::kEntriesPerBucket * sizeof(arena::IndexEntry)),
                 kBuckets},
                new (MapShared(sizeof(Control))) Control};
  pid_t reader = Fork(1, [&] { return ReaderMain(shared, options); });
  if (reader < 0) {
    ::perror("litmus: fork");
    return 2;
  }
  SystemClock clock;
  const Instant end = clock.Now().PlusUs(options.seconds * 1'000'000LL);
  Random random(3);
  std::uint64_t kills = 0;
  bool reader_ended = false;
  while (!reader_ended && clock.Now() < end) {
    const auto life_us = static_cast<suseconds_t>(random.Between(20'000, 200'000));
    pid_t writer = Fork(0, [&] {
      // The alarm ends it between any two instructions, as SIGKILL would.
      const itimerval life{{0, 0}, {0, life_us}};
      ::setitimer(ITIMER_REAL, &life, nullptr);
      Writer(shared, options).Run();
      return 0;
    });
    ::waitpid(writer, nullptr, 0);
    kills++;
    reader_ended = ::waitpid(reader, nullptr, WNOHANG) != 0;
  }
  shared.control->stop = true;
  if (!reader_ended) ::waitpid(reader, nullptr, 0);
  const Control& control = *shared.control;
  ::printf("puts: %lu hits: %lu misses: %lu writers that died: %lu bad: %lu wrong: %lu\n",
           control.puts.load(), control.hits.load(), control.misses.load(), kills, control.bad.load(),
           control.wrong.load());
  if (control.hits.load() == 0) {
    ::fprintf(stderr, "litmus: no read was accepted, so nothing was tried\n");
    return 2;
  }
  return control.wrong.load() + control.bad.load() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace cistern

int main(int argc, char** argv) {
  cistern::Options options;
  for (int i = 1; i < argc; ++i) {
    std::string_view argument = argv[i];
    if (argument == "--without-second-fence") {
      options.second_fence = false;
    } else if (argument == "--without-recheck") {
      options.recheck = false;
    } else if (argument == "--copy" && i + 1 < argc) {
      if (cistern::Status status = cistern::record::ChooseKernels(argv[++i]); !status.ok()) {
        ::fprintf(stderr, "litmus: %s\n", std::string(status.message()).c_str());
        return 2;
      }
    } else if (argument == "--seconds" && i + 1 < argc && ::atoi(argv[i + 1]) > 0) {
      options.seconds = ::atoi(argv[++i]);
    } else {
      ::fprintf(stderr, "litmus [--seconds N] [--copy NAME] [--without-second-fence] [--without-recheck]\n");
      return argument == "--help" ? 0 : 2;
    }
  }
  cpu_set_t allowed;
  if (!options.second_fence && ::sched_getaffinity(0, sizeof(allowed), &allowed) == 0 &&
      CPU_COUNT(&allowed) < 2) {
    ::printf("litmus: one processor, on which no store overtakes another\n");
    return 0;
  }
  return cistern::Main(options);
}
