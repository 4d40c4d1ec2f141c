// SPDX-License-Identifier: Apache-2.0
#include "endpoint/report.h"

#include <gtest/gtest.h>

#include "endpoint/figures.h"
#include "endpoint/page.h"
#include "endpoint/plot.h"

namespace cistern {
namespace {

RequestRecord Answered(std::int64_t sent_us, std::vector<std::int64_t> pieces_us, Usage usage) {
  RequestRecord record{.outcome = Outcome::kAnswered, .sent_us = sent_us, .usage = usage};
  record.end_us = pieces_us.back();
  record.pieces_us = std::move(pieces_us);
  return record;
}

RequestRecord Failed(FailureKind kind, std::string reason) {
  return {.outcome = Outcome::kFailed, .sent_us = 100, .end_us = 200, .failure = {kind, std::move(reason)}};
}

RunReport ReportOf(std::vector<RequestRecord> records) {
  return ReportOf("run", std::move(records), CacheCounters(), CacheCounters());
}

TEST(Report, PercentilesAreValuesThatOccurred) {
  std::vector<double> values;
  for (int i = 200; i >= 1; --i) values.push_back(i);
  const Percentiles of = PercentilesOf(values);
  EXPECT_EQ(of.p50, 100);
  EXPECT_EQ(of.p90, 180);
  EXPECT_EQ(of.p99, 198);
  EXPECT_EQ(PercentilesOf({7}).p99, 7);
  EXPECT_EQ(PercentilesOf({}).count, 0u);
}

TEST(Report, TimePerTokenCountsTheServersTokensAndNotPieces) {
  const RequestRecord record = Answered(1'000, {3'000, 4'000, 9'000}, {.output_tokens = 7});
  EXPECT_EQ(FirstTokenMs(record), 2);
  EXPECT_EQ(PerTokenMs(record), 1);
  EXPECT_EQ(PerTokenMs(Answered(0, {3'000, 9'000, 9'000}, {})), 3) << "not told: pieces";
  EXPECT_FALSE(PerTokenMs(Answered(0, {3'000}, {.output_tokens = 7}))) << "all in one piece tells nothing";
}

TEST(Report, OnlyAnsweredRequestsCountAndTheFirstReasonIsKept) {
  std::vector<RequestRecord> records;
  records.push_back(Answered(0, {1'000'000}, {.prompt_tokens = 10, .output_tokens = 1}));
  records.push_back(Answered(0, {2'000'000}, {.prompt_tokens = 30, .output_tokens = 1}));
  records.push_back(Failed(FailureKind::kStatus, "first"));
  records.push_back(Failed(FailureKind::kStatus, "second"));
  records.push_back(Failed(FailureKind::kTimeout, "slow"));
  records.push_back({.outcome = Outcome::kUnfinished});
  records.push_back({});
  const RunReport report = ReportOf(std::move(records));
  EXPECT_EQ(report.planned, 7u);
  EXPECT_EQ(report.answered, 2u);
  EXPECT_EQ(report.failed, 3u);
  EXPECT_EQ(report.unfinished, 1u);
  EXPECT_EQ(report.not_sent, 1u);
  EXPECT_EQ(report.first_token.p99, 2'000);
  EXPECT_EQ(report.prompt_tokens, 40u);
  EXPECT_EQ(report.seconds, 2);
  ASSERT_EQ(report.failures.size(), 2u);
  EXPECT_EQ(report.failures[0].kind, FailureKind::kTimeout);
  EXPECT_EQ(report.failures[1].first, "first");
  EXPECT_EQ(report.failures[1].count, 2u);
}

TEST(Report, WhatOneAnswerDoesNotTellIsNotToldOfAll) {
  std::vector<RequestRecord> records;
  records.push_back(Answered(0, {1}, {.prompt_tokens = 10, .output_tokens = 1, .cached_tokens = 10}));
  records.push_back(Answered(0, {1}, {.prompt_tokens = 10}));
  const RunReport report = ReportOf(std::move(records));
  EXPECT_EQ(report.prompt_tokens, 20u);
  EXPECT_FALSE(report.output_tokens);
}

TEST(Report, AnAnswerWithoutItsCachedTokensBesideOthersWithThemHadNone) {
  std::vector<RequestRecord> records;
  records.push_back(Answered(0, {1}, {.prompt_tokens = 10, .output_tokens = 1, .cached_tokens = 10}));
  records.push_back(Answered(0, {1}, {.prompt_tokens = 10, .output_tokens = 1}));
  EXPECT_EQ(ReportOf(std::move(records)).hits.share, 0.5);
  records = {};
  records.push_back(Answered(0, {1}, {.prompt_tokens = 10, .output_tokens = 1}));
  EXPECT_EQ(ReportOf(std::move(records)).hits.from, "not told");
}

// A report of nothing has no figure and no plot that is not a number.
TEST(Report, OfNothingAnswered) {
  std::vector<RequestRecord> records;
  records.push_back(Failed(FailureKind::kServer, "<script>alert(1)</script>"));
  Measurement measurement{.url = "http://h", .model = "<m>"};
  measurement.runs.push_back(ReportOf(std::move(records)));
  const Heading heading{.shape = "chat", .api = "chat", .when = "now"};
  const std::string page = PageHtml(heading, measurement);
  EXPECT_EQ(page.find("<script"), page.npos);
  EXPECT_EQ(page.find("<m>"), page.npos);
  for (const std::string& text : {TableText(heading, measurement), JsonText(heading, measurement)}) {
    EXPECT_EQ(text.find("nan"), text.npos) << text;
    EXPECT_EQ(text.find("inf"), text.npos) << text;
  }
}

TEST(Report, TheVerdictSaysHowMuchSoonerAndHowMuchLater) {
  std::vector<RunReport> runs;
  for (const auto& [name, us] :
       {std::pair("off", 800'000), std::pair("cold", 840'000), std::pair("warm", 80'000)}) {
    std::vector<RequestRecord> records;
    records.push_back(Answered(0, {us}, {}));
    runs.push_back(ReportOf(name, std::move(records), CacheCounters(), CacheCounters()));
  }
  EXPECT_EQ(Verdict(runs),
            "First token, median: off 800 ms, cold 840 ms, warm 80.0 ms: 10.0 times sooner than off, and at "
            "p90 10.0 times sooner.");
  std::swap(runs[0].name, runs[2].name);
  EXPECT_TRUE(Verdict(runs).ends_with("warm 800 ms: 10.0 times later than off, and at p90 10.0 times later."))
      << Verdict(runs);
  runs.pop_back();
  runs.pop_back();
  EXPECT_EQ(Verdict(runs), "");
}

TEST(Report, AxesHaveRoundNumbers) {
  EXPECT_EQ(Ticks({.low = 0, .high = 10}, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(Ticks({.low = 2, .high = 2'500, .logarithmic = true}, 5), (std::vector<double>{10, 100, 1'000}));
  EXPECT_EQ(Ticks({.low = 30, .high = 300, .logarithmic = true}, 5), (std::vector<double>{50, 100, 200}));
  const Axis axis = AxisFor("ms", {0, 3, 4});
  EXPECT_FALSE(axis.logarithmic);
  EXPECT_TRUE(AxisFor("ms", {1, 100}).logarithmic);
  EXPECT_LT(AxisFor("ms", {}).low, AxisFor("ms", {}).high);
  EXPECT_LT(AxisFor("ms", {5}).low, AxisFor("ms", {5}).high);
}

}  // namespace
}  // namespace cistern
