// SPDX-License-Identifier: Apache-2.0
#include "endpoint/figures.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>
#include <functional>

#include "base/format.h"

namespace cistern {
namespace {

namespace json = boost::json;

constexpr std::string_view kNone = "-";

double Rate(double count, const RunReport& run) { return run.seconds > 0 ? count / run.seconds : 0; }

std::string ShareText(const Hits& hits) {
  return hits.share ? Text(NumberText(*hits.share * 100), " % (", hits.from, ")") : std::string("not told");
}

std::string CountText(const std::optional<std::uint64_t>& count) {
  return count ? Text(*count) : std::string("not told");
}

json::object Json(const Percentiles& of) {
  if (of.count == 0) return {{"count", 0}, {"p50", nullptr}, {"p90", nullptr}, {"p99", nullptr}};
  return {{"count", of.count}, {"p50", of.p50}, {"p90", of.p90}, {"p99", of.p99}};
}

template <class T>
json::value OrNull(const std::optional<T>& value) {
  return value ? json::value(*value) : json::value(nullptr);
}

json::value RateJson(const std::optional<std::uint64_t>& count, const RunReport& run) {
  return count ? json::value(Rate(static_cast<double>(*count), run)) : json::value(nullptr);
}

json::object Json(const RunReport& run) {
  json::array failures, sources;
  for (const FailureCount& failure : run.failures) {
    failures.push_back(json::object{
        {"kind", FailureName(failure.kind)}, {"count", failure.count}, {"first", failure.first}});
  }
  for (const HitSource& source : run.hits.sources) {
    sources.push_back(json::object{{"name", source.name},
                                   {"asked_tokens", static_cast<std::uint64_t>(source.asked)},
                                   {"hit_tokens", static_cast<std::uint64_t>(source.hits)}});
  }
  return {{"name", run.name},
          {"planned", run.planned},
          {"answered", run.answered},
          {"failed", run.failed},
          {"unfinished", run.unfinished},
          {"not_sent", run.not_sent},
          {"held", run.held},
          {"seconds", run.seconds},
          {"first_token_ms", Json(run.first_token)},
          {"per_token_ms", Json(run.per_token)},
          {"gap_ms", Json(run.gap)},
          {"whole_ms", Json(run.whole)},
          {"prompt_tokens", OrNull(run.prompt_tokens)},
          {"output_tokens", OrNull(run.output_tokens)},
          {"pieces", run.pieces},
          {"prompt_tokens_per_s", RateJson(run.prompt_tokens, run)},
          {"output_tokens_per_s", RateJson(run.output_tokens, run)},
          {"requests_per_s", Rate(static_cast<double>(run.answered), run)},
          {"hit_share", OrNull(run.hits.share)},
          {"hit_share_from", run.hits.from},
          {"hit_sources", std::move(sources)},
          {"engine_cache_emptied", OrNull(run.engine_emptied)},
          {"engine_cache_why", run.engine_not_emptied_why},
          {"failures", std::move(failures)}};
}

}  // namespace

std::string NumberText(double value) {
  if (value == 0) return "0";
  char text[32];
  const int decimals = value >= 100 ? 0 : value >= 10 ? 1 : value >= 1 ? 2 : 3;
  std::snprintf(text, sizeof(text), "%.*f", decimals, value);
  return text;
}

std::vector<FigureRow> FigureRows(const std::vector<RunReport>& runs) {
  std::vector<FigureRow> rows;
  const auto add = [&](std::string label, const std::function<std::string(const RunReport&)>& cell) {
    FigureRow row{std::move(label), {}};
    for (const RunReport& run : runs) row.cells.push_back(cell(run));
    rows.push_back(std::move(row));
  };
  const auto add_percentiles = [&](std::string_view label, Percentiles RunReport::* of) {
    add(Text(label, ", ms: p50 / p90 / p99"), [of](const RunReport& run) {
      const Percentiles& found = run.*of;
      return found.count
                 ? Text(NumberText(found.p50), " / ", NumberText(found.p90), " / ", NumberText(found.p99))
                 : std::string(kNone);
    });
  };
  const auto add_rate = [&](std::string label, std::optional<std::uint64_t> RunReport::* count) {
    add(std::move(label), [count](const RunReport& run) {
      return run.*count ? NumberText(Rate(static_cast<double>(*(run.*count)), run)) : std::string("not told");
    });
  };
  const auto any = [&](std::uint64_t RunReport::* count) {
    return std::ranges::any_of(runs, [count](const RunReport& run) { return run.*count > 0; });
  };
  add("requests answered", [](const RunReport& run) { return Text(run.answered, " of ", run.planned); });
  if (any(&RunReport::failed)) add("failed", [](const RunReport& run) { return Text(run.failed); });
  if (any(&RunReport::unfinished))
    add("unfinished", [](const RunReport& run) { return Text(run.unfinished); });
  if (any(&RunReport::held))
    add("sent later than planned", [](const RunReport& run) { return Text(run.held); });
  add_percentiles("first token", &RunReport::first_token);
  add_percentiles("per token", &RunReport::per_token);
  add_percentiles("between pieces", &RunReport::gap);
  add_percentiles("whole answer", &RunReport::whole);
  add("prompt tokens", [](const RunReport& run) { return CountText(run.prompt_tokens); });
  add("output tokens", [](const RunReport& run) { return CountText(run.output_tokens); });
  add_rate("prompt tokens/s", &RunReport::prompt_tokens);
  add_rate("output tokens/s", &RunReport::output_tokens);
  add("requests/s",
      [](const RunReport& run) { return NumberText(Rate(static_cast<double>(run.answered), run)); });
  add("seconds", [](const RunReport& run) { return NumberText(run.seconds); });
  add("hit share", [](const RunReport& run) { return ShareText(run.hits); });
  for (const auto& [name, label] :
       {std::pair("engine", "tokens from the engine's cache"),
        std::pair("external", "tokens from any connector"), std::pair("cistern", "tokens from Cistern")}) {
    const auto find = [name](const RunReport& run) {
      return std::ranges::find(run.hits.sources, name, &HitSource::name);
    };
    if (std::ranges::none_of(runs,
                             [&](const RunReport& run) { return find(run) != run.hits.sources.end(); })) {
      continue;
    }
    add(label, [find](const RunReport& run) {
      const auto source = find(run);
      if (source == run.hits.sources.end()) return std::string(kNone);
      return Text(static_cast<std::uint64_t>(source->hits), " of ",
                  static_cast<std::uint64_t>(source->asked));
    });
  }
  return rows;
}

std::string Verdict(const std::vector<RunReport>& runs) {
  const auto find = [&](std::string_view name) {
    const auto run = std::ranges::find(runs, name, &RunReport::name);
    return run == runs.end() ? Percentiles() : run->first_token;
  };
  const auto times = [](double off, double warm) {
    return warm <= off ? Text(NumberText(off / warm), " times sooner")
                       : Text(NumberText(warm / off), " times later");
  };
  const Percentiles off = find("off"), cold = find("cold"), warm = find("warm");
  if (off.p50 <= 0 || warm.p50 <= 0) return {};
  std::string text = Text("First token, median: off ", NumberText(off.p50), " ms");
  if (cold.count > 0) text += Text(", cold ", NumberText(cold.p50), " ms");
  text += Text(", warm ", NumberText(warm.p50), " ms: ", times(off.p50, warm.p50), " than off, and at p90 ",
               times(off.p90, warm.p90), ".");
  return text;
}

std::vector<std::string> FailureLines(const std::vector<RunReport>& runs) {
  std::vector<std::string> lines;
  for (const RunReport& run : runs) {
    for (const FailureCount& failure : run.failures) {
      lines.push_back(Text("in ", run.name, ", ", failure.count, " failed (", FailureName(failure.kind),
                           "), the first: ", failure.first));
    }
  }
  return lines;
}

std::string TableText(const Heading& heading, const Measurement& measurement) {
  std::string text = Text(measurement.url, ", model ", measurement.model, ", ", heading.shape, "\n\n");
  const std::vector<FigureRow> rows = FigureRows(measurement.runs);
  std::size_t label_width = 0, cell_width = 0;
  for (const FigureRow& row : rows) {
    label_width = std::max(label_width, row.label.size());
    for (const std::string& cell : row.cells) cell_width = std::max(cell_width, cell.size());
  }
  const auto line = [&](const std::string& label, const std::vector<std::string>& cells) {
    text.append(label).append(label_width - label.size(), ' ');
    for (const std::string& cell : cells) text.append(cell_width + 3 - cell.size(), ' ').append(cell);
    text.push_back('\n');
  };
  std::vector<std::string> names;
  for (const RunReport& run : measurement.runs) names.push_back(run.name);
  if (names.size() > 1) line("", names);
  for (const FigureRow& row : rows) line(row.label, row.cells);
  if (const std::string verdict = Verdict(measurement.runs); !verdict.empty())
    text += Text("\n", verdict, "\n");
  for (const std::string& failure : FailureLines(measurement.runs)) text += Text("\n", failure, "\n");
  for (const std::string& note : measurement.notes) text += Text("\nnote: ", note, "\n");
  return text;
}

std::string JsonText(const Heading& heading, const Measurement& measurement) {
  json::array runs, notes;
  for (const RunReport& run : measurement.runs) runs.push_back(Json(run));
  for (const std::string& note : measurement.notes) notes.push_back(json::string(note));
  return json::serialize(json::object{{"url", measurement.url},
                                      {"model", measurement.model},
                                      {"api", heading.api},
                                      {"shape", heading.shape},
                                      {"seed", heading.seed},
                                      {"salt", measurement.salt},
                                      {"when", heading.when},
                                      {"interrupted", measurement.interrupted},
                                      {"runs", std::move(runs)},
                                      {"verdict", Verdict(measurement.runs)},
                                      {"notes", std::move(notes)}});
}

}  // namespace cistern
