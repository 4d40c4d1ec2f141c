// SPDX-License-Identifier: Apache-2.0
// What a store of KV would buy a deployment: plain values in, figures with their arithmetic out. No clock, no
// I/O. Units are bytes, seconds, tokens, USD; GB is 10^9 bytes, GiB 2^30.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cistern/status.h"
#include "planner/figure.h"
#include "planner/model.h"
#include "planner/tables.h"

namespace cistern::planner {

struct Tier {
  Medium medium;
  std::optional<double> bytes;  // of room; without it nothing is said of what fits
};

struct PlanInput {
  Model model;
  std::uint64_t context_tokens = 32'768;
  std::uint64_t sessions = 1;
  std::vector<Tier> tiers;

  std::optional<Gpu> gpu;
  std::vector<Gpu> compared;  // other GPUs, to set beside each other
  std::uint64_t gpus = 1;
  double usable_memory = 0.9;                  // share of a GPU's memory that weights and KV may take
  double prefill_efficiency = 0.5;             // share of the GPU's dense 16-bit rate that prefill reaches
  std::optional<double> prefill_tokens_per_s;  // measured: replaces the arithmetic from gpu and efficiency

  std::optional<double> hit_rate;          // share of prompt tokens that the store has
  std::optional<double> requests_per_s;    // of context_tokens each
  double think_s = 30;                     // between a session's answer and its next turn
  double busy_s = 10;                      // of a turn: prefill and decode
  std::optional<double> monthly_cost_usd;  // of hardware of one's own
  std::optional<double> api_usd_per_million_tokens;
  std::uint64_t request_tokens = 10'000;  // of a request, where requests are counted from tokens
};

struct CrossoverRow {
  std::string tier;
  std::uint64_t tokens = 0;
  double bytes = 0;
  double load_s = 0;
  double compute_s = 0;
};

struct Plan {
  std::vector<Section> sections;
  std::vector<CrossoverRow> crossover;  // by tier, then by context; empty where computing's pace is not known

  // The figure of that key in any section, or null.
  const Figure* Find(std::string_view key) const;
};

// kInvalid names what is wrong: a fleet that cannot hold its weights, a value out of range.
Result<Plan> MakePlan(const PlanInput& input);

// Seconds to load so many bytes from one of a medium, and to compute tokens [from, to) of a prompt; nothing
// where neither a pace nor a GPU with the model's active parameters says it.
double LoadSeconds(const Medium& medium, double bytes);
std::optional<double> ComputeSeconds(const PlanInput& input, std::uint64_t from, std::uint64_t to);

// The tokens in all sessions from which KV takes as much as half the weights, and offload begins to pay.
double InflectionTokens(double weight_bytes, double bytes_per_token);
// Tokens a month for which an API takes as much as hardware of one's own.
double BreakEvenTokens(double monthly_cost_usd, double api_usd_per_million_tokens);

}  // namespace cistern::planner
