// SPDX-License-Identifier: Apache-2.0
#include "server/server_metrics.h"

#include "base/metric_registry.h"
#include "server/server.h"

namespace cistern::server {
namespace {

struct Field {
  std::string_view section;
  std::string_view name;
  MetricKind kind;
  std::uint64_t ServerCounters::* count;
  std::string_view help;
};

constexpr Field kFields[] = {
    {"door", "sessions", MetricKind::kGauge, &ServerCounters::sessions, "connected processes"},
    {"door", "in_flight", MetricKind::kGauge, &ServerCounters::in_flight, "their calls under way"},
    {"door", "staging_bytes", MetricKind::kGauge, &ServerCounters::staging_bytes,
     "the staging of all of them"},
    {"door", "accepted", MetricKind::kCounter, &ServerCounters::accepted, "hellos that became a session"},
    {"door", "refused", MetricKind::kCounter, &ServerCounters::refused, "hellos answered with an error"},
    {"door", "ended_forged", MetricKind::kCounter, &ServerCounters::ended_forged,
     "sessions ended for what was in their ring"},
    {"door", "calls", MetricKind::kCounter, &ServerCounters::calls, "calls taken from rings"},
    {"door", "calls_refused", MetricKind::kCounter, &ServerCounters::calls_refused,
     "of these, refused by the server itself"},
    {"door", "completions_lost", MetricKind::kCounter, &ServerCounters::completions_lost,
     "answers to clients that did not drain their ring"},
    {"door", "touches", MetricKind::kCounter, &ServerCounters::touches, "uses that clients told of"},
    {"door", "touches_lost", MetricKind::kCounter, &ServerCounters::touches_lost,
     "uses overwritten in their ring before they were read"},
    {"reads", "asked_blocks", MetricKind::kCounter, &ServerCounters::asked_blocks,
     "blocks of chains that clients matched"},
    {"reads", "indexed_blocks", MetricKind::kCounter, &ServerCounters::indexed_blocks,
     "of these, found in memory by the client itself"},
    {"reads", "read_blocks", MetricKind::kCounter, &ServerCounters::read_blocks,
     "records copied out of memory by clients, and found right"},
    {"reads", "read_bytes", MetricKind::kCounter, &ServerCounters::read_bytes, "bytes of those copies"},
    {"engines", "promised_tokens", MetricKind::kCounter, &ServerCounters::promised_tokens,
     "tokens that engines were told they need not compute, as they report"},
    {"engines", "delivered_tokens", MetricKind::kCounter, &ServerCounters::delivered_tokens,
     "of these, tokens whose KV came in time"},
    {"engines", "saved_us", MetricKind::kCounter, &ServerCounters::saved_us,
     "prefill that they did not compute, by their own estimate"},
    {"engines", "spent_us", MetricKind::kCounter, &ServerCounters::spent_us,
     "time that requests waited for what was loaded instead"},
};

struct TimedCall {
  std::string_view name;
  wire::Op op;
  std::string_view help;
};

constexpr TimedCall kTimed[] = {
    {"match", wire::Op::kMatchRest, "the rest of a chain, which the index did not have"},
    {"hold", wire::Op::kHold, "a match that leases what it found"},
    {"acquire", wire::Op::kAcquire, "views, with what was fetched from flash for them"},
    {"write", wire::Op::kWrite, "parts of blocks, until the node let go of their bytes"},
    {"publish", wire::Op::kPublish, "what was written held becomes visible"},
    {"touch", wire::Op::kTouch, "uses in order"},
    {"drop", wire::Op::kDrop, "blocks with all that descends from them, durably"},
};

}  // namespace

void AddCallTimes(MetricRegistry& registry, const Server* server) {
  static const CallTimes kNone;  // for the names alone
  const CallTimes& times = server == nullptr ? kNone : server->times();
  registry.Label(
      "calls", "call",
      "how long the node took for a call; one that it answers in the step that takes it is not timed");
  for (const TimedCall& call : kTimed) registry.Add("calls", call.name, call.help, times.of(call.op));
}

void AddMetrics(MetricRegistry& registry, const Server* server) {
  for (const Field& field : kFields) {
    registry.Add(field.section, {field.name, field.kind, field.help},
                 [server, count = field.count] { return MetricValue(server->counters().*count); });
  }
}

}  // namespace cistern::server
