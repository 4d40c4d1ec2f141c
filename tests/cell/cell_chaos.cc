// SPDX-License-Identifier: Apache-2.0
// A cell of real nodes and a real etcd under load, of which any is killed at any moment, stands still for a
// while, or is cut off. A block's body says which put wrote it, so that a reader sees bytes that nobody put
// and blocks that a drop took. Half of the chains lie in a strict namespace, whose drops bind a node that
// stands still or is cut off as well.
#include <poll.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/format.h"
#include "chaos_cell.h"
#include "command_line.h"

namespace cistern::chaos {
namespace {

constexpr std::uint64_t kEtcdAwayEvery = 100;  // rounds: for minutes

struct ChaosOptions {
  std::uint64_t rounds = 20, nodes = 3, seed = 1, flash_bytes = 0;
  std::string other;
  bool json = false;
};

// What is done in a round, and how many of a hundred do it.
enum class Fault : std::size_t {
  kKill,
  kKillTwo,
  kKillEtcd,
  kEtcdAway,
  kStop,
  kLinkDown,
  kOneWayDown,
  kNoWayToEtcd,
};
struct Kind {
  const char* name;
  const char* json;
  std::uint64_t share;
  bool of_links;
};
constexpr std::array<Kind, 8> kKinds = {{
    {"a node killed", "kills", 40, false},
    {"two nodes killed", "double_kills", 12, false},
    {"etcd killed", "etcd_kills", 14, false},
    {"etcd away for minutes", "etcd_away", 0, false},
    {"a node stopped", "stops", 12, false},
    {"a link down", "links_down", 9, true},
    {"one way of a link down", "ways_down", 8, true},
    {"no way to etcd", "ways_to_etcd_down", 5, true},
}};

class Chaos {
 public:
  explicit Chaos(const ChaosOptions& options)
      : options_(options),
        random_(options.seed),
        cell_({options.nodes, options.flash_bytes, options.other}) {}
  ~Chaos() {
    stops_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

  Status Run() {
    if (Status status = cell_.Start(); !status.ok()) return status;
    if (!options_.json) {
      std::fprintf(stderr, "%s\n",
                   cell_.apart().ok() ? "nodes in network namespaces and a tmpfs of their own"
                                      : Text("nodes on loopback: ", cell_.apart().message()).c_str());
    }
    for (std::size_t i = 0; i < cell_.nodes().size(); ++i)
      threads_.emplace_back([this, i] {
        Client(cell_.nodes()[i], cell_.nodes(), board_, counts_, options_.seed, options_.seed * 16 + i,
               stops_)
            .Run();
      });
    for (; rounds_ < options_.rounds; ++rounds_) {
      if (Status status = Round(); !status.ok()) return status;
      if (!options_.json && (rounds_ + 1) % 10 == 0)
        std::fprintf(stderr, "round %s\n", Text(rounds_ + 1, " of ", options_.rounds).c_str());
    }
    return Status();
  }

  bool Good() const {
    return counts_.wrong == 0 && counts_.revived == 0 && counts_.drops > 0 && counts_.strict_drops > 0 &&
           counts_.strict_hits > 0 && counts_.peer_hits > 0 &&
           (options_.other.empty() || (mixed_peer_hits_ > 0 && mixed_drops_ > 0));
  }
  void Print() const {
    const Counts& c = counts_;
    if (options_.json) {
      std::string kinds;
      for (std::size_t i = 0; i < kKinds.size(); ++i) kinds += Text(",\"", kKinds[i].json, "\":", faults_[i]);
      std::printf("%s\n", Text("{\"seed\":", options_.seed, ",\"nodes\":", options_.nodes, ",\"rounds\":",
                               rounds_, kinds, ",\"puts\":", c.puts.load(), ",\"reads\":", c.reads.load(),
                               ",\"hits\":", c.hits.load(), ",\"peer_hits\":", c.peer_hits.load(),
                               ",\"drops\":", c.drops.load(), ",\"strict_drops\":", c.strict_drops.load(),
                               ",\"mixed_peer_hits\":", mixed_peer_hits_, ",\"mixed_drops\":", mixed_drops_,
                               ",\"wrong_bytes\":", c.wrong.load(), ",\"revived\":", c.revived.load(), "}")
                              .c_str());
      return;
    }
    const auto line = [](const char* name, const std::string& value) {
      std::printf("  %-24s %s\n", name, value.c_str());
    };
    std::printf("%s\n", Text(rounds_, " rounds, ", options_.nodes, " nodes, seed ", options_.seed).c_str());
    for (std::size_t i = 0; i < kKinds.size(); ++i) line(kKinds[i].name, Text(faults_[i]));
    line("puts", Text(c.puts.load(), ", ", c.refused.load(), " refused"));
    line("reads", Text(c.reads.load(), " of matched blocks: ", c.hits.load(), " hits, ", c.peer_hits.load(),
                       " of them from another node; ", c.misses.load(), " misses"));
    line("drops", Text(acknowledged(), " acknowledged, ", c.strict_drops.load(), " of them strict, ",
                       c.unacknowledged.load(), " not, ", c.unavailable.load(), " without etcd"));
    if (!options_.other.empty()) {
      line("nodes of both releases", Text(mixed_peer_hits_, " hits from another node, ", mixed_drops_,
                                          " drops acknowledged, no node away"));
    }
    line("revived", Text(c.revived.load()));
    line("wrong bytes", Text(c.wrong.load()));
  }

 private:
  std::uint64_t acknowledged() const { return counts_.drops + counts_.strict_drops; }

  Status Round() {
    // Until something was done since the last round, however slow the host is.
    const std::uint64_t busy = counts_.reads + 300 + random_.Below(1500);
    const std::uint64_t peer_hits = counts_.peer_hits, drops = acknowledged();
    SystemClock clock;
    const Instant until = clock.Now().PlusUs(kWatchdogUs);
    while (counts_.reads < busy) {
      if (clock.Now() > until) return Status(Code::kTooLate, "the load stands still");
      poll(nullptr, 0, 2);
    }
    if (cell_.IsMixed()) {
      mixed_peer_hits_ += counts_.peer_hits - peer_hits;
      mixed_drops_ += acknowledged() - drops;
    }
    const Fault fault = Choose();
    ++faults_[static_cast<std::size_t>(fault)];
    if (Status status = Do(fault); !status.ok()) return status;
    Status together = cell_.AwaitAll();
    if (together.ok()) return together;
    return Status(together.code(),
                  Text("round ", rounds_ + 1, ", after ", kKinds[static_cast<std::size_t>(fault)].name, ": ",
                       together.message()));
  }

  Fault Choose() {
    if (rounds_ % kEtcdAwayEvery == kEtcdAwayEvery / 2) return Fault::kEtcdAway;
    for (;;) {
      std::uint64_t at = random_.Below(100);
      for (std::size_t i = 0; i < kKinds.size(); ++i) {
        if (at < kKinds[i].share) {
          if (kKinds[i].of_links && !cell_.apart().ok()) break;
          return static_cast<Fault>(i);
        }
        at -= kKinds[i].share;
      }
    }
  }

  Status Do(Fault fault) {
    const std::size_t nodes = cell_.nodes().size(), one = random_.Below(nodes);
    switch (fault) {
      case Fault::kKill: return Kill(one, 1);
      case Fault::kKillTwo: return Kill(one, 2);
      case Fault::kKillEtcd:
        cell_.KillEtcd();
        Pass(random_.Below(500));
        return cell_.StartEtcd();
      case Fault::kEtcdAway:
        cell_.KillEtcd();
        Pass(90'000 + random_.Below(60'000));
        return cell_.StartEtcd();
      case Fault::kStop:
        cell_.Stop(one);
        PassALease();
        cell_.GoOn(one);
        return Status();
      case Fault::kLinkDown: {
        if (Status down = cell_.SetLink(one, false); !down.ok()) return down;
        PassALease();
        return cell_.SetLink(one, true);
      }
      case Fault::kOneWayDown: return CutWay(one, (one + 1 + random_.Below(nodes - 1)) % nodes);
      case Fault::kNoWayToEtcd: return CutWay(one, std::nullopt);
    }
    return Status();
  }

  static void Pass(std::uint64_t ms) { poll(nullptr, 0, static_cast<int>(ms)); }
  // Longer than that, mostly.
  void PassALease() { Pass(random_.Below(5) < 2 ? random_.Below(3'000) : 11'000 + random_.Below(3'000)); }

  Status Kill(std::size_t first, std::size_t count) {
    const std::size_t nodes = cell_.nodes().size();
    for (std::size_t i = 0; i < count; ++i) cell_.KillNode((first + i) % nodes);
    if (random_.Below(2) == 0) Pass(random_.Below(300));
    for (std::size_t i = 0; i < count; ++i) {
      if (Status status = cell_.StartNode((first + i) % nodes); !status.ok()) return status;
    }
    return Status();
  }
  Status CutWay(std::size_t from, std::optional<std::size_t> to) {
    if (Status down = cell_.SetWay(from, to, false); !down.ok()) return down;
    PassALease();
    return cell_.SetWay(from, to, true);
  }

  const ChaosOptions options_;
  Random random_;
  ChaosCell cell_;
  Board board_;
  Counts counts_;
  std::atomic<bool> stops_{false};
  std::vector<std::thread> threads_;
  std::uint64_t rounds_ = 0;
  // While nodes of both releases were there and had joined.
  std::uint64_t mixed_peer_hits_ = 0, mixed_drops_ = 0;
  std::array<std::uint64_t, kKinds.size()> faults_{};
};

int Run(int argc, const char* const* argv) {
  ChaosOptions options;
  CommandLine line(
      "cell_chaos",
      "Nodes and an etcd, of which any is killed, stopped or cut off, as clients of each node put, read each "
      "other's blocks and drop, half of them in a strict namespace; every byte is compared. Root gives each "
      "node a network namespace; without that no link is cut.",
      "  cell_chaos --rounds 200 --seed 7\n  cell_chaos --nodes 5 --flash 256MiB");
  line.Count("--rounds", "faults under load; default: 20", &options.rounds, 1, 1'000'000);
  line.Count("--nodes", "of the cell; default: 3", &options.nodes, 2, 16);
  line.Count("--seed", "of requests and faults; default: 1", &options.seed, 0, UINT64_MAX / 1024);
  line.Size("--flash", "below each node's memory", &options.flash_bytes);
  line.Text("--other", "PROGRAM",
            "a cisternd of another release: whoever is killed comes back by the one that it was not",
            &options.other);
  line.Switch("--json", "one JSON object on stdout", &options.json);
  if (auto exit = line.Parse(argc, argv)) return *exit;
  if (!etcd::TestEtcd::Installed())
    return Complain("cell_chaos", Status(Code::kMiss, "Debian's etcd-server is not installed"));
  Chaos chaos(options);
  const Status status = chaos.Run();
  chaos.Print();
  if (!status.ok()) return Complain("cell_chaos", status);
  return chaos.Good() ? kExitOk : kExitFailed;
}

}  // namespace
}  // namespace cistern::chaos

int main(int argc, char** argv) { return cistern::chaos::Run(argc, argv); }
