// SPDX-License-Identifier: Apache-2.0
#include "workload/simulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <filesystem>
#include <string>

#include "workload/generator.h"

namespace cistern::workload {
namespace {

Request Prompt(std::vector<std::uint64_t> hash_ids) {
  Request request;
  request.input_tokens = static_cast<std::uint32_t>(hash_ids.size()) * kTraceBlockTokens;
  request.hash_ids = std::move(hash_ids);
  return request;
}

// The same rules by searching one list.
SimResult NaiveSim(const std::vector<Request>& requests, std::uint64_t blocks) {
  SimResult result{.blocks = blocks};
  std::deque<std::uint64_t> resident;  // coldest in front
  for (const Request& request : requests) {
    ++result.requests;
    result.accesses += request.hash_ids.size();
    for (const std::uint64_t id : request.hash_ids) {
      if (std::ranges::find(resident, id) == resident.end()) break;
      ++result.hits;
    }
    for (auto id = request.hash_ids.rbegin(); id != request.hash_ids.rend(); ++id) {
      if (auto at = std::ranges::find(resident, *id); at != resident.end()) {
        resident.erase(at);
      } else if (resident.size() == blocks) {
        resident.pop_front();
      }
      resident.push_back(*id);
    }
  }
  return result;
}

TEST(Simulator, AHitIsInTheLongestResidentRunFromBlockZero) {
  Simulator simulator(EvictionPolicy::kLru, 3);
  simulator.Submit(Prompt({10, 20, 30}));
  EXPECT_EQ(simulator.result().hits, 0u);
  simulator.Submit(Prompt({10, 20, 40}));  // 30, the leaf that nobody asked again, leaves
  EXPECT_EQ(simulator.result().hits, 2u);
  simulator.Submit(Prompt({50, 20}));  // 20 is resident, but not reachable behind 50
  EXPECT_EQ(simulator.result().hits, 2u);
  EXPECT_EQ(simulator.result().accesses, 8u);
  EXPECT_EQ(simulator.result().requests, 3u);
  EXPECT_DOUBLE_EQ(simulator.result().hit_rate(), 0.25);
}

TEST(Simulator, AChainLongerThanTheStoreKeepsItsFirstBlocks) {
  Simulator simulator(EvictionPolicy::kLru, 3);
  for (int i = 0; i < 3; ++i) simulator.Submit(Prompt({1, 2, 3, 4, 5}));
  EXPECT_EQ(simulator.result().hits, 6u);
}

TEST(Simulator, NothingAskedIsNoHitRate) {
  Simulator simulator(EvictionPolicy::kLru, 1);
  simulator.Submit(Prompt({}));
  EXPECT_EQ(simulator.result().hit_rate(), 0.0);
}

TEST(Simulator, EqualsTheNaiveModelOnGeneratedTraces) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    Generator generator({.sessions = 20, .turns = 4, .system = 3, .context = 8'192, .seed = seed});
    std::vector<Request> requests;
    Request request;
    // Ids far apart: a trace's ids need not be dense.
    while (generator.Next(request).value()) {
      for (std::uint64_t& id : request.hash_ids) id *= 0x9e37'79b9'7f4a'7c15;
      requests.push_back(request);
    }
    for (const std::uint64_t blocks : {1u, 2u, 7u, 30u, 100u, 100'000u}) {
      Simulator simulator(EvictionPolicy::kLru, blocks);
      for (const Request& one : requests) simulator.Submit(one);
      EXPECT_EQ(simulator.result(), NaiveSim(requests, blocks)) << "seed " << seed << " blocks " << blocks;
    }
  }
}

TEST(Simulator, GivesTheKnownHitsOnTheConversationTrace) {
  const std::filesystem::path path =
      std::filesystem::path(__FILE__).parent_path() / "../../../shared/traces/conversation.jsonl";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
  constexpr std::array<std::array<std::uint64_t, 2>, 4> kKnown = {
      {{1'000, 12'847}, {10'000, 61'046}, {30'000, 93'978}, {50'000, 102'290}}};
  for (const auto& [blocks, hits] : kKnown) {
    auto requests = OpenRequests(path.string());
    ASSERT_TRUE(requests.has_value()) << requests.error().message();
    const Result<SimResult> result = Simulate(**requests, EvictionPolicy::kLru, blocks);
    ASSERT_TRUE(result.has_value()) << result.error().message();
    EXPECT_EQ(result->requests, 12'031u);
    EXPECT_EQ(result->accesses, 288'500u);
    EXPECT_EQ(result->hits, hits) << blocks << " blocks";
  }
}

}  // namespace
}  // namespace cistern::workload
