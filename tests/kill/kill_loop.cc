// SPDX-License-Identifier: Apache-2.0
// Promises 1 and 7 against a real cisternd that is killed with SIGKILL under load, again and again: after
// each restart every block that anyone ever wrote is a bit-exact hit or a miss, through new mappings and old
// ones; what was dropped does not come back; no lease outlives a restart; the node is warm; and where there
// is room for all, nothing is lost. With flash most of the blocks lie below memory, and what a census found
// just before a kill is found after it. With --reboot the memory goes with each kill, and what lay on flash
// has to be found.
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <optional>

#include "base/clock.h"
#include "base/format.h"
#include "base/units.h"
#include "client.h"
#include "command_line.h"
#include "measure.h"

namespace cistern {
namespace {

constexpr std::int64_t kWatchdogUs = 300'000'000;
constexpr double kKillTheSuccessorToo = 0.25;  // of the rounds: at a random moment of its recovery
constexpr double kCensus = 0.75;               // of the rounds with flash
constexpr double kFairShare = 0.5;             // of what lay on flash, to be found after reboots
// Reclaim begins below four free regions and ends at four; a restart may free two more, those that were ready
// to be written. With more than this before the kill and after it, no life between the two gave one up: what
// that evicted died with its counters.
constexpr std::uint64_t kFreeRegions = 8;

struct KillOptions {
  std::uint64_t rounds = 50, seed = 1, memory_bytes = 0;
  std::string flash_dir;  // empty, and flash_bytes over 0: one of its own
  std::uint64_t flash_bytes = 0;
  bool reboot = false, json = false;
  std::string loop = "auto";
};

struct KillReport {
  std::uint64_t rounds = 0, kills = 0, cold_restarts = 0;
  std::vector<double> warm_ms;
  // Of what a census found all is there afterwards, but for what the node says that it evicted since. It can
  // be told where no life gave a region up between the census and the comparison.
  std::uint64_t censuses = 0, judged_censuses = 0, judged_evictions = 0, lost_residents = 0;
  std::uint64_t hung_devices = 0;  // lives in which the host's disk stood still: what was on it is lost
  // Of all lives, as seen last before each kill.
  std::uint64_t written_down = 0, fetched = 0, evicted = 0, cut_bad = 0, bad_records = 0;
  std::uint64_t on_flash_bytes = 0, found_bytes = 0;  // before the reboots and after them
  Counts counts;
};

// What a node's status says of what it holds and gave up.
struct Life {
  std::uint64_t evicted = 0, cut = 0, written_down = 0, fetched = 0, cut_bad = 0, bad_records = 0;
  std::uint64_t live_bytes = 0, free_regions = 0, fetches = 0;
  bool hung = false;  // a device was taken out because it hung
};

std::uint64_t NumberIn(const std::string& json, const std::string& name) {
  const std::size_t at = json.find("\"" + name + "\":");
  return at == std::string::npos ? 0 : std::strtoull(json.c_str() + at + name.size() + 3, nullptr, 10);
}

Result<Life> LifeOf(const Daemon& daemon) {
  Result<Store> store = daemon.Connect();
  if (!store) return Error(store.error());
  Result<std::string> json = store->StatusJson(kWatchdogUs);
  if (!json) return Error(json.error());
  auto number = [&](const char* name) { return NumberIn(*json, name); };
  return Life{.evicted = number("evicted") + number("evicted_below"),
              .cut = number("cut_at_reclaim"),
              .written_down = number("written_down"),
              .fetched = number("fetched"),
              .cut_bad = number("cut_bad"),
              .bad_records = number("bad_records"),
              .live_bytes = number("live_bytes"),
              .free_regions = number("free_regions"),
              .fetches = number("fetches"),
              .hung = json->find("has hung for") != std::string::npos};
}

void Add(const Compared& from, Compared& to) {
  to.blocks += from.blocks;
  to.hits += from.hits;
  to.misses += from.misses;
  to.lost += from.lost;
  to.dropped += from.dropped;
  to.missed_resident += from.missed_resident;
  to.asked_again += from.asked_again;
  to.bytes += from.bytes;
}

void Add(const Counts& from, Counts& to) {
  to.requests += from.requests;
  to.published += from.published;
  to.refused += from.refused;
  to.drops += from.drops;
  to.acquires += from.acquires;
  to.load_hits += from.load_hits;
  to.resident += from.resident;
  Add(from.with_new, to.with_new);
  Add(from.with_old, to.with_old);
  to.views_after_kill += from.views_after_kill;
  to.views_still_good += from.views_still_good;
  to.views_after_restart += from.views_after_restart;
  to.good_after_restart += from.good_after_restart;
  to.wrong_bytes += from.wrong_bytes;
  to.revived_drops += from.revived_drops;
}

class KillLoop {
 public:
  explicit KillLoop(const KillOptions& options)
      : options_(options), random_(options.seed), buffer_(kMaxBlockBytes) {
    void* memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    board_ = new (memory) Board();
    board_->flash = options.flash_bytes > 0;
    board_->reboot = options.reboot;
    board_->scale = board_->flash ? kBelowScale : 1;
  }
  ~KillLoop() {
    for (pid_t pid : clients_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    if (board_ != nullptr) munmap(board_, sizeof(Board));
    std::error_code ignored;
    if (!own_flash_.empty()) std::filesystem::remove_all(own_flash_, ignored);
  }

  Status Run() {
    if (board_ == nullptr) return Status(Code::kIoError, "no shared memory for the board");
    std::vector<std::string> flags = {"--memory", SizeText(options_.memory_bytes), "--loop", options_.loop};
    if (Status status = MakeFlash(flags); !status.ok()) return status;
    Result<Daemon> daemon = Daemon::Start(DaemonBeside(), "/dev/shm", std::move(flags));
    if (!daemon) return daemon.error();
    const Status status = Rounds(*daemon);
    // Nobody writes to the flash that is removed next.
    daemon->Kill();
    return status;
  }

  const KillReport& Report() {
    report_.counts = Counts();
    for (std::uint32_t i = 0; board_ != nullptr && i < kClients; ++i) Add(board_->counts[i], report_.counts);
    return report_;
  }

 private:
  Status MakeFlash(std::vector<std::string>& flags) {
    if (options_.flash_bytes == 0) return Status();
    std::string directory = options_.flash_dir;
    if (directory.empty()) {
      const std::string program = DaemonBeside();
      directory = own_flash_ = program.substr(0, program.rfind('/')) + "/kill-flash-XXXXXX";
      if (mkdtemp(own_flash_.data()) == nullptr) {
        own_flash_.clear();
        return Status(Code::kIoError, Text(directory, ": no directory can be made there"));
      }
      directory = own_flash_;
    }
    flags.insert(flags.end(), {"--flash", Text(directory, ":", SizeText(options_.flash_bytes))});
    return Status();
  }

  Status Rounds(Daemon& daemon) {
    for (std::uint32_t i = 0; i < kClients; ++i) StartClient(daemon, i, options_.rounds);
    Status status = WaitForClients([&] { return board_->connected.load() == kClients; });
    for (std::uint64_t round = 1; status.ok() && round <= options_.rounds; ++round) {
      status = Round(daemon, round);
      if (!status.ok()) return Status(status.code(), Text("round ", round, ": ", status.message()));
      ++report_.rounds;
    }
    return status;
  }

  void StartClient(const Daemon& daemon, std::uint32_t number, std::uint64_t rounds) {
    std::fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      Status status = Client(daemon, *board_, number, options_.seed).Run(rounds);
      if (!status.ok()) std::fprintf(stderr, "client %u: %s\n", number, status.ToString().c_str());
      _exit(status.ok() ? 0 : 1);
    }
    clients_.push_back(pid);
  }

  Status Round(Daemon& daemon, std::uint64_t round) {
    // Flash fills less quickly.
    const std::uint64_t load_us = random_.Between(5'000, 150'000) * (board_->flash ? 4 : 1);
    if (Status status = WaitUs(load_us); !status.ok()) return status;
    const bool must_be_warm = board_->published.load() > 0 && !options_.reboot;
    Life last;
    std::optional<std::uint64_t> evictions;  // at most, since a census that can be judged
    if (board_->flash) {
      Result<std::optional<std::uint64_t>> census = BeforeKill(daemon, round, last);
      if (!census) return census.error();
      if (!options_.reboot) evictions = *census;
    }
    const std::uint64_t missed = MissedResidents(), found = FoundBytes();
    board_->killing.store(round);
    daemon.Kill();
    ++report_.kills;
    if (random_.Chance(kKillTheSuccessorToo)) {
      if (Status status = Restart(daemon); !status.ok()) return status;
      if (Status status = WaitUs(random_.Between(0, 40'000)); !status.ok()) return status;
      daemon.Kill();
      ++report_.kills;
    }
    board_->killed.store(round);
    SystemClock clock;
    const Instant start = clock.Now();
    if (Status status = Restart(daemon); !status.ok()) return status;
    Result<bool> warm = FindAnything(daemon);
    if (!warm) return warm.error();
    board_->restarted.store(round);
    if (*warm) report_.warm_ms.push_back(static_cast<double>(clock.Now().UsSince(start)) / 1e3);
    report_.cold_restarts += must_be_warm && !*warm;
    if (Status status = WaitForAll(board_->found, round); !status.ok()) return status;
    if (board_->flash) {
      Result<Life> next = LifeOf(daemon);
      if (!next) return next.error();
      if (next->hung) {
        ++report_.hung_devices;
      } else {
        if (evictions && next->free_regions > kFreeRegions)
          Judge(*evictions + MissesOf(*next), MissedResidents() - missed);
        report_.on_flash_bytes += last.live_bytes;
        report_.found_bytes += FoundBytes() - found;
      }
    }
    board_->going_on.store(round);
    return WaitForAll(board_->compared, round);
  }

  // What the node holds and did is noted; in some rounds the load ends and all that is there is counted.
  // Where it has to be there after the kill, returns how much of it may have been evicted before.
  Result<std::optional<std::uint64_t>> BeforeKill(const Daemon& daemon, std::uint64_t round, Life& last) {
    const bool census = random_.Chance(kCensus);
    Life first;
    if (census) {
      Result<Life> life = LifeOf(daemon);
      if (!life) return Error(life.error());
      first = *life;
      board_->counting.store(round);
      if (Status status = WaitForAll(board_->counted, round); !status.ok()) return Error(status);
      ++report_.censuses;
    }
    Result<Life> life = LifeOf(daemon);
    if (census) {
      // What the census's matches read ahead evicts others until the last of it is here.
      Status status = WaitForClients([&] { return !life || life->fetches == 0 || !(life = LifeOf(daemon)); });
      if (!status.ok()) return Error(status);
    }
    if (!life) return Error(life.error());
    last = *life;
    report_.written_down += last.written_down;
    report_.fetched += last.fetched;
    report_.evicted += last.evicted + last.cut;
    report_.cut_bad += last.cut_bad;
    report_.bad_records += last.bad_records;
    if (!census || last.hung || last.free_regions <= kFreeRegions) return std::nullopt;
    return MissesOf(last) - MissesOf(first);
  }

  // How many blocks a life's evictions took at most: one each, or a whole chain.
  static std::uint64_t MissesOf(const Life& life) { return life.evicted + life.cut * kChainBlocks; }

  void Judge(std::uint64_t evictions, std::uint64_t missed) {
    ++report_.judged_censuses;
    report_.judged_evictions += evictions;
    report_.lost_residents += missed > evictions ? missed - evictions : 0;
  }

  Status Restart(Daemon& daemon) {
    if (options_.reboot) daemon.ForgetMemory();
    return daemon.Exec();
  }

  std::uint64_t MissedResidents() const {
    std::uint64_t missed = 0;
    for (const Counts& counts : board_->counts) missed += counts.with_new.missed_resident;
    return missed;
  }
  std::uint64_t FoundBytes() const {
    std::uint64_t bytes = 0;
    for (const Counts& counts : board_->counts) bytes += counts.with_new.bytes;
    return bytes;
  }

  Status WaitForAll(const std::atomic<std::uint64_t> (&numbers)[kClients], std::uint64_t round) const {
    return WaitForClients([&] {
      return std::ranges::all_of(numbers, [&](const auto& number) { return number.load() >= round; });
    });
  }

  // The clock is asked again and again, so that a client's end is seen.
  Status WaitUs(std::uint64_t us) {
    SystemClock clock;
    const Instant until = clock.Now().PlusUs(static_cast<std::int64_t>(us));
    while (clock.Now() < until) poll(nullptr, 0, 1);
    return ClientsLive();
  }

  Status ClientsLive() const {
    for (std::uint32_t i = 0; i < clients_.size(); ++i) {
      siginfo_t ended{};
      waitid(P_PID, static_cast<id_t>(clients_[i]), &ended, WEXITED | WNOHANG | WNOWAIT);
      if (ended.si_pid == clients_[i] && (ended.si_code != CLD_EXITED || ended.si_status != 0)) {
        const char* how = ended.si_code == CLD_EXITED ? " failed, exit " : " died of signal ";
        return Status(Code::kGone, Text("client ", i, how, ended.si_status));
      }
    }
    return Status();
  }

  template <class Done>
  Status WaitForClients(Done done) const {
    SystemClock clock;
    const Instant until = clock.Now().PlusUs(kWatchdogUs);
    while (!done()) {
      if (Status status = ClientsLive(); !status.ok()) return status;
      if (clock.Now() > until) return Status(Code::kTooLate, "the clients do not come to their end");
      poll(nullptr, 0, 1);
    }
    return Status();
  }

  // Whether the node has at least one block that a client wrote.
  Result<bool> FindAnything(const Daemon& daemon) {
    Result<std::unique_ptr<Session>> session = OpenSession(daemon);
    if (!session) return Error(session.error());
    ChainName name;
    for (name.space = 0; name.space < kSpaces.size(); ++name.space) {
      for (name.chain = 0; name.chain < board_->chains(name.space); ++name.chain) {
        for (name.owner = 0; name.owner < kClients; ++name.owner) {
          if (BlockWord::KnownOf(board_->word(name, 0).Load()) != Known::kPublished) continue;
          std::uint64_t wrong = 0;
          Status status =
              ReadAndCompare(**session, name.space, KeysOf(name, options_.seed)[0], buffer_, &wrong);
          if (status.ok() && wrong == 0) return true;
          const Code code = status.code();
          if (status.ok() || code == Code::kMiss || code == Code::kBusy || code == Code::kTooLate) continue;
          return Error(status);
        }
      }
    }
    return false;
  }

  const KillOptions options_;
  std::string own_flash_;
  Random random_;
  std::vector<std::byte> buffer_;
  Board* board_ = nullptr;
  KillReport report_;
  std::vector<pid_t> clients_;
};

std::string JsonOf(const Compared& c) {
  return Text("{\"blocks\":", c.blocks, ",\"hits\":", c.hits, ",\"misses\":", c.misses, ",\"lost\":", c.lost,
              ",\"dropped\":", c.dropped, ",\"bytes\":", c.bytes, "}");
}

std::string LowerTierJson(const KillReport& r) {
  return Text("{\"written_down\":", r.written_down, ",\"fetched\":", r.fetched, ",\"evicted\":", r.evicted,
              ",\"cut_bad\":", r.cut_bad, ",\"bad_records\":", r.bad_records, ",\"censuses\":", r.censuses,
              ",\"judged_censuses\":", r.judged_censuses, ",\"residents\":", r.counts.resident,
              ",\"missed_residents\":", r.counts.with_new.missed_resident,
              ",\"asked_again\":", r.counts.with_new.asked_again, ",\"hung_devices\":", r.hung_devices,
              ",\"lost_residents\":", r.lost_residents, ",\"on_flash_bytes\":", r.on_flash_bytes,
              ",\"found_bytes\":", r.found_bytes, "}");
}

void PrintJson(const KillReport& r, std::uint64_t seed) {
  const Counts& c = r.counts;
  std::string json = Text(
      "{\"seed\":", seed, ",\"rounds\":", r.rounds, ",\"kills\":", r.kills, ",\"requests\":", c.requests,
      ",\"blocks_published\":", c.published, ",\"blocks_refused\":", c.refused, ",\"drops\":", c.drops,
      ",\"acquires\":", c.acquires, ",\"load_hits\":", c.load_hits, ",\"new_mapping\":", JsonOf(c.with_new),
      ",\"old_mapping\":", JsonOf(c.with_old), ",\"views_after_kill\":", c.views_after_kill,
      ",\"views_still_good\":", c.views_still_good, ",\"views_after_restart\":", c.views_after_restart,
      ",\"good_after_restart\":", c.good_after_restart, ",\"wrong_bytes\":", c.wrong_bytes,
      ",\"revived_drops\":", c.revived_drops, ",\"cold_restarts\":", r.cold_restarts,
      ",\"below\":", LowerTierJson(r), ",\"warm_ms_p50\":", Median(r.warm_ms),
      ",\"warm_ms_max\":", Quantile(r.warm_ms, 1), "}");
  std::printf("%s\n", json.c_str());
}

void PrintTable(const KillReport& r, const KillOptions& options) {
  const Counts& c = r.counts;
  auto line = [](const std::string& name, const std::string& value) {
    std::printf("  %-22s %s\n", name.c_str(), value.c_str());
  };
  auto compared = [](const Compared& of) {
    return Text(of.blocks, " blocks: ", of.hits, " hits (", RoughSizeText(of.bytes), "), ", of.misses,
                " misses (", of.lost, " of published ones), ", of.dropped, " dropped");
  };
  std::printf("%s\n", Text(r.rounds, " rounds, ", r.kills, " kills, seed ", options.seed).c_str());
  line("load", Text(c.requests, " requests, ", c.published, " blocks published, ", c.refused, " refused, ",
                    c.load_hits, " hits, ", c.acquires, " acquires, ", c.drops, " drops"));
  line("with the new mapping", compared(c.with_new));
  line("with the old mapping", compared(c.with_old));
  line("views after a kill", Text(c.views_after_kill, ", of them still good: ", c.views_still_good));
  line("views after a restart", Text(c.views_after_restart, ", of them still good: ", c.good_after_restart));
  std::printf("  %-22s p50 %.0f ms, max %.0f ms; cold restarts: %llu\n", "until warm", Median(r.warm_ms),
              Quantile(r.warm_ms, 1), static_cast<unsigned long long>(r.cold_restarts));
  if (options.flash_bytes > 0) {
    line("below memory", Text(r.written_down, " records written down, ", r.fetched, " fetched, ", r.evicted,
                              " evicted, ", r.cut_bad + r.bad_records, " bad"));
    line("censuses", Text(r.censuses, " of ", c.resident, " blocks, ", c.with_new.missed_resident,
                          " of them missed; ", r.judged_censuses, " judged: ", r.judged_evictions,
                          " evictions since, lost without one: ", r.lost_residents, "; ",
                          c.with_new.asked_again, " blocks asked for again"));
    if (r.hung_devices > 0) line("hung devices", Text(r.hung_devices, ", their rounds are not judged"));
  }
  if (options.reboot) {
    line("after reboots", Text(RoughSizeText(r.found_bytes), " found of ", RoughSizeText(r.on_flash_bytes),
                               " that lay on flash"));
  }
  line("revived drops", Text(c.revived_drops));
  line("wrong bytes", Text(c.wrong_bytes));
}

// SIZE, or DIR:SIZE.
Status SetFlash(KillOptions& options, std::string_view text) {
  const std::size_t colon = text.rfind(':');
  const std::string_view size = colon == std::string_view::npos ? text : text.substr(colon + 1);
  Result<std::uint64_t> bytes = ParseSize("--flash", size);
  if (!bytes) return bytes.error();
  options.flash_bytes = *bytes;
  if (colon != std::string_view::npos) options.flash_dir = text.substr(0, colon);
  return Status();
}

bool Good(const KillReport& report, const KillOptions& options) {
  const bool below = options.flash_bytes > 0;
  if (!below && options.memory_bytes >= kRoomyBytes && report.counts.with_new.lost != 0) return false;
  const bool fair = !options.reboot || static_cast<double>(report.found_bytes) >=
                                           kFairShare * static_cast<double>(report.on_flash_bytes);
  return fair && report.lost_residents == 0 && report.bad_records == 0 && report.counts.wrong_bytes == 0 &&
         report.counts.revived_drops == 0 && report.counts.good_after_restart == 0 &&
         report.cold_restarts == 0;
}

int Run(int argc, const char* const* argv) {
  KillOptions options;
  CommandLine line("kill_loop",
                   "A node under load is killed with SIGKILL and started again; every block is compared.",
                   "  kill_loop --rounds 1000 --seed 7\n  kill_loop --memory 1GiB\n"
                   "  kill_loop --flash 1GiB --reboot --loop epoll");
  line.Count("--rounds", "kills under load; default: 50", &options.rounds, 1, 1'000'000);
  line.Count("--seed", "of requests and moments; default: 1", &options.seed, 0, UINT64_MAX);
  line.Size("--memory",
            "of the node; default: 256MiB, with flash 192MiB; from 1GiB on, without flash, nothing that was "
            "published may be missing",
            &options.memory_bytes);
  line.Flag("--flash", "[DIR:]SIZE", "below memory; in a directory of its own beside this program, or in DIR",
            [&](std::string_view text) { return SetFlash(options, text); });
  line.Switch("--reboot", "the memory goes with each kill", &options.reboot);
  line.Text("--loop", "NAME", "of the node: auto, io_uring, epoll; default: auto", &options.loop);
  line.Switch("--json", "one JSON object on stdout", &options.json);
  if (auto exit = line.Parse(argc, argv)) return *exit;
  if (options.reboot && options.flash_bytes == 0) {
    return Complain("kill_loop", Status(Code::kInvalid, "--reboot leaves nothing without --flash"));
  }
  const bool below = options.flash_bytes > 0;
  if (options.memory_bytes == 0) options.memory_bytes = below ? kMemoryBytesAboveFlash : kMemoryBytes;
  KillLoop loop(options);
  Status status = loop.Run();
  const KillReport& report = loop.Report();
  options.json ? PrintJson(report, options.seed) : PrintTable(report, options);
  if (!status.ok()) return Complain("kill_loop", status);
  return Good(report, options) ? kExitOk : kExitFailed;
}

}  // namespace
}  // namespace cistern

int main(int argc, char** argv) { return cistern::Run(argc, argv); }
