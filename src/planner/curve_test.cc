// SPDX-License-Identifier: Apache-2.0
#include "planner/curve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "workload/trace.h"

namespace cistern::planner {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kWorkload = "generated:sessions=40,turns=5,seed=3";

OpenWorkload Generated() {
  return [] { return workload::OpenRequests(kWorkload); };
}

OpenWorkload Lines(std::string text) {
  return [text]() -> Result<std::unique_ptr<workload::RequestSource>> {
    std::FILE* file = std::tmpfile();
    std::fwrite(text.data(), 1, text.size(), file);
    std::rewind(file);
    return std::make_unique<workload::TraceReader>(file, "mine.jsonl");
  };
}

std::string Refusal(std::string text) {
  const Result<Curve> curve =
      MeasureCurve(Lines(std::move(text)), workload::SimPolicy::kLru, 4, std::nullopt);
  return curve ? "accepted" : std::string(curve.error().message());
}

std::string Line(int timestamp, std::string_view ids) {
  return "{\"timestamp\": " + std::to_string(timestamp) +
         ", \"input_length\": 1024, \"output_length\": 1, \"hash_ids\": [" + std::string(ids) + "]}\n";
}

Medium Priced(std::string name, double gb_per_s, double price) {
  return {.name = std::move(name), .bytes_per_s = gb_per_s * 1e9, .price_low = price, .price_high = price};
}

TEST(Curve, EachPointIsTheSimulatorsOwn) {
  const Result<Curve> curve = MeasureCurve(Generated(), workload::SimPolicy::kLru, 9, std::nullopt);
  ASSERT_TRUE(curve) << curve.error().message();
  EXPECT_TRUE(std::ranges::is_sorted(curve->points, {}, &CurvePoint::blocks));
  EXPECT_EQ(curve->points.back().blocks, curve->distinct);
  for (const CurvePoint& point : curve->points) {
    const auto source = workload::OpenRequests(kWorkload);
    const auto alone = workload::Simulate(**source, workload::SimPolicy::kLru, point.blocks);
    EXPECT_EQ(point.hits, alone->hits) << point.blocks;
  }
}

TEST(Curve, SmallestSizeForAHitRateKnownToOneIn200) {
  const Result<Curve> curve = MeasureCurve(Generated(), workload::SimPolicy::kLru, 5, 0.5);
  ASSERT_TRUE(curve) << curve.error().message();
  const CurvePoint* point = curve->Reaching(0.5);
  ASSERT_NE(point, nullptr);
  ASSERT_NE(point, curve->points.data());
  EXPECT_LT(curve->hit_rate(point[-1]), 0.5);
  EXPECT_LE(point->blocks - point[-1].blocks, std::max<std::uint64_t>(1, point->blocks / 200));
}

TEST(Curve, BusiestMinuteAndSpan) {
  const Result<Curve> curve =
      MeasureCurve(Lines(Line(0, "1,2") + Line(59'000, "1,2") + Line(119'000, "3,4") + Line(200'000, "5")),
                   workload::SimPolicy::kLru, 4, std::nullopt);
  ASSERT_TRUE(curve) << curve.error().message();
  EXPECT_EQ(curve->span_s, 200);
  EXPECT_EQ(curve->peak_accesses_per_s, 4.0 / 60);
  EXPECT_EQ(curve->distinct, 5u);
}

Curve Made() {
  return {.requests = 100,
          .accesses = 1000,
          .distinct = 400,
          .span_s = 60,
          .peak_accesses_per_s = 100,
          .points = {{50, 300}, {100, 500}, {200, 700}, {400, 800}}};
}

TEST(CheapestTiers, ASlowCheapTierAloneWhereItCarriesAllHits) {
  const SizingInput input{
      .wanted = 0.7, .block_bytes = 1e6, .media = {Priced("dram", 50, 10), Priced("flash", 0.08, 0.5)}};
  const auto choices = CheapestTiers(Made(), input);
  ASSERT_TRUE(choices) << choices.error().message();
  EXPECT_EQ(choices->front().upper, "");
  EXPECT_EQ(choices->front().lower, "flash");
  EXPECT_EQ(choices->front().lower_blocks, 200u);
  EXPECT_NEAR(choices->front().usd_per_month, 0.2 * 0.5 / 36, 1e-12);
  EXPECT_NEAR(choices->front().lower_bytes_per_s, 0.7 * 100 * 1e6, 1e-3);
}

TEST(CheapestTiers, UpperTierJustLargeEnoughForWhatTheLowerCannotRead) {
  // Hits take 70 MB/s; flash has 25, so at most 25 of the 70 points may come from it: 45 from above need 100
  // blocks.
  const SizingInput input{
      .wanted = 0.7, .block_bytes = 1e6, .media = {Priced("dram", 50, 10), Priced("flash", 0.025, 0.5)}};
  const auto choices = CheapestTiers(Made(), input);
  ASSERT_TRUE(choices) << choices.error().message();
  EXPECT_EQ(choices->front().upper, "dram");
  EXPECT_EQ(choices->front().upper_blocks, 100u);
  EXPECT_EQ(choices->front().lower_blocks, 200u);
  EXPECT_NEAR(choices->front().usd_per_month, (0.2 * 0.5 + 0.1 * 10) / 36, 1e-12);
  EXPECT_TRUE(std::ranges::is_sorted(*choices, {}, &TierChoice::usd_per_month));
  EXPECT_EQ(choices->back().lower, "dram");  // alone: it needs nothing above it
  EXPECT_EQ(choices->size(), 2u);
}

TEST(CurveBadInput, HitRateThatNoSizeReachesSaysTheMost) {
  const auto choices =
      CheapestTiers(Made(), {.wanted = 0.9, .block_bytes = 1, .media = {Priced("flash", 1, 1)}});
  ASSERT_FALSE(choices);
  EXPECT_THAT(std::string(choices.error().message()), HasSubstr("80 %"));
}

TEST(CurveBadInput, TiersWithoutAPriceOrTheBandwidth) {
  const auto unpriced = CheapestTiers(Made(), {.wanted = 0.5, .block_bytes = 1, .media = {{.name = "peer"}}});
  EXPECT_THAT(std::string(unpriced.error().message()), HasSubstr("none of the tiers has a price"));
  const auto slow =
      CheapestTiers(Made(), {.wanted = 0.5, .block_bytes = 1e6, .media = {Priced("tape", 0.001, 1)}});
  EXPECT_THAT(std::string(slow.error().message()), HasSubstr("50 MB/s"));
}

TEST(CurveBadInput, TraceThatEndsMidLineNamesTheLine) {
  const std::string text = Line(0, "1") + Line(1, "1,2");
  EXPECT_THAT(Refusal(text.substr(0, text.size() - 8)), HasSubstr("mine.jsonl:2: is not JSON"));
}

TEST(CurveBadInput, TraceThatGoesBackInTimeNamesTheLine) {
  EXPECT_THAT(Refusal(Line(5, "1") + Line(9, "1") + Line(8, "2")),
              HasSubstr("mine.jsonl:3: timestamp is 8, before the 9 of the request before it"));
}

TEST(CurveBadInput, TraceWithoutABlock) {
  EXPECT_THAT(Refusal(Line(0, "")), HasSubstr("1 requests and no block"));
  EXPECT_THAT(Refusal(""), HasSubstr("0 requests and no block"));
}

}  // namespace
}  // namespace cistern::planner
