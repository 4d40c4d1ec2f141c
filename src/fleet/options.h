// SPDX-License-Identifier: Apache-2.0
// A fleet as it is asked for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cistern/status.h"
#include "fleet/block_cache.h"
#include "fleet/engine.h"
#include "planner/tables.h"

namespace cistern::fleet {

enum class Routing : std::uint8_t {
  kRandom = 0,
  kRoundRobin = 1,
  kLeastLoaded = 2,  // least prefill not yet done
  kAffinity = 3,     // by the prompt's first two blocks, whatever the load
  kLocal = 4,        // soonest first token by queue and prefill, what the node itself has taken off
  kGlobal = 5,       // soonest first token by transfer, queue and prefill
};
std::string_view ToString(Routing routing);
Result<Routing> ParseRouting(std::string_view text);
std::string Routings();  // "random, round-robin, ..."

struct ClusterOptions {
  EngineSpec engine;
  std::uint64_t gpus = 1;  // of a node; one node is one engine

  std::uint32_t nodes = 1;
  std::uint32_t decode_nodes = 0;  // of them, for decoding alone; 0: every node does both
  Routing routing = Routing::kLeastLoaded;

  // Each node keeps so many blocks. With a global store every node loads what any computed, and the blocks
  // of all nodes are one store's; otherwise each node has its own alone.
  std::uint64_t blocks_per_node = 0;
  bool global_store = false;
  EvictionPolicy policy = EvictionPolicy::kReuse;
  planner::Medium own;      // a node's own tier, as one GPU reads it: all GPUs of a node read at a time
  planner::Medium peer;     // between nodes, one port
  std::uint64_t ports = 1;  // of a node

  bool closed_loop = false;                          // a turn waits for the answer before it in its session
  double times = 1;                                  // the trace's pace
  std::optional<double> first_token_s, per_token_s;  // objectives

  double fail_every_s = 0;  // mean of a node; 0: none fails
  double repair_s = 60;     // until it is back, empty
  std::uint64_t seed = 1;
  std::optional<double> gpu_hour_usd;

  std::uint32_t prefill_nodes() const { return nodes - decode_nodes; }
  double block_bytes() const;
};

struct EngineInput {
  planner::Model model;
  planner::Gpu gpu;
  std::uint64_t gpus = 1;
  double usable_memory = 0.9;
  double prefill_efficiency = 0.5;  // share of the dense 16-bit rate
  double memory_efficiency = 0.7;   // share of the memory's bandwidth
  std::uint64_t chunk_tokens = 8192;
};
// kInvalid: the GPUs cannot hold the weights, or the model's parameters are not known.
Result<EngineSpec> MakeEngine(const EngineInput& input);

// kInvalid names what is out of range, or an objective that no request can meet.
Status Check(const ClusterOptions& options);

}  // namespace cistern::fleet
