// SPDX-License-Identifier: Apache-2.0
#include "base/slow_calls.h"

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/metric_registry.h"
#include "base/units.h"

namespace cistern {
namespace {

using enum MetricKind;

// For eyes.
std::string RoughDuration(std::int64_t ns) {
  const double us = static_cast<double>(ns) / 1e3;
  char text[32];
  if (us < 1e3)
    std::snprintf(text, sizeof(text), "%.0fus", us);
  else if (us < 1e6)
    std::snprintf(text, sizeof(text), us < 1e5 ? "%.1fms" : "%.0fms", us / 1e3);
  else
    std::snprintf(text, sizeof(text), "%.2fs", us / 1e6);
  return text;
}

std::string FingerprintText(std::uint64_t fingerprint) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(fingerprint));
  return text;
}

std::string AskerText(const SlowCall& call) {
  if (call.session == 0) return "";
  return Text(" for session ", call.session, " of process ", call.process,
              call.engine.empty() ? "" : " of engine " + call.engine);
}

const CallText& TextOf(CallKind kind) { return kCallKinds[static_cast<std::size_t>(kind)]; }

MetricValue Microseconds(std::int64_t ns) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(ns, 0)) / 1'000;
}

MetricTable::Found RowOf(const SlowCalls& calls, const Clock& clock, std::size_t at, MetricRow& row) {
  if (at >= calls.last().size()) return MetricTable::Found::kEnd;
  const SlowCall& call = calls.last()[at];
  row = {std::string(TextOf(call.kind).name),
         Microseconds(clock.Now().NsSince(call.ended)),
         Microseconds(call.took_ns()),
         call.count,
         std::string(CodeName(call.code)),
         call.session == 0 ? MetricValue() : MetricValue(call.session),
         call.session == 0 ? MetricValue() : MetricValue(call.process),
         call.engine.empty() ? MetricValue() : MetricValue(call.engine),
         call.namespace_fingerprint == 0 ? MetricValue()
                                         : MetricValue(FingerprintText(call.namespace_fingerprint))};
  for (std::size_t i = 0; i < kStations.size(); ++i)
    row.push_back(Microseconds(call.stations.at(static_cast<Station>(i)).ns));
  return MetricTable::Found::kRow;
}

}  // namespace

std::string StationsText(const SlowCall& call) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < kStations.size(); ++i) {
    if (call.stations.at(static_cast<Station>(i)).ns > call.took_ns() / 1000) order.push_back(i);
  }
  const auto ns = [&](std::size_t i) { return call.stations.at(static_cast<Station>(i)).ns; };
  std::ranges::sort(order, std::greater<>(),
                    [&](std::size_t i) { return std::pair(ns(i), kStations.size() - i); });
  return Joined(order, ", ",
                [&](std::size_t i) { return Text(kStations[i].name, " ", RoughDuration(ns(i))); });
}

void SlowCalls::Note(SlowCall call) {
  call.stations.TakeRest(call.ended);
  by_kind_[static_cast<std::size_t>(call.kind)].Add();
  by_station_[static_cast<std::size_t>(call.stations.longest())].Add();
  const CallText& text = TextOf(call.kind);
  log_.Log(
      LogLevel::kWarning, "slow: ", text.name, " of ", call.count, " ", text.of, AskerText(call), " took ",
      RoughDuration(call.took_ns()), ": ", StationsText(call),
      call.namespace_fingerprint == 0 ? "" : ", namespace " + FingerprintText(call.namespace_fingerprint),
      call.code == Code::kOk ? "" : Text(", ", CodeName(call.code)));
  if (listener_) listener_(call);
  if (last_.size() == kKept) last_.pop_back();
  last_.push_front(std::move(call));
}

void SlowCalls::AddMetrics(MetricRegistry& registry, const SlowCalls* calls) {
  static const Counter kNone;
  registry.Label("slow", "call", "calls that took longer than slow_calls says, by what they asked for");
  for (std::size_t i = 0; i < kCallKinds.size(); ++i)
    registry.Add("slow", kCallKinds[i].name, kCallKinds[i].help,
                 calls == nullptr ? kNone : calls->by_kind_[i]);
  registry.Label("slow_at", "station", "the same calls, by where they were longest: they waited");
  for (std::size_t i = 0; i < kStations.size(); ++i)
    registry.Add("slow_at", kStations[i].name, kStations[i].help,
                 calls == nullptr ? kNone : calls->by_station_[i]);
  MetricTable table{.name = "slow_calls",
                    .metric = "slow_call",
                    .help = "one object for each of the last 16 slow calls, the latest first",
                    .columns = {{"call", kRemark, "what it asked for"},
                                {"ago_us", kRemark, "since it ended"},
                                {"took_us", kRemark, "from when the node took it to its answer"},
                                {"count", kRemark, "blocks, parts, puts or keys of it"},
                                {"code", kRemark, "of its answer"},
                                {"session", kRemark, "who asked; none: the node itself"},
                                {"process", kRemark, "of that session"},
                                {"engine", kRemark, "as that session calls it; none: it has no name"},
                                {"namespace", kRemark, "the fingerprint of its list; none: of none"}},
                    .rows = nullptr};
  for (const StationText& station : kStations) table.columns.push_back({station.us, kRemark, station.help});
  table.rows = [calls](std::size_t at, MetricRow& row) { return RowOf(*calls, calls->clock_, at, row); };
  registry.Add("", std::move(table));
}

}  // namespace cistern
