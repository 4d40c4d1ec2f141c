// SPDX-License-Identifier: Apache-2.0
// What four honest clients pay for a hostile one beside them: the 99th percentile of their gets and puts of
// 64 KiB, against that of the quiet phase before it. A row of a process that only computes, in as many
// threads as the busiest stranger, tells how much of it is the processor's being taken.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "base/format.h"
#include "bench_node.h"
#include "child.h"
#include "fill.h"
#include "measure.h"
#include "strangers.h"
#include "workload/content.h"

namespace cistern {
namespace {

constexpr std::size_t kHonest = 4;
constexpr std::size_t kBlocks = 512;
constexpr std::uint64_t kBlockBytes = 64u << 10;
constexpr std::int64_t kPhaseNs = 250'000'000;
constexpr auto kPause = std::chrono::microseconds(200);  // between two calls of an honest one
constexpr int kSpinners = 3;

struct Calls {
  std::vector<double> get_us, put_us;
};

class Honest {
 public:
  Honest(Store store, const FilledBlocks& blocks, std::uint64_t seed)
      : store_(std::move(store)), blocks_(blocks), random_(seed), next_((seed + 1) << 32) {}

  // Gets and puts for a phase. A put that is busy is an error.
  void Run() {
    calls_ = {};
    Stopwatch phase;
    while (phase.Ns() < kPhaseNs && status_.ok()) {
      Get();
      std::this_thread::sleep_for(kPause);
      Put();
      std::this_thread::sleep_for(kPause);
    }
  }
  Calls& calls() { return calls_; }
  const Status& status() const { return status_; }
  void CountInto(BenchOptions& options) {
    options.bytes_verified += std::exchange(verified_, 0);
    options.wrong_bytes += std::exchange(wrong_, 0);
  }

 private:
  void Get() {
    const BlockKey& key = blocks_.keys[random_.Below(kBlocks)];
    ReadRange range{.bytes = kBlockBytes, .to = got_.data()};
    const BlockRead read{.key = key, .ranges = std::span(&range, 1)};
    Stopwatch watch;
    Result<ReadResult> result = store_.Read(blocks_.ns, std::span(&read, 1)).Wait();
    calls_.get_us.push_back(static_cast<double>(watch.Ns()) / 1e3);
    if (!result) {
      status_ = result.error();
    } else if (result->outcomes[0] == Code::kMiss) {
      // Evicted for what others put: it is computed again, as an engine would.
      workload::FillContent(key, wanted_);
      const BlockWrite again{.key = key, .put_id = {next_, 2}, .data = wanted_};
      Result<WriteResult> written = store_.Write(blocks_.ns, std::span(&again, 1)).Wait();
      status_ = written ? Status() : written.error();
      calls_.get_us.pop_back();
    } else if (result->outcomes[0] != Code::kOk) {
      status_ = Status(result->outcomes[0], "a get of a block of the bench");
    } else {
      workload::FillContent(key, wanted_);
      verified_ += kBlockBytes;
      if (wanted_ != got_) wrong_ += kBlockBytes;
    }
  }
  void Put() {
    const BlockKey key = workload::WorkloadKey(++next_, kBlockBytes);
    const BlockWrite write{.key = key, .put_id = {next_, 1}, .data = body_};
    Stopwatch watch;
    Result<WriteResult> result = store_.Write(blocks_.ns, std::span(&write, 1)).Wait();
    calls_.put_us.push_back(static_cast<double>(watch.Ns()) / 1e3);
    if (!result) {
      status_ = result.error();
    } else if (result->outcomes[0].code != Code::kOk) {
      status_ = Status(result->outcomes[0].code, result->message);
    }
  }

  Store store_;
  const FilledBlocks& blocks_;
  Random random_;
  std::uint64_t next_;
  std::vector<std::byte> got_ = std::vector<std::byte>(kBlockBytes);
  std::vector<std::byte> wanted_ = std::vector<std::byte>(kBlockBytes);
  std::vector<std::byte> body_ = std::vector<std::byte>(kBlockBytes, std::byte{7});
  Calls calls_;
  Status status_;
  std::uint64_t verified_ = 0, wrong_ = 0;
};

// A process of its own, killed with the object.
class HostileProcess {
 public:
  HostileProcess(const StrangerKind* kind, StrangerTask task) {
    int ready[2];
    if (pipe(ready) != 0) return;
    Result<Child> process = Child::Start([&] {
      close(ready[0]);
      const char byte = 1;
      task.go_on = [] { return true; };
      task.begun = [&] { [[maybe_unused]] ssize_t told = write(ready[1], &byte, 1); };
      if (kind != nullptr) {
        kind->run(task);
      } else {
        std::vector<std::thread> spinners;
        for (int i = 0; i < kSpinners; ++i)
          spinners.emplace_back([] {
            for (std::atomic<int> n = 0;;) ++n;
          });
        task.begun();
        for (std::thread& spinner : spinners) spinner.join();
      }
      while (true) pause();
    });
    if (process) process_ = std::move(*process);
    close(ready[1]);
    char byte;
    begun_ = read(ready[0], &byte, 1) == 1;
    close(ready[0]);
  }
  bool begun() const { return begun_; }

 private:
  Child process_;
  bool begun_ = false;
};

class StrangerBench {
 public:
  static Result<StrangerBench> Make(BenchOptions& options) {
    StrangerBench bench(options);
    Result<Daemon> daemon = StartNode(options, {"--memory", "512MiB", "--log-level", "error"});
    if (!daemon) return Error(daemon.error());
    bench.daemon_.emplace(std::move(*daemon));
    Result<Store> store = bench.daemon_->Connect();
    if (!store) return Error(store.error());
    Result<FilledBlocks> blocks = Fill(*store, kBlocks, kBlockBytes);
    if (!blocks) return Error(blocks.error());
    bench.blocks_ = std::make_unique<FilledBlocks>(std::move(*blocks));
    for (std::size_t i = 0; i < kHonest; ++i) {
      Result<Store> own = bench.daemon_->Connect();
      if (!own) return Error(own.error());
      bench.honest_.push_back(std::make_unique<Honest>(std::move(*own), *bench.blocks_, i));
    }
    return bench;
  }

  // Null: a process that only computes.
  Status Measure(const StrangerKind* kind) {
    const std::string name(kind == nullptr ? "only_computes" : kind->name);
    options_.progress(Text("strangers: ", name));
    StrangerTask task{.spec = blocks_->ns.spec(), .keys = blocks_->keys, .go_on = {}, .begun = {}};
    task.connect.socket = daemon_->socket();
    Side get, put;
    for (std::uint64_t round = 0; round < options_.rounds; ++round) {
      Result<Calls> quiet = Phase();
      if (!quiet) return quiet.error();
      Result<Calls> beside = Error(Code::kMiss, "");
      {
        const HostileProcess hostile(kind, task);
        if (!hostile.begun()) return Status(Code::kIoError, Text("strangers: ", name, " did not begin"));
        beside = Phase();
      }
      if (!beside)
        return Status(beside.error().code(), Text("beside ", name, ": ", beside.error().message()));
      get.Add(beside->get_us, quiet->get_us);
      put.Add(beside->put_us, quiet->put_us);
    }
    options_.row(get.Row(Text("strangers_", name, "_get_p99")));
    options_.row(put.Row(Text("strangers_", name, "_put_p99")));
    return Status();
  }

 private:
  // One kind of call: its times, and the ratio of the percentiles of each round.
  struct Side {
    Samples ours, theirs;
    std::vector<double> ratios;
    void Add(const std::vector<double>& beside, const std::vector<double>& quiet) {
      ours.call_us.insert(ours.call_us.end(), beside.begin(), beside.end());
      theirs.call_us.insert(theirs.call_us.end(), quiet.begin(), quiet.end());
      ratios.push_back(Quantile(beside, 0.99) / Quantile(quiet, 0.99));
    }
    BenchRow Row(std::string name) const {
      BenchRow row = TimeRow(std::move(name), "p99 of the quiet phase before", ours, theirs);
      row.value = row.p99_us;
      row.limit_value = row.limit_p99_us;
      row.ratio = Median(ratios);
      row.ratio_low = Quantile(ratios, 0);
      row.ratio_high = Quantile(ratios, 1);
      return row;
    }
  };

  explicit StrangerBench(BenchOptions& options) : options_(options) {}

  Result<Calls> Phase() {
    std::vector<std::thread> threads;
    for (auto& honest : honest_) threads.emplace_back([&] { honest->Run(); });
    for (std::thread& thread : threads) thread.join();
    Calls all;
    for (auto& honest : honest_) {
      honest->CountInto(options_);
      if (!honest->status().ok()) return Error(honest->status());
      all.get_us.insert(all.get_us.end(), honest->calls().get_us.begin(), honest->calls().get_us.end());
      all.put_us.insert(all.put_us.end(), honest->calls().put_us.begin(), honest->calls().put_us.end());
    }
    return all;
  }

  BenchOptions& options_;
  std::optional<Daemon> daemon_;
  std::unique_ptr<FilledBlocks> blocks_;
  std::vector<std::unique_ptr<Honest>> honest_;
};

}  // namespace

Status BenchStrangers(BenchOptions& options) {
  Result<StrangerBench> bench = StrangerBench::Make(options);
  if (!bench) return bench.error();
  if (Status status = bench->Measure(nullptr); !status.ok()) return status;
  for (const StrangerKind& kind : StrangerKinds()) {
    if (Status status = bench->Measure(&kind); !status.ok()) return status;
  }
  return Status();
}

}  // namespace cistern
