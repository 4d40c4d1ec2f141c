// SPDX-License-Identifier: Apache-2.0
#include "demo_cell.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <memory>
#include <new>
#include <vector>

#include "base/clock.h"
#include "base/format.h"
#include "base/units.h"
#include "child.h"
#include "flash_scratch.h"
#include "local_cell.h"
#include "private_hosts.h"
#include "workload/replay.h"

namespace cistern {
namespace {

constexpr std::size_t kMaxClients = 16;
constexpr std::int64_t kLineUs = 1'000'000;
constexpr std::int64_t kDrainUs = 5'000'000;
constexpr std::int64_t kNoNodeUs = 60'000'000;  // a client without a node gives up

// What the processes of the demo share.
struct Board {
  std::array<std::array<workload::ReplayReport, kMaxCellNodes>, kMaxClients>
      reports;  // of a client, at a node
  std::array<std::array<std::atomic<std::uint64_t>, kMaxCellNodes>, kMaxClients> finished;  // requests
  std::array<std::atomic<std::uint32_t>, kMaxClients> done;  // 1: well, 2: failed
  std::array<std::atomic<bool>, kMaxCellNodes> serves;       // clients may be at that node
};

// A node's, or all nodes'.
struct Totals {
  std::uint64_t requests = 0, accesses = 0, hits = 0, flash = 0, peer = 0, verified = 0, wrong = 0;
  // A request that was cut off is asked again, so the report counts it twice.
  void Add(const workload::ReplayReport& r, std::uint64_t finished) {
    requests += finished;
    accesses += r.accesses.value();
    hits += r.hits.value();
    flash += r.hits_flash.value();
    peer += r.hits_peer.value();
    verified += r.bytes_verified.value();
    wrong += r.wrong_bytes.value();
  }
  std::uint64_t memory() const { return hits - std::min(hits, flash + peer); }
};

// One client: it asks for its share of the requests at its node, and while that one is away at another.
class Client {
 public:
  Client(const CellDemoOptions& options, std::vector<std::string> sockets, Board& board, std::size_t number)
      : options_(options), sockets_(std::move(sockets)), board_(board), number_(number) {}

  Status Run() {
    Result<std::unique_ptr<workload::RequestSource>> source = workload::OpenRequests(options_.workload);
    if (!source) return source.error();
    source_ = std::move(*source);
    Instant alone_since = clock_.Now();
    for (;;) {
      const std::size_t node = Choose();
      Status status = At(node);
      if (finished_) return Status();
      if (asked_) alone_since = clock_.Now();
      const bool passes = status.ok() || status.code() == Code::kGone || status.code() == Code::kBusy ||
                          status.code() == Code::kTooLate;
      if (!passes || clock_.Now().UsSince(alone_since) > kNoNodeUs) return status;
      usleep(5'000);
    }
  }

 private:
  std::size_t Choose() const {
    const std::size_t home = number_ % options_.nodes;
    for (std::size_t i = 0; i < options_.nodes; ++i) {
      if (board_.serves[(home + i) % options_.nodes]) return (home + i) % options_.nodes;
    }
    return home;
  }
  // Until the node goes, or no request is left.
  Status At(std::size_t node) {
    asked_ = false;
    ConnectOptions connect;
    connect.socket = sockets_[node];
    connect.staging_bytes = options_.batch_blocks * options_.block_bytes;
    Result<Store> store = Store::Connect(connect);
    if (!store) return store.error();
    Result<Namespace> ns = store->Attach(workload::ReplayNamespace(options_.block_bytes));
    if (!ns) return ns.error();
    workload::ReplayOptions replay_options;
    replay_options.block_bytes = options_.block_bytes;
    replay_options.batch_blocks = options_.batch_blocks;
    replay_options.hold = false;
    workload::Replay replay(*store, *ns, replay_options, board_.reports[number_][node]);
    while (board_.serves[node]) {
      if (!pending_) {
        Result<bool> more = source_->Next(request_);
        if (!more) return more.error();
        finished_ = !*more;
        if (finished_) return Status();
        if (index_++ % options_.clients != number_) continue;
        pending_ = true;
      }
      if (Status status = replay.Submit(request_); !status.ok()) return status;
      pending_ = false;
      asked_ = true;
      board_.finished[number_][node].fetch_add(1);
    }
    return Status();
  }

  const CellDemoOptions& options_;
  const std::vector<std::string> sockets_;
  Board& board_;
  const std::size_t number_;
  SystemClock clock_;
  std::unique_ptr<workload::RequestSource> source_;
  workload::Request request_;
  std::uint64_t index_ = 0;
  bool pending_ = false, finished_ = false, asked_ = false;
};

class CellDemo {
 public:
  CellDemo(const CellDemoOptions& options, Interrupt& interrupt)
      : options_(options), interrupt_(interrupt), live_(isatty(STDOUT_FILENO) != 0) {
    void* memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CISTERN_ASSERT(memory != MAP_FAILED);
    board_ = new (memory) Board();
  }
  ~CellDemo() {
    clients_.clear();
    for (std::size_t i = 0; cell_ != nullptr && i < cell_->size(); ++i) (*cell_)[i].daemon.Kill();
    for (const std::string& directory : mounted_) PrivateHosts::Leave(directory);
    cell_.reset();
    munmap(board_, sizeof(Board));
  }

  Result<std::uint64_t> Run() {
    if (Status status = CountRequests(); !status.ok()) return Error(status);
    if (Status status = StartCell(); !status.ok()) return Error(status);
    started_ = clock_.Now();
    for (std::size_t i = 0; i < options_.clients; ++i) {
      if (Status status = StartClient(i); !status.ok()) return Error(status);
    }
    if (Status status = Watch(); !status.ok()) return Error(status);
    PrintTable();
    return Sum().wrong;
  }

 private:
  std::size_t killed() const { return options_.nodes - 2; }
  std::size_t drained() const { return options_.nodes - 1; }

  Status CountRequests() {
    Result<std::unique_ptr<workload::RequestSource>> source = workload::OpenRequests(options_.workload);
    if (!source) return source.error();
    workload::Request request;
    Result<bool> more = (*source)->Next(request);
    for (; more && *more; more = (*source)->Next(request)) ++requests_;
    return more ? Status() : more.error();
  }

  Status StartCell() {
    if (!etcd::TestEtcd::Installed())
      return Status(Code::kMiss, "there is no etcd here: install Debian's etcd-server");
    const Status apart = PrivateHosts::Enter();
    if (!apart.ok() && apart.code() != Code::kDenied && apart.code() != Code::kMiss) return apart;
    auto cell =
        LocalCell::Start(options_.daemon, "/dev/shm", true, apart.ok() ? PrivateHosts::kOwnAddress : "");
    if (!cell) return cell.error();
    cell_ = std::move(*cell);
    std::printf("an etcd and %llu nodes with %s of memory and %s of flash each, ",
                static_cast<unsigned long long>(options_.nodes), RoughSizeText(options_.memory_bytes).c_str(),
                RoughSizeText(options_.flash_bytes).c_str());
    std::printf(apart.ok() ? "in network namespaces and a tmpfs of their own,\n" : "on loopback (%s),\n",
                apart.message().data());
    std::printf("%llu client processes, %llu requests, blocks of %s\n",
                static_cast<unsigned long long>(options_.clients), static_cast<unsigned long long>(requests_),
                RoughSizeText(options_.block_bytes).c_str());
    std::fflush(stdout);
    for (std::uint64_t i = 0; i < options_.nodes; ++i) {
      if (interrupt_.Seen()) return Interrupted();
      if (Status status = AddNode(i + 1, apart.ok()); !status.ok()) return status;
    }
    return cell_->ComeTogether();
  }

  Status AddNode(std::uint64_t number, bool apart) {
    std::vector<std::string> flags = {"--memory", SizeText(options_.memory_bytes)};
    if (options_.flash_bytes > 0) {
      Result<ScratchDirectory> made = MakeFlash(options_.flash_dir, options_.flash_bytes);
      if (!made) return made.error();
      flags.insert(flags.end(), {"--flash", Text(made->path(), ":", SizeText(options_.flash_bytes))});
      flash_.push_back(std::move(*made));
    }
    LocalCell::Place place;
    if (apart) {
      const std::string directory = Text(cell_->directory(), "/host", number);
      mounted_.push_back(directory);
      auto made =
          PrivateHosts::Make(number, directory, options_.memory_bytes / 4 * 5 + (std::uint64_t{128} << 20));
      if (!made) return made.error();
      place = std::move(*made);
    }
    Status added = cell_->Add(flags, place);
    board_->serves[number - 1] = added.ok();
    return added;
  }

  Status StartClient(std::size_t number) {
    std::vector<std::string> sockets;
    for (std::size_t i = 0; i < cell_->size(); ++i) sockets.push_back((*cell_)[i].daemon.socket());
    Result<Child> client = Child::Start([&] {
      const Status status = Client(options_, std::move(sockets), *board_, number).Run();
      if (!status.ok()) std::fprintf(stderr, "\nclient %zu: %s\n", number, status.ToString().c_str());
      board_->done[number].store(status.ok() ? 1 : 2);
    });
    if (!client) return client.error();
    clients_.push_back(std::move(*client));
    return Status();
  }

  static Status Interrupted() { return Status(Code::kGone, "interrupted; nothing is left behind"); }

  Status Watch() {
    bool half = false;
    for (Instant next_line = clock_.Now();;) {
      std::uint64_t done = 0;
      for (std::size_t i = 0; i < options_.clients; ++i) {
        const std::uint32_t how = board_->done[i].load();
        if (how == 2) return Status(Code::kGone, "a client failed");
        done += how;
      }
      const Totals now = Sum();
      if (!half && now.requests * 2 >= requests_) {
        half = true;
        if (Status status = KillOne(); !status.ok()) return status;
        if (Status status = DrainOne(); !status.ok()) return status;
      }
      if (clock_.Now() >= next_line || done == options_.clients) {
        Line(now);
        next_line = clock_.Now().PlusUs(kLineUs);
      }
      if (done == options_.clients) return Status();
      if (interrupt_.Seen()) return Interrupted();
      usleep(20'000);
    }
  }

  void Note(const std::string& text) const {
    std::printf("%s%s\n", live_ ? "\r\033[K" : "", text.c_str());
    std::fflush(stdout);
  }

  Status KillOne() {
    Note(Text("node", killed() + 1, " is killed with SIGKILL; its clients go on at another and come back"));
    board_->serves[killed()] = false;
    (*cell_)[killed()].daemon.Kill();
    if (Status status = cell_->Restart(killed()); !status.ok()) return status;
    board_->serves[killed()] = true;
    return Status();
  }

  Status DrainOne() {
    Note(Text("node", drained() + 1, " is drained and ends; its clients go on at another"));
    board_->serves[drained()] = false;
    return (*cell_)[drained()].store.Drain({.memory_goes = true, .then_stop = true, .within_us = kDrainUs});
  }

  Totals Of(std::size_t node) const {
    Totals totals;
    for (std::size_t i = 0; i < options_.clients; ++i)
      totals.Add(board_->reports[i][node], board_->finished[i][node]);
    return totals;
  }
  Totals Sum() const {
    Totals totals;
    for (std::size_t i = 0; i < options_.clients; ++i) {
      for (std::size_t node = 0; node < options_.nodes; ++node)
        totals.Add(board_->reports[i][node], board_->finished[i][node]);
    }
    return totals;
  }
  double Seconds() const { return static_cast<double>(clock_.Now().UsSince(started_)) / 1e6; }

  void Line(const Totals& t) const {
    std::printf(
        "%s%5.1f s  %llu/%llu requests  hits: %llu memory, %llu flash, %llu peer  wrong bytes: %llu%s",
        live_ ? "\r\033[K" : "", Seconds(), static_cast<unsigned long long>(t.requests),
        static_cast<unsigned long long>(requests_), static_cast<unsigned long long>(t.memory()),
        static_cast<unsigned long long>(t.flash), static_cast<unsigned long long>(t.peer),
        static_cast<unsigned long long>(t.wrong), live_ ? "" : "\n");
    std::fflush(stdout);
  }

  static void Row(const std::string& name, const Totals& t, const char* fate) {
    auto n = [](std::uint64_t v) { return static_cast<unsigned long long>(v); };
    std::printf("  %-8s %9llu %9llu %7.1f %% %9llu %9llu %9llu %10.2f %12llu  %s\n", name.c_str(),
                n(t.requests), n(t.accesses),
                t.accesses > 0 ? 100.0 * static_cast<double>(t.hits) / static_cast<double>(t.accesses) : 0.0,
                n(t.memory()), n(t.flash), n(t.peer), static_cast<double>(t.verified) / (1u << 30),
                n(t.wrong), fate);
  }
  void PrintTable() const {
    std::printf("%s\n  %-8s %9s %9s %9s %9s %9s %9s %10s %12s\n", live_ ? "\n" : "", "node", "requests",
                "blocks", "hits", "memory", "flash", "peer", "GiB", "wrong bytes");
    for (std::size_t node = 0; node < options_.nodes; ++node) {
      Row(Text("node", node + 1), Of(node),
          node == killed()    ? "killed half way, and started again"
          : node == drained() ? "drained half way"
                              : "");
    }
    Row("all", Sum(), "");
    std::printf("\n  %.1f seconds; every byte that was read was compared\n", Seconds());
  }

  const CellDemoOptions& options_;
  Interrupt& interrupt_;
  const bool live_;
  SystemClock clock_;
  Instant started_;
  Board* board_ = nullptr;
  std::vector<ScratchDirectory> flash_;
  std::unique_ptr<LocalCell> cell_;
  std::vector<std::string> mounted_;
  std::vector<Child> clients_;
  std::uint64_t requests_ = 0;
};

}  // namespace

Result<std::uint64_t> RunCellDemo(const CellDemoOptions& options, Interrupt& interrupt) {
  return CellDemo(options, interrupt).Run();
}

}  // namespace cistern
