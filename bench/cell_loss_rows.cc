// SPDX-License-Identifier: Apache-2.0
// Nodes of a cell on this host, one of which dies while the other reads from it: killed, so that its
// connections end at once, or stopped, as a host that lost its power looks from outside.
#include <signal.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "base/format.h"
#include "base/units.h"
#include "bench_node.h"
#include "cell_blocks.h"
#include "local_cell.h"

namespace cistern {
namespace {

constexpr std::uint64_t kBlockBytes = 2u << 20;
constexpr std::int64_t kDeadlineUs = 2'000'000;
constexpr std::int64_t kSilentNs = 500'000'000;  // no question for so long: none but probes follow
constexpr std::int64_t kWatchedNs = 20'000'000'000;

struct Losses {
  std::vector<double> late_percent;  // of the deadline: when a read that failed had ended
  std::vector<double> asked_us;      // from the loss to the last question
};

// Acquires of which many are under way at the loss. Since the loss: when each that failed had ended.
void AwaitFailures(std::vector<Ticket<Lease>> tickets, const Stopwatch& since, Losses& losses) {
  std::vector<bool> ended(tickets.size());
  for (std::size_t left = tickets.size(); left > 0;) {
    for (std::size_t i = 0; i < tickets.size(); ++i) {
      if (ended[i] || !tickets[i].ready()) continue;
      const Result<Lease> lease = tickets[i].Wait();
      ended[i] = true;
      --left;
      if (!lease)
        losses.late_percent.push_back(static_cast<double>(since.Ns()) / 10 /
                                      static_cast<double>(kDeadlineUs));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
}

// A client that matches chains which the lost one has, on a thread of its own.
class Asker {
 public:
  static Result<std::unique_ptr<Asker>> Make(Daemon& daemon, std::vector<BlockKey> roots) {
    Result<Store> store = daemon.Connect();
    if (!store) return Error(store.error());
    Result<Namespace> ns = store->Attach(BenchNamespace(kBlockBytes));
    if (!ns) return Error(ns.error());
    std::unique_ptr<Asker> asker(new Asker(std::move(*store), std::move(*ns), std::move(roots)));
    if (Status counted = asker->Count(); !counted.ok()) return Error(counted);
    return asker;
  }
  ~Asker() {
    if (thread_.joinable()) thread_.join();
  }
  // From the loss on, until no question has gone out for a while.
  void Begin(const Stopwatch& since) {
    thread_ = std::thread([this, since] { status_ = Run(since); });
  }
  // Microseconds from the loss to the last question.
  Result<double> End() {
    thread_.join();
    if (!status_.ok()) return Error(status_);
    return static_cast<double>(last_ns_) / 1e3;
  }

 private:
  Asker(Store store, Namespace ns, std::vector<BlockKey> roots)
      : store_(std::move(store)), ns_(std::move(ns)), roots_(std::move(roots)) {}
  Status Count() {
    const Result<double> asked = StatusNumber(store_, {"cell", "asked_members"});
    if (asked) asked_ = *asked;
    return asked ? Status() : asked.error();
  }
  Status Run(const Stopwatch& since) {
    for (std::size_t i = 0; since.Ns() - last_ns_ < kSilentNs && since.Ns() < kWatchedNs; ++i) {
      const double before = asked_;
      const Result<MatchResult> match = store_.Match(ns_, std::span(&roots_[i % roots_.size()], 1)).Wait();
      if (!match) return match.error();
      if (Status counted = Count(); !counted.ok()) return counted;
      if (asked_ > before) last_ns_ = since.Ns();
    }
    return Status();
  }

  Store store_;
  const Namespace ns_;
  const std::vector<BlockKey> roots_;
  double asked_ = 0;
  std::int64_t last_ns_ = 0;
  Status status_;
  std::thread thread_;
};

// One round: blocks to read and others to ask for, the loss, and the cell whole again.
Status LossRound(BenchOptions& options, LocalCell& cell, int signal, std::uint64_t* next, Losses& losses) {
  auto blocks = BlocksAtPeer(cell[0].store, cell[1].store, CellSizes(options).piece_bytes, kBlockBytes, next);
  if (!blocks) return blocks.error();
  auto others = BlocksAtPeer(cell[0].store, cell[1].store, 32u << 20, kBlockBytes, next);
  if (!others) return others.error();
  auto asker = Asker::Make(cell[1].daemon, others->keys);
  if (!asker) return asker.error();
  std::vector<Ticket<Lease>> tickets;
  for (const BlockKey& key : blocks->keys) {
    const BlockRef ref{.key = key};
    tickets.push_back(cell[1].store.Acquire(blocks->ns, std::span(&ref, 1), {.deadline_us = kDeadlineUs}));
  }
  ::kill(cell[0].daemon.pid(), signal);
  const Stopwatch since;
  (*asker)->Begin(since);
  AwaitFailures(std::move(tickets), since, losses);
  Result<double> asked_us = (*asker)->End();
  if (!asked_us) return asked_us.error();
  losses.asked_us.push_back(*asked_us);
  if (signal == SIGSTOP) {
    ::kill(cell[0].daemon.pid(), SIGCONT);
    return cell.ComeTogether();
  }
  cell[0].daemon.Kill();
  return cell.Restart(0);
}

void Report(BenchOptions& options, const char* how, const Losses& losses) {
  const auto row = [&](std::string name, const std::vector<double>& values, const char* unit, double scale,
                       const char* limit, double limit_value) {
    options.row({.name = std::move(name),
                 .value = Median(values) * scale,
                 .unit = unit,
                 .limit = limit,
                 .limit_value = limit_value,
                 .ratio = Median(values) * scale / limit_value,
                 .ratio_low = Quantile(values, 0) * scale / limit_value,
                 .ratio_high = Quantile(values, 1) * scale / limit_value});
  };
  row(Text("cell_loss_", how, "_failed_reads_end"), losses.late_percent, "%", 1, "their deadline", 100);
  row(Text("cell_loss_", how, "_last_question"), losses.asked_us, "s", 1e-6, "a second", 1);
}

}  // namespace

Status BenchCellLoss(BenchOptions& options) {
  if (!HasEtcd(options, "cell_loss")) return Status();
  auto cell = LocalCell::Start(options.daemon, options.memory_dir);
  if (!cell) return cell.error();
  for (int i = 0; i < 2; ++i) {
    Status added = (*cell)->Add({"--memory", SizeText(CellSizes(options).memory_bytes())});
    if (!added.ok()) return added;
  }
  if (Status together = (*cell)->ComeTogether(); !together.ok()) return together;
  Losses killed, stopped;
  std::uint64_t next = 0;
  for (std::uint64_t round = 0; round < options.rounds; ++round) {
    options.progress(Text("cell_loss_*, round ", round + 1, " of ", options.rounds));
    if (Status status = LossRound(options, **cell, SIGKILL, &next, killed); !status.ok()) return status;
    if (Status status = LossRound(options, **cell, SIGSTOP, &next, stopped); !status.ok()) return status;
  }
  Report(options, "killed", killed);
  Report(options, "stopped", stopped);
  return Status();
}

}  // namespace cistern
