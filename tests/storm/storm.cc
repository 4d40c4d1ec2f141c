// SPDX-License-Identifier: Apache-2.0
// storm [--faults N] [--first S | --seed S] [--tier T] [--jobs J] [--json]: runs seeds one after the other,
// each a world of its own, until N faults were seen; which seeds those are depends on N, S and J alone. A run
// that breaks a promise prints the line that replays it alone.
#include <poll.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../fault_share.h"
#include "base/format.h"
#include "command_line.h"
#include "world.h"

namespace cistern::storm {
namespace {

// What workers tell the parent, in memory that both have.
struct Told {
  std::uint64_t seed = 0;  // the run under way
  std::uint64_t runs = 0, operations = 0, reads = 0, hits = 0, words = 0, starts = 0, failed_starts = 0;
  Faults faults;
  std::array<Faults, kTierKinds> of_tier;  // the same, of worlds with each tier
  char violation[1000] = {};

  void Add(const Told& other) {
    faults.Add(other.faults);
    for (std::size_t k = 0; k < kTierKinds; ++k) of_tier[k].Add(other.of_tier[k]);
    runs += other.runs;
    operations += other.operations;
    reads += other.reads;
    hits += other.hits;
    words += other.words;
    starts += other.starts;
    failed_starts += other.failed_starts;
  }
};

constexpr std::int64_t kRunSeconds = 120;

Told* g_told = nullptr;  // the worker's own; Violation has no other way to it

struct Arguments {
  std::uint64_t faults = 0;  // 0: not given
  std::uint64_t seed = 0;    // 0: from the first on
  std::uint64_t first = 0;   // 0: not given
  std::uint64_t jobs = 2;
  std::uint64_t seconds = 0;
  bool json = false, trace = false;
  std::optional<TierKind> tier;  // none: the seed's
};

constexpr std::array<std::string_view, kTierKinds> kTierNames = {"memory", "flash", "simulated"};

Status ReadTier(std::string_view text, std::optional<TierKind>* tier) {
  tier->reset();
  if (text == "mixed") return Status();
  const auto found = std::ranges::find(kTierNames, text);
  if (found == kTierNames.end())
    return Status(Code::kInvalid, Text("--tier is memory, flash, simulated or mixed, not '", text, "'"));
  *tier = static_cast<TierKind>(found - kTierNames.begin());
  return Status();
}

const Faults& Of(const Told& told, TierKind tier) { return told.of_tier[static_cast<std::size_t>(tier)]; }

void RunSeed(std::uint64_t seed, const Arguments& arguments, SharedBytes& bytes, Logger& log, Told& told) {
  told.seed = seed;
  // A run that does not end is killed (SIGPROF) after so much processor time.
  const itimerval limit = {{0, 0}, {kRunSeconds, 0}};
  setitimer(ITIMER_PROF, &limit, nullptr);
  World world(seed, arguments.tier, bytes, log, arguments.trace);
  world.Run();
  told.faults.Add(world.faults());
  told.of_tier[static_cast<std::size_t>(world.tier_kind())].Add(world.faults());
  told.operations += world.operations;
  told.reads += world.reads;
  told.hits += world.hits;
  told.words += world.words;
  told.starts += world.starts;
  told.failed_starts += world.failed_starts;
  told.runs++;
}

[[noreturn]] void Work(const Arguments& arguments, std::uint32_t worker, Told& told) {
  g_told = &told;
  auto log = Logger::ToStderr(arguments.trace ? LogLevel::kDebug : LogLevel::kOff);
  SharedBytes bytes;
  if (arguments.seed != 0) {
    RunSeed(arguments.seed, arguments, bytes, *log, told);
  } else {
    std::uint64_t share =
        arguments.faults / arguments.jobs + (worker < arguments.faults % arguments.jobs ? 1 : 0);
    for (std::uint64_t seed = arguments.first + worker; told.faults.total() < share; seed += arguments.jobs) {
      RunSeed(seed, arguments, bytes, *log, told);
    }
  }
  log.reset();
  std::_Exit(0);
}

void Progress(const Told* told, std::uint32_t jobs, std::uint64_t wanted, double seconds) {
  std::uint64_t faults = 0, operations = 0, runs = 0;
  for (std::uint32_t i = 0; i < jobs; ++i) {
    faults += told[i].faults.total();
    operations += told[i].operations;
    runs += told[i].runs;
  }
  std::fprintf(stderr, "%s%llu of %llu faults, %llu runs, %llu operations, %.0f s%s", isatty(2) ? "\r" : "",
               static_cast<unsigned long long>(faults), static_cast<unsigned long long>(wanted),
               static_cast<unsigned long long>(runs), static_cast<unsigned long long>(operations), seconds,
               isatty(2) ? "  " : "\n");
}

// In percent, of the faults in worlds of the same sort.
double Share(std::uint64_t seen, std::uint64_t of) {
  return of == 0 ? 0 : 100.0 * static_cast<double>(seen) / static_cast<double>(of);
}

void Report(const Told& all, std::uint64_t first, double seconds, bool json) {
  auto number = [](std::uint64_t n) { return static_cast<unsigned long long>(n); };
  if (json) {
    std::string out =
        Text("{\"faults\":", all.faults.total(), ",\"first\":", first, ",\"runs\":", all.runs,
             ",\"operations\":", all.operations, ",\"reads\":", all.reads, ",\"hits\":", all.hits,
             ",\"words\":", all.words, ",\"starts\":", all.starts, ",\"failed_starts\":", all.failed_starts,
             ",\"seconds\":", seconds, ",\"kinds\":{");
    for (std::size_t i = 0; i < kFaultKinds; ++i) {
      auto kind = static_cast<Fault>(i);
      out += Text(i == 0 ? "\"" : ",\"", FaultName(kind), "\":{\"injected\":", all.faults[kind].injected,
                  ",\"seen\":", all.faults[kind].seen,
                  ",\"simulated\":", Of(all, TierKind::kSimulated)[kind].seen, "}");
    }
    std::printf("%s}}\n", out.c_str());
    return;
  }
  std::printf("%-16s %10s %10s %8s %10s\n", "fault", "injected", "seen", "share", "simulated");
  const Faults& simulated = Of(all, TierKind::kSimulated);
  for (std::size_t i = 0; i < kFaultKinds; ++i) {
    auto kind = static_cast<Fault>(i);
    const Faults& own = Of(all, i < kMemoryFaultKinds ? TierKind::kMemory : TierKind::kFlash);
    std::printf("%-16s %10llu %10llu %7.1f%% %9.1f%%\n", std::string(FaultName(kind)).c_str(),
                number(all.faults[kind].injected), number(all.faults[kind].seen),
                Share(own[kind].seen, own.total()), Share(simulated[kind].seen, simulated.total()));
  }
  std::printf(
      "%llu faults in %llu runs, of the seeds from %llu on: %llu operations, %llu reads, %llu hits, all "
      "exact; %llu words; %llu starts, of which %llu failed; %.1f s\n",
      number(all.faults.total()), number(all.runs), number(first), number(all.operations), number(all.reads),
      number(all.hits), number(all.words), number(all.starts), number(all.failed_starts), seconds);
}

// Each kind has 5 % of what was seen in worlds of its own, those of flash or those without, less what may
// lack. So has each kind that only a lower tier suffers, of the worlds with the simulated one.
bool EveryKindHasItsShare(const Told& all) {
  if (all.faults.total() < 10'000) return true;
  bool good = true;
  auto check = [&good](Fault kind, const Faults& faults, std::string_view where) {
    if (static_cast<double>(faults[kind].seen) >= LeastSeen(0.05, faults.total())) return;
    std::fprintf(stderr,
                 "FAILED: %s has %.1f %% of the faults seen in worlds with %s, and has to have 5 %%\n",
                 std::string(FaultName(kind)).c_str(), Share(faults[kind].seen, faults.total()),
                 std::string(where).c_str());
    good = false;
  };
  for (std::size_t i = 0; i < kFaultKinds; ++i) {
    const auto kind = static_cast<Fault>(i);
    const TierKind own = i < kMemoryFaultKinds ? TierKind::kMemory : TierKind::kFlash;
    check(kind, Of(all, own), kTierNames[static_cast<std::size_t>(own)]);
    const Faults& simulated = Of(all, TierKind::kSimulated);
    if (i < kMemoryFaultKinds || !Suffers(TierKind::kSimulated, kind) || simulated.total() < 5'000) continue;
    check(kind, simulated, kTierNames[static_cast<std::size_t>(TierKind::kSimulated)]);
  }
  return good;
}

int Storm(const Arguments& arguments) {
  const auto jobs = static_cast<std::uint32_t>(arguments.seed != 0 ? 1 : arguments.jobs);
  void* shared =
      mmap(nullptr, sizeof(Told) * jobs, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 1;
  auto* told = static_cast<Told*>(shared);
  std::vector<pid_t> pids;
  auto began = std::chrono::steady_clock::now();
  auto passed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  };
  for (std::uint32_t i = 0; i < jobs; ++i) {
    new (&told[i]) Told();
    pid_t pid = fork();
    if (pid == 0) Work(arguments, i, told[i]);
    if (pid < 0) return 1;
    pids.push_back(pid);
  }
  // The parent has nothing to do but to tell how far it is: every quarter of a second it looks.
  bool failed = false, late = false;
  double shown = 0;
  std::size_t left = jobs;
  while (left > 0) {
    int status = 0;
    pid_t ended = waitpid(-1, &status, WNOHANG);
    if (ended == 0) {
      poll(nullptr, 0, 250);
      late = arguments.seconds != 0 && passed() > static_cast<double>(arguments.seconds);
      if (late) {
        for (pid_t pid : pids) kill(pid, SIGKILL);
        std::fprintf(stderr, "\nstopped after %llu s\n", static_cast<unsigned long long>(arguments.seconds));
      }
      if (!arguments.json && passed() - shown > (isatty(2) ? 0.5 : 10)) {
        shown = passed();
        Progress(told, jobs, arguments.faults, shown);
      }
      continue;
    }
    if (ended < 0) break;
    left--;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    for (std::uint32_t i = 0; i < jobs; ++i) {
      if (pids[i] != ended || failed || late) continue;
      failed = true;
      const std::string tier =
          arguments.tier ? Text(" --tier ", kTierNames[static_cast<std::size_t>(*arguments.tier)]) : "";
      std::fprintf(stderr, "\nFAILED: seed %llu: %s\nreplay: storm --seed %llu%s\n",
                   static_cast<unsigned long long>(told[i].seed),
                   told[i].violation[0] != 0     ? told[i].violation
                   : WTERMSIG(status) == SIGPROF ? "it does not end"
                                                 : Text("signal ", WTERMSIG(status)).c_str(),
                   static_cast<unsigned long long>(told[i].seed), tier.c_str());
      for (pid_t pid : pids) {
        if (pid != ended) kill(pid, SIGKILL);
      }
    }
  }
  if (failed) return 1;
  Told all;
  for (std::uint32_t i = 0; i < jobs; ++i) all.Add(told[i]);
  Report(all, arguments.seed != 0 ? arguments.seed : arguments.first, passed(), arguments.json);
  return late || EveryKindHasItsShare(all) ? 0 : 1;
}

}  // namespace

void Violation(const std::string& what) {
  if (g_told != nullptr) std::strncpy(g_told->violation, what.c_str(), sizeof(g_told->violation) - 1);
  std::_Exit(3);
}

}  // namespace cistern::storm

int main(int argc, char** argv) {
  cistern::storm::Arguments arguments;
  cistern::CommandLine line(
      "storm", "Real store, memory and reader code on simulated memory, loop and clock, under faults.",
      "  storm --faults 10000\n  storm --faults 300000 --first 1000000\n  storm --seed 94\n"
      "  storm --tier simulated --faults 100000");
  line.Count("--faults", "faults that must have been seen; default: 100000", &arguments.faults, 1,
             1ull << 40);
  line.Count("--seed", "replay one run alone", &arguments.seed, 1, UINT64_MAX);
  line.Count("--first", "the seed to begin with; default: 1", &arguments.first, 1, 1ull << 60);
  line.Count("--jobs", "processes; default: 2", &arguments.jobs, 1, 64);
  line.Count("--seconds", "stop after so long; default: never", &arguments.seconds, 1, 1u << 30);
  line.Flag(
      "--tier", "TIER",
      "what stands below memory: memory (nothing), flash, simulated, or mixed (the seed's); default: mixed",
      [&arguments](std::string_view text) { return cistern::storm::ReadTier(text, &arguments.tier); });
  line.Switch("--trace", "say what happens, on standard error: for --seed", &arguments.trace);
  line.Switch("--json", "the report as one JSON object", &arguments.json);
  if (auto exit = line.Parse(argc, argv)) return *exit;
  if (arguments.seed != 0 && (arguments.faults != 0 || arguments.first != 0)) {
    return cistern::Complain(
        "storm", cistern::Status(cistern::Code::kInvalid,
                                 "--seed replays one run alone, however many faults it has: leave --faults "
                                 "and --first out, or begin with that seed by --first"));
  }
  if (arguments.faults == 0) arguments.faults = 100'000;
  if (arguments.first == 0) arguments.first = 1;
  return cistern::storm::Storm(arguments);
}
