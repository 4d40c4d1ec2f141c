// SPDX-License-Identifier: Apache-2.0
// The checked get of resident blocks of another process's node, against libc memcpy by this process from the
// same mapped blocks in the same random order to the same destination.
#include <algorithm>
#include <array>
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

// A destination that is not in the cache, as an engine's pool is not; and one block that is.
constexpr std::size_t kFreshBytes = 512u << 20;
constexpr std::size_t kMostBlocks = 16;  // of one call

struct Variant {
  std::string suffix;
  bool reused = false;    // one destination block over and over
  bool read = false;      // the caller reads the result
  std::size_t batch = 1;  // blocks of one call
};

std::uint64_t Sum(const std::byte* bytes, std::size_t size) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < size; i += 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes + i, 8);
    sum += word;
  }
  return sum;
}

class GetBench {
 public:
  GetBench(BenchOptions& options, Store& store, const FilledBlocks& blocks)
      : options_(options), store_(store), blocks_(blocks), to_(kFreshBytes), order_(blocks.keys.size()) {
    std::iota(order_.begin(), order_.end(), 0u);
  }

  Status Measure(const Variant& variant) {
    const std::string blocks = variant.batch > 1 ? Text(variant.batch, "x") : "";
    const std::string name =
        Text("get_copy_", blocks, SizeText(blocks_.block_bytes), "_door", variant.suffix);
    options_.progress(name);
    Samples ours, theirs;
    for (std::uint64_t round = 0; round < options_.rounds + 1; ++round) {
      Shuffle(order_, random_);
      Result<Lease> lease = LeaseAll(store_, blocks_);
      if (!lease) return lease.error();
      Samples dropped;  // the first round warms page tables and caches
      Samples& gets = round == 0 ? dropped : ours;
      Samples& copies = round == 0 ? dropped : theirs;
      if (round % 2 == 0) RunCopies(variant, lease->views(), copies);
      if (Status status = RunGets(variant, gets); !status.ok()) return status;
      if (round % 2 == 1) RunCopies(variant, lease->views(), copies);
    }
    BenchRow row = RateRow(name, "memcpy", ours, theirs);
    row.destination = variant.reused ? "one call's room, in the cache" : "a pool of 512MiB, not in the cache";
    options_.row(row);
    return Status();
  }

  // Not timed: every block once more, every byte compared.
  Status Verify() {
    for (std::size_t i = 0; i < blocks_.keys.size(); ++i) {
      const auto block = static_cast<std::uint32_t>(i);
      if (Status status = Get(std::span(&block, 1), to_.data()); !status.ok()) return status;
      options_.wrong_bytes += workload::CountWrongBytes(blocks_.keys[i], {to_.data(), blocks_.block_bytes});
      options_.bytes_verified += blocks_.block_bytes;
    }
    return Status();
  }

 private:
  // Of the call with this number; the pool holds whole calls.
  std::byte* Destination(const Variant& variant, std::size_t call) const {
    const std::uint64_t bytes = variant.batch * blocks_.block_bytes;
    return to_.data() + (variant.reused ? 0 : call % (to_.size() / bytes) * bytes);
  }

  // To one place after the other.
  Status Get(std::span<const std::uint32_t> blocks, std::byte* to) {
    std::array<ReadRange, kMostBlocks> ranges;
    std::array<BlockRead, kMostBlocks> reads;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      ranges[i] = ReadRange{.bytes = blocks_.block_bytes, .to = to + i * blocks_.block_bytes};
      reads[i] = BlockRead{.key = blocks_.keys[blocks[i]], .ranges = std::span(&ranges[i], 1)};
    }
    Result<ReadResult> result = store_.Read(blocks_.ns, std::span(reads).first(blocks.size())).Wait();
    if (!result) return result.error();
    if (result->leading_hits != blocks.size())
      return Status(Code::kMiss, Text("block ", blocks[result->leading_hits], " of the bench is not there"));
    return Status();
  }

  template <class Call>
  void Round(const Variant& variant, Samples& series, Call call) {
    Stopwatch round;
    for (std::size_t i = 0; i < order_.size(); i += variant.batch) {
      std::byte* to = Destination(variant, i / variant.batch);
      const std::span<const std::uint32_t> blocks =
          std::span(order_).subspan(i, std::min(variant.batch, order_.size() - i));
      Stopwatch one;
      call(blocks, to);
      if (variant.read) sum_ = sum_ + Sum(to, blocks.size() * blocks_.block_bytes);
      series.call_us.push_back(static_cast<double>(one.Ns()) / 1e3);
    }
    series.rounds.push_back(static_cast<double>(order_.size() * blocks_.block_bytes) /
                            static_cast<double>(round.Ns()));
  }

  void RunCopies(const Variant& variant, std::span<const View> views, Samples& series) {
    Round(variant, series, [&](std::span<const std::uint32_t> blocks, std::byte* to) {
      for (std::size_t i = 0; i < blocks.size(); ++i)
        std::memcpy(to + i * blocks_.block_bytes, views[blocks[i]].data, blocks_.block_bytes);
    });
  }

  Status RunGets(const Variant& variant, Samples& series) {
    Status status;
    Round(variant, series, [&](std::span<const std::uint32_t> blocks, std::byte* to) {
      if (Status one = Get(blocks, to); !one.ok()) status = one;
    });
    return status;
  }

  BenchOptions& options_;
  Store& store_;
  const FilledBlocks& blocks_;
  Buffer to_;
  std::vector<std::uint32_t> order_;
  Random random_{7};
  volatile std::uint64_t sum_ = 0;
};

}  // namespace

Status BenchGets(BenchOptions& options) {
  for (std::uint64_t block_bytes : {2u << 20, 64u << 10}) {
    Result<Daemon> daemon =
        StartNode(options, {"--memory", SizeText(options.working_set_bytes / 4 * 5 + (256u << 20))});
    if (!daemon) return daemon.error();
    Result<Store> store = daemon->Connect();
    if (!store) return store.error();
    Result<FilledBlocks> blocks = Fill(*store, options.working_set_bytes / block_bytes, block_bytes);
    if (!blocks) return blocks.error();
    GetBench bench(options, *store, *blocks);
    for (const Variant& variant : {Variant{""}, Variant{"_reused", true, false},
                                   Variant{"_read", false, true}, Variant{"_reused_read", true, true}}) {
      if (Status status = bench.Measure(variant); !status.ok()) return status;
    }
    if (block_bytes < 1u << 20) {
      for (const Variant& variant :
           {Variant{"", false, false, kMostBlocks}, Variant{"_reused", true, false, kMostBlocks}}) {
        if (Status status = bench.Measure(variant); !status.ok()) return status;
      }
    }
    if (Status status = bench.Verify(); !status.ok()) return status;
  }
  return Status();
}

}  // namespace cistern
