// SPDX-License-Identifier: Apache-2.0
// Leased views of 64 blocks: while the core polls, after it has gone to sleep (against a futex round trip of
// the same run), and in a process with the node inside.
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "base/assert.h"
#include "bench_node.h"
#include "child.h"
#include "fill.h"
#include "measure.h"
#include "scratch_directory.h"

namespace cistern {
namespace {

constexpr std::size_t kViews = 64;
constexpr std::size_t kBlocks = 4096;
constexpr std::uint64_t kBlockBytes = 64u << 10;
constexpr int kBusyCalls = 20'000;
constexpr int kIdleCalls = 200;
constexpr long kIdleNs = 10'000'000;

void Idle() {
  timespec pause{0, kIdleNs};
  nanosleep(&pause, nullptr);
}

// A process that answers each change of a word by another, asleep in futex in between.
class FutexPeer {
 public:
  FutexPeer() {
    void* memory = mmap(nullptr, sizeof(Words2), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CISTERN_ASSERT(memory != MAP_FAILED);
    words_ = static_cast<Words2*>(memory);
  }
  ~FutexPeer() { munmap(words_, sizeof(Words2)); }
  Status Start() {
    Result<Child> child = Child::Start([this] {
      for (std::uint32_t turn = 1;; ++turn) {
        Await(words_->ask, turn);
        Set(words_->answer, turn);
      }
    });
    if (!child) return child.error();
    child_ = std::move(*child);
    return Status();
  }
  void RoundTrip() {
    ++turn_;
    Set(words_->ask, turn_);
    Await(words_->answer, turn_);
  }

 private:
  struct Words2 {
    alignas(64) std::atomic<std::uint32_t> ask;
    alignas(64) std::atomic<std::uint32_t> answer;
  };
  static void Set(std::atomic<std::uint32_t>& word, std::uint32_t value) {
    word.store(value);
    syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  }
  static void Await(std::atomic<std::uint32_t>& word, std::uint32_t value) {
    while (true) {
      std::uint32_t now = word.load();
      if (now == value) return;
      syscall(SYS_futex, &word, FUTEX_WAIT, now, nullptr, nullptr, 0);
    }
  }
  Words2* words_;
  Child child_;
  std::uint32_t turn_ = 0;
};

class ViewBench {
 public:
  ViewBench(Store& store, const FilledBlocks& blocks) : store_(store), blocks_(blocks) {}

  Status Warm() {
    Result<Lease> lease = LeaseAll(store_, blocks_);
    return lease ? Status() : lease.error();
  }

  Status Once(Samples& series) {
    refs_.clear();
    for (std::size_t i = 0; i < kViews; ++i) refs_.push_back({.key = blocks_.keys[random_.Below(kBlocks)]});
    Stopwatch watch;
    Result<Lease> lease = store_.Acquire(blocks_.ns, refs_).Wait();
    series.call_us.push_back(static_cast<double>(watch.Ns()) / 1e3);
    if (!lease) return lease.error();
    if (lease->views().size() != kViews || lease->views().back().data == nullptr) {
      return Status(Code::kMiss, "a view of the bench is missing");
    }
    return Status();
  }

 private:
  Store& store_;
  const FilledBlocks& blocks_;
  std::vector<BlockRef> refs_;
  Random random_{13};
};

Status Busy(ViewBench& bench, Samples& series) {
  for (int i = 0; i < kBusyCalls; ++i) {
    if (Status status = bench.Once(series); !status.ok()) return status;
  }
  return Status();
}

Status Embedded(BenchOptions& options) {
  const Result<ScratchDirectory> directory = ScratchDirectory::Make(options.memory_dir, "bench");
  if (!directory) return directory.error();
  OpenOptions open;
  open.memory_dir = directory->path();
  open.memory_bytes = 512u << 20;
  Result<Store> store = Store::Open(open);
  if (!store) return store.error();
  Result<FilledBlocks> blocks = Fill(*store, kBlocks, kBlockBytes);
  if (!blocks) return blocks.error();
  ViewBench bench(*store, *blocks);
  if (Status warm = bench.Warm(); !warm.ok()) return warm;
  Samples series;
  if (Status busy = Busy(bench, series); !busy.ok()) return busy;
  options.row(TimeRow("views_64_embedded", "", series, {}));
  return Status();
}

}  // namespace

Status BenchViews(BenchOptions& options) {
  options.progress("views_64");
  FutexPeer futex;
  // First: this process has no threads of a node yet.
  if (Status status = futex.Start(); !status.ok()) return status;
  {
    Result<Daemon> daemon = StartNode(options, {"--memory", "512MiB"});
    if (!daemon) return daemon.error();
    Result<Store> store = daemon->Connect();
    if (!store) return store.error();
    Result<FilledBlocks> blocks = Fill(*store, kBlocks, kBlockBytes);
    if (!blocks) return blocks.error();
    ViewBench bench(*store, *blocks);
    if (Status status = bench.Warm(); !status.ok()) return status;
    Samples busy;
    if (Status status = Busy(bench, busy); !status.ok()) return status;
    options.row(TimeRow("views_64_polling", "", busy, {}));
    Samples idle, trips;
    for (int i = 0; i < kIdleCalls; ++i) {
      Idle();
      if (Status status = bench.Once(idle); !status.ok()) return status;
      Idle();
      Stopwatch watch;
      futex.RoundTrip();
      trips.call_us.push_back(static_cast<double>(watch.Ns()) / 1e3);
    }
    options.row(TimeRow("views_64_after_10ms_idle", "futex round trip", idle, trips));
  }
  return Embedded(options);
}

}  // namespace cistern
