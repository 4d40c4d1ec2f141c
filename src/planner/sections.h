// SPDX-License-Identifier: Apache-2.0
// The sections of a plan. Each appends what the input lets it say, and a note of what it lacks for the rest.
#pragma once

#include "planner/plan.h"

namespace cistern::planner {

// capacity.cc
Section KvSize(const PlanInput& input);
Result<Section> Fit(const PlanInput& input);  // kInvalid where the fleet cannot hold its weights
Section Concurrency(const PlanInput& input);
Section OffloadPays(const PlanInput& input);

// crossover.cc
std::vector<CrossoverRow> LoadOrCompute(const PlanInput& input);
Section Crossover(const PlanInput& input);
Section ByGpu(const PlanInput& input);
Section Bandwidth(const PlanInput& input);
Section Prefetch(const PlanInput& input);

// cost.cc
Section BuildOrApi(const PlanInput& input);
Section TierCost(const PlanInput& input);

}  // namespace cistern::planner
