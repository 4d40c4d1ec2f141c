// SPDX-License-Identifier: Apache-2.0
#include "planner/report.h"

#include <boost/json.hpp>
#include <cstdio>

#include "base/format.h"
#include "base/policy.h"

namespace cistern::planner {
namespace {

namespace json = boost::json;

std::string Padded(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

std::string PaddedLeft(const std::string& text, std::size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

void AppendSection(const Section& section, std::string& out) {
  AppendText(out, Text("\n", section.title, "\n"));
  for (const Figure& figure : section.figures) {
    AppendText(out, Text("  ", Padded(figure.label, 52), " ", QuantityText(figure.value, figure.unit), "\n"));
    AppendText(out, Text("      ", figure.formula, "\n      = ", figure.numbers, "\n"));
  }
  for (const std::string& note : section.notes) AppendText(out, Text("  - ", note, "\n"));
}

void AppendCrossover(const std::vector<CrossoverRow>& rows, std::string& out) {
  if (rows.empty()) return;
  out +=
      "\nLoad or recompute, by tier and context\n  tier        tokens           load        compute   "
      "sooner\n";
  for (const CrossoverRow& row : rows) {
    const bool load = row.load_s < row.compute_s;
    AppendText(
        out, Text("  ", Padded(row.tier, 8), PaddedLeft(NumberText(static_cast<double>(row.tokens)), 10),
                  PaddedLeft(QuantityText(row.load_s, "s"), 15),
                  PaddedLeft(QuantityText(row.compute_s, "s"), 15), "   ", load ? "load" : "compute", "\n"));
  }
}

void AppendCurve(const Curve& curve, std::string& out) {
  AppendText(out, Text("\nHit rate by size, policy ", ToString(curve.policy), ": ", curve.requests,
                       " requests, ", curve.accesses, " accesses, ", curve.distinct,
                       " distinct blocks\n      blocks    hit rate\n"));
  for (const CurvePoint& point : curve.points) {
    char line[64];
    std::snprintf(line, sizeof(line), "%12llu %10.2f %%\n", static_cast<unsigned long long>(point.blocks),
                  100 * curve.hit_rate(point));
    out += line;
  }
}

void AppendChoices(const std::vector<TierChoice>& choices, std::string& out) {
  if (choices.empty()) return;
  out += "\nWays to that hit rate, the cheapest first\n";
  for (const TierChoice& choice : choices) {
    AppendText(out, "  ");
    if (!choice.upper.empty())
      AppendText(out, Text(NumberText(static_cast<double>(choice.upper_blocks)), " blocks of ", choice.upper,
                           " over "));
    AppendText(out, Text(NumberText(static_cast<double>(choice.lower_blocks)), " blocks of ", choice.lower,
                         ": $", NumberText(choice.usd_per_month), " a month\n"));
  }
}

json::array FiguresJson(const Section& section) {
  json::array figures;
  for (const Figure& figure : section.figures) {
    figures.push_back(json::object{{"key", figure.key},
                                   {"label", figure.label},
                                   {"value", figure.value},
                                   {"unit", figure.unit},
                                   {"formula", figure.formula},
                                   {"numbers", figure.numbers}});
  }
  return figures;
}

json::object CurveJson(const Curve& curve) {
  json::array points;
  for (const CurvePoint& point : curve.points) {
    points.push_back(
        json::object{{"blocks", point.blocks}, {"hits", point.hits}, {"hit_rate", curve.hit_rate(point)}});
  }
  return {{"policy", ToString(curve.policy)}, {"requests", curve.requests},
          {"accesses", curve.accesses},       {"distinct", curve.distinct},
          {"span_s", curve.span_s},           {"peak_accesses_per_s", curve.peak_accesses_per_s},
          {"points", std::move(points)}};
}

}  // namespace

std::vector<std::string> Sources(const Report& report) {
  std::vector<std::string> lines;
  const auto add = [&lines](const auto& entry) {
    if (!entry.source.empty()) lines.push_back(Text(entry.name, ": ", entry.source, ", ", entry.date));
  };
  add(report.input.model);
  if (report.input.gpu) add(*report.input.gpu);
  for (const Tier& tier : report.input.tiers) add(tier.medium);
  return lines;
}

std::string ReportText(const Report& report) {
  std::string out = Text(report.input.model.name, "\n");
  for (const Section& section : report.plan.sections) AppendSection(section, out);
  AppendCrossover(report.plan.crossover, out);
  if (report.curve) AppendCurve(*report.curve, out);
  AppendChoices(report.choices, out);
  out += "\nSources\n";
  for (const std::string& line : Sources(report)) AppendText(out, Text("  ", line, "\n"));
  return out;
}

std::string ReportJson(const Report& report) {
  json::array sections;
  for (const Section& section : report.plan.sections) {
    sections.push_back(json::object{{"key", section.key},
                                    {"title", section.title},
                                    {"figures", FiguresJson(section)},
                                    {"notes", json::value_from(section.notes)}});
  }
  json::array crossover;
  for (const CrossoverRow& row : report.plan.crossover) {
    crossover.push_back(json::object{{"tier", row.tier},
                                     {"tokens", row.tokens},
                                     {"bytes", row.bytes},
                                     {"load_s", row.load_s},
                                     {"compute_s", row.compute_s}});
  }
  json::object whole{{"model", report.input.model.name},
                     {"sections", std::move(sections)},
                     {"crossover", std::move(crossover)},
                     {"sources", json::value_from(Sources(report))}};
  if (report.curve) {
    whole["curve"] = CurveJson(*report.curve);
    json::array choices;
    for (const TierChoice& choice : report.choices) {
      choices.push_back(json::object{{"upper", choice.upper},
                                     {"upper_blocks", choice.upper_blocks},
                                     {"lower", choice.lower},
                                     {"lower_blocks", choice.lower_blocks},
                                     {"lower_bytes_per_s", choice.lower_bytes_per_s},
                                     {"usd_per_month", choice.usd_per_month}});
    }
    whole["choices"] = std::move(choices);
  }
  return json::serialize(whole) + "\n";
}

}  // namespace cistern::planner
