// SPDX-License-Identifier: Apache-2.0
#include "fleet/options.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/format.h"
#include "base/named_values.h"
#include "planner/figure.h"
#include "workload/request.h"

namespace cistern::fleet {
namespace {

constexpr std::array<std::pair<Routing, std::string_view>, 6> kRoutings = {
    {{Routing::kRandom, "random"},
     {Routing::kRoundRobin, "round-robin"},
     {Routing::kLeastLoaded, "least-loaded"},
     {Routing::kAffinity, "affinity"},
     {Routing::kLocal, "local"},
     {Routing::kGlobal, "global"}}};

constexpr std::uint32_t kMostNodes = 10'000;
constexpr double kLeastUpSeconds = 10;  // long answers would begin again for ever

Status Objective(std::string_view flag, const std::optional<double>& wanted, const EngineSpec& engine) {
  const double least = engine.LeastIterationSeconds();
  if (!wanted || *wanted >= least) return Status();
  return Status(
      Code::kInvalid,
      Text(flag, ": ", planner::QuantityText(*wanted, "s"),
           " cannot be met by any request: an iteration reads the weights, which takes ",
           planner::QuantityText(least, "s"), ": ask for more time, or give more or faster GPUs a node"));
}

}  // namespace

std::string_view ToString(Routing routing) { return NameIn(kRoutings, routing); }
std::string Routings() { return NamesIn(kRoutings); }
Result<Routing> ParseRouting(std::string_view text) { return FindNamed(kRoutings, "router", text); }

double ClusterOptions::block_bytes() const {
  return workload::kTraceBlockTokens * engine.model.BytesPerToken();
}

Result<EngineSpec> MakeEngine(const EngineInput& input) {
  const planner::Model& model = input.model;
  if (!model.parameters || !model.active_parameters) {
    return Error(Code::kInvalid, Text("How many parameters ", model.name,
                                      " has is not known: give --parameters and --active-parameters"));
  }
  if (model.BytesPerToken() <= 0) {
    return Error(Code::kInvalid, Text("no layer of ", model.name,
                                      " keeps anything of a single token, so its "
                                      "blocks have no size to simulate"));
  }
  const auto gpus = static_cast<double>(input.gpus);
  const double usable = gpus * input.gpu.memory_bytes * input.usable_memory;
  const double room = usable - model.WeightBytes();
  if (room <= 0) {
    return Error(Code::kInvalid,
                 Text("a node of ", input.gpus, " x ", input.gpu.name, " cannot hold the weights: ",
                      model.name, " takes ", planner::QuantityText(model.WeightBytes(), "B"),
                      " and they have room for ", planner::QuantityText(usable, "B"), ": give --gpus ",
                      std::floor(model.WeightBytes() / (input.gpu.memory_bytes * input.usable_memory)) + 1,
                      " or more"));
  }
  return EngineSpec{.model = model,
                    .flops_per_s = gpus * input.gpu.flops * input.prefill_efficiency,
                    .memory_bytes_per_s = gpus * input.gpu.memory_bytes_per_s * input.memory_efficiency,
                    .kv_room_bytes = room,
                    .chunk_tokens = input.chunk_tokens};
}

Status Check(const ClusterOptions& options) {
  if (options.nodes < 1 || options.nodes > kMostNodes)
    return Status(Code::kInvalid, Text("--nodes is ", options.nodes, ": expected 1 to ", kMostNodes));
  if (options.decode_nodes >= options.nodes) {
    return Status(Code::kInvalid,
                  Text("--decode-nodes is ", options.decode_nodes, " of ", options.nodes,
                       " nodes: one at least has to prefill, so give fewer, or more --nodes"));
  }
  if (options.blocks_per_node * options.nodes >= policy::Lru::kMaxEntries) {
    return Status(Code::kInvalid,
                  Text("--cache: ", options.blocks_per_node, " blocks on each of ", options.nodes,
                       " nodes are more than the ", policy::Lru::kMaxEntries, " that can be simulated"));
  }
  if (options.fail_every_s > 0 && options.fail_every_s < kLeastUpSeconds) {
    return Status(Code::kInvalid,
                  Text("--fail-every is ", planner::QuantityText(options.fail_every_s, "s"), ": expected ",
                       kLeastUpSeconds, " s or more, or no answer comes to its end"));
  }
  if (Status status = Objective("--first-token", options.first_token_s, options.engine); !status.ok())
    return status;
  return Objective("--per-token", options.per_token_s, options.engine);
}

}  // namespace cistern::fleet
