// SPDX-License-Identifier: Apache-2.0
// What one routing decision takes while 10,000 requests are under way: prompts of 24 blocks, half of which
// are stored, with every node's queues full.
#include <chrono>
#include <cstdio>

#include "fleet/router.h"

namespace cistern::fleet {
namespace {

constexpr std::uint32_t kUnderWay = 10'000;
constexpr int kDecisions = 20'000;

std::vector<std::uint64_t> Chain(std::uint64_t prompt, std::size_t blocks) {
  std::vector<std::uint64_t> chain;
  for (std::size_t i = 0; i < blocks; ++i) chain.push_back(i < 2 ? i : prompt * 1'000 + i);
  return chain;
}

void Row(std::uint32_t nodes, bool global) {
  const planner::Tables tables = planner::Tables::BuiltIn();
  ClusterOptions options{
      .engine = *MakeEngine(
          {.model = *tables.FindModel("Llama-3-70B", 16), .gpu = *tables.FindGpu("H100-80GB"), .gpus = 8}),
      .gpus = 8,
      .nodes = nodes,
      .routing = global ? Routing::kGlobal : Routing::kLocal,
      .global_store = global,
      .own = *tables.FindMedium("dram"),
      .peer = *tables.FindMedium("peer")};
  constexpr std::uint64_t kBlocks = 1'000'000;
  std::vector<BlockCache> caches;
  for (std::uint32_t i = 0; i < (global ? 1 : nodes); ++i) caches.emplace_back(EvictionPolicy::kLru, kBlocks);
  std::vector<NodeLinks> links(nodes,
                               {.own = Link(400e9, 1e-5), .in = Link(25e9, 5e-5), .out = Link(25e9, 5e-5)});
  Backlogs backlogs(nodes);
  Router router(options, backlogs, caches, links);
  Random random(1);
  for (std::uint32_t i = 0; i < kUnderWay; ++i) {
    const auto node = static_cast<NodeNumber>(random.Below(nodes));
    const workload::Request request{.input_tokens = 6'144, .hash_ids = Chain(i, 12)};
    backlogs.Add(node, random.Unit());
    links[node].in.Reserve(0, 1e9 * random.Unit());
    router.Note(request, node);
    caches[global ? 0 : node].Store(request.hash_ids, false, i, node);
  }
  double sum = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kDecisions; ++i) {
    const workload::Request request{.input_tokens = 12'288, .hash_ids = Chain(random.Below(kUnderWay), 24)};
    sum += router.Choose(request, 0)->first_token_s;
  }
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
  std::printf("%-7s %5u nodes %8.2f us a decision (%g)\n", global ? "global" : "local", nodes,
              took.count() / kDecisions, sum);
}

}  // namespace
}  // namespace cistern::fleet

int main() {
  for (const std::uint32_t nodes : {16u, 64u, 1'000u}) {
    cistern::fleet::Row(nodes, false);
    cistern::fleet::Row(nodes, true);
  }
}
