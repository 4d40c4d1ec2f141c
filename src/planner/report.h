// SPDX-License-Identifier: Apache-2.0
// A plan as text for a terminal and as one JSON object.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/curve.h"
#include "planner/plan.h"

namespace cistern::planner {

struct Report {
  PlanInput input;
  Plan plan;
  std::optional<Curve> curve;
  std::vector<TierChoice> choices;  // the cheapest first
};

// Every figure with its formula and the numbers put in.
std::string ReportText(const Report& report);

// {"model": {...}, "sections": [{"key", "title", "figures": [{"key", "label", "value", "unit", "formula",
// "numbers"}], "notes"}], "crossover": [...], "curve": {...}, "choices": [...]}; curve and choices only with
// a trace. One line.
std::string ReportJson(const Report& report);

// "of the model, the GPU and the tiers, where their numbers are from", a line each.
std::vector<std::string> Sources(const Report& report);

}  // namespace cistern::planner
