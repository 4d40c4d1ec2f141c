// SPDX-License-Identifier: Apache-2.0
#include "server/server_metrics.h"

#include "base/metric_registry.h"
#include "server/engines.h"
#include "server/operations.h"
#include "server/server.h"

namespace cistern::server {
namespace {

using enum MetricKind;

constexpr MetricMember<ServerCounters> kDoor[] = {
    {"sessions", kGauge, &ServerCounters::sessions, "connected processes"},
    {"in_flight", kGauge, &ServerCounters::in_flight, "their calls under way"},
    {"staging_bytes", kGauge, &ServerCounters::staging_bytes, "the staging of all of them"},
    {"accepted", kCounter, &ServerCounters::accepted, "hellos that became a session"},
    {"refused", kCounter, &ServerCounters::refused,
     "hellos answered with an error; not those by an owner that has no session any more"},
    {"ended_forged", kCounter, &ServerCounters::ended_forged, "sessions ended for what was in their ring"},
    {"calls", kCounter, &ServerCounters::calls, "calls taken from rings"},
    {"calls_refused", kCounter, &ServerCounters::calls_refused,
     "of these, answered kInvalid, or kGone as the node goes down"},
    {"completions_lost", kCounter, &ServerCounters::completions_lost,
     "answers to clients that did not drain their ring"},
    {"touches", kCounter, &ServerCounters::touches, "uses that clients told of"},
    {"touches_lost", kCounter, &ServerCounters::touches_lost,
     "uses overwritten in their ring before they were read"},
};

constexpr MetricMember<ServerCounters> kReads[] = {
    {"asked_blocks", kCounter, &ServerCounters::asked_blocks, "blocks of chains that clients matched"},
    {"indexed_blocks", kCounter, &ServerCounters::indexed_blocks,
     "of these, found in memory by the client itself"},
    {"read_blocks", kCounter, &ServerCounters::read_blocks,
     "records copied out of memory by clients, and found right"},
    {"read_bytes", kCounter, &ServerCounters::read_bytes, "bytes of those copies"},
};

constexpr MetricMember<ServerCounters> kEngines[] = {
    {"promised_tokens", kCounter, &ServerCounters::promised_tokens,
     "tokens that engines were told they need not compute, as they report"},
    {"delivered_tokens", kCounter, &ServerCounters::delivered_tokens,
     "of these, tokens whose KV came in time"},
    {"saved_us", kCounter, &ServerCounters::saved_us,
     "prefill that they did not compute, by their own estimate"},
    {"spent_us", kCounter, &ServerCounters::spent_us,
     "time that requests waited for what was loaded instead"},
};

struct OffField {
  std::string_view name, help;
  store::Switch which;
};

constexpr OffField kOff[] = {
    {"reads_off_engines", "engines whose reads are off by themselves, connected or not",
     store::Switch::kReads},
    {"writes_off_engines", "engines whose writes are off by themselves, connected or not",
     store::Switch::kWrites},
};

MetricTable::Found EngineRow(const Engines& engines, std::size_t at, MetricRow& row) {
  if (at >= engines.numbers()) return MetricTable::Found::kEnd;
  const Engine* const engine = engines.at(at);
  if (engine == nullptr) return MetricTable::Found::kNone;
  row = {engine->name, std::uint64_t{engine->sessions.size()}, engine->on(store::Switch::kReads),
         engine->on(store::Switch::kWrites)};
  return MetricTable::Found::kRow;
}

}  // namespace

void AddEngineMetrics(MetricRegistry& registry, const Server* server) {
  for (const OffField& field : kOff) {
    registry.Add("switches", {field.name, kGauge, field.help},
                 [server, which = field.which] { return MetricValue(server->engines().off_count(which)); });
  }
  registry.Add("", {.name = "by_engine",
                    .metric = "engine",
                    .help = "one object an engine that has a name",
                    .columns = {{"engine", kLabel, "its name, as its sessions say it"},
                                {"sessions", kGauge, "connected processes of it"},
                                {"reads_on", kGauge, "false: `cistern admin reads off --engine`"},
                                {"writes_on", kGauge, "false: `cistern admin writes off --engine`"}},
                    .rows = [server](std::size_t at, MetricRow& row) {
                      return EngineRow(server->engines(), at, row);
                    }});
}

void AddCallTimes(MetricRegistry& registry, const Server* server) {
  static const CallTimes kNone;  // for the names alone
  const CallTimes& times = server == nullptr ? kNone : server->times();
  registry.Label(
      "calls", "call",
      "how long the node took for a call; one that it answers in the step that takes it is not timed");
  for (const Operation& one : kOperations) {
    if (!one.times.empty())
      registry.Add("calls", kCallKinds[static_cast<std::size_t>(*one.slow)].name, one.times,
                   times.of(one.op));
  }
}

void AddMetrics(MetricRegistry& registry, const Server* server) {
  const auto counters = [server]() -> const ServerCounters& { return server->counters(); };
  AddFields(registry, "door", kDoor, counters);
  AddFields(registry, "reads", kReads, counters);
  AddFields(registry, "engines", kEngines, counters);
}

}  // namespace cistern::server
