// SPDX-License-Identifier: Apache-2.0
#include "memory/slot_metrics.h"

#include "base/metric_registry.h"
#include "memory/slots.h"

namespace cistern::memory {
namespace {

struct Field {
  std::string_view name;
  MetricKind kind;
  std::uint64_t Slots::Counts::* count;
  std::string_view help;
};

constexpr Field kFields[] = {
    {"used_bytes", MetricKind::kGauge, &Slots::Counts::used_bytes,
     "of slots in use, with what their records leave empty"},
    {"slots", MetricKind::kGauge, &Slots::Counts::slots, "of the chunks that the arena is cut into"},
    {"used_slots", MetricKind::kGauge, &Slots::Counts::used_slots, "of these, in use"},
    {"chunks", MetricKind::kGauge, &Slots::Counts::chunks, "runs of slots of one size"},
    {"free_heads", MetricKind::kGauge, &Slots::Counts::free_headers,
     "chunk headers of no chunk: 32 MiB each that serve any size"},
    {"carvings", MetricKind::kCounter, &Slots::Counts::carvings, "times that a chunk was made"},
};

}  // namespace

void AddMetrics(MetricRegistry& registry, const Slots* slots) {
  registry.Add("memory", {"bytes", MetricKind::kGauge, "of all slots"},
               [slots] { return MetricValue(std::uint64_t{slots->arena().geometry().slots_bytes()}); });
  for (const Field& field : kFields) {
    registry.Add("memory", {field.name, field.kind, field.help},
                 [slots, count = field.count] { return MetricValue(slots->counts().*count); });
  }
}

}  // namespace cistern::memory
