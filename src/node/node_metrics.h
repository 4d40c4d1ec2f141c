// SPDX-License-Identifier: Apache-2.0
// The metrics of a whole node: its own, and those of all that it is put together from.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/release.h"
#include "catalog/store_counters.h"
#include "memory/memory_nodes.h"
#include "mesh/cell_metrics.h"

namespace cistern {
class MetricRegistry;
class SlowCalls;
}  // namespace cistern

namespace cistern::admin {
class TraceSender;
}  // namespace cistern::admin

namespace cistern::catalog {
class Journal;
}  // namespace cistern::catalog

namespace cistern::flash {
class FlashTier;
}  // namespace cistern::flash

namespace cistern::memory {
class Slots;
}  // namespace cistern::memory

namespace cistern::server {
class Server;
}  // namespace cistern::server

namespace cistern::store {
class BlockStore;
}  // namespace cistern::store

namespace cistern::node {

class OwnFiles;

// What does not change while a node runs.
struct NodeFacts {
  std::string release{Release()};
  std::string tenant;
  std::string directory;
  std::string journal;  // the directory in which it lies
  std::string socket;
  std::string http;
  std::string loop;  // io_uring or epoll
  std::string copy;  // the kernel that moves bytes
  std::uint64_t pid = 0;
  std::uint64_t boot_count = 0;
  std::int64_t warm_us = 0;
  std::uint64_t budget_bytes_a_day = 0;
  std::uint64_t staging_budget_bytes = 0;
};

struct MetricSources {  // all borrowed
  const NodeFacts& facts;
  std::function<std::int64_t()> uptime_us;
  std::function<std::uint64_t()> sleeps;
  std::function<std::uint64_t()> prepared_bytes;
  const Histogram& tick_late_ns;
  const Histogram& step_ns;
  const SlowCalls* slow_calls;
  const admin::TraceSender* traces;
  const catalog::StoreCounters& counters;
  const memory::Slots* slots;
  std::vector<memory::MemoryNode> nodes;
  const store::BlockStore* store;
  const server::Server* server;
  const catalog::Journal* journal;
  const OwnFiles* own_files;
  bool has_flash;
  const flash::FlashTier* flash;
  bool has_cell;
  mesh::CellParts cell;
};

void AddAllMetrics(MetricRegistry& registry, const MetricSources& sources);

// Of a node with all that there is, for the names: docs/metrics.md.
std::string MetricsOfDocs();

}  // namespace cistern::node
