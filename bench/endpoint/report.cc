// SPDX-License-Identifier: Apache-2.0
#include "endpoint/report.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace cistern {
namespace {

double Ms(std::int64_t us) { return static_cast<double>(us) / 1e3; }

struct Sum {
  std::uint64_t sum = 0;
  std::size_t told = 0, untold = 0;  // answers
};

Sum SumOf(const std::vector<RequestRecord>& records, std::optional<std::uint64_t> Usage::* count) {
  Sum sum;
  for (const RequestRecord& record : records) {
    if (record.outcome != Outcome::kAnswered) continue;
    sum.sum += (record.usage.*count).value_or(0);
    ++(record.usage.*count ? sum.told : sum.untold);
  }
  return sum;
}

// Nothing where an answer did not tell.
std::optional<std::uint64_t> OfAll(const Sum& sum) {
  return sum.told > 0 && sum.untold == 0 ? std::optional(sum.sum) : std::nullopt;
}

void CountOutcomes(RunReport& report) {
  std::array<FailureCount, kFailureKinds> failures{};
  std::int64_t begin_us = INT64_MAX, end_us = 0;
  for (const RequestRecord& record : report.records) {
    report.held += record.held;
    switch (record.outcome) {
      case Outcome::kNotSent: ++report.not_sent; continue;
      case Outcome::kUnfinished: ++report.unfinished; break;
      case Outcome::kAnswered: ++report.answered; break;
      case Outcome::kFailed: {
        ++report.failed;
        FailureCount& count = failures[static_cast<std::size_t>(record.failure.kind)];
        count.kind = record.failure.kind;
        if (count.count++ == 0) count.first = record.failure.reason;
      }
    }
    begin_us = std::min(begin_us, record.sent_us);
    end_us = std::max(end_us, record.end_us);
  }
  if (end_us > begin_us) report.seconds = static_cast<double>(end_us - begin_us) / 1e6;
  for (FailureCount& count : failures) {
    if (count.count > 0) report.failures.push_back(std::move(count));
  }
}

}  // namespace

Percentiles PercentilesOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const auto at = [&](double percent) {
    const double rank = std::ceil(percent / 100 * static_cast<double>(values.size()));
    return values[static_cast<std::size_t>(std::max(rank, 1.0)) - 1];
  };
  return {values.size(), at(50), at(90), at(99)};
}

double FirstTokenMs(const RequestRecord& record) { return Ms(record.pieces_us.front() - record.sent_us); }

std::optional<double> PerTokenMs(const RequestRecord& record) {
  const std::uint64_t tokens = record.usage.output_tokens.value_or(record.pieces_us.size());
  if (tokens < 2 || record.pieces_us.size() < 2) return std::nullopt;
  return Ms(record.pieces_us.back() - record.pieces_us.front()) / static_cast<double>(tokens - 1);
}

RunReport ReportOf(std::string name, std::vector<RequestRecord> records, const CacheCounters& before,
                   const CacheCounters& after) {
  RunReport report{.name = std::move(name), .planned = records.size(), .records = std::move(records)};
  CountOutcomes(report);
  std::vector<double> first, per, gaps, whole;
  for (const RequestRecord& record : report.records) {
    if (record.outcome != Outcome::kAnswered) continue;
    first.push_back(FirstTokenMs(record));
    if (const std::optional<double> ms = PerTokenMs(record)) per.push_back(*ms);
    for (std::size_t i = 1; i < record.pieces_us.size(); ++i) {
      gaps.push_back(Ms(record.pieces_us[i] - record.pieces_us[i - 1]));
    }
    whole.push_back(Ms(record.end_us - record.sent_us));
    report.pieces += record.pieces_us.size();
  }
  report.first_token = PercentilesOf(std::move(first));
  report.per_token = PercentilesOf(std::move(per));
  report.gap = PercentilesOf(std::move(gaps));
  report.whole = PercentilesOf(std::move(whole));
  report.prompt_tokens = OfAll(SumOf(report.records, &Usage::prompt_tokens));
  report.output_tokens = OfAll(SumOf(report.records, &Usage::output_tokens));
  std::optional<HitSource> usage;
  // SGLang and vLLM, told to tell it, leave it out of an answer of which nothing was cached.
  const Sum cached = SumOf(report.records, &Usage::cached_tokens);
  if (cached.told > 0 && report.prompt_tokens) {
    usage = {"usage", static_cast<double>(*report.prompt_tokens), static_cast<double>(cached.sum)};
  }
  report.hits = ShareOf(usage, before, after);
  return report;
}

}  // namespace cistern
