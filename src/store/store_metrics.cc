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

}  // namespace

void AddMetrics(MetricRegistry& registry, const BlockStore* store) {
  for (const Field& field : kFields) {
    registry.Add("now", {field.name, MetricKind::kGauge, field.help},
                 [store, count = field.count] { return MetricValue(store->occupancy().*count); });
  }
}

}  // namespace cistern::store
