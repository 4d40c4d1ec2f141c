// SPDX-License-Identifier: Apache-2.0
// The registry as one JSON object, as `cistern status --json` and /status give it: a member a section, in it
// a member a number; a histogram is {count, mean_us, p50_us, p99_us, max_us}, a table a list of objects.
#pragma once

#include <cstddef>
#include <string>

#include "base/metric_registry.h"
#include "base/task.h"

namespace cistern::admin {

// At once, on a thread that may take its time.
std::string StatusText(const MetricRegistry& registry, const MetricSnapshot& snapshot);

// On the core's thread, in steps: reads and writes. At most `max_rows` of each table.
Task<std::string> StatusTextInSteps(Executor& executor, const MetricRegistry& registry, std::size_t max_rows);

}  // namespace cistern::admin
