// SPDX-License-Identifier: Apache-2.0
#include "workload/simulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <filesystem>
#include <map>
#include <numeric>
#include <string>

#include "base/format.h"
#include "workload/generator.h"
#include "workload/test_shapes.h"
#include "workload/test_traces.h"

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

TEST(Simulator, WithFarMemoryAsMuchHitsAndMoreOfItNear) {
  const auto run = [](const SimFar& far) {
    auto requests = OpenRequests("generated:sessions=300,turns=8,seed=3");
    EXPECT_TRUE(requests);
    auto result = Simulate(**requests, SimPolicy::kReuse, 800, {}, far);
    EXPECT_TRUE(result);
    return *result;
  };
  const SimResult alone = run({}), placed = run({.blocks = 300}),
                  anywhere = run({.blocks = 300, .placed = false});
  EXPECT_EQ(alone.hits, anywhere.hits);
  EXPECT_EQ(alone.far_hits + alone.moved_far + anywhere.moved_far + anywhere.moved_near, 0u);
  EXPECT_GT(anywhere.far_hits, anywhere.hits / 5);
  EXPECT_GT(placed.hits, alone.hits / 100 * 98);
  EXPECT_LT(placed.far_hits, anywhere.far_hits / 4 * 3);
  EXPECT_GT(placed.moved_near, 0u);
}

TEST(Simulator, AHitIsInTheLongestResidentRunFromBlockZero) {
  Simulator simulator(SimPolicy::kLru, 3);
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
  Simulator simulator(SimPolicy::kLru, 3);
  for (int i = 0; i < 3; ++i) simulator.Submit(Prompt({1, 2, 3, 4, 5}));
  EXPECT_EQ(simulator.result().hits, 6u);
}

TEST(Simulator, NothingAskedIsNoHitRate) {
  Simulator simulator(SimPolicy::kLru, 1);
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
      Simulator simulator(SimPolicy::kLru, blocks);
      for (const Request& one : requests) simulator.Submit(one);
      EXPECT_EQ(simulator.result(), NaiveSim(requests, blocks)) << "seed " << seed << " blocks " << blocks;
    }
  }
}

TEST(Simulator, ReuseKeepsTheFirstBlocksOfAChainLongerThanTheStore) {
  Simulator simulator(SimPolicy::kReuse, 3);
  for (int i = 0; i < 3; ++i) simulator.Submit(Prompt({1, 2, 3, 4, 5}));
  EXPECT_EQ(simulator.result().hits, 6u);
}

TEST(Simulator, APolicyIsReadAsItIsPrinted) {
  for (const std::string_view text : {"lru", "reuse", "fifo", "slru", "lfu", "lru2", "arc"}) {
    EXPECT_EQ(ToString(ParseSimPolicy(text).value()), text);
  }
  EXPECT_EQ(ParseSimPolicy("lur").error().message(),
            "there is no eviction policy 'lur'; known: lru, reuse, fifo, slru, lfu, lru2, arc");
}

// One that is not what its readers say, and one without times.
TEST(Simulator, EachPolicyGoesThroughATraceThatContradictsItself) {
  for (const std::string_view text : {"lru", "reuse", "fifo", "slru", "lfu", "lru2", "arc"}) {
    Simulator simulator(ParseSimPolicy(text).value(), 4);
    for (std::uint64_t i = 0; i < 2'000; ++i) {
      simulator.Submit(Prompt({i % 3, i % 5, i * i % 11, i % 2, i % 7, i % 7, i % 3}));
    }
    EXPECT_LE(simulator.result().hits, simulator.result().accesses) << text;
  }
}

std::vector<Request> All(RequestSource& source) {
  std::vector<Request> requests;
  Request request;
  while (source.Next(request).value()) requests.push_back(request);
  return requests;
}

std::uint64_t Hits(const std::vector<Request>& requests, SimPolicy policy, std::uint64_t blocks,
                   const std::vector<PromptHints>& told = {}) {
  Simulator simulator(policy, blocks);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    simulator.Submit(requests[i], told.empty() ? PromptHints() : told[i]);
  }
  return simulator.result().hits;
}

std::uint64_t AccessesOf(const std::vector<Request>& requests) {
  std::uint64_t accesses = 0;
  for (const Request& request : requests) accesses += request.hash_ids.size();
  return accesses;
}

// Prompts that are asked once fill a store; then a prompt is asked, some others, and it again a second later.
struct Fill {
  std::string_view name;
  std::uint64_t blocks, prompts;
  std::vector<std::uint64_t> lengths;  // in turn
  std::uint64_t others = 0;
};

double SecondHits(const Fill& fill, std::uint64_t gap_ms) {
  std::uint64_t next = 0, now_ms = 0, asked = 0;
  Simulator simulator(SimPolicy::kReuse, fill.blocks);
  const auto ask = [&](std::uint64_t first, std::uint64_t length) {
    std::vector<std::uint64_t> chain(length);
    std::iota(chain.begin(), chain.end(), first);
    Request request = Prompt(std::move(chain));
    request.timestamp_ms = now_ms;
    request.input_tokens -= asked % 2 * 100;  // of half of them the last block is partial
    simulator.Submit(request);
    now_ms += gap_ms;
  };
  const auto ask_new = [&] {
    const std::uint64_t length = fill.lengths[asked++ % fill.lengths.size()];
    ask(next, length);
    next += length;
    return std::pair(next - length, length);
  };
  while (asked < fill.prompts) ask_new();
  EXPECT_EQ(simulator.result().hits, 0u);
  const auto [first, length] = ask_new();
  const std::uint64_t again_ms = now_ms + 1'000;
  for (std::uint64_t other = 0; other < fill.others; ++other) ask_new();
  now_ms = std::max(now_ms, again_ms);
  ask(first, length);
  return static_cast<double>(simulator.result().hits) / static_cast<double>(length);
}

TEST(Simulator, APromptAskedTwiceHitsInAStoreFullOfWhatNeverReturned) {
  const Fill fills[] = {{"a full node of an engine's", 380, 46, {15}},
                        {"after long prompts shorter ones", 380, 46, {15, 15, 15, 15, 15, 15, 15, 12}},
                        {"a long scan", 1'000, 3'000, {5}},
                        {"of all lengths", 1'000, 997, {1, 90, 3, 17, 2, 40, 7, 1, 1, 250}},
                        {"others between", 1'000, 997, {1, 90, 3, 17, 2, 40, 7, 1, 1, 250}, 3},
                        {"one long one, then short ones", 100, 400, {2, 1, 2}, 10},
                        {"just started", 100, 10, {11}},
                        {"room for one prompt", 8, 100, {8, 5}},
                        {"room for two blocks", 2, 100, {1, 2}}};
  for (const Fill& fill : fills) {
    for (const std::uint64_t gap_ms : {20, 100, 300, 1'000, 10'000, 60'000})
      EXPECT_EQ(SecondHits(fill, gap_ms), 1) << fill.name << ", " << gap_ms << " ms";
  }
}

TEST(Simulator, ReuseIsNeverFarBelowLruWhateverTheWorkloadIs) {
  for (const Shape& shape : kShapes) {
    const std::vector<Request> requests = All(**OpenRequests(shape.options));
    const std::uint64_t accesses = AccessesOf(requests);
    for (const std::uint64_t blocks : {100u, 1'000u, 3'000u}) {
      EXPECT_GE(Hits(requests, SimPolicy::kReuse, blocks) * 1'000 + 2 * accesses,
                Hits(requests, SimPolicy::kLru, blocks) * 1'000)
          << shape.name << ", " << blocks << " blocks, " << accesses << " accesses";
    }
  }
}

TEST(Simulator, ReuseKeepsPartOfALoopThatIsLargerThanTheStore) {
  const std::vector<Request> requests =
      All(**OpenRequests("generated:sessions=2000,turns=1,system=1,system_tokens=0,documents=200,document_"
                         "tokens=4096,in_turn=1"));
  EXPECT_LE(Hits(requests, SimPolicy::kLru, 800), AccessesOf(requests) / 100);
  EXPECT_GE(Hits(requests, SimPolicy::kReuse, 800), AccessesOf(requests) / 4);
}

TEST(Simulator, GivesTheKnownHitsOnAGeneratedChat) {
  using enum SimPolicy;
  constexpr std::array<std::pair<SimPolicy, std::uint64_t>, 6> kKnown = {
      {{kLru, 14'503}, {kFifo, 14'503}, {kSlru, 14'662}, {kLfu, 14'552}, {kLru2, 14'826}, {kArc, 14'769}}};
  const std::vector<Request> requests = All(**OpenRequests(kShapes[0].options));
  EXPECT_EQ(AccessesOf(requests), 23'299u);
  for (const auto& [policy, hits] : kKnown) EXPECT_EQ(Hits(requests, policy, 300), hits) << ToString(policy);
  // Its values are floating-point numbers, whose last bit differs between processors.
  EXPECT_NEAR(static_cast<double>(Hits(requests, kReuse, 300)), 15'385, 50);
  EXPECT_EQ(Hits(requests, kReuse, 300), Hits(requests, kReuse, 300));
}

TEST(Simulator, OneTrueBitARequestIsWorthMuch) {
  const std::vector<Request> requests = All(**OpenRequests(kShapes[0].options));
  const auto told = Foretell(**OpenRequests(kShapes[0].options), false).value();
  EXPECT_GE(Hits(requests, SimPolicy::kReuse, 300, told) * 20, Hits(requests, SimPolicy::kReuse, 300) * 21);
}

TEST(Simulator, GivesTheKnownHitsOnThePublishedTraces) {
  using enum SimPolicy;
  struct Row {
    std::string_view trace;
    SimPolicy policy;
    std::uint64_t blocks;
    double least;  // of hits, in percent
  };
  constexpr Row kRows[] = {{"conversation", kReuse, 1'000, 7.47},   {"conversation", kReuse, 10'000, 22.51},
                           {"conversation", kReuse, 30'000, 33.12}, {"agentic", kReuse, 1'000, 45},
                           {"agentic", kReuse, 3'000, 81},          {"agentic", kReuse, 10'000, 92.92},
                           {"conversation", kFifo, 10'000, 21},     {"conversation", kSlru, 1'000, 4.9},
                           {"conversation", kSlru, 10'000, 21.8},   {"conversation", kSlru, 30'000, 32.8},
                           {"conversation", kSlru, 50'000, 35.4},   {"conversation", kLfu, 10'000, 21.4},
                           {"conversation", kLru2, 1'000, 7.2},     {"conversation", kLru2, 10'000, 21.4},
                           {"conversation", kLru2, 30'000, 27.9},   {"conversation", kLru2, 50'000, 34.2},
                           {"conversation", kArc, 1'000, 5.2},      {"conversation", kArc, 10'000, 22.4},
                           {"conversation", kArc, 30'000, 31.0},    {"conversation", kArc, 50'000, 34.3}};
  std::map<std::string_view, std::vector<Request>> traces;
  for (const std::string_view name : {"conversation", "agentic"}) {
    const std::filesystem::path path = PublishedTrace(Text(name, ".jsonl"));
    if (!std::filesystem::exists(path)) GTEST_SKIP() << "there is no " << path;
    traces[name] = All(**OpenRequests(path.string()));
  }
  const std::vector<Request>& conversation = traces["conversation"];
  ASSERT_EQ(conversation.size(), 12'031u);
  ASSERT_EQ(AccessesOf(conversation), 288'500u);
  constexpr std::array<std::array<std::uint64_t, 2>, 4> kLruHits = {
      {{1'000, 12'847}, {10'000, 61'046}, {30'000, 93'978}, {50'000, 102'290}}};
  for (const auto& [blocks, hits] : kLruHits) EXPECT_EQ(Hits(conversation, kLru, blocks), hits) << blocks;
  for (const Row& row : kRows) {
    const std::vector<Request>& requests = traces[row.trace];
    const double rate = 100.0 * static_cast<double>(Hits(requests, row.policy, row.blocks)) /
                        static_cast<double>(AccessesOf(requests));
    EXPECT_GE(rate, row.least) << row.trace << " " << ToString(row.policy) << " " << row.blocks;
  }
  const std::string path = PublishedTrace("conversation.jsonl").string();
  const auto told = Foretell(**OpenRequests(path), false).value();
  EXPECT_GE(Hits(conversation, kReuse, 10'000, told), 288'500u * 335 / 1'000);
  const auto told_when = Foretell(**OpenRequests(path), true).value();
  EXPECT_GE(Hits(conversation, kReuse, 1'000, told_when), 288'500u * 155 / 1'000);
}

}  // namespace
}  // namespace cistern::workload
