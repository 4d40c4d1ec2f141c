// SPDX-License-Identifier: Apache-2.0
// A workload made up from a seed: people or agents talk with a model in sessions of several turns. A session
// begins with one of a few shared system prompts, and with one of a few shared documents if there are any;
// each turn's input is all that was said before in it, answers included, and a new question. The same options
// give the same requests on every machine.
#pragma once

#include <cstdint>
#include <queue>
#include <string_view>
#include <utility>
#include <vector>

#include "cistern/status.h"
#include "workload/draw.h"
#include "workload/request.h"

namespace cistern::workload {

// Lengths and think times are exponential around their means; a length is from 1 to 8 times its mean.
struct GeneratorOptions {
  std::uint64_t sessions = 200;
  std::uint64_t turns = 8;              // mean of a session; each has at least one
  std::uint64_t system = 4;             // how many system prompts there are
  std::uint64_t system_tokens = 2'000;  // length of each; shared are its whole blocks
  std::uint64_t user_tokens = 300;      // mean of a question
  std::uint64_t output_tokens = 200;    // mean of an answer
  std::uint64_t context = 32'768;       // most tokens of an input: a session that would pass it starts afresh
  std::uint64_t think_us = 20'000'000;  // mean from an answer to the next question
  std::uint64_t span_us = 600'000'000;  // sessions begin evenly within it
  std::uint64_t system_milli_zipf = 1'000;    // how unevenly sessions choose system prompts, in thousandths
  std::uint64_t session_milli_zipf = 500;     // how unevenly turns fall to sessions, in thousandths
  std::uint64_t documents = 0;                // how many documents there are
  std::uint64_t document_tokens = 8'192;      // length of each; shared are its whole blocks
  std::uint64_t document_milli_zipf = 1'000;  // how unevenly sessions choose documents, in thousandths
  std::uint64_t documents_in_turn = 0;        // 1: they do not choose, each takes the next, round and round
  std::uint64_t seed = 1;
};

// "sessions=200,turns=8,system=4,system_tokens=2000,user_tokens=300,output_tokens=200,context=32768,think=20s,
// span=10min,system_zipf=1,session_zipf=0.5,documents=0,document_tokens=8192,document_zipf=1,in_turn=0,seed=1",
// any of them in any order; "" gives the defaults above.
// kInvalid names an unknown key (with the nearest one), a value and its limits.
Result<GeneratorOptions> ParseGeneratorOptions(std::string_view text);

// Requests in the order of their timestamps, turns * sessions of them. `session` counts from 0, the busiest
// first.
class Generator final : public RequestSource {
 public:
  // `options` as ParseGeneratorOptions lets them pass.
  explicit Generator(const GeneratorOptions& options);

  Result<bool> Next(Request& request) override;

 private:
  struct Session {
    std::uint64_t head = 0;               // id of its document's first block behind the system prompt's
    std::uint64_t system = 0;             // its system prompt
    std::uint64_t turns = 1;              // left
    std::uint64_t tokens = 0;             // said so far
    std::vector<std::uint64_t> hash_ids;  // of the whole blocks behind what is shared
  };
  using Turn = std::pair<std::uint64_t, std::uint64_t>;  // when, in us, and whose

  void ChooseDocuments();
  std::uint64_t Length(std::uint64_t mean);

  const GeneratorOptions options_;
  const std::uint64_t system_blocks_;
  const std::uint64_t document_blocks_;  // 0 without documents
  const std::uint64_t head_tokens_;      // of system prompt and document
  Draws random_;
  std::vector<Session> sessions_;
  std::priority_queue<Turn, std::vector<Turn>, std::greater<>> turns_;
  std::uint64_t next_hash_id_;
};

}  // namespace cistern::workload
