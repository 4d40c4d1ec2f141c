// SPDX-License-Identifier: Apache-2.0
#include "fleet/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <vector>

#include "base/random.h"
#include "workload/generator.h"
#include "workload/simulator.h"

namespace cistern::fleet {
namespace {

using testing::HasSubstr;

class Requests final : public workload::RequestSource {
 public:
  explicit Requests(std::function<bool(workload::Request&)> next) : next_(std::move(next)) {}
  Result<bool> Next(workload::Request& request) override { return next_(request); }

 private:
  std::function<bool(workload::Request&)> next_;
};

EngineInput Machine() {
  const planner::Tables tables = planner::Tables::BuiltIn();
  return {.model = *tables.FindModel("Llama-3-70B", 16), .gpu = *tables.FindGpu("H100-80GB"), .gpus = 8};
}

ClusterOptions Fleet(std::uint32_t nodes) {
  const planner::Tables tables = planner::Tables::BuiltIn();
  return {.engine = *MakeEngine(Machine()),
          .gpus = 8,
          .nodes = nodes,
          .blocks_per_node = 2'000,
          .own = *tables.FindMedium("dram"),
          .peer = *tables.FindMedium("peer")};
}

ClusterResult Generated(const ClusterOptions& options, std::string_view workload) {
  workload::Generator requests(*workload::ParseGeneratorOptions(workload));
  Result<ClusterResult> result = RunCluster(options, requests);
  EXPECT_TRUE(result) << result.error().ToString();
  return std::move(*result);
}

// Prompts of one chunk and an answer of one token, by chance: one server, service that is always the same.
ClusterResult Queue(double load, std::uint64_t count) {
  ClusterOptions options = Fleet(1);
  options.blocks_per_node = 0;
  options.engine.chunk_tokens = 4'096;
  const double service = options.engine.PrefillSeconds(0, 4'096);
  // A trace's times are whole milliseconds: at this pace a service takes 10^6 of them.
  options.times = 1e3 / service;
  Random random(7);
  double at_ms = 0;
  std::uint64_t left = count;
  Requests requests([&](workload::Request& request) {
    if (left-- == 0) return false;
    at_ms += -std::log(1 - random.Unit()) * 1e6 / load;
    request = {.timestamp_ms = static_cast<std::uint64_t>(at_ms), .input_tokens = 4'096, .output_tokens = 1};
    return true;
  });
  return *RunCluster(options, requests);
}

// Else who has little to load overtakes who has much, and a long prompt holds up what the router sent before.
TEST(Engine, APromptThatLoadedLongKeepsItsTurn) {
  const EngineSpec spec = *MakeEngine(Machine());
  Engine engine(spec);
  engine.Prefill(7, 2, 0, spec.chunk_tokens, 1);
  engine.Prefill(8, 3, 0, spec.chunk_tokens, 1);
  engine.Prefill(5, 1, 0, spec.chunk_tokens, 1);  // the first that was sent, the last that is loaded
  std::vector<WorkId> first;
  Engine::Ended ended;
  while (engine.Begin(0)) {
    engine.End(ended);
    first.insert(first.end(), ended.first.begin(), ended.first.end());
  }
  EXPECT_THAT(first, testing::ElementsAre(5, 7, 8));
}

TEST(Cluster, QueueOfOneServerIsWithinOnePercentOfMD1) {
  const ClusterOptions options = Fleet(1);
  const double service = options.engine.PrefillSeconds(0, 4'096);
  for (const double load : {0.3, 0.6, 0.8}) {
    const ClusterResult result = Queue(load, 400'000);
    const double expected = service + load * service / (2 * (1 - load));
    EXPECT_NEAR(result.first_token_s.mean / expected, 1, 0.01) << load;
    EXPECT_EQ(result.answered, 400'000);
  }
}

TEST(Cluster, SameSeedSameResultAndAnotherSeedAnother) {
  ClusterOptions options = Fleet(4);
  options.routing = Routing::kRandom;
  options.fail_every_s = 120;
  options.repair_s = 20;
  constexpr std::string_view kWork = "sessions=200,turns=5,seed=3";
  const ClusterResult first = Generated(options, kWork);
  EXPECT_EQ(first, Generated(options, kWork));
  EXPECT_GT(first.failures, 0);
  options.seed = 2;
  EXPECT_NE(first, Generated(options, kWork));
}

TEST(Cluster, AnAnswerThatNoNodeStaysUpForIsSaid) {
  ClusterOptions options = Fleet(4);
  options.fail_every_s = 10;
  options.repair_s = 1;
  bool given = false;
  Requests requests([&](workload::Request& request) {
    request.timestamp_ms = 0;
    request.input_tokens = 1'000;
    request.output_tokens = 1'000'000;
    return !std::exchange(given, true);
  });
  const Result<ClusterResult> result = RunCluster(options, requests);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), Code::kInvalid);
  EXPECT_THAT(std::string(result.error().message()),
              testing::HasSubstr("--fail-every 10 s: a request of 1000"));
}

// With these seeds the node that decodes fails during the prompt, and the one that computed it after that.
TEST(Cluster, APromptThatWaitsForADecodeNodeGoesWithTheNodeThatHasIt) {
  ClusterOptions options = Fleet(2);
  options.decode_nodes = 1;
  options.repair_s = 60;
  const auto one_prompt = [&options] {
    bool given = false;
    Requests requests([&](workload::Request& request) {
      request.timestamp_ms = 0;
      request.input_tokens = 100'000;
      request.output_tokens = 2;
      return !std::exchange(given, true);
    });
    return *RunCluster(options, requests);
  };
  const double prompt_s = one_prompt().first_tokens.at(0);
  options.fail_every_s = 60;
  for (const std::uint64_t seed : {21, 33}) {
    options.seed = seed;
    const ClusterResult result = one_prompt();
    EXPECT_EQ(result.answered, 1);
    EXPECT_EQ(result.restarted, 1) << seed;
    EXPECT_GT(result.span_s, options.repair_s + 2 * prompt_s) << seed << ": it is computed again";
  }
}

// Published traces count from the epoch, or from when their service began.
TEST(Cluster, WhenATraceBeginsChangesNothing) {
  ClusterOptions options = Fleet(4);
  options.fail_every_s = 120;
  options.repair_s = 20;
  const auto begun = [&options](std::uint64_t at_ms) {
    workload::Generator generator(*workload::ParseGeneratorOptions("sessions=100,turns=5,seed=3"));
    std::optional<std::uint64_t> first_ms;
    Requests requests([&](workload::Request& request) {
      if (!*generator.Next(request)) return false;
      if (!first_ms) first_ms = request.timestamp_ms;
      request.timestamp_ms += at_ms - *first_ms;
      return true;
    });
    return *RunCluster(options, requests);
  };
  const ClusterResult at_zero = begun(0);
  EXPECT_GT(at_zero.failures, 0);
  EXPECT_EQ(at_zero, begun(36'000'000));
}

TEST(Cluster, EveryRequestEndsOnceWithEveryRouterStoreAndPool) {
  for (const Routing routing : {Routing::kRandom, Routing::kRoundRobin, Routing::kLeastLoaded,
                                Routing::kAffinity, Routing::kLocal, Routing::kGlobal}) {
    for (const bool global : {false, true}) {
      for (const std::uint32_t decode : {0, 2}) {
        ClusterOptions options = Fleet(5);
        options.routing = routing;
        options.global_store = global;
        options.policy = global ? EvictionPolicy::kReuse : EvictionPolicy::kLru;
        options.decode_nodes = decode;
        options.closed_loop = decode == 0;
        options.fail_every_s = 100;
        const ClusterResult result = Generated(options, "sessions=100,turns=5,seed=4");
        EXPECT_EQ(result.requests, 500);
        EXPECT_EQ(result.answered, 500) << ToString(routing);
        EXPECT_GT(result.own_hits + result.peer_hits, 0);
        EXPECT_EQ(result.peer_hits > 0, global) << ToString(routing);
        EXPECT_EQ(result.handover_bytes > 0, decode > 0);
      }
    }
  }
}

TEST(Cluster, OneNodeHitsAsTheSimulatorDoes) {
  constexpr std::string_view kWork = "sessions=60,turns=6,think=60s,span=2h,seed=5";
  for (const auto policy : {EvictionPolicy::kLru, EvictionPolicy::kReuse}) {
    ClusterOptions options = Fleet(1);
    options.policy = policy;
    options.blocks_per_node = 150;
    workload::Generator again(*workload::ParseGeneratorOptions(kWork));
    const Result<workload::SimResult> alone = workload::Simulate(
        again, policy == EvictionPolicy::kLru ? workload::SimPolicy::kLru : workload::SimPolicy::kReuse, 150);
    const ClusterResult result = Generated(options, kWork);
    EXPECT_EQ(result.accesses, alone->accesses);
    // Requests that are there at a time do not find what the others compute.
    EXPECT_NEAR(static_cast<double>(result.own_hits), static_cast<double>(alone->hits),
                0.02 * static_cast<double>(alone->hits));
  }
}

TEST(Cluster, GlobalStoreHitsMoreThanLocalCaches) {
  ClusterOptions options = Fleet(10);
  options.routing = Routing::kRandom;
  constexpr std::string_view kWork = "sessions=300,turns=6,system_tokens=0,seed=6";
  const ClusterResult local = Generated(options, kWork);
  options.global_store = true;
  const ClusterResult global = Generated(options, kWork);
  EXPECT_GT(global.hit_rate(), 2 * local.hit_rate());
}

TEST(Cluster, PromptThatAllShareDoesNotWaitForOneNodesLink) {
  ClusterOptions options = Fleet(100);
  options.routing = Routing::kGlobal;
  options.global_store = true;
  options.times = 60;
  const ClusterResult result = Generated(options, "sessions=4000,turns=2,system=1,span=5min,seed=6");
  EXPECT_GT(result.peer_hits, 0);
  EXPECT_LT(result.first_token_s.p99, 5);
}

TEST(Cluster, PromptThatAllShareIsReusedByAllThatComeAtOnce) {
  ClusterOptions options = Fleet(16);
  options.routing = Routing::kGlobal;
  options.global_store = true;
  std::uint64_t number = 0;
  Requests requests([&](workload::Request& request) {
    if (number == 4'000) return false;
    request = {
        .timestamp_ms = number / 10 * 3'000, .input_tokens = 2'048, .output_tokens = 100, .hash_ids = {0}};
    for (std::uint64_t i = 1; i < 4; ++i) request.hash_ids.push_back(4 * number + i);
    ++number;
    return true;
  });
  const Result<ClusterResult> result = RunCluster(options, requests);
  ASSERT_TRUE(result);
  EXPECT_GT(result->reused, 3'900);
}

TEST(BlockCache, BlockThatSeveralPromptsExtendStaysAlsoWhereItWas) {
  BlockCache cache(EvictionPolicy::kReuse, 1'000);
  cache.Store(std::array<std::uint64_t, 2>{1, 2}, false, 0, 0);
  cache.Store(std::array<std::uint64_t, 2>{1, 3}, false, 1'000, 0);
  cache.Move(std::array<std::uint64_t, 2>{1, 3}, 5);
  std::vector<HomeRun> homes;
  EXPECT_EQ(cache.Match(std::array<std::uint64_t, 2>{1, 3}, &homes), 2);
  ASSERT_EQ(homes.size(), 2);
  EXPECT_TRUE(homes[0].At(5) && homes[0].At(0) && !homes[0].At(1));
  EXPECT_TRUE(homes[1].At(5) && !homes[1].At(0));
  EXPECT_EQ(cache.copies(), 1);
  // What the failed node alone had is lost, what it had a copy of is not.
  cache.Lose(5);
  EXPECT_EQ(cache.Match(std::array<std::uint64_t, 2>{1, 3}, &homes), 1);
  EXPECT_TRUE(homes[0].At(0) && !homes[0].At(5));
  EXPECT_EQ(cache.Match(std::array<std::uint64_t, 2>{1, 2}), 2);
  EXPECT_EQ(cache.copies(), 0);
}

TEST(BlockCache, CopiesTakeASixteenthOfTheRoomAtMost) {
  BlockCache cache(EvictionPolicy::kLru, 32);
  for (std::uint64_t last = 2; last < 40; ++last)
    cache.Store(std::array<std::uint64_t, 2>{1, last}, false, last * 1'000, 0);
  for (NodeNumber node = 1; node < 20; ++node) cache.Move(std::array<std::uint64_t, 1>{1}, node);
  EXPECT_EQ(cache.copies(), 2);
  EXPECT_LE(cache.size() + cache.copies(), 32);
}

TEST(Cluster, GlobalRouterRefusesWhatWouldMissItsObjective) {
  ClusterOptions options = Fleet(2);
  options.routing = Routing::kGlobal;
  options.global_store = true;
  options.times = 50;
  options.first_token_s = 2;
  const ClusterResult result = Generated(options, "sessions=300,turns=6,seed=6");
  EXPECT_GT(result.refused, 0);
  EXPECT_EQ(result.answered + result.refused, result.requests);
  EXPECT_LT(result.first_token_s.p90, 2.5);
}

TEST(Cluster, ClosedLoopWaitsForTheAnswer) {
  ClusterOptions options = Fleet(1);
  options.times = 1'000;  // all turns at once
  constexpr std::string_view kWork = "sessions=20,turns=6,seed=6";
  const ClusterResult open = Generated(options, kWork);
  options.closed_loop = true;
  const ClusterResult closed = Generated(options, kWork);
  EXPECT_LT(closed.first_token_s.mean, open.first_token_s.mean);
  EXPECT_GT(closed.own_hits, open.own_hits);
}

TEST(Cluster, RoutersSpreadTheLoadOfABusyFleet) {
  ClusterOptions options = Fleet(8);
  options.times = 30;
  for (const Routing routing : {Routing::kLeastLoaded, Routing::kLocal, Routing::kGlobal}) {
    options.routing = routing;
    options.global_store = routing == Routing::kGlobal;
    EXPECT_LT(Generated(options, "sessions=1000,turns=5,seed=9").load_cv, 0.3) << ToString(routing);
  }
}

TEST(Cluster, FleetThatCannotHoldItsWeightsIsNamed) {
  EngineInput input = Machine();
  input.gpus = 1;
  const Result<EngineSpec> engine = MakeEngine(input);
  ASSERT_FALSE(engine);
  EXPECT_THAT(engine.error().ToString(), HasSubstr("1 x H100-80GB cannot hold the weights"));
  EXPECT_THAT(engine.error().ToString(), HasSubstr("give --gpus 2 or more"));
}

TEST(Cluster, ObjectiveThatNothingMeetsIsNamed) {
  ClusterOptions options = Fleet(1);
  options.first_token_s = 1e-3;
  EXPECT_THAT(Check(options).ToString(), HasSubstr("--first-token: 1 ms cannot be met by any request"));
  options.first_token_s.reset();
  options.per_token_s = 1e-3;
  EXPECT_THAT(Check(options).ToString(), HasSubstr("--per-token: 1 ms cannot be met by any request"));
}

TEST(Cluster, NodesThatAllDecodeAreNamed) {
  ClusterOptions options = Fleet(4);
  options.decode_nodes = 4;
  EXPECT_THAT(Check(options).ToString(), HasSubstr("--decode-nodes is 4 of 4 nodes"));
}

TEST(Cluster, SessionOfRequestsThatAreAllTooLargeEnds) {
  ClusterOptions options = Fleet(1);
  options.closed_loop = true;
  std::uint64_t left = 100'000;
  Requests requests([&](workload::Request& request) {
    request = {.input_tokens = left == 100'000 ? 10'000u : 100'000'000u, .output_tokens = 5, .session = 1};
    return left-- > 0;
  });
  const Result<ClusterResult> result = RunCluster(options, requests);
  EXPECT_EQ(result->answered, 1);
  EXPECT_EQ(result->too_large, 99'999);
}

TEST(Cluster, RequestLargerThanANodesRoomIsCounted) {
  workload::Request huge{.input_tokens = 100'000'000, .output_tokens = 5};
  bool given = false;
  Requests requests([&](workload::Request& request) {
    request = huge;
    return !std::exchange(given, true);
  });
  EXPECT_EQ(RunCluster(Fleet(1), requests)->too_large, 1);
}

}  // namespace
}  // namespace cistern::fleet
