// SPDX-License-Identifier: Apache-2.0
// Load or compute: for a prompt whose first blocks lie on several tiers, which of them to load, which to
// compute, and in which order, so that the first token comes soonest.
//
// Everything is a value: what tiers reach now (their queues included) and how fast the engine computes. The
// store knows nothing of prefill; whoever asks for loads decides by this and gives the store `worth_us`.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cistern/status.h"

namespace cistern::policy {

// Where blocks are read from. Sources work at the same time, each on one block after another.
struct LoadSource {
  double latency_us = 0;    // until the first block begins to arrive
  double queued_us = 0;     // that it works for others first
  double us_per_block = 0;  // at the bandwidth that it reaches
};

// Neighbouring blocks of the prompt on one source.
struct LoadRun {
  std::uint32_t blocks = 0;
  std::uint32_t source = 0;  // into the sources
};

struct Prefill {
  // Tokens [a, b) of a prompt take us_per_token x (b - a) + us_per_square x (b^2 - a^2).
  double us_per_token = 0;
  double us_per_square = 0;
  std::uint32_t block_tokens = 16;
  std::uint64_t tail_tokens = 0;  // behind the runs: computed in any case, when all before is there
  double load_overhead_us = 0;    // that loading anything costs beside the transfer
  // The engine can compute while blocks behind are being loaded. Otherwise it loads first, then computes the
  // rest.
  bool loads_behind = false;
};

// Blocks [first, first + blocks) of the prompt.
struct LoadStretch {
  std::uint32_t first = 0;
  std::uint32_t blocks = 0;
  std::uint32_t source = 0;
  // Nothing behind it waits for it to be computed: last block first. So a computation that was sooner than
  // expected meets the loads further back, and nothing is loaded in vain.
  bool from_back = false;
  friend bool operator==(const LoadStretch&, const LoadStretch&) = default;
};

struct LoadPlan {
  std::vector<LoadStretch> loads;  // by position; a source takes its own in this order. Empty: compute all
  double first_token_us = 0;       // expected, tail included
  double compute_us = 0;           // of computing everything, tail included
  // What the loads are worth: later, computing everything from the start would have been sooner. 0 without
  // loads.
  double worth_us = 0;
  std::uint32_t work = 0;  // runs looked at: what bounds the decision's time
};

// kInvalid names what no prompt or tier has: a source that is not there, times that are negative, infinite or
// no numbers, more than kMostLoadBlocks.
Status CheckLoad(std::span<const LoadRun> runs, std::span<const LoadSource> sources, const Prefill& prefill);
inline constexpr std::uint64_t kMostLoadBlocks = 1u << 30;

// The soonest plan: within 0.5 % of the best of all choices of blocks. Never later than computing everything.
// All blocks of a source cost the same to load and later ones cost at least as much to compute, so of each
// source the last ones are loaded where the engine loads behind, else the first of all.
//
// What CheckLoad refuses is not allowed. Each run is looked at 22 times at most: neighbouring runs of one
// source should be one.
LoadPlan PlanLoad(std::span<const LoadRun> runs, std::span<const LoadSource> sources, const Prefill& prefill);

}  // namespace cistern::policy
