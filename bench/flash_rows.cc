// SPDX-License-Identifier: Apache-2.0
// Flash below memory, through the store of a node: reads and writes against fio on the same file system, what
// `worth_us` promises against what happened, the restart with a million blocks on flash, and what a put pays
// while flash is saturated.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <deque>
#include <thread>

#include "base/format.h"
#include "base/units.h"
#include "bench_node.h"
#include "disk_writer.h"
#include "fill.h"
#include "fio.h"
#include "flash/options.h"
#include "flash_place.h"
#include "measure.h"
#include "record/seal.h"
#include "restart_row.h"
#include "workload/content.h"

namespace cistern {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;
constexpr std::size_t kDepth = 32;

// Reads `count` blocks, `depth` at a time; GB/s.
Result<double> ReadBlocks(BenchOptions& options, Store& store, const FilledBlocks& blocks, FlashOrder& round,
                          std::size_t count, std::size_t depth, Samples* series) {
  struct Asked {
    std::size_t number;
    Ticket<Lease> ticket;
    Stopwatch watch;
  };
  std::deque<Asked> asked;
  Stopwatch watch;
  std::size_t checked = 0;
  for (std::size_t done = 0, begun = 0; done < count;) {
    while (begun < count && asked.size() < depth) {
      const std::size_t number = round.Next();
      const BlockRef ref{.key = blocks.keys[number]};
      AcquireOptions ask;
      ask.deadline_us = 30'000'000;
      asked.push_back({number, store.Acquire(blocks.ns, std::span(&ref, 1), ask), {}});
      ++begun;
    }
    Asked one = std::move(asked.front());
    asked.pop_front();
    Result<Lease> lease = one.ticket.Wait();
    if (!lease) return Error(std::move(lease.error()));
    if (lease->views()[0].data == nullptr) return Error(Code::kMiss, "a block of the bench is not on flash");
    if (series != nullptr) series->call_us.push_back(static_cast<double>(one.watch.Ns()) / 1e3);
    if (++checked % 64 == 0) {
      const View& view = lease->views()[0];
      options.wrong_bytes += workload::CountWrongBytes(blocks.keys[one.number], {view.data, view.bytes});
      options.bytes_verified += view.bytes;
    }
    ++done;
  }
  return static_cast<double>(count * blocks.block_bytes) / static_cast<double>(watch.Ns());
}

Status ReadRows(BenchOptions& options, Store& store, const FilledBlocks& blocks, const std::string& file,
                std::size_t depth) {
  FlashOrder round(blocks.keys.size());
  Samples ours, limit;
  const std::size_t count = depth == 1 ? 200 : 512;
  // fio reads as the node does: the same file, records of the same size, each once, in random order, so many
  // at a time. Regions are filled from the file's start on; what lies behind the blocks was never written,
  // and a file system answers for that without its disk.
  const std::uint64_t record_bytes = record::RecordBytes(blocks.block_bytes, 4096);
  FioJob job{.file = file,
             .block_bytes = record_bytes,
             .depth = static_cast<std::uint32_t>(depth),
             .bytes = count * record_bytes,
             .file_bytes = blocks.keys.size() * record_bytes};
  auto warm = ReadBlocks(options, store, blocks, round, count, depth, nullptr);
  if (!warm) return warm.error();
  std::vector<double> p50_ratios;
  for (std::uint64_t i = 0; i < options.rounds; ++i) {
    Samples calls;
    auto rate = ReadBlocks(options, store, blocks, round, count, depth, &calls);
    if (!rate) return rate.error();
    auto fio = RunFio(job);
    if (!fio) return fio.error();
    ours.rounds.push_back(*rate);
    ours.call_us.insert(ours.call_us.end(), calls.call_us.begin(), calls.call_us.end());
    limit.rounds.push_back(fio->bytes_per_s / 1e9 * static_cast<double>(blocks.block_bytes) /
                           static_cast<double>(record_bytes));
    limit.call_us.push_back(fio->p50_us);
    p50_ratios.push_back(Median(calls.call_us) / fio->p50_us);
  }
  BenchRow row =
      RateRow(Text("flash_read_", SizeText(blocks.block_bytes), "_depth_", depth), "fio", ours, limit);
  options.row(row);
  if (depth > 1) return Status();
  BenchRow p50{.name = Text("flash_read_", SizeText(blocks.block_bytes), "_depth_1_p50"),
               .value = Median(ours.call_us),
               .unit = "us",
               .limit = "fio p50",
               .limit_value = Median(limit.call_us),
               .ratio = Median(p50_ratios),
               .ratio_low = Quantile(p50_ratios, 0),
               .ratio_high = Quantile(p50_ratios, 1),
               .p50_us = Median(ours.call_us),
               .p99_us = Quantile(ours.call_us, 0.99)};
  options.row(p50);
  return Status();
}

// Writes new blocks of 1 MiB until flash has taken `bytes`; GB/s. As many wait for the device as are there at
// fio's depth and in the batches that are gathered meanwhile, so that the node copies nothing in vain.
class Writer {
 public:
  // Its blocks are numbered from `first` on.
  static Result<Writer> Make(Store& store, std::uint64_t first) {
    auto ns = store.Attach(BenchNamespace(kMiB));
    if (!ns) return Error(ns.error());
    auto staging = store.AllocateStaging(kAtOnce * kMiB);
    if (!staging) return Error(staging.error());
    Random random(9);
    for (std::size_t at = 0; at + 8 <= staging->bytes(); at += 8) {
      const std::uint64_t word = random.Next();
      std::memcpy(staging->data() + at, &word, 8);
    }
    return Writer(store, std::move(*ns), std::move(*staging), first);
  }

  Result<double> Write(std::uint64_t bytes) {
    const auto before = Written();
    if (!before) return Error(before.error());
    Stopwatch watch;
    double now = *before;
    while (now < *before + static_cast<double>(bytes)) {
      if (static_cast<double>(put_) * kMiB < now - before_ + static_cast<double>(kWaiting * kMiB)) {
        if (Status status = PutSome(); !status.ok()) return Error(status);
      }
      const auto written = Written();
      if (!written) return Error(written.error());
      now = *written;
    }
    return (now - *before) / static_cast<double>(watch.Ns());
  }

 private:
  static constexpr std::size_t kAtOnce = 8;
  static constexpr std::uint64_t kWaiting = 64;

  Writer(Store& store, Namespace ns, Staging staging, std::uint64_t first)
      : store_(&store), ns_(std::move(ns)), staging_(std::move(staging)), first_(first) {
    if (const auto now = Written()) before_ = *now;
  }
  Result<double> Written() { return StatusNumber(*store_, {"flash", "written_bytes"}); }
  Status PutSome() {
    std::vector<BlockWrite> writes(kAtOnce);
    for (std::size_t w = 0; w < writes.size(); ++w) {
      const std::uint64_t number = first_ + put_++;
      writes[w].key = workload::WorkloadKey(number, kMiB);
      writes[w].put_id = {7, number};
      writes[w].data = {staging_.data() + w * kMiB, kMiB};
    }
    auto result = store_->Write(ns_, writes).Wait();
    return result ? Status() : result.error();
  }

  Store* store_;
  Namespace ns_;
  Staging staging_;
  std::uint64_t first_;
  std::uint64_t put_ = 0;  // blocks
  double before_ = 0;      // bytes on flash before any of them
};

// As it is after the first day: a file system converts what was preallocated when it is first written.
Status WriteThrough(Store& store) {
  auto writer = Writer::Make(store, 1u << 31);
  if (!writer) return writer.error();
  const auto capacity = StatusNumber(store, {"flash", "bytes"});
  if (!capacity) return capacity.error();
  auto through = writer->Write(static_cast<std::uint64_t>(*capacity));
  return through ? Status() : through.error();
}

// Both files are written through once before.
Status WriteRows(BenchOptions& options, Store& store, const std::string& beside) {
  constexpr std::uint64_t kBytes = 1u << 30;
  Samples ours, limit;
  // As the node writes: one place after the other, as many at a time.
  const FioJob job{.file = beside,
                   .write = true,
                   .random = false,
                   .depth = flash::FlashOptions().write_depth,
                   .bytes = kBytes,
                   .file_bytes = kBytes};
  if (auto through = RunFio(job); !through) return through.error();
  if (Status status = WriteThrough(store); !status.ok()) return status;
  auto writer = Writer::Make(store, 1u << 30);
  if (!writer) return writer.error();
  for (std::uint64_t i = 0; i < options.rounds; ++i) {
    auto rate = writer->Write(kBytes);
    if (!rate) return rate.error();
    ours.rounds.push_back(*rate);
    if (Status status = AwaitWritten(store); !status.ok()) return status;
    auto fio = RunFio(job);
    if (!fio) return fio.error();
    limit.rounds.push_back(fio->bytes_per_s / 1e9);
  }
  options.row(RateRow("flash_write_1MiB", "fio", ours, limit));
  return Status();
}

// A read with a worth_us, and what came of it.
struct WorthRead {
  enum Answer { kFailed, kHere, kLate, kRefused };
  Answer answer = kFailed;
  double us = 0;
};
WorthRead ReadWorth(Store& store, const Namespace& ns, const BlockKey& key, std::int64_t worth_us) {
  const BlockRef ref{.key = key};
  Stopwatch watch;
  Result<Lease> lease = store.Acquire(ns, std::span(&ref, 1), {.worth_us = worth_us}).Wait();
  const double us = static_cast<double>(watch.Ns()) / 1e3;
  if (!lease) {
    if (lease.error().code() != Code::kTooLate) return {};
    return {us < static_cast<double>(worth_us) ? WorthRead::kRefused : WorthRead::kLate, us};
  }
  const View& view = lease->views()[0];
  if (view.code == Code::kTooLate)
    return {us < static_cast<double>(worth_us) ? WorthRead::kRefused : WorthRead::kLate, us};
  return {view.data != nullptr ? WorthRead::kHere : WorthRead::kFailed, us};
}

// Reads that carried a worth_us: of those refused, how many would have been late; of those begun, how many
// were in time.
struct WorthOutcomes {
  std::uint64_t refused = 0, rightly = 0, begun = 0, in_time = 0;

  void Add(Store& store, const Namespace& ns, const BlockKey& key, double worth, const WorthRead& read) {
    if (read.answer != WorthRead::kRefused) {
      ++begun;
      in_time += read.answer == WorthRead::kHere;
      return;
    }
    // What would have happened: the same read at once again, without a limit.
    const WorthRead again = ReadWorth(store, ns, key, kNoWorthLimit);
    if (again.answer != WorthRead::kHere) return;
    ++refused;
    rightly += again.us > worth;
  }
  static BenchRow Row(std::string_view name, std::uint64_t of, std::uint64_t right) {
    const double share = of == 0 ? 0 : 100.0 * static_cast<double>(right) / static_cast<double>(of);
    return {.name = Text(name, of), .value = share, .unit = "%"};
  }
};

// Ten thousand single reads while others come and go: what the match said against what it took, and what came
// of the reads that were sent with a worth_us.
Status WorthRows(BenchOptions& options, Store& store, Daemon& daemon, const FilledBlocks& blocks) {
  constexpr int kReads = 10'000;
  FlashOrder round(blocks.keys.size());
  std::atomic<int> load{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> others;
  for (int t = 0; t < 2; ++t) {
    others.emplace_back([&, t] {
      auto own = daemon.Connect();
      if (!own) return;
      auto ns = own->Attach(BenchNamespace(blocks.block_bytes));
      if (!ns) return;
      FilledBlocks mine{.ns = *ns, .keys = blocks.keys, .block_bytes = blocks.block_bytes};
      Random random(100 + t);
      std::deque<Ticket<Lease>> asked;
      while (!stop) {
        const auto depth = static_cast<std::size_t>(load.load());
        while (asked.size() < depth) {
          const BlockRef ref{.key = mine.keys[random.Below(mine.keys.size())]};
          AcquireOptions ask;
          ask.deadline_us = 30'000'000;
          asked.push_back(own->Acquire(mine.ns, std::span(&ref, 1), ask));
        }
        if (asked.empty()) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
          continue;
        }
        static_cast<void>(asked.front().Wait());
        asked.pop_front();
      }
    });
  }
  std::vector<double> errors;
  WorthOutcomes outcomes;
  Random random(3);
  double lately_us = 0;  // what a read took, fading
  static constexpr int kLoads[] = {0, 4, 16, 1, 8};
  Status failed;
  for (int i = 0; i < kReads && failed.ok(); ++i) {
    if (i % 200 == 0) load = kLoads[(i / 200) % std::size(kLoads)];
    const BlockKey key = blocks.keys[round.Next()];
    Result<MatchResult> match = store.Match(blocks.ns, std::span(&key, 1)).Wait();
    if (!match) failed = match.error();
    if (!match || match->runs.empty() || match->runs[0].where != Where::kFlash) continue;
    const auto said = static_cast<double>(match->runs[0].ready_in_us);
    // Every other read is sent with a worth_us, drawn around what reads took lately.
    const bool limited = i % 2 == 1 && lately_us > 0;
    const double worth = lately_us * std::exp2(static_cast<double>(random.Below(4001)) / 1000.0 - 2.0);
    const WorthRead read =
        ReadWorth(store, blocks.ns, key, limited ? static_cast<std::int64_t>(worth) : kNoWorthLimit);
    if (read.answer == WorthRead::kFailed) continue;
    if (limited) {
      outcomes.Add(store, blocks.ns, key, worth, read);
      continue;
    }
    errors.push_back(std::abs(said - read.us) / read.us);
    lately_us = lately_us == 0 ? read.us : lately_us + (read.us - lately_us) / 16;
  }
  stop = true;
  for (std::thread& other : others) other.join();
  if (!failed.ok()) return failed;
  BenchRow row{
      .name = Text("flash_worth_us_error_of_", errors.size()), .value = 100 * Median(errors), .unit = "%"};
  row.ratio_low = 100 * Quantile(errors, 0.25);
  row.ratio_high = 100 * Quantile(errors, 0.75);
  options.row(row);
  options.row(outcomes.Row("flash_worth_us_refusals_right_of_", outcomes.refused, outcomes.rightly));
  options.row(outcomes.Row("flash_worth_us_begun_in_time_of_", outcomes.begun, outcomes.in_time));
  return Status();
}

Status Restarts(BenchOptions& options) {
  constexpr std::uint64_t kBytes = 4096;
  options.progress(Text("filling ", options.million, " blocks of ", SizeText(kBytes), " down to flash"));
  auto place = ScratchDirectory::Make(options.flash_dir, "bench-flash");
  if (!place) return place.error();
  const std::uint64_t flash = options.million * (kBytes + 512) / 5 * 6 + (1ull << 30);
  auto daemon = StartNode(options, {"--memory", "512MiB", "--alignment", "512B", "--flash",
                                    Text(place->path(), ":", SizeText(flash))});
  if (!daemon) return daemon.error();
  Result<FilledBlocks> blocks = [&]() -> Result<FilledBlocks> {
    Result<Store> store = daemon->Connect();
    if (!store) return Error(store.error());
    auto filled = FillDown(*store, options.million, kBytes, 1000);
    if (filled) {
      if (Status status = AwaitWritten(*store); !status.ok()) return Error(status);
    }
    return filled;
  }();
  if (!blocks) return blocks.error();
  options.progress("restart with flash");
  for (const bool reboot : {false, true}) {
    const std::string name = Text(reboot ? "reboot_" : "restart_", blocks->keys.size(), "_blocks_on_flash");
    if (Status status = RestartRow(options, *daemon, *blocks, name, reboot); !status.ok()) return status;
  }
  return Status();
}

BenchRow PutRowOf(std::string name, std::string limit, const Samples& calls, const Samples& theirs,
                  const std::vector<double>& ratios) {
  return {.name = std::move(name),
          .value = Quantile(calls.call_us, 0.99),
          .unit = "us",
          .limit = std::move(limit),
          .limit_value = Quantile(theirs.call_us, 0.99),
          .ratio = Median(ratios),
          .ratio_low = Quantile(ratios, 0),
          .ratio_high = Quantile(ratios, 1),
          .p50_us = Median(calls.call_us),
          .p99_us = Quantile(calls.call_us, 0.99)};
}

// Single puts of 64 KiB while as much more is put as flash can take, against the same without flash; and
// against the same without flash beside a program that does nothing but write to that disk: what the CPUs'
// kernel needs for the transfers is no node's to save.
Status PutRow(BenchOptions& options) {
  constexpr std::uint64_t kBytes = 64u << 10;
  auto place = ScratchDirectory::Make(options.flash_dir, "bench-flash");
  if (!place) return place.error();
  constexpr std::uint64_t kBesideBytes = 1u << 30;
  constexpr int kBesideDepth = 3;
  Samples with, without, beside;
  std::vector<double> ratios, beside_ratios;
  auto below = StartNode(options, {"--memory", "512MiB", "--flash", Text(place->path(), ":4GiB")});
  if (!below) return below.error();
  auto alone = StartNode(options, {"--memory", "512MiB"});
  if (!alone) return alone.error();
  {
    auto store = below->Connect();
    if (!store) return store.error();
    if (Status status = WriteThrough(*store); !status.ok()) return status;
  }
  std::uint64_t number = 0;
  const auto puts = [&](Daemon& daemon, std::vector<double>& calls) -> Status {
    auto store = daemon.Connect();
    if (!store) return store.error();
    auto ns = store->Attach(BenchNamespace(kBytes));
    if (!ns) return ns.error();
    auto staging = store->AllocateStaging(kBytes);
    if (!staging) return staging.error();
    std::memset(staging->data(), 7, kBytes);
    // 8,000 puts are half a gigabyte: more than a device takes meanwhile, so its queue stays full.
    for (int i = 0; i < 8000; ++i) {
      const BlockWrite write{.key = workload::WorkloadKey(++number, kBytes),
                             .put_id = {3, number},
                             .data = {staging->data(), kBytes}};
      Stopwatch watch;
      if (Status put = PutOne(*store, *ns, write); !put.ok()) return put;
      calls.push_back(static_cast<double>(watch.Ns()) / 1e3);
    }
    return Status();
  };
  // What the one still writes must not slow the other.
  const auto quiet = [&]() -> Status {
    auto store = below->Connect();
    return store ? AwaitWritten(*store) : store.error();
  };
  for (std::uint64_t i = 0; i < options.rounds; ++i) {
    std::vector<double> mine, theirs, others;
    if (Status status = puts(*below, mine); !status.ok()) return status;
    if (Status status = quiet(); !status.ok()) return status;
    if (Status status = puts(*alone, theirs); !status.ok()) return status;
    {
      auto writer = DiskWriter::Start(place->path() + "/beside", kBesideBytes, kBesideDepth);
      if (!writer) return writer.error();
      if (Status status = puts(*alone, others); !status.ok()) return status;
    }
    ratios.push_back(Quantile(mine, 0.99) / Quantile(theirs, 0.99));
    beside_ratios.push_back(Quantile(mine, 0.99) / Quantile(others, 0.99));
    beside.call_us.insert(beside.call_us.end(), others.begin(), others.end());
    with.call_us.insert(with.call_us.end(), mine.begin(), mine.end());
    without.call_us.insert(without.call_us.end(), theirs.begin(), theirs.end());
  }
  options.row(PutRowOf("put_64KiB_p99_while_flash_is_saturated", "p99 without flash", with, without, ratios));
  options.row(PutRowOf("put_64KiB_p99_as_beside_a_writer", "p99 without flash, beside a program that writes",
                       with, beside, beside_ratios));
  return Status();
}

// A node with blocks of one size on flash, more of them than its memory holds.
struct FilledNode {
  ScratchDirectory place;
  Daemon daemon;
  Store store;
  FilledBlocks blocks;
};

Result<FilledNode> FillNode(BenchOptions& options, std::uint64_t block_bytes) {
  auto place = ScratchDirectory::Make(options.flash_dir, "bench-flash");
  if (!place) return Error(place.error());
  auto daemon = StartNode(
      options, {"--memory", "512MiB", "--flash-read-ahead", "0B", "--flash", Text(place->path(), ":5GiB")});
  if (!daemon) return Error(daemon.error());
  auto store = daemon->Connect();
  if (!store) return Error(store.error());
  options.progress(Text("filling flash with blocks of ", SizeText(block_bytes)));
  auto blocks = FillDown(*store, (3ull << 30) / block_bytes, block_bytes, 1);
  if (!blocks) return Error(blocks.error());
  if (Status status = AwaitWritten(*store); !status.ok()) return Error(status);
  options.progress(Text("flash, blocks of ", SizeText(block_bytes)));
  return FilledNode{std::move(*place), std::move(*daemon), std::move(*store), std::move(*blocks)};
}

// Not asked for without a directory: it takes gigabytes of a disk.
bool Asked(const BenchOptions& options) { return !options.flash_dir.empty(); }

}  // namespace

Status BenchFlashReads(BenchOptions& options) {
  if (!Asked(options)) return Status();
  if (Status status = FindFio(); !status.ok()) return status;
  for (const std::uint64_t block : {kMiB, 2 * kMiB}) {
    auto node = FillNode(options, block);
    if (!node) return node.error();
    const std::size_t depth = block == kMiB ? kDepth : 1;
    Status status = ReadRows(options, node->store, node->blocks, FlashFileIn(node->place.path()), depth);
    if (!status.ok()) return status;
  }
  return Status();
}

Status BenchFlashWorth(BenchOptions& options) {
  if (!Asked(options)) return Status();
  auto node = FillNode(options, kMiB);
  if (!node) return node.error();
  return WorthRows(options, node->store, node->daemon, node->blocks);
}

Status BenchFlashWrites(BenchOptions& options) {
  if (!Asked(options)) return Status();
  if (Status status = FindFio(); !status.ok()) return status;
  auto node = FillNode(options, kMiB);
  if (!node) return node.error();
  return WriteRows(options, node->store, node->place.path() + "/fio");
}

Status BenchFlashPuts(BenchOptions& options) { return Asked(options) ? PutRow(options) : Status(); }

Status BenchFlashRestart(BenchOptions& options) { return Asked(options) ? Restarts(options) : Status(); }

}  // namespace cistern
