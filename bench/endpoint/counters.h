// SPDX-License-Identifier: Apache-2.0
// What a server's /metrics (Prometheus text) tells of its caches, and which share of prompts a run found
// cached. What nobody tells is nothing, never a guess.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cistern {

// Prompt tokens, each counter summed over its series; nothing where the server has no such counter.
struct CacheCounters {
  std::optional<double> engine_asked, engine_hits;      // vLLM's own prefix cache
  std::optional<double> external_asked, external_hits;  // any connector below it
  std::optional<double> cistern_asked, cistern_hits;    // Cistern's connector
};
CacheCounters ReadCounters(std::string_view metrics);

struct HitSource {
  std::string_view name;  // "usage", "engine", "external", "cistern"
  double asked = 0;       // prompt tokens
  double hits = 0;
};

struct Hits {
  std::optional<double> share;  // of all prompt tokens; nothing: not told
  std::string_view from;        // "usage", "metrics" or "not told"
  std::vector<HitSource> sources;
};

// Tokens by the answers' usage (nothing where not every answer told) and the server's counters before and
// after the run, which count its other clients too. A counter that went back is not told.
Hits ShareOf(std::optional<HitSource> usage, const CacheCounters& before, const CacheCounters& after);

}  // namespace cistern
