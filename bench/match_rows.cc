// SPDX-License-Identifier: Apache-2.0
// A million small blocks: match of random chains among them, and the restart of their node.
#include <cstring>

#include "base/format.h"
#include "base/units.h"
#include "bench_node.h"
#include "fill.h"
#include "measure.h"
#include "restart_row.h"
#include "workload/content.h"

namespace cistern {
namespace {

constexpr std::size_t kChain = 1000;
constexpr std::uint64_t kBlockBytes = 4096;
constexpr int kCalls = 2000;

Status Match(Store& store, const FilledBlocks& blocks, std::size_t absent, Samples& series) {
  Random random(17);
  std::vector<BlockKey> chain(kChain);
  for (int call = 0; call < kCalls; ++call) {
    std::size_t first = random.Below(blocks.keys.size() / kChain) * kChain;
    for (std::size_t i = 0; i < kChain; ++i) {
      bool there = i < kChain - absent;
      chain[i] = there ? blocks.keys[first + i] : workload::WorkloadKey(random.Next(), 19);
    }
    Stopwatch watch;
    Result<MatchResult> match = store.Match(blocks.ns, chain).Wait();
    series.call_us.push_back(static_cast<double>(watch.Ns()) / 1e3);
    if (!match) return match.error();
    if (match->blocks != kChain - absent) {
      return Status(Code::kMiss, Text("match found ", match->blocks, " of ", kChain - absent, " blocks"));
    }
  }
  return Status();
}

}  // namespace

Status BenchMatchAndRestart(BenchOptions& options) {
  options.progress(Text("filling ", options.million, " blocks of ", SizeText(kBlockBytes)));
  const std::uint64_t memory = options.million * (kBlockBytes + 512) / 7 * 8 + (256u << 20);
  Result<Daemon> daemon = StartNode(options, {"--memory", SizeText(memory), "--alignment", "512B"});
  if (!daemon) return daemon.error();
  Result<Store> store = daemon->Connect();
  if (!store) return store.error();
  Result<FilledBlocks> blocks = Fill(*store, options.million, kBlockBytes, kChain);
  if (!blocks) return blocks.error();
  options.progress("match");
  Samples all, half;
  if (Status status = Match(*store, *blocks, 0, all); !status.ok()) return status;
  options.row(TimeRow(Text("match_1000_of_", options.million), "", all, {}));
  if (Status status = Match(*store, *blocks, kChain / 2, half); !status.ok()) return status;
  options.row(TimeRow(Text("match_1000_of_", options.million, "_last_500_absent"), "", half, {}));
  options.progress("restart");
  return RestartRow(options, *daemon, *blocks, Text("restart_", blocks->keys.size(), "_blocks"));
}

}  // namespace cistern
