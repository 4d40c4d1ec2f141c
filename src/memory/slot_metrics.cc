// SPDX-License-Identifier: Apache-2.0
#include "memory/slot_metrics.h"

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

}  // namespace

void AddMetrics(MetricRegistry& registry, const Slots* slots) {
  registry.Add("memory", {"bytes", kGauge, "of all slots, but for those that a resize takes away"},
               [slots] { return MetricValue(slots->bytes()); });
  AddFields(registry, "memory", kFields, [slots] { return slots->counts(); });
}

}  // namespace cistern::memory
