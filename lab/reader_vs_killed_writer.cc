// SPDX-License-Identifier: Apache-2.0
// Tests: a reader in the five steps of rule R1 never accepts a wrong byte from a writer in the order of rule
// R2 (streaming stores) that refills and re-carves slots without a pause, is killed at any instruction and
// restarted. Every body says in each line whose it is, so what a CRC would have hidden is counted as well.
#include <signal.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "crc32c_copy.h"
#include "lab.h"

namespace lab {
namespace {

constexpr std::string_view kHelp =
    "reader_vs_killed_writer: one reader, one writer process in shared memory that is SIGKILLed and "
    "restarted.\n"
    "wrong: bodies accepted with bytes that key and put id do not say; the sound protocol has none, CRC or "
    "not.\n"
    "example: reader_vs_killed_writer --all --seconds 10\n"
    "         reader_vs_killed_writer --no-second-fence --no-crc";

constexpr std::size_t kUnit = 4096;
constexpr std::size_t kUnits = 272;  // 16 slots of 17 units (64 KiB and seal), or 136 of 2
constexpr std::size_t kKeys = 64;
constexpr std::size_t kLines = kSegmentBytes / 64;

struct Variant {
  const char* name = "as given";
  bool first_fence = true;
  bool second_fence = true;
  bool recheck = true;
  bool compare_stamp = true;  // the stamp names the slot and the generation that published it
  bool crc = true;
  bool recover_even = false;  // a slot found odd after a crash is made even again with its old seal in place
  bool recarve_keeps_odd = true;  // re-carving turns every generation of the chunk odd first
};

struct Seal {
  std::uint64_t magic;
  std::uint64_t key;
  std::uint64_t put_id;
  std::uint64_t length_bytes;
  std::uint32_t body_crc;
  std::uint32_t crc;
  std::uint64_t spare[3];
};
struct Stamp {
  std::uint64_t unit;
  std::uint64_t generation;
  std::uint64_t born;
  std::uint32_t seal_crc;
  std::uint32_t crc;
  std::uint64_t spare[4];
};
struct Directory {
  std::uint64_t key;
  std::uint64_t put_id;
  std::uint64_t length_bytes;
  std::uint64_t spare[12];
  std::uint32_t pad;
  std::uint32_t crc;
};
static_assert(sizeof(Seal) == 64 && sizeof(Stamp) == 64 && sizeof(Directory) == 128);

using Word = std::atomic<std::uint64_t>;
static_assert(Word::is_always_lock_free);

struct Head {
  alignas(64) Word carve;
  Word slot_units;
  alignas(64) Word generation[kUnits];
  Directory directory[kUnits];
};

struct Shared {
  Head head;
  alignas(64) Word index[kKeys];  // unit << 32 | body units: a hint, also a stale one
  alignas(64) Word latest;        // the key published last: where a race is most likely
  alignas(64) Word published, recarved, recovered_odd, recovered_live;
  alignas(kUnit) char units[kUnits][kUnit];
};

// Over the whole struct with its CRC field zero.
template <class T>
std::uint32_t CrcOf(T value) {
  value.crc = 0;
  return ~Crc32cWords(0xffffffffu, &value, sizeof(value));
}

// A line of a body: key, put id, then words that only these and the line's place can make.
struct Line {
  std::uint64_t words[8];
};
Line LineOf(std::uint64_t key, std::uint64_t put_id, std::uint64_t base, std::size_t at) {
  const std::uint64_t w = base + at * 0x9e3779b97f4a7c15;
  return {{key, put_id, w, w + 1, w + 2, w + 3, w + 4, w + 5}};
}
std::uint64_t BaseOf(std::uint64_t key, std::uint64_t put_id) { return Mix(key * 0x10001 + put_id); }

std::size_t ForeignLines(const Line* body, std::size_t lines, std::uint64_t key, std::uint64_t put_id) {
  const std::uint64_t base = BaseOf(key, put_id);
  std::size_t foreign = 0;
  for (std::size_t i = 0; i < lines; ++i) {
    const Line want = LineOf(key, put_id, base, i);
    foreign += std::memcmp(&want, body + i, sizeof(want)) != 0;
  }
  return foreign;
}

class Writer {
 public:
  Writer(Shared& shared, const Variant& variant, std::size_t slots)
      : shared_(shared),
        head_(shared.head),
        variant_(variant),
        slots_(slots),
        random_(Mix(getpid() ^ NowNs())) {}

  // From the heads alone, as after a restart: what is odd was being written and is free again, at a later
  // generation.
  void Recover() {
    if ((head_.carve.load(std::memory_order_relaxed) & 1) != 0 ||
        head_.carve.load(std::memory_order_relaxed) == 0)
      return Carve();
    slot_units_ = head_.slot_units.load(std::memory_order_relaxed);
    for (std::size_t s = 0; s < kUnits / slot_units_; ++s) {
      Word& generation = head_.generation[s * slot_units_];
      const std::uint64_t now = generation.load(std::memory_order_relaxed);
      const Directory& entry = head_.directory[s];
      const bool live = (now & 1) == 0 && entry.crc == CrcOf(entry);
      Bump(live ? shared_.recovered_live : shared_.recovered_odd);
      if (!live)
        generation.store(variant_.recover_even ? now + 1 : now + 2 - (~now & 1), std::memory_order_release);
      if (live && entry.put_id >= put_id_) put_id_ = entry.put_id + 1;
    }
  }

  [[noreturn]] void Run() {
    put_id_ = std::max(put_id_, NowNs());  // never a put id twice, whatever was lost with the last writer
    for (;;) {
      if (random_() % 2048 == 0) Carve();
      const std::size_t slot = random_() % std::min(slots_, kUnits / slot_units_);
      Fill(slot, random_() % 4 == 0 ? random_() % kKeys : slot, 1 + random_() % (slot_units_ - 1));
    }
  }

 private:
  void Bump(Word& counter) {
    counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  void Carve() {
    const std::uint64_t carve = head_.carve.load(std::memory_order_relaxed) | 1;
    head_.carve.store(carve, std::memory_order_release);
    _mm_sfence();
    if (variant_.recarve_keeps_odd)
      for (Word& generation : head_.generation) {
        const std::uint64_t now = generation.load(std::memory_order_relaxed);
        generation.store(now + 2 - (~now & 1), std::memory_order_release);
      }
    std::memset(static_cast<void*>(head_.directory), 0, sizeof(head_.directory));
    slot_units_ = random_() % 2 == 0 ? 17 : 2;
    head_.slot_units.store(slot_units_, std::memory_order_relaxed);
    head_.carve.store(carve + 1, std::memory_order_release);
    Bump(shared_.recarved);
  }

  void Fill(std::size_t slot, std::uint64_t key, std::size_t body_units) {
    const std::size_t unit = slot * slot_units_;
    const std::size_t bytes = body_units * kUnit;
    const std::uint64_t put_id = ++put_id_;
    const std::uint64_t base = BaseOf(key, put_id);
    for (std::size_t i = 0; i < bytes / 64; ++i) staging_[i] = LineOf(key, put_id, base, i);
    Seal seal{0x4c414553, key, put_id, bytes, ~Crc32cWords(0xffffffffu, staging_.data(), bytes), 0, {}};
    seal.crc = CrcOf(seal);
    Word& generation = head_.generation[unit];
    const std::uint64_t odd = generation.load(std::memory_order_relaxed) | 1;
    Stamp stamp{unit, odd + 1, put_id, seal.crc, 0, {}};
    stamp.crc = CrcOf(stamp);
    Directory entry{key, put_id, bytes, {}, 0, 0};
    entry.crc = CrcOf(entry);

    generation.store(odd, std::memory_order_release);
    if (variant_.first_fence) _mm_sfence();
    char* body = shared_.units[unit];
    for (std::size_t i = 0; i < bytes; i += 64)
      _mm512_stream_si512(reinterpret_cast<__m512i*>(body + i),
                          _mm512_load_si512(reinterpret_cast<const char*>(staging_.data()) + i));
    if (variant_.second_fence) _mm_sfence();
    std::atomic_signal_fence(std::memory_order_seq_cst);
    std::memcpy(body + bytes, &seal, sizeof(seal));
    std::memcpy(body + bytes + sizeof(seal), &stamp, sizeof(stamp));
    std::memcpy(static_cast<void*>(&head_.directory[slot]), &entry, sizeof(entry));
    generation.store(odd + 1, std::memory_order_release);

    shared_.index[key].store(unit << 32 | body_units, std::memory_order_relaxed);
    shared_.latest.store(key, std::memory_order_relaxed);
    Bump(shared_.published);
  }

  Shared& shared_;
  Head& head_;
  const Variant variant_;
  const std::size_t slots_;
  std::mt19937_64 random_;
  std::size_t slot_units_ = 2;
  std::uint64_t put_id_ = 0;
  alignas(64) std::array<Line, kLines> staging_;
};

struct Counts {
  std::uint64_t reads = 0, accepted = 0;
  std::uint64_t miss_hint = 0, miss_odd = 0, miss_seal = 0, miss_key = 0, miss_stamp = 0, miss_changed = 0,
                miss_body_crc = 0;
  std::uint64_t wrong = 0, wrong_whole = 0,
                wrong_lines = 0;  // whole: one other put's whole body, not a mixture
};

class Reader {
 public:
  Reader(const Shared& shared, const Variant& variant, bool backward)
      : shared_(shared), variant_(variant), backward_(backward) {}

  // `wait`: only once that slot was published anew, which is when stores may still be on their way.
  void ReadOne(std::uint64_t key, bool wait) {
    ++counts_.reads;
    const std::uint64_t hint = shared_.index[key].load(std::memory_order_relaxed);
    const std::size_t unit = hint >> 32;
    const std::size_t bytes = (hint & 0xffffffff) * kUnit;
    if (bytes == 0 || bytes > kSegmentBytes || unit + bytes / kUnit + 1 > kUnits)
      return Count(counts_.miss_hint);
    const Word& generation = shared_.head.generation[unit];
    if (wait) AwaitPublish(unit);
    const std::uint64_t carve_before = shared_.head.carve.load(std::memory_order_acquire);
    const std::uint64_t before = generation.load(std::memory_order_acquire);
    if ((carve_before & 1) != 0 || (before & 1) != 0 || before == 0) return Count(counts_.miss_odd);
    const char* body = shared_.units[unit];
    Seal seal;
    Stamp stamp;
    std::memcpy(&seal, body + bytes, sizeof(seal));
    std::memcpy(&stamp, body + bytes + sizeof(seal), sizeof(stamp));
    if (variant_.crc && (seal.crc != CrcOf(seal) || stamp.crc != CrcOf(stamp) || stamp.seal_crc != seal.crc))
      return Count(counts_.miss_seal);
    if (seal.magic != 0x4c414553 || seal.key != key || seal.length_bytes != bytes)
      return Count(counts_.miss_key);
    if (variant_.compare_stamp && (stamp.unit != unit || stamp.generation != before))
      return Count(counts_.miss_stamp);
    Copy(body, bytes);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (variant_.recheck && (shared_.head.carve.load(std::memory_order_relaxed) != carve_before ||
                             generation.load(std::memory_order_relaxed) != before))
      return Count(counts_.miss_changed);
    // Under an unchanged generation a CRC that fails is a fault of the protocol that the CRC hides: it is
    // counted.
    if (variant_.crc && ~Crc32cWords(0xffffffffu, copy_.data(), bytes) != seal.body_crc)
      return Count(counts_.miss_body_crc);
    ++counts_.accepted;
    Judge(seal, bytes / 64);
  }

  const Counts& counts() const { return counts_; }

 private:
  static void Count(std::uint64_t& counter) { ++counter; }

  void AwaitPublish(std::size_t unit) const {
    const Word& generation = shared_.head.generation[unit];
    const std::uint64_t now = generation.load(std::memory_order_relaxed);
    for (int spin = 0; spin < 20'000; ++spin) {
      const std::uint64_t next = generation.load(std::memory_order_acquire);
      if (next != now && (next & 1) == 0) return;
    }
  }

  void Copy(const char* body, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; i += 64) {
      const std::size_t at = backward_ ? bytes - 64 - i : i;
      _mm512_store_si512(reinterpret_cast<char*>(copy_.data()) + at, _mm512_load_si512(body + at));
    }
  }

  void Judge(const Seal& seal, std::size_t lines) {
    const std::size_t foreign = ForeignLines(copy_.data(), lines, seal.key, seal.put_id);
    if (foreign == 0) return;
    ++counts_.wrong;
    counts_.wrong_lines += foreign;
    counts_.wrong_whole += ForeignLines(copy_.data(), lines, copy_[0].words[0], copy_[0].words[1]) == 0;
  }

  const Shared& shared_;
  const Variant variant_;
  const bool backward_;
  Counts counts_;
  alignas(64) std::array<Line, kLines> copy_;
};

// Starts writers and kills them, each after a random while, until told to stop.
class Supervisor {
 public:
  Supervisor(int file, const Variant& variant, std::uint64_t kill_us, std::size_t slots)
      : thread_([=, this] { Loop(file, variant, kill_us, slots); }) {}
  ~Supervisor() { Stop(); }
  std::uint64_t Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return kills_;
  }

 private:
  void Loop(int file, const Variant& variant, std::uint64_t kill_us, std::size_t slots) {
    std::mt19937_64 random(NowNs());
    while (!stop_) {
      const pid_t child = fork();
      if (child < 0) Die("fork");
      if (child == 0) {
        PinTo(0);
        Writer writer(*reinterpret_cast<Shared*>(Map(file, sizeof(Shared), PROT_READ | PROT_WRITE)), variant,
                      slots);
        writer.Recover();
        writer.Run();
      }
      usleep(static_cast<useconds_t>(kill_us / 4 + random() % (kill_us * 3 / 2)));
      kill(child, SIGKILL);
      int status = 0;
      if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status)) Die("the writer ended by itself");
      ++kills_;
    }
  }

  std::atomic<bool> stop_ = false;
  std::uint64_t kills_ = 0;
  std::thread thread_;
};

struct Options {
  std::uint64_t seconds;
  std::uint64_t kill_us;
  std::size_t slots;
  bool backward;
};

void PrintHead() {
  std::printf("%-26s %-3s %9s %9s %8s %8s %6s %8s | %8s %8s %7s %8s %7s %8s %7s | %6s %9s %6s %7s %8s\n",
              "protocol", "crc", "reads", "accepted", "wrong", "wrong_%", "whole", "lines", "no hint", "odd",
              "seal", "key", "stamp", "changed", "bodycrc", "kills", "puts", "carves", "freed", "kept");
}

void PrintRow(const Variant& variant, const Counts& c, const Shared& shared, std::uint64_t kills) {
  auto load = [](const Word& word) { return word.load(std::memory_order_relaxed); };
  const double share =
      c.accepted == 0 ? 0 : 100.0 * static_cast<double>(c.wrong) / static_cast<double>(c.accepted);
  const double lines = c.wrong == 0 ? 0 : static_cast<double>(c.wrong_lines) / static_cast<double>(c.wrong);
  std::printf("%-26s %-3s %9lu %9lu %8lu %8.4f %6lu %8.1f | ", variant.name, variant.crc ? "yes" : "no",
              c.reads, c.accepted, c.wrong, share, c.wrong_whole, lines);
  std::printf("%8lu %8lu %7lu %8lu %7lu %8lu %7lu | ", c.miss_hint, c.miss_odd, c.miss_seal, c.miss_key,
              c.miss_stamp, c.miss_changed, c.miss_body_crc);
  std::printf("%6lu %9lu %6lu %7lu %8lu\n", kills, load(shared.published), load(shared.recarved),
              load(shared.recovered_odd), load(shared.recovered_live));
  std::fflush(stdout);
}

// The number of wrong bodies accepted, and of those that only the CRC kept out.
std::uint64_t RunVariant(const Variant& variant, const Options& options) {
  const int file = SharedFile("killed-writer", sizeof(Shared));
  const auto& shared = *reinterpret_cast<const Shared*>(Map(file, sizeof(Shared), PROT_READ));
  Reader reader(shared, variant, options.backward);
  std::mt19937_64 random(1);
  Supervisor supervisor(file, variant, options.kill_us, options.slots);
  PinTo(1);
  for (const std::uint64_t end = NowNs() + options.seconds * 1'000'000'000; NowNs() < end;)
    for (int i = 0; i < 16; ++i) {
      reader.ReadOne(shared.latest.load(std::memory_order_relaxed) % kKeys, false);
      reader.ReadOne(random() % options.slots, true);
      reader.ReadOne(random() % kKeys, false);
    }
  const std::uint64_t kills = supervisor.Stop();
  PrintRow(variant, reader.counts(), shared, kills);
  const std::uint64_t wrong = reader.counts().wrong + reader.counts().miss_body_crc;
  munmap(const_cast<Shared*>(&shared), sizeof(Shared));
  close(file);
  return wrong;
}

int Main(int argc, char** argv) {
  Flags flags(kHelp, {{"seconds", "10"},
                      {"kill-us", "4000"},
                      {"slots", "4"},
                      {"all", "off"},
                      {"forward", "off"},
                      {"no-first-fence", "off"},
                      {"no-second-fence", "off"},
                      {"no-recheck", "off"},
                      {"no-stamp", "off"},
                      {"no-crc", "off"},
                      {"recover-even", "off"},
                      {"recarve-keeps", "off"}});
  flags.Parse(argc, argv);
  const Options options{flags.Number("seconds"), flags.Number("kill-us"), flags.Number("slots"),
                        !flags.On("forward")};
  if (options.kill_us == 0 || options.slots == 0 || options.slots > 16) {
    std::fprintf(stderr, "--kill-us takes 1 or more, --slots 1 to 16\n");
    return 2;
  }
  std::vector<Variant> variants;
  if (flags.On("all")) {
    for (bool crc : {false, true}) {
      variants.push_back({.name = "sound", .crc = crc});
      variants.push_back({.name = "no second fence", .second_fence = false, .crc = crc});
      variants.push_back({.name = "no re-check", .recheck = false, .crc = crc});
      variants.push_back({.name = "stamp not compared", .compare_stamp = false, .crc = crc});
      variants.push_back({.name = "re-carve keeps generations", .crc = crc, .recarve_keeps_odd = false});
      variants.push_back({.name = "recovers to even", .crc = crc, .recover_even = true});
      variants.push_back({.name = "no first fence", .first_fence = false, .crc = crc});
    }
  } else {
    variants.push_back({"as given", !flags.On("no-first-fence"), !flags.On("no-second-fence"),
                        !flags.On("no-recheck"), !flags.On("no-stamp"), !flags.On("no-crc"),
                        flags.On("recover-even"), !flags.On("recarve-keeps")});
  }
  PrintHead();
  bool good = true;
  for (const Variant& variant : variants) {
    const std::uint64_t wrong = RunVariant(variant, options);
    const bool whole = variant.first_fence && variant.second_fence && variant.recheck &&
                       variant.compare_stamp && !variant.recover_even && variant.recarve_keeps_odd;
    good = good && (!whole || wrong == 0);
  }
  return good ? 0 : 1;
}

}  // namespace
}  // namespace lab

int main(int argc, char** argv) { return lab::Main(argc, argv); }
