// SPDX-License-Identifier: Apache-2.0
#include "store/store_metrics.h"

#include "base/metric_registry.h"
#include "store/block_store.h"

namespace cistern::store {
namespace {

using Occupancy = BlockStore::Occupancy;

struct Field {
  std::string_view name;
  std::uint64_t Occupancy::* count;
  std::string_view help;
};

constexpr Field kFields[] = {
    {"blocks", &Occupancy::blocks, "in the tree, in any tier"},
    {"records", &Occupancy::records, "in memory, one for each group of a block"},
    {"bytes", &Occupancy::bytes, "of their bodies"},
    {"pending", &Occupancy::pending, "puts that wait for parts, parent or Publish"},
    {"leases", &Occupancy::leases, "rights to find blocks unmoved"},
    {"leased_blocks", &Occupancy::leased_blocks, "the blocks of all leases"},
    {"namespaces", &Occupancy::namespaces, "lists attached"},
    {"tombstones", &Occupancy::tombstones, "dropped keys of which an older record may remain"},
    {"conversations", &Occupancy::conversations, "that wrote a block which may be here, and were not ended"},
    {"fetches", &Occupancy::fetches, "blocks that are being read from flash into memory"},
    {"passages", &Occupancy::passages,
     "partial copies: blocks of which some segments lie in a slot, or are on their way"},
};

struct SwitchField {
  std::string_view all, some, all_help, some_help;
  Switch which;
};

constexpr SwitchField kSwitches[] = {
    {"reads_on", "reads_off_namespaces", "false: `cistern admin reads off`, nothing is found",
     "namespaces whose reads are off by themselves", Switch::kReads},
    {"writes_on", "writes_off_namespaces", "false: `cistern admin writes off`, nothing new is kept",
     "namespaces whose writes are off by themselves", Switch::kWrites},
};

struct Counted {
  std::string_view name;
  MetricKind kind;
  std::uint64_t catalog::NamespaceCounters::* count;
  std::string_view help;
};

constexpr Counted kCounted[] = {
    {"memory_bytes", MetricKind::kGauge, &catalog::NamespaceCounters::memory_bytes,
     "of its records in memory"},
    {"memory_records", MetricKind::kGauge, &catalog::NamespaceCounters::memory_records,
     "its records in memory"},
    {"published", MetricKind::kCounter, &catalog::NamespaceCounters::published,
     "records that became visible"},
    {"uses", MetricKind::kCounter, &catalog::NamespaceCounters::uses,
     "reads and touches of its records, as far as clients told of them"},
    {"misses", MetricKind::kCounter, &catalog::NamespaceCounters::misses,
     "blocks that were asked for and not there"},
    {"evicted", MetricKind::kCounter, &catalog::NamespaceCounters::evicted,
     "records that left memory and are nowhere any more"},
};

MetricTable::Found NamespaceRow(const BlockStore* store, std::size_t at, MetricRow& row) {
  const auto slot = static_cast<std::uint32_t>(at);
  if (slot >= store->namespace_slots()) return MetricTable::Found::kEnd;
  const catalog::NamespaceEntry* entry = store->NamespaceAt(slot);
  if (entry == nullptr) return MetricTable::Found::kNone;
  const catalog::NamespaceCounters& counters = store->CountedAt(slot);
  row.reserve(std::size(kCounted) + 3);
  row.push_back(entry->names.empty() ? catalog::NamespaceTable::FingerprintText(store->FingerprintAt(slot))
                                     : entry->names.front());
  row.push_back(store->switches().on(Switch::kReads, slot));
  row.push_back(store->switches().on(Switch::kWrites, slot));
  for (const Counted& field : kCounted) row.push_back(counters.*field.count);
  return MetricTable::Found::kRow;
}

}  // namespace

void AddNamespaceMetrics(MetricRegistry& registry, const BlockStore* store) {
  MetricTable table{.name = "namespaces",
                    .metric = "namespace",
                    .help = "one object a namespace, by slot number",
                    .columns = {{"namespace", MetricKind::kLabel, "its name, or the fingerprint of its list"},
                                {"reads_on", MetricKind::kGauge, "whether anything of it can be found"},
                                {"writes_on", MetricKind::kGauge, "whether anything new of it is kept"}},
                    .rows = [store](std::size_t at, MetricRow& row) { return NamespaceRow(store, at, row); }};
  for (const Counted& field : kCounted) table.columns.push_back({field.name, field.kind, field.help});
  registry.Add("", std::move(table));
}

void AddSwitchMetrics(MetricRegistry& registry, const BlockStore* store) {
  for (const SwitchField& field : kSwitches) {
    registry.Add("switches", {field.all, MetricKind::kGauge, field.all_help},
                 [store, which = field.which] { return MetricValue(store->switches().all_on(which)); });
    registry.Add("switches", {field.some, MetricKind::kGauge, field.some_help},
                 [store, which = field.which] { return MetricValue(store->switches().off_count(which)); });
  }
}

void AddMetrics(MetricRegistry& registry, const BlockStore* store) {
  for (const Field& field : kFields) {
    registry.Add("now", {field.name, MetricKind::kGauge, field.help},
                 [store, count = field.count] { return MetricValue(store->occupancy().*count); });
  }
}

}  // namespace cistern::store
