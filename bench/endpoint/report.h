// SPDX-License-Identifier: Apache-2.0
// What a run was like: from the record of each request to the figures that are shown.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "endpoint/answer.h"
#include "endpoint/counters.h"

namespace cistern {

enum class Outcome : std::uint8_t { kNotSent, kUnfinished, kFailed, kAnswered };

// One request. Times in microseconds since the run's begin.
struct RequestRecord {
  Outcome outcome = Outcome::kNotSent;
  bool held = false;  // it was due while its user, or the limit in flight, still had to wait for an answer
  std::int64_t sent_us = 0;
  std::int64_t end_us = 0;
  std::vector<std::int64_t> pieces_us;  // when each piece of the answer came
  Usage usage;
  Failure failure;  // kFailed only
};

// A value that occurred: the smallest that at least so many percent of them do not exceed.
struct Percentiles {
  std::size_t count = 0;
  double p50 = 0, p90 = 0, p99 = 0;
};
Percentiles PercentilesOf(std::vector<double> values);

struct FailureCount {
  FailureKind kind;
  std::uint64_t count = 0;
  std::string first;  // reason
};

struct RunReport {
  std::string name;  // "off", "cold", "warm", or "run"
  std::uint64_t planned = 0, answered = 0, failed = 0, unfinished = 0, not_sent = 0, held = 0;
  double seconds = 0;  // from the first request sent to the last answer's end
  // Of answered requests, milliseconds.
  Percentiles first_token, per_token, gap, whole;
  // As the server counted, nothing unless every answered request told; throughput follows from them.
  std::optional<std::uint64_t> prompt_tokens, output_tokens;
  std::uint64_t pieces = 0;
  Hits hits;
  std::vector<FailureCount> failures;  // by kind, those that occurred
  // Whether the engine's own prefix cache was emptied before; else why not. Nothing where that was not asked.
  std::optional<bool> engine_emptied;
  std::string engine_not_emptied_why;
  std::vector<RequestRecord> records;
};

RunReport ReportOf(std::string name, std::vector<RequestRecord> records, const CacheCounters& before,
                   const CacheCounters& after);

// Milliseconds to the first token, and per token after it (nothing for answers of one token).
double FirstTokenMs(const RequestRecord& record);
std::optional<double> PerTokenMs(const RequestRecord& record);

}  // namespace cistern
