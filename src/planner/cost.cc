// SPDX-License-Identifier: Apache-2.0
// What it costs: hardware against an API, and a byte on each tier.
#include "base/format.h"
#include "planner/sections.h"

namespace cistern::planner {
namespace {

constexpr double kGB = 1e9;
constexpr double kDays = 30;  // of a month

}  // namespace

double BreakEvenTokens(double monthly_cost_usd, double api_usd_per_million_tokens) {
  return monthly_cost_usd / api_usd_per_million_tokens * 1e6;
}

Section BuildOrApi(const PlanInput& input) {
  Section section{.key = "build_or_api", .title = "Hardware of one's own against an API"};
  if (!input.monthly_cost_usd || !input.api_usd_per_million_tokens) {
    section.notes.push_back("Give --monthly-cost and --api-price (USD per million tokens) to compare");
    return section;
  }
  const double month = BreakEvenTokens(*input.monthly_cost_usd, *input.api_usd_per_million_tokens);
  const double day = month / kDays;
  const auto each = static_cast<double>(input.request_tokens);
  section.figures = {
      {"break_even_tokens_per_month", "tokens a month from which one's own is cheaper", month, "tokens",
       "monthly cost / price of a million tokens x 1,000,000",
       Text(NumberText(*input.monthly_cost_usd), " USD / ", NumberText(*input.api_usd_per_million_tokens),
            " USD x 1,000,000")},
      {"break_even_tokens_per_day", "the same a day", day, "tokens", "a month / 30",
       Text(NumberText(month), " / 30")},
      {"break_even_requests_per_day", Text("requests a day of ", NumberText(each), " tokens"), day / each,
       "requests", "a day / tokens of a request", Text(NumberText(day), " / ", NumberText(each))}};
  section.notes.push_back(
      "That many tokens must really be served by the hardware: compare with what its GPUs reach");
  return section;
}

Section TierCost(const PlanInput& input) {
  Section section{.key = "cost", .title = "Cost by tier"};
  const double need = static_cast<double>(input.sessions) * input.model.Bytes(input.context_tokens);
  for (const Tier& tier : input.tiers) {
    const Medium& medium = tier.medium;
    const double bytes = tier.bytes.value_or(need);
    const std::string what = Text(QuantityText(bytes, "B"), " of ", medium.name);
    if (medium.price_low && medium.price_high) {
      for (const bool high : {false, true}) {
        const double price = high ? *medium.price_high : *medium.price_low;
        section.figures.push_back({Text(medium.name, high ? "_usd_high" : "_usd_low"),
                                   Text(what, high ? ", at most" : ", at least"), bytes / kGB * price, "USD",
                                   "GB x price of a GB",
                                   Text(NumberText(bytes / kGB), " GB x ", NumberText(price), " USD")});
      }
    }
    if (medium.rent_per_gb_month) {
      section.figures.push_back(
          {Text(medium.name, "_usd_per_month"), Text(what, ", a month"),
           bytes / kGB * *medium.rent_per_gb_month, "USD", "GB x rent of a GB",
           Text(NumberText(bytes / kGB), " GB x ", NumberText(*medium.rent_per_gb_month), " USD")});
    }
    section.notes.push_back(Text(medium.name, ": ", medium.source, " (", medium.date, ")"));
  }
  return section;
}

}  // namespace cistern::planner
