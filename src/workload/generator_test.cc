// SPDX-License-Identifier: Apache-2.0
#include "workload/generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace cistern::workload {
namespace {

std::vector<Request> All(const GeneratorOptions& options) {
  Generator generator(options);
  std::vector<Request> requests;
  Request request;
  while (generator.Next(request).value()) requests.push_back(request);
  return requests;
}

TEST(Generator, TheSameSeedGivesTheSameRequests) {
  const GeneratorOptions options{.sessions = 50, .seed = 9};
  const std::vector<Request> requests = All(options);
  EXPECT_EQ(requests.size(), 400u);
  EXPECT_EQ(requests, All(options));
  EXPECT_NE(requests, All({.sessions = 50, .seed = 10}));
}

TEST(Generator, RequestsAreTheSameOnEveryMachine) {
  std::uint64_t mixed = 0;
  for (const Request& request : All({})) {
    mixed = mixed * 31 + request.timestamp_ms;
    mixed = mixed * 31 + request.input_tokens;
    mixed = mixed * 31 + request.output_tokens;
    for (const std::uint64_t id : request.hash_ids) mixed = mixed * 31 + id;
  }
  EXPECT_EQ(mixed, 4'244'189'214'992'962'143u);
}

TEST(Generator, EveryRequestIsWhatATraceMayHold) {
  const GeneratorOptions options{.sessions = 100, .turns = 12, .context = 9'000};
  std::map<std::uint64_t, std::uint64_t> parent;  // an id stands for a block after its prefix
  std::uint64_t last_ms = 0;
  for (const Request& request : All(options)) {
    EXPECT_GE(request.timestamp_ms, last_ms);
    last_ms = request.timestamp_ms;
    EXPECT_LE(request.input_tokens, options.context);
    EXPECT_GT(request.input_tokens, options.system_tokens);
    EXPECT_GE(request.output_tokens, 1u);
    EXPECT_EQ(request.hash_ids.size(), (request.input_tokens + kTraceBlockTokens - 1) / kTraceBlockTokens);
    std::uint64_t before = ~std::uint64_t{0};
    for (const std::uint64_t id : request.hash_ids) {
      EXPECT_EQ(parent.try_emplace(id, before).first->second, before) << "block " << id;
      before = id;
    }
  }
}

TEST(Generator, ATurnBeginsWithAllThatWasSaidBefore) {
  std::map<std::uint64_t, Request> last;
  std::uint64_t continued = 0;
  for (const Request& request : All({.sessions = 40, .turns = 6, .context = 1u << 20})) {
    const auto [at, first] = last.try_emplace(*request.session, request);
    if (first) continue;
    const Request& before = at->second;
    EXPECT_GT(request.input_tokens, before.input_tokens + before.output_tokens);
    EXPECT_GE(request.timestamp_ms, before.timestamp_ms);
    const std::size_t whole = before.input_tokens / kTraceBlockTokens;
    EXPECT_TRUE(std::equal(before.hash_ids.begin(), before.hash_ids.begin() + static_cast<long>(whole),
                           request.hash_ids.begin()));
    at->second = request;
    ++continued;
  }
  EXPECT_EQ(continued, 40u * 5);
}

TEST(Generator, SessionsShareOnlyWholeBlocksOfTheirSystemPrompt) {
  const GeneratorOptions options{.sessions = 300, .turns = 2, .system = 5, .system_tokens = 1'300};
  std::map<std::uint64_t, std::set<std::uint64_t>> sessions_of;
  for (const Request& request : All(options)) {
    for (const std::uint64_t id : request.hash_ids) sessions_of[id].insert(*request.session);
  }
  std::uint64_t shared = 0;
  for (const auto& [id, sessions] : sessions_of) {
    if (sessions.size() < 2) continue;
    EXPECT_LT(id, 5u * 2);
    ++shared;
  }
  EXPECT_EQ(shared, 10u);
}

TEST(Generator, SessionsShareTheWholeBlocksOfTheirDocument) {
  const GeneratorOptions options{.sessions = 2'000,
                                 .turns = 2,
                                 .system = 2,
                                 .system_tokens = 1'300,
                                 .documents = 7,
                                 .document_tokens = 2'100};
  std::map<std::uint64_t, std::set<std::uint64_t>> sessions_of;
  for (const Request& request : All(options)) {
    EXPECT_GT(request.input_tokens, 2u * 512 + 4 * 512);
    EXPECT_EQ(request.hash_ids.size(), (request.input_tokens + kTraceBlockTokens - 1) / kTraceBlockTokens);
    for (const std::uint64_t id : request.hash_ids) sessions_of[id].insert(*request.session);
  }
  const auto shared = std::ranges::count_if(sessions_of, [](const auto& of) { return of.second.size() > 1; });
  EXPECT_EQ(shared, 2 * 2 + 2 * 7 * 4);
}

TEST(Generator, DocumentsInTurnComeRoundAndRound) {
  const GeneratorOptions options{.sessions = 50,
                                 .turns = 1,
                                 .system = 1,
                                 .system_tokens = 0,
                                 .documents = 10,
                                 .document_tokens = 512,
                                 .documents_in_turn = 1};
  std::uint64_t expected = 0;
  for (const Request& request : All(options)) EXPECT_EQ(request.hash_ids[0], expected++ % 10);
}

TEST(Generator, PopularityFallsWithItsSlope) {
  std::map<std::uint64_t, double> by_system;
  std::map<std::uint64_t, double> by_session;
  for (const Request& request :
       All({.sessions = 20'000, .turns = 4, .system = 8, .session_milli_zipf = 800})) {
    by_session[*request.session] += 1;
    if (by_session[*request.session] == 1) by_system[request.hash_ids[0] / 3] += 1;
  }
  // System prompt 0 against 3: 4^1. Session 0 against the 100th, beyond each one's first turn: 100^0.8.
  EXPECT_NEAR(std::log(by_system[0] / by_system[3]) / std::log(4), 1.0, 0.1);
  EXPECT_NEAR(std::log((by_session[0] - 1) / (by_session[99] - 1)) / std::log(100), 0.8, 0.1);
}

std::string Refusal(std::string_view text) {
  const Result<GeneratorOptions> options = ParseGeneratorOptions(text);
  return options ? "accepted" : std::string(options.error().message());
}

TEST(BadInput, GeneratorOptionsAreRefusedByName) {
  EXPECT_EQ(ParseGeneratorOptions("").value().sessions, 200u);
  const GeneratorOptions options =
      ParseGeneratorOptions(
          "think=1500ms,session_zipf=0.75,system_zipf=2,sessions=7,seed=18446744073709551615")
          .value();
  EXPECT_EQ(options.think_us, 1'500'000u);
  EXPECT_EQ(options.session_milli_zipf, 750u);
  EXPECT_EQ(options.system_milli_zipf, 2'000u);
  EXPECT_EQ(options.sessions, 7u);
  EXPECT_EQ(options.seed, ~std::uint64_t{0});
  EXPECT_EQ(Refusal("sesions=4"), "generated: unknown key sesions: did you mean sessions?");
  EXPECT_EQ(Refusal("sessions"), "generated: sessions is not of the form key=value, such as sessions=200");
  EXPECT_EQ(Refusal("sessions=0"), "generated: sessions: 0 is out of range: it must be from 1 to 1000000");
  EXPECT_EQ(Refusal("turns=2,turns=3"), "generated: turns is given twice: give it once");
  EXPECT_EQ(Refusal("think=20"), "generated: think: 20 has no unit: write 20ms (units: us, ms, s, min, h)");
  EXPECT_EQ(Refusal("think=25h"), "generated: think: 25h is out of range: it must be from 0us to 24h");
  for (const std::string_view bad : {"4.001", "-1", "1.2345", "1.", ".5", "", "x", "99999999999999999999"}) {
    EXPECT_NE(Refusal("system_zipf=" + std::string(bad)).find("is not a number from 0 to 4"),
              std::string::npos)
        << bad;
  }
  EXPECT_EQ(Refusal("sessions=1000000,turns=11"),
            "generated: sessions=1000000 times turns=11 is 11000000 requests and the limit is 10000000");
  EXPECT_EQ(
      Refusal("context=2000"),
      "generated: system_tokens=2000 leaves no room for a question in context=2000: make context larger "
      "or system_tokens smaller");
  EXPECT_EQ(Refusal("documents=3,document_tokens=32000"),
            "generated: system_tokens=2000 and document_tokens=32000 leave no room for a question in "
            "context=32768: make context larger or document_tokens smaller");
}

}  // namespace
}  // namespace cistern::workload
