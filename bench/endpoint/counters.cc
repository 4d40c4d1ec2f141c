// SPDX-License-Identifier: Apache-2.0
#include "endpoint/counters.h"

#include <algorithm>
#include <charconv>

namespace cistern {
namespace {

struct Known {
  std::string_view name;
  std::optional<double> CacheCounters::* counter;
};
constexpr Known kKnown[] = {
    {"vllm:prefix_cache_queries_total", &CacheCounters::engine_asked},
    {"vllm:prefix_cache_hits_total", &CacheCounters::engine_hits},
    {"vllm:external_prefix_cache_queries_total", &CacheCounters::external_asked},
    {"vllm:external_prefix_cache_hits_total", &CacheCounters::external_hits},
    {"vllm:cistern_asked_tokens_total", &CacheCounters::cistern_asked},
    {"vllm:cistern_hit_tokens_total", &CacheCounters::cistern_hits},
};

// The value of `name{labels} value [timestamp]`; label values may hold any character, quoted.
std::optional<double> ValueOf(std::string_view line) {
  bool quoted = false;
  std::size_t at = line.find_first_of("{ \t");
  if (at != line.npos && line[at] == '{') {
    for (++at; at < line.size() && (quoted || line[at] != '}'); ++at) {
      if (line[at] == '\\') {
        ++at;
      } else if (line[at] == '"') {
        quoted = !quoted;
      }
    }
    ++at;
  }
  if (at >= line.size()) return std::nullopt;
  at = line.find_first_not_of(" \t", at);
  if (at == line.npos) return std::nullopt;
  double value = 0;
  const auto read = std::from_chars(line.data() + at, line.data() + line.size(), value);
  return read.ec == std::errc() && value >= 0 ? std::optional(value) : std::nullopt;
}

void Add(std::vector<HitSource>& sources, std::string_view name, std::optional<double> asked_before,
         std::optional<double> asked_after, std::optional<double> hits_before,
         std::optional<double> hits_after) {
  // A counter with labels appears with its first event: what is there only afterwards began at zero.
  if (!asked_after) return;
  const double asked = *asked_after - asked_before.value_or(0);
  const double hits = hits_after.value_or(0) - hits_before.value_or(0);
  if (asked <= 0 || hits < 0) return;
  sources.push_back({name, asked, hits});
}

}  // namespace

CacheCounters ReadCounters(std::string_view metrics) {
  CacheCounters counters;
  while (!metrics.empty()) {
    const std::string_view line = metrics.substr(0, metrics.find('\n'));
    metrics.remove_prefix(std::min(metrics.size(), line.size() + 1));
    const std::string_view name = line.substr(0, line.find_first_of("{ \t"));
    for (const Known& known : kKnown) {
      if (name != known.name) continue;
      if (std::optional<double> value = ValueOf(line)) {
        std::optional<double>& sum = counters.*known.counter;
        sum = sum.value_or(0) + *value;
      }
    }
  }
  return counters;
}

Hits ShareOf(std::optional<HitSource> usage, const CacheCounters& before, const CacheCounters& after) {
  Hits hits{.from = "not told"};
  if (usage) hits.sources.push_back(*usage);
  Add(hits.sources, "engine", before.engine_asked, after.engine_asked, before.engine_hits, after.engine_hits);
  Add(hits.sources, "external", before.external_asked, after.external_asked, before.external_hits,
      after.external_hits);
  Add(hits.sources, "cistern", before.cistern_asked, after.cistern_asked, before.cistern_hits,
      after.cistern_hits);
  double asked = 0, found = 0;
  for (const HitSource& source : hits.sources) {
    if (source.name == "usage" && source.asked > 0) {
      hits.share = source.hits / source.asked;
      hits.from = "usage";
      return hits;
    }
    // vLLM asks its own cache for every prompt and a connector for what that lacks.
    if (source.name == "engine") asked = source.asked;
    if (source.name == "engine" || source.name == "external") found += source.hits;
  }
  if (asked > 0 && found <= asked) {
    hits.share = found / asked;
    hits.from = "metrics";
  }
  return hits;
}

}  // namespace cistern
