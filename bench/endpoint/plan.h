// SPDX-License-Identifier: Apache-2.0
// What is asked, when and in what order: decided before the first request leaves, so that several runs do
// the same work. Pure: a plan follows from its options.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cistern/status.h"
#include "endpoint/words.h"
#include "workload/request.h"

namespace cistern {

inline constexpr std::uint64_t kMaxPlannedRequests = 100'000;
inline constexpr std::uint64_t kMaxPlannedTokens = 4u << 20;  // of one passage
inline constexpr std::uint64_t kMaxInFlight = 1'000;

// Users talk with a model, each `rounds` times in a row; everything said before goes along. All share one
// system prompt. Who has asked all rounds leaves, and a new user comes.
struct ChatShape {
  std::uint64_t users = 8;  // at a time
  std::uint64_t rounds = 5;
  std::uint64_t system_tokens = 1'000;   // shared by all users
  std::uint64_t history_tokens = 2'000;  // of one user, before the first question
  std::uint64_t question_tokens = 32;
  std::uint64_t answer_tokens = 64;
  std::uint64_t requests = 0;  // 0: users * rounds
  double rate = 1.0;           // requests a second, Poisson; 0: a user asks again once answered
};

// Long prompts with nothing in common, then all of them again, `repeat` times in all.
struct LongShape {
  std::uint64_t context_tokens = 8'000;
  std::uint64_t requests = 8;  // different ones
  std::uint64_t repeat = 2;
  std::uint64_t answer_tokens = 16;
  std::uint64_t in_flight = 1;  // at most
  double rate = 0;              // requests a second, Poisson; 0: the next once one is answered
};

// A trace's requests at its times, `speed` times as fast. A block's hash id stands for one text.
struct TraceShape {
  std::uint64_t requests = 0;  // the first so many; 0: all
  double speed = 1.0;
  std::uint64_t in_flight = 256;  // at most
};

struct PlannedRequest {
  std::uint64_t at_us = 0;             // since the run's begin; not before
  std::optional<std::uint32_t> after;  // the request whose answer it goes on from: not before that ended
  std::vector<Passage> system;         // only where `after` is nothing
  std::vector<Passage> user;
  std::uint32_t answer_tokens = 1;
};

struct Plan {
  std::vector<PlannedRequest> requests;  // `after` names an earlier one, each at most once
  std::uint64_t in_flight = 1;           // at most at a time
};

// kInvalid: more requests than kMaxPlannedRequests.
Result<Plan> PlanChat(const ChatShape& shape, std::uint64_t seed);
Result<Plan> PlanLong(const LongShape& shape, std::uint64_t seed);
// Reads `source` to its end or to shape.requests. Errors are its own; kInvalid also where it has no request.
Result<Plan> PlanTrace(const TraceShape& shape, workload::RequestSource& source, std::uint64_t seed);

struct Message {
  std::string_view role;  // "system", "user", "assistant"
  std::string text;
};

// What request `index` says. `answers` has the texts of those that it goes on from. A salt that is not empty
// stands before everything else as words, so that no cache knows the prompt from elsewhere.
std::vector<Message> Conversation(const Plan& plan, std::uint32_t index, std::string_view salt,
                                  const std::vector<std::string>& answers);

// Stands for an answer that never came, as long as the planned one.
std::string MadeUpAnswer(const Plan& plan, std::uint32_t index);

}  // namespace cistern
