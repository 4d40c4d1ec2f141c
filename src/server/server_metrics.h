// SPDX-License-Identifier: Apache-2.0
// What a server says of itself.
#pragma once

namespace cistern {
class MetricRegistry;
}  // namespace cistern

namespace cistern::server {

class Server;

// Borrows it; null: for the names alone.
void AddMetrics(MetricRegistry& registry, const Server* server);
// Its engines, and how many of them have something off.
void AddEngineMetrics(MetricRegistry& registry, const Server* server);
// How long its calls took.
void AddCallTimes(MetricRegistry& registry, const Server* server);

}  // namespace cistern::server
