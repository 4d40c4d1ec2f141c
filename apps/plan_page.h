// SPDX-License-Identifier: Apache-2.0
// A plan as one HTML page that stands alone: figures with their arithmetic, plots, sources; light and dark.
#pragma once

#include <string>

#include "planner/report.h"

namespace cistern {

std::string PlanPageHtml(const planner::Report& report);

}  // namespace cistern
