// SPDX-License-Identifier: Apache-2.0
#include "plan_page.h"

#include <algorithm>

#include "base/format.h"
#include "base/policy.h"
#include "page.h"

namespace cistern {
namespace {

// Computing, and loading from each tier.
std::vector<Series> CrossoverSeries(const planner::Report& report) {
  std::vector<Series> series(1);
  series[0].name = "computing";
  for (const planner::CrossoverRow& row : report.plan.crossover) {
    if (series.back().name != row.tier) {
      series.push_back({.name = row.tier, .colour = static_cast<int>(series.size()) % kPageColours});
    }
    const auto tokens = static_cast<double>(row.tokens);
    series.back().points.emplace_back(tokens, row.load_s * 1e3);
    if (series.size() == 2) series[0].points.emplace_back(tokens, row.compute_s * 1e3);
  }
  return series;
}

Series SizeSeries(const planner::Model& model) {
  Series series{.name = model.name, .colour = 1};
  for (std::uint64_t tokens = 1'024; tokens <= 1'048'576; tokens *= 2)
    series.points.emplace_back(static_cast<double>(tokens), model.Bytes(tokens) / 1e9);
  return series;
}

Series CurveSeries(const planner::Curve& curve) {
  Series series{.name = "miss ratio", .colour = 2};
  for (const planner::CurvePoint& point : curve.points)
    series.points.emplace_back(static_cast<double>(point.blocks), 100 * (1 - curve.hit_rate(point)));
  return series;
}

std::string Plots(const planner::Report& report) {
  std::string html;
  const std::vector<Series> crossover = CrossoverSeries(report);
  if (!report.plan.crossover.empty()) html += Key(crossover);
  html += "<div class=\"plots\">\n";
  if (!report.plan.crossover.empty()) {
    html += DrawPlot(Lines("Load or recompute",
                           "Time until a prompt's KV is there, loaded from one of each tier or computed.",
                           "tokens", "ms", crossover));
  }
  html += DrawPlot(Lines("What KV takes", "Bytes of one session by the length of its context.", "tokens",
                         "GB", {SizeSeries(report.input.model)}));
  if (report.curve) {
    Plot plot = Lines("Misses by size",
                      Text("Share of the trace's block accesses that miss, by blocks that fit, policy ",
                           ToString(report.curve->policy), "."),
                      "blocks", "% that miss", {CurveSeries(*report.curve)});
    plot.y = {.label = "% that miss", .low = 0, .high = 100};
    html += DrawPlot(plot);
  }
  return html += "</div>\n";
}

std::string SectionHtml(const planner::Section& section) {
  std::string html = Text("<h2>", Escaped(section.title), "</h2>\n");
  if (!section.figures.empty()) html += "<div class=\"scroll\"><table>\n";
  for (const planner::Figure& figure : section.figures) {
    html += Text("<tr><td>", Escaped(figure.label), "</td><td>",
                 Escaped(planner::QuantityText(figure.value, figure.unit)), "</td><td>",
                 Escaped(figure.formula), "<br>= ", Escaped(figure.numbers), "</td></tr>\n");
  }
  if (!section.figures.empty()) html += "</table></div>\n";
  if (section.notes.empty()) return html;
  html += "<ul>";
  for (const std::string& note : section.notes) html += Text("<li>", Escaped(note), "</li>");
  return html += "</ul>\n";
}

}  // namespace

std::string PlanPageHtml(const planner::Report& report) {
  const std::string title = Escaped(Text(report.input.model.name, ": what a store of its KV buys"));
  std::string html = Text("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">",
                          "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>",
                          title, "</title><style>", kPlotsStyle, kPageStyle, "</style></head><body>\n<h1>",
                          title, "</h1>\n", Plots(report));
  for (const planner::Section& section : report.plan.sections) html += SectionHtml(section);
  html += "<h2>Sources</h2>\n<ul>";
  for (const std::string& line : planner::Sources(report)) html += Text("<li>", Escaped(line), "</li>");
  return html += "</ul>\n</body></html>\n";
}

}  // namespace cistern
