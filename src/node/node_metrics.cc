// SPDX-License-Identifier: Apache-2.0
#include "node/node_metrics.h"

#include "admin/metrics_table.h"
#include "admin/trace_sender.h"
#include "base/metric_registry.h"
#include "base/slow_calls.h"
#include "catalog/journal.h"
#include "flash/flash_tier.h"
#include "memory/slot_metrics.h"
#include "node/own_files.h"
#include "server/server_metrics.h"
#include "store/store_metrics.h"

namespace cistern::node {
namespace {

struct Words {
  std::string_view name;
  std::string NodeFacts::* words;
  std::string_view help;
};

constexpr Words kWords[] = {
    {"release", &NodeFacts::release, "of which its program is"},
    {"tenant", &NodeFacts::tenant, "who answers"},
    {"directory", &NodeFacts::directory, "where its memory's files are"},
    {"journal", &NodeFacts::journal, "the directory of the journal: with flash a durable one"},
    {"socket", &NodeFacts::socket, "where clients come in"},
    {"http", &NodeFacts::http, "where this port is; empty: it has none"},
    {"loop", &NodeFacts::loop, "io_uring or epoll, as probed or asked for"},
    {"copy", &NodeFacts::copy,
     "what moves and checks bytes: avx512_lanes, avx512, avx2_vpclmulqdq, avx2, arm64 or portable"},
};

void AddNodeMetrics(MetricRegistry& registry, const MetricSources& sources) {
  const NodeFacts* facts = &sources.facts;
  for (const Words& one : kWords) {
    registry.Add("node", {one.name, MetricKind::kText, one.help},
                 [facts, words = one.words] { return MetricValue(facts->*words); });
  }
  const auto gauge = [&](std::string_view name, std::string_view help, std::function<MetricValue()> read) {
    registry.Add("node", {name, MetricKind::kGauge, help}, std::move(read));
  };
  gauge("pid", "its process", [facts] { return MetricValue(facts->pid); });
  gauge("boot_count", "nodes that have run on this arena; a lease belongs to one of them",
        [facts] { return MetricValue(facts->boot_count); });
  gauge("uptime_us", "since its start", [up = sources.uptime_us] { return MetricValue(up()); });
  gauge("warm_us", "from its start until what was there had been found again",
        [facts] { return MetricValue(facts->warm_us); });
  registry.Add("node", {"sleeps", MetricKind::kCounter, "times that the core had nothing to do"},
               [sleeps = sources.sleeps] { return MetricValue(sleeps()); });
  registry.Add("memory",
               {"prepared_bytes", MetricKind::kGauge,
                "of slots that were moved into huge pages, where the system has any; until that is "
                "wanted_bytes it takes a processor"},
               [prepared = sources.prepared_bytes] { return MetricValue(prepared()); });
}

void AddFlashMetrics(MetricRegistry& registry, const MetricSources& sources) {
  if (!sources.has_flash) {
    flash::AddDeviceMetrics(registry, nullptr);
    return;
  }
  flash::AddMetrics(registry, sources.flash);
  registry.Add("flash", {"budget_bytes_a_day", MetricKind::kGauge, "flash_budget; none: no limit"},
               [facts = &sources.facts] {
                 return facts->budget_bytes_a_day == 0 ? MetricValue()
                                                       : MetricValue(facts->budget_bytes_a_day);
               });
}

void AddFileMetrics(MetricRegistry& registry, const MetricSources& sources) {
  const catalog::Journal* journal = sources.journal;
  registry.Add("journal",
               {"failed", MetricKind::kGauge,
                "1: its last write failed, and until one goes drops and new namespaces are refused"},
               [journal] { return MetricValue(std::uint64_t{!journal->trouble().ok()}); });
  registry.Add("journal", {"trouble", MetricKind::kRemark, "why that is, with the way out"}, [journal] {
    return journal->trouble().ok() ? MetricValue() : MetricValue(std::string(journal->trouble().message()));
  });
  registry.Add("journal", {"failures", MetricKind::kCounter, "writes of it that failed"},
               [journal] { return MetricValue(journal->failures()); });
  registry.Add(
      "journal",
      {"spare_bytes", MetricKind::kGauge,
       "kept beside it for a start on a full disk; 0: there was no room, and the next start may fail"},
      [journal] { return MetricValue(journal->spare_bytes()); });
  const OwnFiles* files = sources.own_files;
  registry.Add("files",
               {"memory_removed", MetricKind::kGauge,
                "1: another program removed the files of memory, and the next node finds nothing of it"},
               [files] { return MetricValue(std::uint64_t{files->memory_removed()}); });
  registry.Add("files",
               {"socket_removed", MetricKind::kGauge,
                "1: another program removed the socket, and nobody else comes in"},
               [files] { return MetricValue(std::uint64_t{files->socket_removed()}); });
}

}  // namespace

void AddAllMetrics(MetricRegistry& registry, const MetricSources& sources) {
  AddNodeMetrics(registry, sources);
  memory::AddMetrics(registry, sources.slots, sources.nodes);
  store::AddMetrics(registry, sources.store);
  AddFlashMetrics(registry, sources);
  catalog::AddMetrics(registry, sources.counters);
  if (sources.has_cell) mesh::AddMetrics(registry, sources.cell);
  server::AddMetrics(registry, sources.server);
  registry.Add("door",
               {"staging_budget_bytes", MetricKind::kGauge,
                "what staging may be: an eighth of the memory that the node started with"},
               [facts = &sources.facts] { return MetricValue(facts->staging_budget_bytes); });
  registry.Add("reads", "found_below",
               "blocks of matched chains that the node found, which memory's index did not have",
               sources.counters.found_below);
  catalog::AddMatchMetrics(registry, sources.counters);
  registry.Add("waits", "tick",
               "how much later than due the core's tick came: what kept the core, or its host",
               sources.tick_late_ns);
  registry.Add(
      "waits", "step",
      "one step of the core, in which nobody else is served; its bound is 100 us. One in eight is timed",
      sources.step_ns);
  if (sources.has_cell) mesh::AddWaits(registry, sources.cell);
  server::AddCallTimes(registry, sources.server);
  SlowCalls::AddMetrics(registry, sources.slow_calls);
  admin::TraceSender::AddMetrics(registry, sources.traces);
  store::AddSwitchMetrics(registry, sources.store);
  server::AddEngineMetrics(registry, sources.server);
  store::AddDrainMetrics(registry, sources.store);
  store::AddNamespaceMetrics(registry, sources.store);
  store::AddQuotaMetrics(registry, sources.store);
  AddFileMetrics(registry, sources);
}

std::string MetricsOfDocs() {
  const NodeFacts facts;
  const catalog::StoreCounters counters;
  const Histogram tick_late_ns, step_ns;
  MetricRegistry registry;
  AddAllMetrics(registry, {.facts = facts,
                           .uptime_us = [] { return 0; },
                           .sleeps = [] { return 0; },
                           .prepared_bytes = [] { return 0; },
                           .tick_late_ns = tick_late_ns,
                           .step_ns = step_ns,
                           .slow_calls = nullptr,
                           .traces = nullptr,
                           .counters = counters,
                           .slots = nullptr,
                           .nodes = {},
                           .store = nullptr,
                           .server = nullptr,
                           .journal = nullptr,
                           .own_files = nullptr,
                           .has_flash = true,
                           .flash = nullptr,
                           .has_cell = true,
                           .cell = {}});
  return admin::MetricsTable(registry);
}

}  // namespace cistern::node
