// SPDX-License-Identifier: Apache-2.0
#include "fleet/result.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "base/format.h"
#include "planner/figure.h"

namespace cistern::fleet {
namespace {

boost::json::object SpreadJson(const Spread& spread) {
  return {{"mean", spread.mean},
          {"p50", spread.p50},
          {"p90", spread.p90},
          {"p99", spread.p99},
          {"max", spread.most}};
}

boost::json::object RunJson(const ClusterOptions& options, const ClusterResult& r) {
  boost::json::object run{{"router", ToString(r.routing)},
                          {"store", r.global_store ? "global" : "local"},
                          {"requests", r.requests},
                          {"answered", r.answered},
                          {"refused", r.refused},
                          {"too_large", r.too_large},
                          {"empty", r.empty},
                          {"restarted", r.restarted},
                          {"failures", r.failures},
                          {"span_s", r.span_s},
                          {"rate", r.rate()},
                          {"first_token_s", SpreadJson(r.first_token_s)},
                          {"per_token_s", SpreadJson(r.per_token_s)},
                          {"accesses", r.accesses},
                          {"hit_rate", r.hit_rate()},
                          {"own_hit_rate", r.Share(r.own_hits)},
                          {"peer_hit_rate", r.Share(r.peer_hits)},
                          {"reuse", r.reuse()},
                          {"load_cv", r.load_cv},
                          {"prefill_busy", r.prefill_busy},
                          {"own_bytes", r.own_bytes},
                          {"peer_bytes", r.peer_bytes},
                          {"handover_bytes", r.handover_bytes},
                          {"gpu_hours", r.gpu_hours},
                          {"events", r.events}};
  if (options.decode_nodes) run["decode_busy"] = r.decode_busy;
  if (options.first_token_s || options.per_token_s) run["goodput"] = r.goodput();
  if (options.gpu_hour_usd) {
    run["usd"] = r.usd;
    run["usd_per_million_tokens"] = r.usd_per_million_tokens;
  }
  return run;
}

std::string Line(const char* format, auto... values) {
  char line[256];
  std::snprintf(line, sizeof(line), format, values...);
  return line;
}

}  // namespace

Spread SpreadOf(std::vector<float> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const auto at = [&](double share) {
    const double rank = std::ceil(share * static_cast<double>(values.size()));
    return static_cast<double>(values[static_cast<std::size_t>(std::max(1.0, rank)) - 1]);
  };
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {.mean = sum / static_cast<double>(values.size()),
          .p50 = at(0.5),
          .p90 = at(0.9),
          .p99 = at(0.99),
          .most = values.back()};
}

std::string ResultsText(const ClusterOptions& options, const std::vector<ClusterResult>& results) {
  std::string text = Text(options.nodes, " nodes of ", options.gpus, " GPUs, ", options.decode_nodes,
                          " of them for decoding alone; ", options.blocks_per_node, " blocks a node\n\n");
  text += Line("%-13s %-6s | %9s %8s %8s %8s | %9s %9s | %5s %5s %5s | %6s %5s | %9s\n", "router", "store",
               "first mean", "p50", "p90", "p99", "token p50", "p99", "hit", "own", "peer", "reuse", "CV",
               "peer GB");
  for (const ClusterResult& r : results) {
    text += Line(
        "%-13s %-6s | %8.3f s %8.3f %8.3f %8.3f | %6.2f ms %9.2f | %4.1f%% %4.1f%% %4.1f%% | %5.1f%% %5.3f | "
        "%9.1f\n",
        std::string(ToString(r.routing)).c_str(), r.global_store ? "global" : "local", r.first_token_s.mean,
        r.first_token_s.p50, r.first_token_s.p90, r.first_token_s.p99, r.per_token_s.p50 * 1e3,
        r.per_token_s.p99 * 1e3, 100 * r.hit_rate(), 100 * r.Share(r.own_hits), 100 * r.Share(r.peer_hits),
        100 * r.reuse(), r.load_cv, r.peer_bytes / 1e9);
  }
  text += "\n";
  for (const ClusterResult& r : results) {
    text += Text(ToString(r.routing), ": ", r.answered, " of ", r.requests, " requests answered in ",
                 planner::QuantityText(r.span_s, "s"), ", ", r.refused, " refused, ", r.too_large,
                 " too large, ", r.empty, " empty, ", r.restarted, " restarted by ", r.failures, " failures");
    text += Line("; prefill busy %.1f %%", 100 * r.prefill_busy);
    if (options.decode_nodes) text += Line(", decode busy %.1f %%", 100 * r.decode_busy);
    if (options.first_token_s || options.per_token_s)
      text += Line("; goodput %.3f of %.3f requests/s", r.goodput(), r.rate());
    text += Line("; %.1f GPU hours", r.gpu_hours);
    if (options.gpu_hour_usd)
      text += Line(", %.2f USD, %.3f USD a million tokens", r.usd, r.usd_per_million_tokens);
    text += Text("; ", r.events, " events\n");
  }
  return text;
}

std::string ResultsJson(const ClusterOptions& options, const std::vector<ClusterResult>& results) {
  boost::json::array runs;
  for (const ClusterResult& result : results) runs.push_back(RunJson(options, result));
  const boost::json::object all{{"model", options.engine.model.name},
                                {"nodes", options.nodes},
                                {"decode_nodes", options.decode_nodes},
                                {"gpus_per_node", options.gpus},
                                {"blocks_per_node", options.blocks_per_node},
                                {"seed", options.seed},
                                {"runs", std::move(runs)}};
  return boost::json::serialize(all) + "\n";
}

}  // namespace cistern::fleet
