// SPDX-License-Identifier: Apache-2.0
#include "restart_row.h"

#include <vector>

#include "measure.h"
#include "workload/content.h"

namespace cistern {

Status RestartRow(BenchOptions& options, Daemon& daemon, const FilledBlocks& blocks, const std::string& name,
                  bool reboot) {
  Samples series;
  std::vector<std::byte> bytes(blocks.block_bytes);
  for (int i = 0; i < 5; ++i) {
    Stopwatch watch;
    daemon.Kill();
    if (reboot) {
      daemon.ForgetMemory();
      watch = Stopwatch();
    }
    if (Status status = daemon.Exec(); !status.ok()) return status;
    Result<Store> store = daemon.Connect();
    if (!store) return store.error();
    Result<Namespace> ns = store->Attach(BenchNamespace(blocks.block_bytes));
    if (!ns) return ns.error();
    const BlockKey& deepest = blocks.keys.back();
    ReadRange range{.bytes = blocks.block_bytes, .to = bytes.data()};
    BlockRead read{.key = deepest, .ranges = std::span(&range, 1)};
    Result<ReadResult> result = store->Read(*ns, std::span(&read, 1)).Wait();
    series.call_us.push_back(static_cast<double>(watch.Ns()) / 1e3);
    if (!result) return result.error();
    if (result->leading_hits != 1) return Status(Code::kMiss, "the deepest block is gone after the restart");
    options.wrong_bytes += workload::CountWrongBytes(deepest, bytes);
    options.bytes_verified += blocks.block_bytes;
  }
  BenchRow row = TimeRow(name, "", series, {});
  row.unit = "s";
  row.value = row.p50_us / 1e6;
  row.ratio_low = Quantile(series.call_us, 0) / 1e6;
  row.ratio_high = Quantile(series.call_us, 1) / 1e6;
  options.row(row);
  return Status();
}

}  // namespace cistern
