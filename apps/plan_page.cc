// SPDX-License-Identifier: Apache-2.0
#include "plan_page.h"

#include <algorithm>

#include "base/format.h"
#include "base/policy.h"
#include "endpoint/plot.h"

namespace cistern {
namespace {

constexpr std::string_view kStyle = R"css(
:root{color-scheme:light dark;--paper:#fff;--ink:#1c2128;--soft:#59636e;--line:#d8dee4;
--run0:#59636e;--run1:#0969da;--run2:#d4590b;--run3:#1a7f37;--run4:#8250df;--run5:#bf3989;--run6:#9a6700}
@media(prefers-color-scheme:dark){:root{--paper:#0f1318;--ink:#e6eaef;--soft:#98a2ad;--line:#30373f;
--run0:#98a2ad;--run1:#58a6ff;--run2:#ff9a52;--run3:#56d364;--run4:#bc8cff;--run5:#f778ba;--run6:#e3b341}}
h1{font-size:24px;margin:0 0 16px}
.run0{--hue:var(--run0)}.run1{--hue:var(--run1)}.run2{--hue:var(--run2)}.run3{--hue:var(--run3)}
.run4{--hue:var(--run4)}.run5{--hue:var(--run5)}.run6{--hue:var(--run6)}
svg path{stroke:var(--hue)}
svg circle{fill:var(--hue)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:5px 14px 5px 0;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
td:nth-child(2){white-space:nowrap;font-weight:600}
td:nth-child(3){color:var(--soft);font-size:13px;overflow-wrap:anywhere}
ul{padding-left:20px;margin:8px 0 0;color:var(--soft);font-size:13px}
)css";

constexpr int kColours = 7;  // of kStyle

// Lines over axes that hold all of them.
Plot Lines(std::string title, std::string about, std::string x, std::string y, std::vector<Series> series) {
  Plot plot{.title = std::move(title), .about = std::move(about), .mark = Mark::kLines};
  std::vector<double> xs, ys;
  for (const Series& one : series) {
    for (const auto& [at, value] : one.points) {
      xs.push_back(at);
      ys.push_back(value);
    }
  }
  plot.x = AxisFor(std::move(x), xs);
  plot.y = AxisFor(std::move(y), ys);
  plot.series = std::move(series);
  return plot;
}

// Computing, and loading from each tier.
std::vector<Series> CrossoverSeries(const planner::Report& report) {
  std::vector<Series> series(1);
  series[0].name = "computing";
  for (const planner::CrossoverRow& row : report.plan.crossover) {
    if (series.back().name != row.tier) {
      series.push_back({.name = row.tier, .colour = static_cast<int>(series.size()) % kColours});
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

std::string Key(const std::vector<Series>& series) {
  std::string html = "<div class=\"key\">";
  for (const Series& one : series)
    html += Text("<span class=\"run", one.colour, "\"><i></i>", Escaped(one.name), "</span>");
  return html += "</div>\n";
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
                          title, "</title><style>", kPlotsStyle, kStyle, "</style></head><body>\n<h1>", title,
                          "</h1>\n", Plots(report));
  for (const planner::Section& section : report.plan.sections) html += SectionHtml(section);
  html += "<h2>Sources</h2>\n<ul>";
  for (const std::string& line : planner::Sources(report)) html += Text("<li>", Escaped(line), "</li>");
  return html += "</ul>\n</body></html>\n";
}

}  // namespace cistern
