// SPDX-License-Identifier: Apache-2.0
// Promotion by worth: what is read from the lower tier stays in memory, or passes, as the simulator says.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "prompted_store.h"
#include "workload/simulator.h"
#include "workload/test_traces.h"
#include "workload/tier_simulator.h"

namespace cistern {
namespace {

using workload::Request;

class PromotionTest : public PromptedStore {
 protected:
  // The first requests of a trace through the store, and through the simulator. `ahead`: each tells truly
  // when its next turn comes.
  void Agree(const std::string& trace, std::uint64_t requests, std::uint64_t blocks, Promotion promote,
             bool ahead = false) {
    SCOPED_TRACE(Text(trace, ", ", blocks, " blocks, ", ToString(promote)));
    std::vector<PromptHints> told;
    if (ahead) told = *workload::Foretell(**workload::OpenRequests(trace), true);
    auto source = workload::OpenRequests(trace);
    ASSERT_TRUE(source.has_value()) << source.error().ToString();
    workload::TierSimulator simulator({.promote = promote, .blocks = blocks, .ahead = ahead});
    now_ms_ = memory_hits_ = lower_hits_ = stored_ = 0;
    t.reset();
    media_.emplace();
    Begin(blocks, promote);
    Request request;
    workload::TraceTime time;
    for (std::uint64_t i = 0; i < requests && *(*source)->Next(request); ++i) {
      const PromptHints hints = i < told.size() ? told[i] : PromptHints();
      simulator.Submit(request, hints);
      ASSERT_NO_FATAL_FAILURE(
          Ask(time.Of(request), request.hash_ids, workload::LastIsPartial(request), hints));
      const workload::TierSimResult& result = simulator.result();
      ASSERT_EQ(memory_hits_, result.memory_hits) << "request " << i;
      ASSERT_EQ(lower_hits_, result.lower_hits) << "request " << i;
      ASSERT_EQ(t->store->counters().fetched_ahead.value(), result.ahead) << "request " << i;
    }
    EXPECT_GT(memory_hits_, 0u);
    EXPECT_GT(lower_hits_, 0u);
    EXPECT_EQ(t->store->counters().passing.value(), simulator.result().passing);
    EXPECT_EQ(t->store->counters().fetched_ahead.value(), simulator.result().ahead);
    EXPECT_EQ(t->store->counters().ahead_used.value(), simulator.result().ahead_used);
    EXPECT_EQ(simulator.result().ahead > 0, ahead);
    EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
  }

  void AgreeOnPublished(bool ahead = false) {
    const std::filesystem::path agentic = workload::PublishedTrace("agentic.jsonl");
    if (!std::filesystem::exists(agentic)) GTEST_SKIP() << "there is no " << agentic;
    Agree(agentic, 120, 1'000, Promotion::kWorth, ahead);
    Agree(workload::PublishedTrace("conversation.jsonl"), 600, 1'000, Promotion::kWorth, ahead);
  }
};

TEST_F(PromotionTest, StoreAndSimulatorAgreeOnGeneratedWorkloads) {
  for (const Promotion promote : {Promotion::kWorth, Promotion::kAll}) {
    Agree("generated:sessions=60,turns=5,think=30s,span=20min,user_tokens=3000", 300, 200, promote);
    Agree("generated:sessions=40,turns=4,seed=3", 160, 60, promote);
  }
}

TEST_F(PromotionTest, StoreAndSimulatorAgreeOnPublishedTraces) { AgreeOnPublished(); }

TEST_F(PromotionTest, StoreAndSimulatorAgreeOnWhatIsFetchedAheadOfTurns) {
  for (const Promotion promote : {Promotion::kWorth, Promotion::kAll})
    Agree("generated:sessions=60,turns=5,think=30s,span=20min,user_tokens=3000", 300, 200, promote, true);
  AgreeOnPublished(true);
}

}  // namespace
}  // namespace cistern
