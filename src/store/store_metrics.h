// SPDX-License-Identifier: Apache-2.0
// What a store says of itself: what is there now, and its counters.
#pragma once

namespace cistern {
class MetricRegistry;
}  // namespace cistern

namespace cistern::store {

class BlockStore;

// Borrows it; null: for the names alone.
void AddMetrics(MetricRegistry& registry, const BlockStore* store);
// A row a namespace.
void AddNamespaceMetrics(MetricRegistry& registry, const BlockStore* store);
// A row a quota.
void AddQuotaMetrics(MetricRegistry& registry, const BlockStore* store);
// How far a node is on its way out of service.
void AddDrainMetrics(MetricRegistry& registry, const BlockStore* store);
// What `cistern admin` has switched off.
void AddSwitchMetrics(MetricRegistry& registry, const BlockStore* store);

}  // namespace cistern::store
