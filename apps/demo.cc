// SPDX-License-Identifier: Apache-2.0
// ./dev run: what Cistern does, to look at. A node with memory and flash and several client processes that
// work through a chat workload with real bytes, of which memory holds a part; half way the node is killed and
// started again. Every byte read is compared.
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <cstdio>
#include <new>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/clock.h"
#include "base/format.h"
#include "base/interrupt.h"
#include "base/limits.h"
#include "base/units.h"
#include "child.h"
#include "command_line.h"
#include "daemon.h"
#include "demo_cell.h"
#include "flash_scratch.h"
#include "memory/host_memory.h"
#include "workload/replay.h"

namespace cistern {
namespace {

constexpr std::size_t kMaxClients = 16;
constexpr std::int64_t kLineUs = 200'000;
constexpr std::uint64_t kStagedShare = 32;  // of memory, a quarter of what a node has for staging
constexpr std::uint64_t kLeastMemoryBytes = 64u << 20;

// What the processes of the demo share: each client's report, and whether it is done.
struct Board {
  workload::ReplayReport reports[kMaxClients];
  std::atomic<std::uint32_t> done[kMaxClients];  // 1: well, 2: failed
  std::atomic<std::uint32_t> reconnects;
  std::atomic<bool> probing;  // between the kill and what is there after it: clients would push it out
};

struct Totals {
  std::uint64_t requests = 0, accesses = 0, hits = 0, hits_flash = 0, hit_tokens = 0, input_tokens = 0,
                bytes_read = 0, bytes_written = 0, bytes_verified = 0, wrong_bytes = 0, read_ns = 0,
                write_ns = 0;
};

struct DemoOptions {
  std::uint64_t clients = 4;
  std::uint64_t sessions = 600;
  std::uint64_t turns = 8;
  std::uint64_t block_bytes = 512u << 10;
  std::uint64_t memory_bytes = 0;
  std::uint64_t flash_bytes = 1536ull << 20;
  std::string flash_dir;  // empty: the first of kFlashDirectories that will do
  std::string daemon;

  // Blocks of a call. What all clients stage together is a small share of memory.
  std::uint32_t batch_blocks() const {
    return static_cast<std::uint32_t>(
        std::clamp<std::uint64_t>(memory_bytes / kStagedShare / clients / block_bytes, 1, 4));
  }
};

Totals Sum(const Board& board, std::uint64_t clients) {
  Totals t;
  for (std::uint64_t i = 0; i < clients; ++i) {
    const workload::ReplayReport& r = board.reports[i];
    t.requests += r.requests.value();
    t.accesses += r.accesses.value();
    t.hits += r.hits.value();
    t.hits_flash += r.hits_flash.value();
    t.hit_tokens += r.hit_tokens.value();
    t.input_tokens += r.input_tokens.value();
    t.bytes_read += r.bytes_read.value();
    t.bytes_written += r.bytes_written.value();
    t.bytes_verified += r.bytes_verified.value();
    t.wrong_bytes += r.wrong_bytes.value();
    t.read_ns += r.read_ns.value();
    t.write_ns += r.write_ns.value();
  }
  return t;
}

std::string Workload(const DemoOptions& options) {
  return Text("generated:sessions=", options.sessions, ",turns=", options.turns, ",seed=1");
}

// One client's share: every `clients`-th request, whoever's session it is, so that turns of one chat come
// from different processes. When the node goes away it connects again and goes on with the same request.
Status RunClient(const DemoOptions& options, const Daemon& daemon, Board& board, std::uint64_t number) {
  Result<std::unique_ptr<workload::RequestSource>> source = workload::OpenRequests(Workload(options));
  if (!source) return source.error();
  workload::ReplayOptions replay_options;
  replay_options.block_bytes = options.block_bytes;
  replay_options.batch_blocks = options.batch_blocks();
  workload::Request request;
  bool pending = false;
  std::uint64_t index = 0;
  while (true) {
    // All of it at once, as nobody gives any back.
    Result<Store> store = daemon.Connect({}, replay_options.batch_blocks * options.block_bytes);
    if (!store) return store.error();
    Result<Namespace> ns = store->Attach(workload::ReplayNamespace(options.block_bytes));
    if (!ns && ns.error().code() == Code::kGone) continue;
    if (!ns) return ns.error();
    workload::Replay replay(*store, *ns, replay_options, board.reports[number]);
    Status status;
    while (status.ok()) {
      if (!pending) {
        Result<bool> more = (*source)->Next(request);
        if (!more) return more.error();
        if (!*more) return Status();
        if (index++ % options.clients != number) continue;
        pending = true;
      }
      status = replay.Submit(request);
      pending = !status.ok();
    }
    if (status.code() != Code::kGone) return status;
    while (board.probing.load()) usleep(1000);
    board.reconnects.fetch_add(1);
  }
}

// A block of the demo's own, by which it sees when the node is warm again.
class Probe {
 public:
  Status Put(const Daemon& daemon) {
    Result<Store> store = daemon.Connect();
    if (!store) return store.error();
    Result<Namespace> ns = store->Attach(Spec());
    if (!ns) return ns.error();
    // Its size is another than the chats': under load room for it may take some trying.
    for (int tries = 0;; ++tries) {
      Status status = store->Put(*ns, key_, std::nullopt, bytes_);
      if (status.code() != Code::kBusy || tries == 1000) return status;
      usleep(2000);
    }
  }
  // kMiss when it is not the same bytes.
  Status Check(const Daemon& daemon) {
    Result<Store> store = daemon.Connect();
    if (!store) return store.error();
    Result<Namespace> ns = store->Attach(Spec());
    if (!ns) return ns.error();
    Result<std::vector<std::byte>> back = store->Get(*ns, key_);
    if (!back) return back.error();
    return *back == bytes_ ? Status() : Status(Code::kMiss, "the probe came back with other bytes");
  }

 private:
  static NamespaceSpec Spec() {
    NamespaceSpec spec;
    spec.fields = {{"demo", "probe"}};
    spec.groups = {GroupSpec{.name = "full"}};
    return spec;
  }
  BlockKey key_ = *BlockKey::FromHex("c157e24c157e24c157e24c157e24c157");
  std::vector<std::byte> bytes_ = std::vector<std::byte>(1 << 20, std::byte{42});
};

std::string Bar(double fraction) {
  constexpr int kWidth = 24;
  std::string bar(kWidth, '.');
  for (int i = 0; i < kWidth && i < fraction * kWidth; ++i) bar[static_cast<std::size_t>(i)] = '#';
  return bar;
}

class Demo {
 public:
  Demo(DemoOptions options, Interrupt& interrupt)
      : options_(std::move(options)), live_(isatty(STDOUT_FILENO) != 0), interrupt_(interrupt) {
    void* memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CISTERN_ASSERT(memory != MAP_FAILED);
    board_ = new (memory) Board();
  }
  ~Demo() {
    clients_.clear();
    munmap(board_, sizeof(Board));
  }

  Status Run() {
    if (Status status = CountRequests(); !status.ok()) return status;
    std::vector<std::string> flags = {"--memory", SizeText(options_.memory_bytes)};
    std::string flash = "no flash";
    if (options_.flash_bytes > 0) {
      Result<ScratchDirectory> made = MakeFlash(options_.flash_dir, options_.flash_bytes);
      if (!made) return made.error();
      flash_ = std::move(*made);
      flags.insert(flags.end(), {"--flash", Text(flash_.path(), ":", SizeText(options_.flash_bytes))});
      flash = Text(RoughSizeText(options_.flash_bytes), " of flash in ", flash_.path());
    }
    std::printf(
        "a node with %s of memory and %s,\n%llu client processes, %llu requests of %llu chats, blocks of "
        "%s\n",
        RoughSizeText(options_.memory_bytes).c_str(), flash.c_str(),
        static_cast<unsigned long long>(options_.clients), static_cast<unsigned long long>(requests_),
        static_cast<unsigned long long>(options_.sessions), RoughSizeText(options_.block_bytes).c_str());
    std::fflush(stdout);
    Result<Daemon> daemon = Daemon::Start(options_.daemon, "/dev/shm", flags);
    if (!daemon) return daemon.error();
    started_ = clock_.Now();
    for (std::uint64_t i = 0; i < options_.clients; ++i) {
      if (Status status = StartClient(*daemon, i); !status.ok()) return status;
    }
    Status status = Watch(*daemon);
    if (status.ok()) {
      PrintTable();
      PrintFlash(*daemon);
    }
    return status;
  }

 private:
  Status CountRequests() {
    Result<std::unique_ptr<workload::RequestSource>> source = workload::OpenRequests(Workload(options_));
    if (!source) return source.error();
    workload::Request request;
    Result<bool> more = (*source)->Next(request);
    for (; more && *more; more = (*source)->Next(request)) ++requests_;
    return more ? Status() : more.error();
  }

  Status StartClient(const Daemon& daemon, std::uint64_t number) {
    Result<Child> client = Child::Start([&] {
      Status status = RunClient(options_, daemon, *board_, number);
      if (!status.ok())
        std::fprintf(stderr, "\nclient %llu: %s\n", static_cast<unsigned long long>(number),
                     status.ToString().c_str());
      board_->done[number].store(status.ok() ? 1 : 2);
    });
    if (!client) return client.error();
    clients_.push_back(std::move(*client));
    return Status();
  }

  Status Watch(Daemon& daemon) {
    bool killed = false;
    Instant next_line = clock_.Now();
    while (true) {
      std::uint32_t done = 0;
      for (std::uint64_t i = 0; i < options_.clients; ++i) {
        if (board_->done[i].load() == 2) return Status(Code::kGone, "a client failed");
        done += board_->done[i].load();
      }
      Totals now = Sum(*board_, options_.clients);
      if (!killed && now.requests * 2 >= requests_) {
        killed = true;
        if (Status status = KillAndRestart(daemon); !status.ok()) return status;
      }
      if (clock_.Now() >= next_line || done == options_.clients) {
        Line(now);
        next_line = clock_.Now().PlusUs(live_ ? kLineUs : 10 * kLineUs);
      }
      if (done == options_.clients) return Status();
      if (interrupt_.Seen()) return Status(Code::kGone, "interrupted; nothing is left behind");
      usleep(20'000);
    }
  }

  Status KillAndRestart(Daemon& daemon) {
    std::printf("%skilling the node with SIGKILL and starting it again\n", live_ ? "\r\033[K" : "");
    std::fflush(stdout);
    // Just before, so that it is not the coldest of a full memory.
    if (Status status = probe_.Put(daemon); !status.ok()) return status;
    board_->probing = true;
    daemon.Kill();
    Instant start = clock_.Now();
    if (Status status = daemon.Exec(); !status.ok()) return status;
    if (Status status = probe_.Check(daemon); !status.ok()) return status;
    warm_us_ = clock_.Now().UsSince(start);
    board_->probing = false;
    return Status();
  }

  void Line(const Totals& t) const {
    double seconds = static_cast<double>(clock_.Now().UsSince(started_)) / 1e6;
    // What was under way at the kill is asked for again.
    std::uint64_t requests = std::min(t.requests, requests_);
    double hit_rate = t.accesses ? 100 * static_cast<double>(t.hits) / static_cast<double>(t.accesses) : 0;
    std::printf(
        "%s[%s] %5.1f s  %llu/%llu requests  %.1f %% hits  %.1f M prefill tokens saved  wrong bytes: %llu%s",
        live_ ? "\r\033[K" : "", Bar(static_cast<double>(requests) / static_cast<double>(requests_)).c_str(),
        seconds, static_cast<unsigned long long>(requests), static_cast<unsigned long long>(requests_),
        hit_rate, static_cast<double>(t.hit_tokens) / 1e6, static_cast<unsigned long long>(t.wrong_bytes),
        live_ ? "" : "\n");
    std::fflush(stdout);
  }

  void PrintTable() const {
    Totals t = Sum(*board_, options_.clients);
    Histogram reads, writes, matches;
    for (std::uint64_t i = 0; i < options_.clients; ++i) {
      reads.Merge(board_->reports[i].read_batch_ns);
      writes.Merge(board_->reports[i].write_batch_ns);
      matches.Merge(board_->reports[i].match_ns);
    }
    auto us = [](const Histogram& h, double q) { return static_cast<double>(h.Percentile(q)) / 1e3; };
    auto rate = [](std::uint64_t bytes, std::uint64_t ns) {
      return ns ? static_cast<double>(bytes) / static_cast<double>(ns) : 0.0;
    };
    auto n = [](std::uint64_t v) { return static_cast<unsigned long long>(v); };
    std::printf("%s\n", live_ ? "" : "");
    std::printf("  prefill tokens saved   %llu of %llu (%.1f %%): these need not be computed again\n",
                n(t.hit_tokens), n(t.input_tokens),
                100.0 * static_cast<double>(t.hit_tokens) / static_cast<double>(t.input_tokens));
    std::printf("  hit rate               %.1f %% of %llu blocks\n",
                100.0 * static_cast<double>(t.hits) / static_cast<double>(t.accesses), n(t.accesses));
    std::printf(
        "  served by memory       %llu blocks (%.1f %% of the hits)\n", n(t.hits - t.hits_flash),
        t.hits ? 100.0 * static_cast<double>(t.hits - t.hits_flash) / static_cast<double>(t.hits) : 0.0);
    std::printf("  served by flash        %llu blocks (%.1f %% of the hits), which memory had no room for\n",
                n(t.hits_flash),
                t.hits ? 100.0 * static_cast<double>(t.hits_flash) / static_cast<double>(t.hits) : 0.0);
    std::printf("  reading                %s at %.1f GB/s a client; %u a call: p50 %.0f us, p99 %.0f us\n",
                RoughSizeText(t.bytes_read).c_str(), rate(t.bytes_read, t.read_ns), options_.batch_blocks(),
                us(reads, 0.5), us(reads, 0.99));
    std::printf("  writing                %s at %.1f GB/s a client; %u a call: p50 %.0f us, p99 %.0f us\n",
                RoughSizeText(t.bytes_written).c_str(), rate(t.bytes_written, t.write_ns),
                options_.batch_blocks(), us(writes, 0.5), us(writes, 0.99));
    std::printf("  match of a prompt      p50 %.1f us, p99 %.1f us\n", us(matches, 0.5), us(matches, 0.99));
    std::printf("  after the SIGKILL      warm again %.0f ms after its start; %u clients connected again\n",
                static_cast<double>(warm_us_) / 1e3, board_->reconnects.load());
    std::printf("  bytes verified         %llu (%s)\n", n(t.bytes_verified),
                RoughSizeText(t.bytes_verified).c_str());
    std::printf("  wrong bytes            %llu\n", n(t.wrong_bytes));
    wrong_ = t.wrong_bytes != 0;
  }

 public:
  bool wrong() const { return wrong_; }

 private:
  // Of the node since its restart.
  void PrintFlash(const Daemon& daemon) const {
    Result<Store> store = daemon.Connect();
    Result<std::string> text = store ? store->StatusJson() : Error(store.error());
    boost::system::error_code error;
    const boost::json::value status = text ? boost::json::parse(*text, error) : boost::json::value();
    const boost::json::value* flash = status.is_object() ? status.find_pointer("/flash", error) : nullptr;
    if (flash == nullptr || flash->as_object().if_contains("bytes") == nullptr) return;
    const auto number = [&](std::string_view name) {
      return flash->as_object().at(name).to_number<double>();
    };
    std::printf("  flash, since then      %s of %s live; %s written, amplification %.3f; %s read\n",
                RoughSizeText(static_cast<std::uint64_t>(number("live_bytes"))).c_str(),
                RoughSizeText(static_cast<std::uint64_t>(number("bytes"))).c_str(),
                RoughSizeText(static_cast<std::uint64_t>(number("device_written_bytes"))).c_str(),
                number("write_amplification"),
                RoughSizeText(static_cast<std::uint64_t>(number("fetched_bytes"))).c_str());
  }

  const DemoOptions options_;
  const bool live_;
  Interrupt& interrupt_;
  ScratchDirectory flash_;
  SystemClock clock_;
  Instant started_;
  Board* board_ = nullptr;
  Probe probe_;
  std::uint64_t requests_ = 0;
  std::int64_t warm_us_ = 0;
  std::vector<Child> clients_;
  mutable bool wrong_ = false;
};

Status Check(const DemoOptions& options) {
  if (options.block_bytes == 0 || options.block_bytes > kMaxBodyBytes) {
    return Status(Code::kInvalid, Text("--block-bytes: ", SizeText(options.block_bytes),
                                       " is not allowed; use 1B to ", SizeText(kMaxBodyBytes)));
  }
  const std::uint64_t least =
      std::max(kLeastMemoryBytes, kStagedShare * options.clients * options.block_bytes);
  if (options.memory_bytes < least) {
    return Status(Code::kInvalid, Text("--memory: ", SizeText(options.memory_bytes), " and ", options.clients,
                                       " clients with blocks of ", SizeText(options.block_bytes), " need ",
                                       SizeText(least), "; give more, or fewer clients or smaller blocks"));
  }
  return Status();
}

int Run(int argc, const char* const* argv) {
  DemoOptions options;
  CommandLine line(
      "cistern-demo",
      "A node with memory and flash, several client processes, a chat workload with real bytes that is\n"
      "larger than memory, a SIGKILL half way. What it makes on disk is removed at its end. With --cell: an\n"
      "etcd and so many nodes, in network namespaces of their own where root runs it; half way one is "
      "killed\n"
      "and one is drained.",
      "  cistern-demo\n  cistern-demo --clients 8 --sessions 2000 --memory 4GiB --flash 20GiB\n"
      "  cistern-demo --cell 3");
  line.Count("--clients", "client processes; default: 4", &options.clients, 1, kMaxClients);
  line.Count("--sessions", "chats; default: 600", &options.sessions, 1, 1'000'000);
  line.Count("--turns", "mean turns of a chat; default: 8", &options.turns, 1, 1000);
  line.Size("--block-bytes", "KV bytes of 512 tokens; default: 512KiB", &options.block_bytes);
  line.Size("--memory", "of the node; default: an eighth of the host's, at most 512MiB",
            &options.memory_bytes);
  line.Size("--flash", "of the node, below memory; 0B: none; default: 1536MiB", &options.flash_bytes);
  line.Text("--flash-dir", "DIR", "where it lies meanwhile; default: /var/tmp, else here, else /tmp",
            &options.flash_dir);
  std::uint64_t cell = 0;
  line.Count("--cell", "nodes of a cell; the sizes are those of each, the clients those of all", &cell, 2,
             kMaxCellNodes);
  if (auto exit = line.Parse(argc, argv)) return *exit;
  if (options.memory_bytes == 0) {
    Result<memory::HostMemory> host = memory::ReadHostMemory();
    if (!host) return Complain("cistern-demo", host.error());
    options.memory_bytes = std::min<std::uint64_t>(host->limit_bytes / 8, 512ull << 20);
  }
  options.memory_bytes &= ~std::uint64_t{(1u << 20) - 1};
  if (cell > 0) options.clients = std::max(options.clients, cell);
  if (Status status = Check(options); !status.ok()) return Complain("cistern-demo", status);
  options.daemon = DaemonBeside();
  Result<Interrupt> interrupt = Interrupt::Open();
  if (!interrupt) return Complain("cistern-demo", interrupt.error());
  if (cell > 0) {
    const CellDemoOptions of_cell{.nodes = cell,
                                  .clients = options.clients,
                                  .workload = Workload(options),
                                  .block_bytes = options.block_bytes,
                                  .batch_blocks = options.batch_blocks(),
                                  .memory_bytes = options.memory_bytes,
                                  .flash_bytes = options.flash_bytes,
                                  .flash_dir = options.flash_dir,
                                  .daemon = options.daemon};
    const Result<std::uint64_t> wrong_bytes = RunCellDemo(of_cell, *interrupt);
    if (!wrong_bytes) return Complain("cistern-demo", wrong_bytes.error());
    return *wrong_bytes == 0 ? kExitOk : kExitFailed;
  }
  Demo demo(options, *interrupt);
  if (Status status = demo.Run(); !status.ok()) return Complain("cistern-demo", status);
  return demo.wrong() ? kExitFailed : kExitOk;
}

}  // namespace
}  // namespace cistern

int main(int argc, char** argv) { return cistern::Run(argc, argv); }
