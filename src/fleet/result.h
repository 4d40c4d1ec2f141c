// SPDX-License-Identifier: Apache-2.0
// What a run of a fleet came to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fleet/options.h"

namespace cistern::fleet {

struct Spread {
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, most = 0;
  friend bool operator==(const Spread&, const Spread&) = default;
};
// By rank, of all values; zeros without any.
Spread SpreadOf(std::vector<float> values);

struct ClusterResult {
  Routing routing = Routing::kLeastLoaded;
  bool global_store = false;

  std::uint64_t requests = 0;  // all of them end in one of the next four
  std::uint64_t answered = 0;
  std::uint64_t refused = 0;    // no node would have met the first-token objective
  std::uint64_t too_large = 0;  // KV of prompt and answer is more than a node's room
  std::uint64_t empty = 0;      // without a prompt
  std::uint64_t good = 0;       // answered within the objectives
  std::uint64_t restarted = 0;  // times that a node failed with a request on it
  std::uint64_t failures = 0;

  std::uint64_t accesses = 0;   // blocks of the prompts sent to nodes
  std::uint64_t own_hits = 0;   // loaded from the node's own tier
  std::uint64_t peer_hits = 0;  // loaded from another node
  std::uint64_t reused = 0;     // requests that loaded something

  double span_s = 0;  // from the first request to the last answer
  Spread first_token_s;
  Spread per_token_s;               // of answers of more than one token: seconds a token after the first
  std::vector<float> first_tokens;  // in the order of answers

  std::vector<double> prefill_s;  // of each node that prefills: what its prefill takes by its operations
  double load_cv = 0;             // of them: deviation / mean
  double prefill_busy = 0, decode_busy = 0;  // share of the span, mean of a pool; decode 0 without one

  double own_bytes = 0, peer_bytes = 0, handover_bytes = 0;
  double gpu_hours = 0;
  double usd = 0, usd_per_million_tokens = 0;  // 0 without a price; tokens of prompts and answers
  std::uint64_t events = 0;

  double rate() const { return span_s > 0 ? static_cast<double>(answered) / span_s : 0; }
  double goodput() const { return span_s > 0 ? static_cast<double>(good) / span_s : 0; }
  double Share(std::uint64_t blocks) const {
    return accesses ? static_cast<double>(blocks) / static_cast<double>(accesses) : 0;
  }
  double hit_rate() const { return Share(own_hits + peer_hits); }
  double reuse() const {
    return answered ? static_cast<double>(reused) / static_cast<double>(answered + restarted) : 0;
  }
  friend bool operator==(const ClusterResult&, const ClusterResult&) = default;
};

// One line a run, and what each comes to, as a table.
std::string ResultsText(const ClusterOptions& options, const std::vector<ClusterResult>& results);
// {"nodes": ..., "runs": [{"router", "requests", ...}]}, one line.
std::string ResultsJson(const ClusterOptions& options, const std::vector<ClusterResult>& results);

}  // namespace cistern::fleet
