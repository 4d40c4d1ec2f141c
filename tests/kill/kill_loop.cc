// SPDX-License-Identifier: Apache-2.0
// Promises 1 and 7 against a real cisternd that is killed with SIGKILL under load, again and again: after
// each restart every block that anyone ever wrote is a bit-exact hit or a miss, through new mappings and old
// ones; what was dropped does not come back; no lease outlives a restart; the node is warm; and where there
// is room for all, nothing is lost.
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <new>

#include "base/clock.h"
#include "base/format.h"
#include "base/units.h"
#include "client.h"
#include "command_line.h"
#include "measure.h"

namespace cistern {
namespace {

constexpr std::int64_t kWatchdogUs = 60'000'000;
constexpr double kKillTheSuccessorToo = 0.25;  // of the rounds: at a random moment of its recovery

struct KillReport {
  std::uint64_t rounds = 0, kills = 0, cold_restarts = 0;
  std::vector<double> warm_ms;
  Counts counts;
};

void Add(const Compared& from, Compared& to) {
  to.blocks += from.blocks;
  to.hits += from.hits;
  to.misses += from.misses;
  to.lost += from.lost;
  to.dropped += from.dropped;
  to.bytes += from.bytes;
}

void Add(const Counts& from, Counts& to) {
  to.requests += from.requests;
  to.published += from.published;
  to.refused += from.refused;
  to.drops += from.drops;
  to.acquires += from.acquires;
  to.load_hits += from.load_hits;
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
  KillLoop(std::uint64_t seed, std::uint64_t memory_bytes)
      : seed_(seed), memory_bytes_(memory_bytes), random_(seed), buffer_(kMaxBlockBytes) {
    void* memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) board_ = new (memory) Board();
  }
  ~KillLoop() {
    for (pid_t pid : clients_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    if (board_ != nullptr) munmap(board_, sizeof(Board));
  }

  Status Run(std::uint64_t rounds) {
    if (board_ == nullptr) return Status(Code::kIoError, "no shared memory for the board");
    Result<Daemon> daemon = Daemon::Start(DaemonBeside(), "/dev/shm", {"--memory", SizeText(memory_bytes_)});
    if (!daemon) return daemon.error();
    for (std::uint32_t i = 0; i < kClients; ++i) StartClient(*daemon, i, rounds);
    if (Status status = WaitForClients([&] { return board_->connected.load() == kClients; }); !status.ok()) {
      return status;
    }
    for (std::uint64_t round = 1; round <= rounds; ++round) {
      if (Status status = Round(*daemon, round); !status.ok()) {
        return Status(status.code(), Text("round ", round, ": ", status.message()));
      }
      ++report_.rounds;
    }
    return Status();
  }

  const KillReport& Report() {
    report_.counts = Counts();
    for (std::uint32_t i = 0; board_ != nullptr && i < kClients; ++i) Add(board_->counts[i], report_.counts);
    return report_;
  }

 private:
  void StartClient(const Daemon& daemon, std::uint32_t number, std::uint64_t rounds) {
    std::fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      Status status = Client(daemon, *board_, number, seed_).Run(rounds);
      if (!status.ok()) std::fprintf(stderr, "client %u: %s\n", number, status.ToString().c_str());
      _exit(status.ok() ? 0 : 1);
    }
    clients_.push_back(pid);
  }

  Status Round(Daemon& daemon, std::uint64_t round) {
    if (Status status = WaitUs(random_.Between(5'000, 150'000)); !status.ok()) return status;
    const bool must_be_warm = board_->published.load() > 0;
    board_->killing.store(round);
    daemon.Kill();
    ++report_.kills;
    if (random_.Chance(kKillTheSuccessorToo)) {
      if (Status status = daemon.Exec(); !status.ok()) return status;
      if (Status status = WaitUs(random_.Between(0, 40'000)); !status.ok()) return status;
      daemon.Kill();
      ++report_.kills;
    }
    board_->killed.store(round);
    SystemClock clock;
    const Instant start = clock.Now();
    if (Status status = daemon.Exec(); !status.ok()) return status;
    Result<bool> warm = FindAnything(daemon);
    if (!warm) return warm.error();
    board_->restarted.store(round);
    if (*warm) report_.warm_ms.push_back(static_cast<double>(clock.Now().UsSince(start)) / 1e3);
    report_.cold_restarts += must_be_warm && !*warm;
    return WaitForClients([&] {
      return std::ranges::all_of(board_->compared,
                                 [&](const auto& compared) { return compared.load() >= round; });
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
      for (name.chain = 0; name.chain < kSpaces[name.space].chains; ++name.chain) {
        for (name.owner = 0; name.owner < kClients; ++name.owner) {
          if (BlockWord::KnownOf(board_->word(name, 0).Load()) != Known::kPublished) continue;
          std::uint64_t wrong = 0;
          Status status = ReadAndCompare(**session, name.space, KeysOf(name, seed_)[0], buffer_, &wrong);
          if (status.ok() && wrong == 0) return true;
          if (!status.ok() && status.code() != Code::kMiss) return Error(status);
        }
      }
    }
    return false;
  }

  const std::uint64_t seed_;
  const std::uint64_t memory_bytes_;
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
      ",\"warm_ms_p50\":", Median(r.warm_ms), ",\"warm_ms_max\":", Quantile(r.warm_ms, 1), "}");
  std::printf("%s\n", json.c_str());
}

void PrintTable(const KillReport& r, std::uint64_t seed) {
  const Counts& c = r.counts;
  auto line = [](const std::string& name, const std::string& value) {
    std::printf("  %-22s %s\n", name.c_str(), value.c_str());
  };
  auto compared = [](const Compared& of) {
    return Text(of.blocks, " blocks: ", of.hits, " hits (", RoughSizeText(of.bytes), "), ", of.misses,
                " misses (", of.lost, " of published ones), ", of.dropped, " dropped");
  };
  std::printf("%s\n", Text(r.rounds, " rounds, ", r.kills, " kills, seed ", seed).c_str());
  line("load", Text(c.requests, " requests, ", c.published, " blocks published, ", c.refused, " refused, ",
                    c.load_hits, " hits, ", c.acquires, " acquires, ", c.drops, " drops"));
  line("with the new mapping", compared(c.with_new));
  line("with the old mapping", compared(c.with_old));
  line("views after a kill", Text(c.views_after_kill, ", of them still good: ", c.views_still_good));
  line("views after a restart", Text(c.views_after_restart, ", of them still good: ", c.good_after_restart));
  std::printf("  %-22s p50 %.0f ms, max %.0f ms; cold restarts: %llu\n", "until warm", Median(r.warm_ms),
              Quantile(r.warm_ms, 1), static_cast<unsigned long long>(r.cold_restarts));
  line("revived drops", Text(c.revived_drops));
  line("wrong bytes", Text(c.wrong_bytes));
}

int Run(int argc, const char* const* argv) {
  std::uint64_t rounds = 50, seed = 1, memory_bytes = kMemoryBytes;
  bool json = false;
  CommandLine line("kill_loop",
                   "A node under load is killed with SIGKILL and started again; every block is compared.",
                   "  kill_loop --rounds 1000 --seed 7\n  kill_loop --memory 1GiB");
  line.Count("--rounds", "kills under load; default: 50", &rounds, 1, 1'000'000);
  line.Count("--seed", "of requests and moments; default: 1", &seed, 0, UINT64_MAX);
  line.Size("--memory",
            "of the node; default: 256MiB; from 1GiB on nothing that was published may be missing",
            &memory_bytes);
  line.Switch("--json", "one JSON object on stdout", &json);
  if (auto exit = line.Parse(argc, argv)) return *exit;
  KillLoop loop(seed, memory_bytes);
  Status status = loop.Run(rounds);
  const KillReport& report = loop.Report();
  json ? PrintJson(report, seed) : PrintTable(report, seed);
  if (!status.ok()) return Complain("kill_loop", status);
  const bool lost = memory_bytes >= kRoomyBytes && report.counts.with_new.lost != 0;
  const bool good = !lost && report.counts.wrong_bytes == 0 && report.counts.revived_drops == 0 &&
                    report.counts.good_after_restart == 0 && report.cold_restarts == 0;
  return good ? kExitOk : kExitFailed;
}

}  // namespace
}  // namespace cistern

int main(int argc, char** argv) { return cistern::Run(argc, argv); }
