// SPDX-License-Identifier: Apache-2.0
// What a member counts and says of its cell.
#pragma once

namespace cistern {
class MetricRegistry;
}  // namespace cistern

namespace cistern::mesh {

class LocalBlockStore;
class Member;

// Borrows both; null, for the names alone.
void AddMetrics(MetricRegistry& registry, const Member* member, const LocalBlockStore* local);

}  // namespace cistern::mesh
