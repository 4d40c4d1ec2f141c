// SPDX-License-Identifier: Apache-2.0
// A generated trace of conversations: by decisions alone, with real bytes through a node's memory, and with
// flash below a memory that holds a tenth of it.
#include <algorithm>

#include "base/format.h"
#include "base/units.h"
#include "bench_node.h"
#include "flash_place.h"
#include "measure.h"
#include "workload/generator.h"
#include "workload/replay.h"
#include "workload/simulator.h"

namespace cistern {
namespace {

constexpr std::uint64_t kBlockBytes = 64u << 10;
constexpr std::uint64_t kMemoryBlocks = 2'000;

// What a replay read, against memcpy of the same run: blocks of the same size from a buffer larger than the
// cache to another.
double CopyRate(std::uint64_t bytes) {
  const Buffer from(bytes), to(bytes);
  Stopwatch watch;
  for (std::uint64_t at = 0; at < bytes; at += kBlockBytes)
    std::copy_n(from.data() + at, kBlockBytes, to.data() + at);
  return static_cast<double>(bytes) / static_cast<double>(watch.Ns());
}

Status SimRow(BenchOptions& options) {
  Samples series;
  workload::SimResult result;
  for (std::uint64_t i = 0; i < options.rounds; ++i) {
    workload::Generator requests({});
    Stopwatch watch;
    auto simulated = workload::Simulate(requests, workload::SimPolicy::kLru, kMemoryBlocks);
    if (!simulated) return simulated.error();
    result = *simulated;
    series.rounds.push_back(static_cast<double>(result.accesses) * 1e3 / static_cast<double>(watch.Ns()));
  }
  options.row({.name = "sim_generated", .value = Median(series.rounds), .unit = "M/s"});
  options.row({.name = Text("sim_generated_hits_", kMemoryBlocks, "_blocks"),
               .value = 100 * result.hit_rate(),
               .unit = "%"});
  return Status();
}

struct Replayed {
  workload::ReplayReport report;
  double amplification = 0;
  double device_bytes = 0;
};

// One replay through a node of its own.
Status ReplayOnce(BenchOptions& options, std::vector<std::string> flags, Replayed& replayed) {
  auto daemon = StartNode(options, std::move(flags));
  if (!daemon) return daemon.error();
  auto store = daemon->Connect();
  if (!store) return store.error();
  auto ns = store->Attach(workload::ReplayNamespace(kBlockBytes));
  if (!ns) return ns.error();
  workload::Generator requests({});
  workload::Replay replay(*store, *ns, {.block_bytes = kBlockBytes}, replayed.report);
  if (Status status = workload::ReplayAll(requests, replay); !status.ok()) return status;
  options.wrong_bytes += replayed.report.wrong_bytes.value();
  options.bytes_verified += replayed.report.bytes_verified.value();
  if (options.flash_dir.empty()) return Status();
  const auto amplification = StatusNumber(*store, {"flash", "write_amplification"});
  const auto bytes = StatusNumber(*store, {"flash", "device_written_bytes"});
  if (amplification) replayed.amplification = *amplification;
  if (bytes) replayed.device_bytes = *bytes;
  return Status();
}

double ReadRate(const workload::ReplayReport& report) {
  return static_cast<double>(report.bytes_read.value()) /
         static_cast<double>(std::max<std::uint64_t>(report.read_ns.value(), 1));
}

void ReplayRow(BenchOptions& options, const std::string& name, const Replayed& replayed) {
  const workload::ReplayReport& report = replayed.report;
  const double limit = CopyRate(256u << 20);
  BenchRow row{
      .name = name, .value = ReadRate(report), .unit = "GB/s", .limit = "memcpy", .limit_value = limit};
  row.ratio = row.value / limit;
  row.p50_us = static_cast<double>(report.read_batch_ns.Percentile(0.5)) / 1e3;
  row.p99_us = static_cast<double>(report.read_batch_ns.Percentile(0.99)) / 1e3;
  options.row(row);
  options.row({.name = name + "_hits", .value = 100 * report.hit_rate(), .unit = "%"});
}

Status FlashRows(BenchOptions& options) {
  auto place = ScratchDirectory::Make(options.flash_dir, "bench-flash");
  if (!place) return place.error();
  Replayed replayed;
  // Regions are given up and written again: what moves then is the amplification.
  Status status =
      ReplayOnce(options, {"--memory", "64MiB", "--flash", Text(place->path(), ":160MiB")}, replayed);
  if (!status.ok()) return status;
  ReplayRow(options, "replay_generated_flash", replayed);
  options.row({.name = "flash_write_amplification", .value = replayed.amplification, .unit = "x"});
  const double hit_bytes = static_cast<double>(replayed.report.hits_flash.value() * kBlockBytes);
  options.row({.name = "flash_hit_bytes_a_byte_written",
               .value = replayed.device_bytes == 0 ? 0 : hit_bytes / replayed.device_bytes,
               .unit = "x"});
  return Status();
}

}  // namespace

Status BenchTraces(BenchOptions& options) {
  options.progress("a generated trace");
  if (Status status = SimRow(options); !status.ok()) return status;
  Replayed replayed;
  if (Status status = ReplayOnce(options, {"--memory", "2GiB"}, replayed); !status.ok()) return status;
  ReplayRow(options, "replay_generated", replayed);
  return options.flash_dir.empty() ? Status() : FlashRows(options);
}

}  // namespace cistern
