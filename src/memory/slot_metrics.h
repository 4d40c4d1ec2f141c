// SPDX-License-Identifier: Apache-2.0
// What the slots of an arena say of themselves.
#pragma once

namespace cistern {
class MetricRegistry;
}  // namespace cistern

namespace cistern::memory {

class Slots;

// Borrows them; null: for the names alone.
void AddMetrics(MetricRegistry& registry, const Slots* slots);

}  // namespace cistern::memory
