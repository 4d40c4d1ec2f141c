// SPDX-License-Identifier: Apache-2.0
#include "endpoint/plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/assert.h"
#include "base/format.h"
#include "workload/draw.h"

namespace cistern {
namespace {

constexpr std::uint32_t kSaltTokens = 8;

// The times of a Poisson process; without a rate everything is due at once.
class Arrivals {
 public:
  Arrivals(double rate, std::uint64_t seed)
      : draws_(SourceOf(seed, "arrivals", 0)),
        mean_us_(rate > 0 ? static_cast<std::uint64_t>(std::llround(1e6 / rate)) : 0) {}
  std::uint64_t Next() { return now_us_ += mean_us_ ? draws_.Exponential(mean_us_) : 0; }

 private:
  workload::Draws draws_;
  std::uint64_t mean_us_;
  std::uint64_t now_us_ = 0;
};

Status CheckCount(std::string_view what, std::uint64_t requests) {
  if (requests <= kMaxPlannedRequests) return Status();
  return Status(Code::kInvalid, Text(what, " are ", requests, " requests and the limit is ",
                                     kMaxPlannedRequests, ": set --requests"));
}

std::uint32_t Tokens(std::uint64_t count) { return static_cast<std::uint32_t>(count); }

}  // namespace

Result<Plan> PlanChat(const ChatShape& shape, std::uint64_t seed) {
  struct Place {  // of one user at a time
    std::uint64_t user = 0;
    std::uint64_t left = 0;  // rounds
    std::optional<std::uint32_t> last;
  };
  const std::uint64_t whole = shape.users * shape.rounds;
  const std::uint64_t total = shape.requests ? shape.requests : whole;
  if (Status status = CheckCount("users times rounds", total); !status.ok()) return Error(status);
  std::vector<Place> places(shape.users);
  std::vector<std::size_t> order(places.size());
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = 0; i < places.size(); ++i) {
    // Where users will be replaced, the first ones stay for fewer rounds, so that not all leave together.
    const std::uint64_t begun = total > whole ? i * shape.rounds / shape.users : 0;
    places[i] = {i, shape.rounds - begun, std::nullopt};
  }
  std::uint64_t users = shape.users;
  workload::Draws turns(SourceOf(seed, "turns", 0));
  Arrivals arrivals(shape.rate, seed);
  Plan plan{.in_flight = shape.users};
  plan.requests.reserve(total);
  while (plan.requests.size() < total) {
    // Each place asks once a turn, in an order of the turn's own.
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[turns.Below(i)]);
    for (const std::size_t at : order) {
      if (plan.requests.size() == total) break;
      Place& place = places[at];
      if (place.left == 0) place = {users++, shape.rounds, std::nullopt};
      const auto index = static_cast<std::uint32_t>(plan.requests.size());
      PlannedRequest request{.at_us = arrivals.Next(), .after = place.last};
      if (!place.last) {
        request.system.push_back({SourceOf(seed, "system", 0), Tokens(shape.system_tokens)});
        request.user.push_back({SourceOf(seed, "history", place.user), Tokens(shape.history_tokens)});
      }
      request.user.push_back({SourceOf(seed, "question", index), Tokens(shape.question_tokens)});
      request.answer_tokens = Tokens(shape.answer_tokens);
      plan.requests.push_back(std::move(request));
      place.last = index;
      --place.left;
    }
  }
  return plan;
}

Result<Plan> PlanLong(const LongShape& shape, std::uint64_t seed) {
  const std::uint64_t total = shape.requests * shape.repeat;
  if (Status status = CheckCount("requests times repeat", total); !status.ok()) return Error(status);
  Arrivals arrivals(shape.rate, seed);
  Plan plan{.in_flight = shape.in_flight};
  plan.requests.reserve(total);
  for (std::uint64_t i = 0; i < total; ++i) {
    PlannedRequest request{.at_us = arrivals.Next(), .answer_tokens = Tokens(shape.answer_tokens)};
    request.user.push_back({SourceOf(seed, "context", i % shape.requests), Tokens(shape.context_tokens)});
    plan.requests.push_back(std::move(request));
  }
  return plan;
}

Result<Plan> PlanTrace(const TraceShape& shape, workload::RequestSource& source, std::uint64_t seed) {
  Plan plan{.in_flight = shape.in_flight};
  workload::Request read;
  std::optional<std::uint64_t> begin_ms;
  while (shape.requests == 0 || plan.requests.size() < shape.requests) {
    const Result<bool> more = source.Next(read);
    if (!more) return Error(more.error());
    if (!*more) break;
    if (Status status = CheckCount("the trace's lines", plan.requests.size() + 1); !status.ok()) {
      return Error(status);
    }
    if (!begin_ms) begin_ms = read.timestamp_ms;
    const std::uint64_t since_ms = read.timestamp_ms - std::min(read.timestamp_ms, *begin_ms);
    PlannedRequest request{
        .at_us = static_cast<std::uint64_t>(static_cast<double>(since_ms) * 1e3 / shape.speed),
        .answer_tokens = std::max<std::uint32_t>(1, read.output_tokens)};
    std::uint32_t left = read.input_tokens;
    for (const std::uint64_t id : read.hash_ids) {
      const std::uint32_t tokens = std::min(left, workload::kTraceBlockTokens);
      request.user.push_back({SourceOf(seed, "block", id), tokens});
      left -= tokens;
    }
    // What the trace names no block for is nobody else's; an empty prompt is one that servers refuse.
    if (left > 0 || request.user.empty()) {
      request.user.push_back({SourceOf(seed, "rest", plan.requests.size()), std::max(left, 1u)});
    }
    plan.requests.push_back(std::move(request));
  }
  if (plan.requests.empty()) return Error(Code::kInvalid, "the trace has no request: give one with a line");
  return plan;
}

std::vector<Message> Conversation(const Plan& plan, std::uint32_t index, std::string_view salt,
                                  const std::vector<std::string>& answers) {
  std::vector<std::uint32_t> chain;
  for (std::optional<std::uint32_t> at = index; at; at = plan.requests[*at].after) chain.push_back(*at);
  std::vector<Message> messages;
  std::string before;
  if (!salt.empty()) AppendWords({SourceOf(salt), kSaltTokens}, before);
  const auto say = [&](std::string_view role, const std::vector<Passage>& passages) {
    std::string text = std::exchange(before, {});
    for (const Passage& passage : passages) AppendWords(passage, text);
    if (!text.empty()) messages.push_back({role, std::move(text)});
  };
  for (auto at = chain.rbegin(); at != chain.rend(); ++at) {
    const PlannedRequest& request = plan.requests[*at];
    if (std::ranges::any_of(request.system, [](const Passage& p) { return p.tokens > 0; })) {
      say("system", request.system);
    }
    say("user", request.user);
    if (*at == index) break;
    CISTERN_ASSERT(*at < answers.size());
    messages.push_back({"assistant", answers[*at]});
  }
  return messages;
}

std::string MadeUpAnswer(const Plan& plan, std::uint32_t index) {
  std::string answer;
  AppendWords({SourceOf(0, "answer", index), plan.requests[index].answer_tokens}, answer);
  return answer;
}

}  // namespace cistern
