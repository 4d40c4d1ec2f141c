// SPDX-License-Identifier: Apache-2.0
#include "sim_cluster_page.h"

#include <algorithm>

#include "base/format.h"
#include "page.h"
#include "planner/figure.h"

namespace cistern {
namespace {

constexpr std::size_t kPoints = 60;  // of a line

std::string Name(const fleet::ClusterResult& result) {
  return Text(ToString(result.routing), result.global_store ? ", global store" : ", local caches");
}

Series FirstTokens(const fleet::ClusterResult& result, int colour) {
  Series series{.name = Name(result), .colour = colour};
  std::vector<float> sorted = result.first_tokens;
  std::ranges::sort(sorted);
  for (std::size_t i = 0; i < kPoints && !sorted.empty(); ++i) {
    const std::size_t rank = i * (sorted.size() - 1) / (kPoints - 1);
    series.points.emplace_back(std::max(1e-3f, sorted[rank]),
                               100 * static_cast<double>(rank + 1) / static_cast<double>(sorted.size()));
  }
  return series;
}

Series Loads(const fleet::ClusterResult& result, int colour) {
  Series series{.name = Name(result), .colour = colour};
  std::vector<double> loads = result.prefill_s;
  std::ranges::sort(loads);
  const std::size_t points = std::min(loads.size(), kPoints);
  for (std::size_t i = 0; i < points; ++i) {
    const std::size_t rank = points < 2 ? 0 : i * (loads.size() - 1) / (points - 1);
    series.points.emplace_back(static_cast<double>(rank + 1), loads[rank]);
  }
  return series;
}

std::string Cell(double value, std::string_view unit) {
  return Text("<td>", Escaped(planner::QuantityText(value, unit)), "</td>");
}

std::string Table(const fleet::ClusterOptions& options, const std::vector<fleet::ClusterResult>& results) {
  std::string html = "<div class=\"scroll\"><table>\n<tr>";
  for (const std::string_view head :
       {"router", "first token, mean", "p50", "p90", "p99", "per token, p50", "p99", "answered", "refused",
        "hit rate, %", "own, %", "other nodes, %", "requests that reuse, %", "load, deviation / mean",
        "between nodes", "GPU hours"})
    html += Text("<th>", head, "</th>");
  if (options.first_token_s || options.per_token_s) html += "<th>goodput, requests/s</th>";
  if (options.gpu_hour_usd) html += "<th>USD a million tokens</th>";
  html += "</tr>\n";
  for (const fleet::ClusterResult& r : results) {
    html += Text("<tr><td>", Escaped(Name(r)), "</td>", Cell(r.first_token_s.mean, "s"),
                 Cell(r.first_token_s.p50, "s"), Cell(r.first_token_s.p90, "s"),
                 Cell(r.first_token_s.p99, "s"), Cell(r.per_token_s.p50, "s"), Cell(r.per_token_s.p99, "s"),
                 Cell(static_cast<double>(r.answered), ""), Cell(static_cast<double>(r.refused), ""),
                 Cell(100 * r.hit_rate(), ""), Cell(100 * r.Share(r.own_hits), ""),
                 Cell(100 * r.Share(r.peer_hits), ""), Cell(100 * r.reuse(), ""), Cell(r.load_cv, ""),
                 Cell(r.peer_bytes + r.handover_bytes, "B"), Cell(r.gpu_hours, ""));
    if (options.first_token_s || options.per_token_s) html += Cell(r.goodput(), "");
    if (options.gpu_hour_usd) html += Cell(r.usd_per_million_tokens, "");
    html += "</tr>\n";
  }
  return html += "</table></div>\n";
}

}  // namespace

std::string ClusterPageHtml(std::string_view trace, const fleet::ClusterOptions& options,
                            const std::vector<fleet::ClusterResult>& results) {
  const std::string title =
      Escaped(Text(options.nodes, " nodes of ", options.gpus, " GPUs, ", options.engine.model.name));
  std::vector<Series> firsts, loads;
  for (const fleet::ClusterResult& result : results) {
    const int colour = static_cast<int>(firsts.size()) % kPageColours;
    firsts.push_back(FirstTokens(result, colour));
    loads.push_back(Loads(result, colour));
  }
  Plot first = Lines("First token", "Share of requests whose first token came within a time.", "s",
                     "% of requests", firsts);
  first.y = {.label = "% of requests", .low = 0, .high = 100};
  Plot load = Lines("Load", "Prefill that each node did, from the least to the most.", "node by rank",
                    "s of prefill", loads);
  return Text("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">",
              "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>", title,
              "</title><style>", kPlotsStyle, kPageStyle, "</style></head><body>\n<h1>", title,
              "</h1>\n<p>Trace: ", Escaped(trace), "; ", options.decode_nodes, " nodes decode alone; ",
              options.blocks_per_node,
              " blocks of 512 tokens a node; simulated, nothing here was measured.</p>\n", Key(firsts),
              "<div class=\"plots\">\n", DrawPlot(first), DrawPlot(load), "</div>\n", "<h2>Runs</h2>\n",
              Table(options, results), "</body></html>\n");
}

}  // namespace cistern
