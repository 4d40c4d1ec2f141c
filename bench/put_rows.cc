// SPDX-License-Identifier: Apache-2.0
// A put from the caller's own memory, the copy to staging included, one call in flight, from submit to
// completion, against libc memcpy of the same bytes.
#include <cstring>
#include <numeric>

#include "base/format.h"
#include "base/units.h"
#include "bench_node.h"
#include "fill.h"
#include "measure.h"
#include "workload/content.h"

namespace cistern {
namespace {

constexpr std::size_t kSourceBytes = 512u << 20;
constexpr std::size_t kTargetBytes = 512u << 20;

class PutBench {
 public:
  PutBench(BenchOptions& options, Store& store, const Namespace& ns, std::uint64_t block_bytes,
           std::size_t batch)
      : options_(options),
        store_(store),
        ns_(ns),
        block_bytes_(block_bytes),
        batch_(batch),
        from_(kSourceBytes),
        to_(kTargetBytes),
        order_(kSourceBytes / (block_bytes * batch)) {
    std::iota(order_.begin(), order_.end(), 0u);
  }

  Status Measure(const std::string& name) {
    options_.progress(name);
    Samples ours, theirs;
    // The first rounds fill the arena once, so that what is measured is a node in use: full, evicting.
    const std::uint64_t warm = 3;
    for (std::uint64_t round = 0; round < options_.rounds + warm; ++round) {
      Shuffle(order_, random_);
      Samples dropped;
      Samples& puts = round < warm ? dropped : ours;
      Samples& copies = round < warm ? dropped : theirs;
      if (round % 2 == 0) RunCopies(copies);
      if (Status status = RunPuts(puts); !status.ok()) return status;
      if (round % 2 == 1) RunCopies(copies);
    }
    options_.row(RateRow(name, "memcpy", ours, theirs));
    return Verify();
  }

 private:
  std::size_t call_bytes() const { return block_bytes_ * batch_; }

  template <class Call>
  void Round(Samples& series, Call call) {
    Stopwatch round;
    for (std::uint32_t place : order_) {
      Stopwatch one;
      call(place);
      series.call_us.push_back(static_cast<double>(one.Ns()) / 1e3);
    }
    series.rounds.push_back(static_cast<double>(order_.size() * call_bytes()) /
                            static_cast<double>(round.Ns()));
  }

  void RunCopies(Samples& series) {
    Round(series, [&](std::size_t place) {
      std::memcpy(to_.data() + place * call_bytes(), from_.data() + place * call_bytes(), call_bytes());
    });
  }

  Status RunPuts(Samples& series) {
    Status status;
    std::vector<BlockWrite> writes(batch_);
    Round(series, [&](std::size_t place) {
      for (std::size_t i = 0; i < batch_; ++i) {
        writes[i] = BlockWrite{.key = workload::WorkloadKey(next_key_++, ~block_bytes_)};
        writes[i].data = {from_.data() + place * call_bytes() + i * block_bytes_, block_bytes_};
      }
      Result<WriteResult> result = store_.Write(ns_, writes).Wait();
      if (!result) {
        status = result.error();
        return;
      }
      for (const WriteOutcome& outcome : result->outcomes) {
        if (outcome.code != Code::kOk) status = Status(outcome.code, result->message);
      }
      last_place_ = place;
    });
    return status;
  }

  // What was put last, read back and compared with its source.
  Status Verify() {
    std::vector<std::byte> back(block_bytes_);
    for (std::size_t i = 0; i < batch_; ++i) {
      ReadRange range{.bytes = block_bytes_, .to = back.data()};
      BlockRead read{.key = workload::WorkloadKey(next_key_ - batch_ + i, ~block_bytes_),
                     .ranges = std::span(&range, 1)};
      Result<ReadResult> result = store_.Read(ns_, std::span(&read, 1)).Wait();
      if (!result) return result.error();
      if (result->leading_hits != 1) return Status(Code::kMiss, "the block that was put last is not there");
      const std::byte* source = from_.data() + last_place_ * call_bytes() + i * block_bytes_;
      for (std::size_t b = 0; b < block_bytes_; ++b) options_.wrong_bytes += back[b] != source[b];
      options_.bytes_verified += block_bytes_;
    }
    return Status();
  }

  BenchOptions& options_;
  Store& store_;
  const Namespace& ns_;
  const std::uint64_t block_bytes_;
  const std::size_t batch_;
  Buffer from_, to_;
  std::vector<std::uint32_t> order_;
  Random random_{11};
  std::uint64_t next_key_ = 0;
  std::size_t last_place_ = 0;
};

}  // namespace

Status BenchPuts(BenchOptions& options) {
  struct Shape {
    std::string name;
    std::uint64_t block_bytes;
    std::size_t batch;
  };
  for (const Shape& shape : {Shape{"put_2MiB", 2u << 20, 1}, Shape{"put_16x64KiB", 64u << 10, 16}}) {
    Result<Daemon> daemon = StartNode(options, {"--memory", "1280MiB"});
    if (!daemon) return daemon.error();
    Result<Store> store = daemon->Connect();
    if (!store) return store.error();
    Result<Namespace> ns = store->Attach(BenchNamespace(shape.block_bytes));
    if (!ns) return ns.error();
    PutBench bench(options, *store, *ns, shape.block_bytes, shape.batch);
    if (Status status = bench.Measure(shape.name); !status.ok()) return status;
  }
  return Status();
}

}  // namespace cistern
