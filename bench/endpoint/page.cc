// SPDX-License-Identifier: Apache-2.0
#include "endpoint/page.h"

#include <algorithm>

#include "base/format.h"
#include "endpoint/plot.h"

namespace cistern {
namespace {

constexpr std::size_t kMostPoints = 1'500;  // of a series: more are one blot, and a page of megabytes

constexpr std::string_view kStyle = R"css(
:root{color-scheme:light dark;--paper:#fff;--ink:#1c2128;--soft:#59636e;--line:#d8dee4;--card:#f6f8fa;
--run0:#0969da;--run1:#0969da;--run2:#d4590b}
:root.compare{--run0:#6e7781}
@media(prefers-color-scheme:dark){:root{--paper:#0f1318;--ink:#e6eaef;--soft:#98a2ad;--line:#30373f;--card:#171c22;
--run0:#58a6ff;--run1:#58a6ff;--run2:#ff9a52}:root.compare{--run0:#a3acb6}}
h1{font-size:24px;line-height:1.25;margin:0 0 4px}
.about{color:var(--soft);margin:0 0 20px;overflow-wrap:anywhere}
.verdict{font-size:17px;margin:0 0 20px}
.tiles{display:flex;flex-wrap:wrap;gap:12px}
.tile{flex:1 1 200px;background:var(--card);border:1px solid var(--line);border-top:3px solid var(--hue);
border-radius:6px;padding:12px 16px}
.tile h3{margin:0;font-size:14px;color:var(--soft);font-weight:600}
.tile b{display:block;font-size:28px;line-height:1.3;font-variant-numeric:tabular-nums}
.tile span{color:var(--soft);font-size:13px}
svg path.run0{stroke:var(--run0)}svg path.run1{stroke:var(--run1)}svg path.run2{stroke:var(--run2)}
svg circle{fill-opacity:.65}
svg circle.run0{fill:var(--run0)}svg circle.run1{fill:var(--run1)}svg circle.run2{fill:var(--run2)}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:5px 14px 5px 0;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left;color:var(--soft);font-weight:400;padding-right:28px}
th{font-weight:600}
ul{padding-left:20px;margin:0}
li{overflow-wrap:anywhere}
footer{color:var(--soft);font-size:13px;margin-top:32px}
)css";

std::string Hue(std::size_t run) { return Text("style=\"--hue:var(--run", run, ")\""); }

// Every n-th of many points, the last among them.
template <class T>
std::vector<T> Thinned(const std::vector<T>& points) {
  if (points.size() <= kMostPoints) return points;
  std::vector<T> kept;
  for (std::size_t i = 1; i <= kMostPoints; ++i) kept.push_back(points[i * points.size() / kMostPoints - 1]);
  return kept;
}

// The share of requests at or below each value, of every run.
template <class ValueOf>
Plot Distribution(std::string title, std::string about, std::string label, const std::vector<RunReport>& runs,
                  const ValueOf& value_of) {
  Plot plot{.title = std::move(title), .about = std::move(about), .mark = Mark::kStairs};
  std::vector<double> all;
  for (std::size_t run = 0; run < runs.size(); ++run) {
    std::vector<double> values;
    for (const RequestRecord& record : runs[run].records) {
      if (record.outcome != Outcome::kAnswered) continue;
      if (const std::optional<double> value = value_of(record)) values.push_back(*value);
    }
    std::ranges::sort(values);
    Series series{.name = runs[run].name, .colour = static_cast<int>(run)};
    for (std::size_t i = 0; i < values.size(); ++i) {
      series.points.emplace_back(values[i],
                                 100.0 * static_cast<double>(i + 1) / static_cast<double>(values.size()));
    }
    series.points = Thinned(series.points);
    plot.series.push_back(std::move(series));
    all.insert(all.end(), values.begin(), values.end());
  }
  plot.x = AxisFor(std::move(label), all);
  plot.y = {.label = "% of requests", .low = 0, .high = 100};
  return plot;
}

// First token against something else of a request, of every run.
template <class XOf>
Plot FirstTokens(std::string title, std::string about, std::string label, const std::vector<RunReport>& runs,
                 const XOf& x_of) {
  Plot plot{.title = std::move(title), .about = std::move(about), .mark = Mark::kDots};
  std::vector<double> xs, ys;
  for (std::size_t run = 0; run < runs.size(); ++run) {
    Series series{.name = runs[run].name, .colour = static_cast<int>(run)};
    for (const RequestRecord& record : runs[run].records) {
      if (record.outcome != Outcome::kAnswered) continue;
      if (const std::optional<double> x = x_of(record)) series.points.emplace_back(*x, FirstTokenMs(record));
    }
    series.points = Thinned(series.points);
    for (const auto& [x, y] : series.points) {
      xs.push_back(x);
      ys.push_back(y);
    }
    plot.series.push_back(std::move(series));
  }
  plot.x = AxisFor(std::move(label), xs);
  if (plot.x.logarithmic) plot.x = {plot.x.label, 0, *std::ranges::max_element(xs) * 1.02, false};
  plot.y = AxisFor("first token, ms", ys);
  return plot;
}

std::string Tiles(const std::vector<RunReport>& runs) {
  std::string html = "<div class=\"tiles\">";
  for (std::size_t run = 0; run < runs.size(); ++run) {
    const std::vector<FigureRow> rows = FigureRows({runs[run]});
    const auto cell = [&](std::string_view label) {
      const auto row = std::ranges::find(rows, label, &FigureRow::label);
      return row == rows.end() ? std::string() : Escaped(row->cells[0]);
    };
    const Percentiles& first = runs[run].first_token;
    html += Text("<div class=\"tile\" ", Hue(run), "><h3>", Escaped(runs[run].name), "</h3><b>",
                 first.count ? NumberText(first.p50) : "-", " ms</b><span>to the first token, median; ",
                 first.count ? NumberText(first.p99) : "-", " ms at p99<br>hit share ", cell("hit share"),
                 "<br>", cell("requests answered"), " requests answered</span></div>");
  }
  return html + "</div>\n";
}

std::string Key(const std::vector<RunReport>& runs) {
  std::string html = "<div class=\"key\">";
  for (std::size_t run = 0; run < runs.size(); ++run) {
    html += Text("<span ", Hue(run), "><i></i>", Escaped(runs[run].name), "</span>");
  }
  return html + "</div>\n";
}

std::string Table(const std::vector<RunReport>& runs) {
  std::string html = "<div class=\"scroll\"><table><tr><th></th>";
  for (const RunReport& run : runs) html += Text("<th>", Escaped(run.name), "</th>");
  html += "</tr>\n";
  for (const FigureRow& row : FigureRows(runs)) {
    html += Text("<tr><td>", Escaped(row.label), "</td>");
    for (const std::string& cell : row.cells) html += Text("<td>", Escaped(cell), "</td>");
    html += "</tr>\n";
  }
  return html + "</table></div>\n";
}

std::string List(std::string_view title, const std::vector<std::string>& lines) {
  if (lines.empty()) return {};
  std::string html = Text("<h2>", title, "</h2><ul>");
  for (const std::string& line : lines) html += Text("<li>", Escaped(line), "</li>");
  return html + "</ul>\n";
}

std::string Plots(const std::vector<RunReport>& runs) {
  const auto seconds = [](const RequestRecord& record) {
    return std::optional(static_cast<double>(record.sent_us) / 1e6);
  };
  const auto prompt = [](const RequestRecord& record) {
    const std::optional<std::uint64_t>& tokens = record.usage.prompt_tokens;
    return tokens ? std::optional(static_cast<double>(*tokens)) : std::nullopt;
  };
  const auto first = [](const RequestRecord& record) { return std::optional(FirstTokenMs(record)); };
  std::string html = "<div class=\"plots\">";
  html += DrawPlot(Distribution("First token", "Share of requests whose first token came within the time.",
                                "first token, ms", runs, first));
  html += DrawPlot(FirstTokens("First token over the run", "Each dot is a request, at the time it was sent.",
                               "seconds since the run's begin", runs, seconds));
  // Where all prompts are about as long, their length explains nothing.
  std::uint64_t shortest = UINT64_MAX, longest = 0;
  for (const RunReport& run : runs) {
    for (const RequestRecord& record : run.records) {
      if (record.outcome != Outcome::kAnswered || !record.usage.prompt_tokens) continue;
      shortest = std::min(shortest, *record.usage.prompt_tokens);
      longest = std::max(longest, *record.usage.prompt_tokens);
    }
  }
  if (longest > 0 && longest >= shortest + shortest / 2) {
    html +=
        DrawPlot(FirstTokens("First token by length of the prompt",
                             "Each dot is a request. What is computed grows with the prompt; what is loaded, "
                             "far less.",
                             "prompt tokens", runs, prompt));
  }
  html += DrawPlot(Distribution("Time per output token",
                                "Share of requests whose tokens after the first came within the time each.",
                                "per token, ms", runs, PerTokenMs));
  return html + "</div>\n";
}

}  // namespace

std::string PageHtml(const Heading& heading, const Measurement& measurement) {
  const std::vector<RunReport>& runs = measurement.runs;
  std::string html =
      Text("<!doctype html>\n<html lang=\"en\" class=\"", runs.size() > 1 ? "compare" : "single",
           "\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width,"
           "initial-scale=1\"><title>cistern bench serve: ",
           Escaped(measurement.model), "</title><style>", kPlotsStyle, kStyle, "</style></head><body>\n<h1>",
           Escaped(measurement.model), "</h1>\n<p class=\"about\">", Escaped(heading.shape), "<br>",
           Escaped(measurement.url), ", ", Escaped(heading.api), ", ", Escaped(heading.when), "</p>\n");
  if (const std::string verdict = Verdict(runs); !verdict.empty()) {
    html += Text("<p class=\"verdict\">", Escaped(verdict), "</p>\n");
  }
  html += Tiles(runs);
  html += List("Notes", measurement.notes);
  html += List("Failures", FailureLines(runs));
  html += "<h2>Plots</h2>\n";
  if (runs.size() > 1) html += Key(runs);
  html += Plots(runs);
  html += "<h2>Figures</h2>\n";
  html += Table(runs);
  html += Text("<footer>cistern bench serve, seed ", heading.seed,
               measurement.salt.empty() ? std::string() : Text(", salt ", Escaped(measurement.salt)),
               ". Percentiles are values that occurred. Times are the client's, from the request sent to the "
               "bytes received.</footer>\n</body></html>\n");
  return html;
}

}  // namespace cistern
