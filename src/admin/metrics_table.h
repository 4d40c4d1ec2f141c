// SPDX-License-Identifier: Apache-2.0
// The registry as docs/metrics.md has it: Markdown tables, one a section.
#pragma once

#include <string>

#include "base/metric_registry.h"

namespace cistern::admin {

std::string MetricsTable(const MetricRegistry& registry);

}  // namespace cistern::admin
