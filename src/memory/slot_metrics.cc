// SPDX-License-Identifier: Apache-2.0
#include "memory/slot_metrics.h"

#include <utility>

#include "base/format.h"
#include "base/metric_registry.h"
#include "memory/slots.h"

namespace cistern::memory {
namespace {

using enum MetricKind;

constexpr MetricMember<Slots::Counts> kFields[] = {
    {"used_bytes", kGauge, &Slots::Counts::used_bytes,
     "of slots in use, with what their records leave empty"},
    {"slots", kGauge, &Slots::Counts::slots, "of the chunks that the arena is cut into"},
    {"used_slots", kGauge, &Slots::Counts::used_slots, "of these, in use"},
    {"chunks", kGauge, &Slots::Counts::chunks, "runs of slots of one size"},
    {"free_heads", kGauge, &Slots::Counts::free_headers,
     "chunk headers of no chunk: 32 MiB each that serve any size"},
    {"carvings", kCounter, &Slots::Counts::carvings, "times that a chunk was made"},
};

// None where the arena is not divided.
MetricTable::Found NodeRow(const Slots* slots, const std::vector<MemoryNode>& nodes, std::size_t at,
                           MetricRow& row) {
  if (slots == nullptr || slots->plan().nodes() == 1 || at >= slots->plan().nodes())
    return MetricTable::Found::kEnd;
  const auto node = static_cast<NodeIndex>(at);
  row = {Text(nodes[at].number), slots->bytes(node), slots->used_bytes(node),
         std::uint64_t{slots->plan().IsFar(node)}};
  return MetricTable::Found::kRow;
}

}  // namespace

void AddMetrics(MetricRegistry& registry, const Slots* slots, std::vector<MemoryNode> nodes) {
  registry.Add("memory", {"bytes", kGauge, "of all slots, but for those that a resize takes away"},
               [slots] { return MetricValue(slots->bytes()); });
  AddFields(registry, "memory", kFields, [slots] { return slots->counts(); });
  registry.Add(
      "memory",
      {.name = "nodes",
       .metric = "memory_node",
       .help = "memory nodes that the arena is divided among; none on a host with one",
       .columns = {{"node", kLabel, "the kernel's number of it"},
                   {"bytes", kGauge, "of all slots there"},
                   {"used_bytes", kGauge, "of slots in use there"},
                   {"far", kGauge, "1: it has no processors, and has what is worth least of memory"}},
       .rows = [slots, nodes = std::move(nodes)](std::size_t at, MetricRow& row) {
         return NodeRow(slots, nodes, at, row);
       }});
}

}  // namespace cistern::memory
