// SPDX-License-Identifier: Apache-2.0
// What the slots of an arena say of themselves.
#pragma once

#include <vector>

#include "memory/memory_nodes.h"

namespace cistern {
class MetricRegistry;
}  // namespace cistern

namespace cistern::memory {

class Slots;

// Borrows them; null: for the names alone. `nodes` are those of their plan.
void AddMetrics(MetricRegistry& registry, const Slots* slots, std::vector<MemoryNode> nodes);

}  // namespace cistern::memory
