// SPDX-License-Identifier: Apache-2.0
#include "server/server_metrics.h"

#include "base/metric_registry.h"
#include "server/server.h"

namespace cistern::server {
namespace {

struct Field {
  std::string_view name;
  MetricKind kind;
  std::uint64_t ServerCounters::* count;
  std::string_view help;
};

constexpr Field kFields[] = {
    {"sessions", MetricKind::kGauge, &ServerCounters::sessions, "connected processes"},
    {"in_flight", MetricKind::kGauge, &ServerCounters::in_flight, "their calls under way"},
    {"staging_bytes", MetricKind::kGauge, &ServerCounters::staging_bytes, "the staging of all of them"},
    {"accepted", MetricKind::kCounter, &ServerCounters::accepted, "hellos that became a session"},
    {"refused", MetricKind::kCounter, &ServerCounters::refused, "hellos answered with an error"},
    {"ended_forged", MetricKind::kCounter, &ServerCounters::ended_forged,
     "sessions ended for what was in their ring"},
    {"calls", MetricKind::kCounter, &ServerCounters::calls, "calls taken from rings"},
    {"calls_refused", MetricKind::kCounter, &ServerCounters::calls_refused,
     "of these, refused by the server itself"},
    {"completions_lost", MetricKind::kCounter, &ServerCounters::completions_lost,
     "answers to clients that did not drain their ring"},
    {"touches", MetricKind::kCounter, &ServerCounters::touches, "uses that clients told of"},
    {"touches_lost", MetricKind::kCounter, &ServerCounters::touches_lost,
     "uses overwritten in their ring before they were read"},
};

}  // namespace

void AddMetrics(MetricRegistry& registry, const Server* server) {
  for (const Field& field : kFields) {
    registry.Add("door", {field.name, field.kind, field.help},
                 [server, count = field.count] { return MetricValue(server->counters().*count); });
  }
}

}  // namespace cistern::server
