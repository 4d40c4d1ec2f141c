// SPDX-License-Identifier: Apache-2.0
#include "node/new_history.h"

#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/format.h"
#include "etcd/gateway.h"
#include "io/loop.h"
#include "node/cell_options.h"
#include "node/kernel_random.h"

namespace cistern::node {

Result<mesh::ReplacedHistory> BeginNewHistory(const NodeOptions& options, std::int64_t deadline_us) {
  if (options.cell.empty())
    return Error(Code::kInvalid,
                 "cell: is not given; name the endpoints of the cell's etcd, as http://10.0.0.7:2379, or a "
                 "node's configuration file that does");
  if (Status status = CheckCellAccess(options); !status.ok()) return Error(std::move(status));
  const Result<std::vector<net::CellKey>> cell_keys = ReadCellKeys(options);
  if (!cell_keys) return Error(cell_keys.error());
  const SystemClock clock;
  Result<std::unique_ptr<io::Loop>> loop = io::MakeLoop(clock);
  if (!loop) return Error(loop.error());
  if (Status files = CheckEtcdFiles(options); !files.ok()) return Error(std::move(files));
  const auto etcd = etcd::OpenGateway(**loop, EtcdOptions(options));
  if (!etcd) return Error(etcd.error().code(), Text("cell: ", etcd.error().message()));
  const mesh::CellKeys keys(CellPrefix(options));
  auto replaced = (*loop)->BlockOn(
      mesh::ReplaceHistory(**etcd, keys, *cell_keys, RandomNumber(), clock.Now().PlusUs(deadline_us)));
  if (!replaced) return Error(replaced.error().code(), Text("cell: ", replaced.error().message()));
  return replaced;
}

}  // namespace cistern::node
