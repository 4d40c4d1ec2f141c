// SPDX-License-Identifier: Apache-2.0
#include "planner/plan.h"

#include "base/format.h"
#include "base/units.h"
#include "planner/sections.h"

namespace cistern::planner {
namespace {

Status Between(std::string_view name, double value, double least, double most) {
  if (value >= least && value <= most) return Status();
  return Status(Code::kInvalid, Text(name, " is ", value, ": expected a number from ", least, " to ", most));
}

Status SecondsBetween(std::string_view name, double value, double least, double most) {
  if (value >= least && value <= most) return Status();
  const auto text = [](double s) {
    return s >= 0 && s <= 1e12 ? DurationText(static_cast<std::uint64_t>(s * 1e6)) : Text(s, "s");
  };
  return Status(Code::kInvalid,
                Text(name, " is ", text(value), ": expected ", text(least), " to ", text(most)));
}

Status Check(const PlanInput& input) {
  if (input.model.Bytes(input.context_tokens) <= 0)
    return Status(Code::kInvalid, Text("--context: ", input.context_tokens, " tokens of ", input.model.name,
                                       " keep nothing"));
  const struct {
    std::string_view name;
    double value, least, most;
  } ranges[] = {
      {"--usable-memory", input.usable_memory, 0.01, 1},
      {"--prefill-efficiency", input.prefill_efficiency, 0.001, 1},
      {"--prefill-rate", input.prefill_tokens_per_s.value_or(1), 1e-3, 1e9},
      {"--hit-rate", input.hit_rate.value_or(0), 0, 1},
      {"--rate", input.requests_per_s.value_or(1), 1e-6, 1e9},
      {"--monthly-cost", input.monthly_cost_usd.value_or(1), 0.01, 1e12},
      {"--api-price", input.api_usd_per_million_tokens.value_or(1), 1e-6, 1e6},
      {"--weight-bits", input.model.weight_bits, 1, 64},
  };
  for (const auto& range : ranges) {
    if (Status status = Between(range.name, range.value, range.least, range.most); !status.ok())
      return status;
  }
  if (Status status = SecondsBetween("--think", input.think_s, 0, 1e7); !status.ok()) return status;
  if (Status status = SecondsBetween("--busy", input.busy_s, 1e-3, 1e7); !status.ok()) return status;
  return CheckActive(input.model);
}

}  // namespace

const Figure* Plan::Find(std::string_view key) const {
  for (const Section& section : sections) {
    for (const Figure& figure : section.figures) {
      if (figure.key == key) return &figure;
    }
  }
  return nullptr;
}

Result<Plan> MakePlan(const PlanInput& input) {
  if (Status status = Check(input); !status.ok()) return Error(status);
  Result<Section> fit = Fit(input);
  if (!fit) return Error(fit.error());
  Plan plan;
  plan.sections = {KvSize(input),   std::move(*fit),  OffloadPays(input), Crossover(input),
                   ByGpu(input),    Bandwidth(input), Prefetch(input),    Concurrency(input),
                   TierCost(input), BuildOrApi(input)};
  plan.crossover = LoadOrCompute(input);
  return plan;
}

}  // namespace cistern::planner
