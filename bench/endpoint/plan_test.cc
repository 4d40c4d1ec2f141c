// SPDX-License-Identifier: Apache-2.0
#include "endpoint/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "workload/trace.h"

namespace cistern {
namespace {

using testing::ElementsAre;

// How many rounds each user of a plan has: by the first request of its chain.
std::map<std::uint32_t, std::uint64_t> RoundsOfUsers(const Plan& plan) {
  std::vector<std::uint32_t> first(plan.requests.size());
  std::map<std::uint32_t, std::uint64_t> rounds;
  for (std::uint32_t i = 0; i < plan.requests.size(); ++i) {
    const std::optional<std::uint32_t> after = plan.requests[i].after;
    EXPECT_TRUE(!after || *after < i);
    first[i] = after ? first[*after] : i;
    ++rounds[first[i]];
  }
  return rounds;
}

Result<Plan> PlanOf(std::string_view lines, const TraceShape& shape) {
  std::FILE* file = std::tmpfile();
  std::fwrite(lines.data(), 1, lines.size(), file);
  std::rewind(file);
  workload::TraceReader reader(file, "t.jsonl");
  return PlanTrace(shape, reader, 1);
}

TEST(Plan, EachUserAsksAllRounds) {
  const Plan plan = PlanChat({.users = 6, .rounds = 4}, 1).value();
  EXPECT_EQ(plan.requests.size(), 24u);
  EXPECT_EQ(plan.in_flight, 6u);
  const auto users = RoundsOfUsers(plan);
  EXPECT_EQ(users.size(), 6u);
  EXPECT_TRUE(std::ranges::all_of(users, [](const auto& user) { return user.second == 4; }));
}

TEST(Plan, UsersAreReplacedOneByOneAndNotAllAtOnce) {
  const Plan plan = PlanChat({.users = 4, .rounds = 4, .requests = 160}, 1).value();
  std::vector<int> begun(plan.requests.size() / 4);  // in each turn of four
  for (std::size_t i = 0; i < plan.requests.size(); ++i) begun[i / 4] += !plan.requests[i].after;
  EXPECT_EQ(begun[0], 4);
  for (std::size_t turn = 1; turn < begun.size(); ++turn) EXPECT_EQ(begun[turn], 1) << turn;
}

TEST(Plan, ArrivalsAreAsManyASecondAsAsked) {
  const Plan plan = PlanChat({.users = 10, .rounds = 100, .rate = 50}, 3).value();
  EXPECT_TRUE(std::ranges::is_sorted(plan.requests, {}, &PlannedRequest::at_us));
  EXPECT_NEAR(static_cast<double>(plan.requests.back().at_us) / 1e6, 20.0, 2.0);
  const Plan other = PlanChat({.users = 10, .rounds = 100, .rate = 50}, 4).value();
  EXPECT_NE(plan.requests[0].at_us, other.requests[0].at_us);
  const Plan at_once = PlanChat({.users = 10, .rounds = 100, .rate = 0}, 3).value();
  EXPECT_EQ(at_once.requests.back().at_us, 0u);
}

TEST(Plan, UsersShareTheSystemPromptAndNothingElse) {
  const Plan plan = PlanChat({.users = 2, .rounds = 1, .system_tokens = 9, .history_tokens = 9}, 1).value();
  const std::vector<std::string> answers(2);
  const auto one = Conversation(plan, 0, "", answers);
  const auto other = Conversation(plan, 1, "", answers);
  ASSERT_EQ(one.size(), 2u);
  EXPECT_EQ(one[0].text, other[0].text);
  EXPECT_NE(one[1].text, other[1].text);
}

TEST(Plan, ALaterRoundGoesOnFromTheAnswerBefore) {
  const Plan plan = PlanChat({.users = 1, .rounds = 3, .answer_tokens = 5, .rate = 0}, 1).value();
  const std::vector<std::string> answers = {"said", MadeUpAnswer(plan, 1), ""};
  const auto second = Conversation(plan, 1, "", answers);
  const auto third = Conversation(plan, 2, "", answers);
  ASSERT_EQ(second.size(), 4u);
  ASSERT_EQ(third.size(), 6u);
  for (std::size_t i = 0; i < second.size(); ++i) EXPECT_EQ(third[i].text, second[i].text) << i;
  EXPECT_EQ(third[2].text, "said");
  EXPECT_EQ(std::ranges::count(third[4].text, ' '), 4) << "made up, as long as planned";
  EXPECT_EQ(third[4].role, "assistant");
}

TEST(Plan, ASaltStandsBeforeEverything) {
  const Plan plan = PlanChat({.users = 1, .rounds = 2, .rate = 0}, 1).value();
  const std::vector<std::string> answers(2);
  const auto without = Conversation(plan, 1, "", answers);
  const auto salted = Conversation(plan, 1, "x", answers);
  EXPECT_TRUE(salted[0].text.ends_with(" " + without[0].text));
  EXPECT_NE(salted[0].text.substr(0, 12), Conversation(plan, 1, "y", answers)[0].text.substr(0, 12));
  for (std::size_t i = 1; i < without.size(); ++i) EXPECT_EQ(salted[i].text, without[i].text);
}

TEST(Plan, LongContextsAreAskedAllBeforeAnyIsAskedAgain) {
  const Plan plan = PlanLong({.context_tokens = 10, .requests = 3, .repeat = 2}, 1).value();
  ASSERT_EQ(plan.requests.size(), 6u);
  std::set<std::uint64_t> different;
  for (int i = 0; i < 3; ++i) {
    different.insert(plan.requests[i].user[0].source);
    EXPECT_EQ(plan.requests[i].user, plan.requests[i + 3].user);
  }
  EXPECT_EQ(different.size(), 3u);
}

TEST(Plan, ATracesBlocksAreTexts) {
  const Plan plan = PlanOf(R"({"timestamp": 40, "input_length": 700, "output_length": 0, "hash_ids": [5, 6]}
{"timestamp": 50, "input_length": 600, "output_length": 9, "hash_ids": [5]}
{"timestamp": 60, "input_length": 0, "output_length": 1, "hash_ids": []})",
                           {.speed = 2})
                        .value();
  ASSERT_EQ(plan.requests.size(), 3u);
  const Passage block5 = {SourceOf(1, "block", 5), 512};
  EXPECT_THAT(plan.requests[0].user, ElementsAre(block5, Passage{SourceOf(1, "block", 6), 188}));
  EXPECT_EQ(plan.requests[0].answer_tokens, 1u) << "servers refuse an answer of none";
  EXPECT_EQ(plan.requests[1].user[0], block5);
  EXPECT_EQ(plan.requests[1].user[1].tokens, 88u) << "what has no block is nobody else's";
  EXPECT_EQ(plan.requests[2].user[0].tokens, 1u) << "servers refuse an empty prompt";
  EXPECT_EQ(plan.requests[0].at_us, 0u) << "the first line's time is the begin";
  EXPECT_EQ(plan.requests[2].at_us, 10'000u);
}

TEST(Plan, ATraceIsReadAtItsSpeedUpToTheLimit) {
  const std::string_view lines = R"({"timestamp": 10, "input_length": 1, "output_length": 1, "hash_ids": []}
{"timestamp": 1010, "input_length": 1, "output_length": 1, "hash_ids": []}
not json)";
  const Plan plan = PlanOf(lines, {.requests = 2, .speed = 4}).value();
  EXPECT_EQ(plan.requests.size(), 2u);
  EXPECT_EQ(plan.requests[1].at_us, 250'000u);
  EXPECT_EQ(PlanOf(lines, {}).error().code(), Code::kInvalid);
  EXPECT_EQ(PlanOf("\n", {}).error().code(), Code::kInvalid);
}

TEST(Plan, IsBounded) {
  EXPECT_EQ(PlanChat({.users = 1'000, .rounds = 101}, 1).error().code(), Code::kInvalid);
  EXPECT_EQ(PlanLong({.requests = 1'000, .repeat = 101}, 1).error().code(), Code::kInvalid);
}

}  // namespace
}  // namespace cistern
