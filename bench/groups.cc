// SPDX-License-Identifier: Apache-2.0
#include "bench.h"

namespace cistern {

std::span<const BenchGroup> BenchGroups() {
  static const BenchGroup kGroups[] = {
      {"copy", "each copy kernel of this processor against memcpy", BenchCopies},
      {"get", "checked get against memcpy", BenchGets},
      {"put", "put against memcpy", BenchPuts},
      {"views", "leased views: polling, after idle, embedded", BenchViews},
      {"match", "match and restart with a million blocks", BenchMatchAndRestart},
      {"leases", "leases of a killed client", BenchLeases},
      {"strangers", "gets and puts of four clients beside a hostile one of each kind", BenchStrangers},
      {"flash-read", "reads from flash against fio; these need --flash-dir", BenchFlashReads},
      {"flash-worth", "what worth_us promises against what happened", BenchFlashWorth},
      {"flash-write", "writes to flash against fio", BenchFlashWrites},
      {"flash-put", "puts while flash is saturated against puts without flash", BenchFlashPuts},
      {"flash-restart", "restart and reboot with a million blocks on flash", BenchFlashRestart},
      {"net", "blocks from another host over loopback against iperf3", BenchNet},
      {"cell-read", "blocks of another node of a cell against iperf3; the cell's rows need etcd",
       BenchCellReads},
      {"cell-match", "matches in a cell: unknown, held by a peer, after idle", BenchCellMatches},
      {"cell-flash", "blocks on another node's flash against the same flash read there; needs --flash-dir",
       BenchCellFlash},
      {"cell-index", "what a node of a cell keeps of the others", BenchCellIndex},
      {"cell-snapshot", "what a newcomer takes of a member with ten million blocks", BenchCellSnapshot},
      {"cell-load", "puts and reads while the mesh is busy, and while a peer is stopped", BenchCellLoad},
      {"cell-loss", "what a read waits for where its node was killed or stopped", BenchCellLoss},
      {"cell-drop", "drops in a cell of five", BenchCellDrops},
      {"http", "scrapes of /metrics with a million blocks, and calls meanwhile", BenchHttp},
      {"index", "DRAM of ten million blocks on flash, and finding them", BenchIndex},
      {"traces", "a generated trace: decisions alone, real bytes, and with --flash-dir flash", BenchTraces},
      {"pages", "blocks to and from an engine's pages against memcpy", BenchPages},
  };
  return kGroups;
}

}  // namespace cistern
