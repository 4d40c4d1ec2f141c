// SPDX-License-Identifier: Apache-2.0
#include "planner/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "planner/report.h"

namespace cistern::planner {
namespace {

using ::testing::HasSubstr;

constexpr double kWithin = 1e-3;  // of the value

PlanInput For(std::string_view model) {
  const Tables tables = Tables::BuiltIn();
  return {.model = *tables.FindModel(model, 16),
          .tiers = {{*tables.FindMedium("flash"), std::nullopt}, {*tables.FindMedium("dram"), 1e12}}};
}

double Value(const PlanInput& input, std::string_view key) {
  const Result<Plan> plan = MakePlan(input);
  EXPECT_TRUE(plan) << plan.error().message();
  const Figure* figure = plan ? plan->Find(key) : nullptr;
  EXPECT_NE(figure, nullptr) << key;
  return figure ? figure->value : std::nan("");
}

std::string Refusal(const PlanInput& input) {
  const Result<Plan> plan = MakePlan(input);
  return plan ? "accepted" : std::string(plan.error().message());
}

TEST(PlanVector, Llama3_70B4096TokensAt14GBPerSecond) {
  PlanInput input = For("Llama-3-70B");
  input.context_tokens = 4'096;
  input.tiers[0].medium.latency_s = 0;
  EXPECT_NEAR(Value(input, "kv_session_bytes"), 1.342e9, 1.342e9 * kWithin);
  EXPECT_NEAR(Value(input, "flash_load_s"), 95.9e-3, 95.9e-3 * kWithin);
}

TEST(PlanVector, InflectionAtHalfTheWeights) {
  EXPECT_NEAR(InflectionTokens(70e9, 327'680), 106.8e3, 106.8e3 * kWithin);
  EXPECT_NEAR(InflectionTokens(70e9, 320'000), 109'375, 109'375 * kWithin);
  PlanInput input = For("Llama-3-70B");
  input.model.parameters = input.model.active_parameters = 70e9;
  input.model.weight_bits = 8;
  EXPECT_NEAR(Value(input, "inflection_tokens"), 106.8e3, 106.8e3 * kWithin);
}

TEST(PlanVector, HardwareAgainstAnApi) {
  PlanInput input = For("Llama-3-70B");
  input.monthly_cost_usd = 1.17e6;
  input.api_usd_per_million_tokens = 0.87;
  input.request_tokens = 10'000;
  EXPECT_NEAR(Value(input, "break_even_tokens_per_month"), 1.345e12, 1.345e12 * kWithin);
  EXPECT_NEAR(Value(input, "break_even_tokens_per_day"), 44.8e9, 44.8e9 * kWithin);
  EXPECT_NEAR(Value(input, "break_even_requests_per_day"), 4.48e6, 4.48e6 * kWithin);
}

TEST(PlanVector, OneTerabyteOfHbmAndOfFlash) {
  const Tables tables = Tables::BuiltIn();
  PlanInput input = For("Llama-3-70B");
  input.tiers = {{*tables.FindMedium("hbm"), 1e12}, {*tables.FindMedium("flash"), 1e12}};
  EXPECT_NEAR(Value(input, "hbm_usd_low"), 15'000, 15);
  EXPECT_NEAR(Value(input, "hbm_usd_high"), 40'000, 40);
  EXPECT_NEAR(Value(input, "flash_usd_low"), 300, 0.3);
  EXPECT_NEAR(Value(input, "flash_usd_high"), 500, 0.5);
}

TEST(Plan, ComputingGrowsWithTheSquareOfThePrompt) {
  PlanInput input = For("Llama-3-8B");
  input.gpu = *Tables::BuiltIn().FindGpu("H100-80GB");
  const Model& model = input.model;
  const double linear = 2 * *model.active_parameters * 8192;
  // 32 layers, 32 heads of 128: 4 x heads x dim operations a pair.
  const double square = 32.0 * 4 * 32 * 128 * (8192.0 * 8193 / 2);
  EXPECT_DOUBLE_EQ(model.PrefillFlops(0, 8192), linear + square);
  EXPECT_DOUBLE_EQ(model.PrefillFlops(0, 4096) + model.PrefillFlops(4096, 8192), model.PrefillFlops(0, 8192));
  EXPECT_DOUBLE_EQ(*ComputeSeconds(input, 0, 8192), (linear + square) / (989e12 * 0.5));
}

TEST(Plan, WindowBoundsTheSquare) {
  EXPECT_EQ(Pairs(0, 4, 0), 10);
  EXPECT_EQ(Pairs(0, 4, 2), 1 + 2 + 2 + 2);
  EXPECT_EQ(Pairs(3, 4, 2), 2);
}

TEST(Plan, MeasuredRateReplacesTheArithmetic) {
  PlanInput input = For("Llama-3-8B");
  EXPECT_FALSE(ComputeSeconds(input, 0, 1000));
  input.prefill_tokens_per_s = 10'000;
  EXPECT_DOUBLE_EQ(*ComputeSeconds(input, 1000, 3000), 0.2);
  EXPECT_DOUBLE_EQ(Value(input, "break_even_bytes_per_s"), 131'072 * 10'000.0);
}

TEST(Plan, GpusSideBySide) {
  PlanInput input = For("Llama-3-8B");
  input.compared = Tables::BuiltIn().gpus;
  input.prefill_tokens_per_s = 10'000;  // of none of them
  const double flops = input.model.PrefillFlops(0, input.context_tokens);
  EXPECT_DOUBLE_EQ(Value(input, "A100-80GB_compute_s"), flops / (312e12 * 0.5));
  EXPECT_DOUBLE_EQ(Value(input, "L4-24GB_break_even_bytes_per_s"),
                   32'768 * 131'072.0 / (flops / (121e12 * 0.5)));
}

TEST(Plan, GpuThatCannotHoldTheWeightsHasNoFigure) {
  PlanInput input = For("Llama-3-70B");
  input.compared = Tables::BuiltIn().gpus;
  const Result<Plan> plan = MakePlan(input);
  ASSERT_TRUE(plan) << plan.error().message();
  EXPECT_EQ(plan->Find("H100-80GB_compute_s"), nullptr);
  EXPECT_NE(plan->Find("MI300X-192GB_compute_s"), nullptr);
  EXPECT_THAT(ReportText({.input = input, .plan = *plan}),
              HasSubstr("1 x H100-80GB cannot hold the weights"));
}

TEST(Plan, ConcurrencyWithAndWithoutOffload) {
  PlanInput input = For("Llama-3-8B");
  input.gpu = *Tables::BuiltIn().FindGpu("H100-80GB");
  const double session = 32'768 * 131'072.0;
  const double resident = std::floor((80e9 * 0.9 - 8.03e9 * 2) / session);
  EXPECT_EQ(Value(input, "sessions_without_offload"), resident);
  EXPECT_EQ(Value(input, "sessions_with_offload"), std::floor(resident * 40 / 10));
  EXPECT_EQ(Value(input, "flash_sessions_by_bandwidth"), std::floor(14e9 * 40 / session));
  EXPECT_EQ(Value(input, "dram_sessions"), std::floor(1e12 / session));
}

TEST(Plan, BandwidthOfALoadOfOnesOwn) {
  PlanInput input = For("Llama-3-8B");
  input.prefill_tokens_per_s = 10'000;
  input.hit_rate = 0.75;
  input.requests_per_s = 2;
  const double session = 32'768 * 131'072.0;
  EXPECT_DOUBLE_EQ(Value(input, "load_bytes_per_s"), 2 * 0.75 * session);
  EXPECT_DOUBLE_EQ(Value(input, "store_bytes_per_s"), 2 * 0.25 * session);
  EXPECT_DOUBLE_EQ(Value(input, "hidden_bytes_per_s"), 0.75 * session / (0.25 * 32'768 / 10'000));
}

TEST(Plan, EveryFigureShowsItsFormulaAndItsNumbers) {
  PlanInput input = For("GPT-OSS-120B");
  input.gpu = *Tables::BuiltIn().FindGpu("H100-80GB");
  input.gpus = 2;
  input.compared = Tables::BuiltIn().gpus;
  input.hit_rate = 0.5;
  input.requests_per_s = 1;
  input.monthly_cost_usd = 1;
  input.api_usd_per_million_tokens = 1;
  const Result<Plan> plan = MakePlan(input);
  ASSERT_TRUE(plan) << plan.error().message();
  EXPECT_EQ(plan->sections.size(), 10u);
  for (const Section& section : plan->sections) {
    EXPECT_FALSE(section.figures.empty()) << section.key;
    for (const Figure& figure : section.figures) {
      EXPECT_FALSE(figure.formula.empty() || figure.numbers.empty()) << figure.key;
      EXPECT_TRUE(std::isfinite(figure.value)) << figure.key;
    }
  }
  const std::string text = ReportText({.input = input, .plan = *plan});
  EXPECT_THAT(text, HasSubstr("2 x 8 heads x 64 x 2 B x 18 layers + 2 x 8 heads x 64 x 2 B x 18 layers"));
  EXPECT_THAT(text, HasSubstr("min(32,768, 128)"));
}

TEST(Plan, WhatIsNotKnownIsSaidAndNotMadeUp) {
  PlanInput input = For("Llama-3-8B");
  input.model.parameters.reset();
  input.model.active_parameters.reset();
  input.gpu = *Tables::BuiltIn().FindGpu("H100-80GB");
  const Result<Plan> plan = MakePlan(input);
  ASSERT_TRUE(plan) << plan.error().message();
  EXPECT_EQ(plan->Find("weight_bytes"), nullptr);
  EXPECT_EQ(plan->Find("compute_s"), nullptr);
  EXPECT_EQ(plan->Find("inflection_tokens"), nullptr);
  EXPECT_TRUE(plan->crossover.empty());
  const std::string text = ReportText({.input = input, .plan = *plan});
  EXPECT_THAT(text, HasSubstr("give --parameters"));
  EXPECT_THAT(text, HasSubstr("--active-parameters"));
}

TEST(PlanBadInput, FleetThatCannotHoldItsWeights) {
  PlanInput input = For("Llama-3-70B");
  input.gpu = *Tables::BuiltIn().FindGpu("H100-80GB");
  input.gpus = 1;
  const std::string refusal = Refusal(input);
  EXPECT_THAT(refusal, HasSubstr("141.2 GB"));
  EXPECT_THAT(refusal, HasSubstr("1 x H100-80GB have room for 72 GB"));
  EXPECT_THAT(refusal, HasSubstr("--gpus 2"));
  input.gpus = 2;
  EXPECT_EQ(Refusal(input), "accepted");
}

TEST(PlanBadInput, ValueOutOfRangeIsNamed) {
  PlanInput input = For("Llama-3-8B");
  input.hit_rate = 1.5;
  EXPECT_THAT(Refusal(input), HasSubstr("--hit-rate is 1.5: expected a number from 0 to 1"));
  input = For("Llama-3-8B");
  input.api_usd_per_million_tokens = -1;
  EXPECT_THAT(Refusal(input), HasSubstr("--api-price is -1"));
  input = For("Llama-3-8B");
  input.think_s = std::nan("");
  EXPECT_THAT(Refusal(input), HasSubstr("--think is nans"));
  input.think_s = 1e300;
  EXPECT_THAT(Refusal(input), HasSubstr("--think is 1e+300s"));
  input = For("Llama-3-8B");
  input.context_tokens = 0;
  EXPECT_THAT(Refusal(input), HasSubstr("--context"));
}

}  // namespace
}  // namespace cistern::planner
