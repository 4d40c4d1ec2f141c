// SPDX-License-Identifier: Apache-2.0
// The registry in Prometheus' text format, version 0.0.4, as /metrics gives it.
#pragma once

#include <string>
#include <string_view>

#include "base/metric_registry.h"

namespace cistern::admin {

inline constexpr std::string_view kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

// Rows of a table that get a line of their own, the first ones: label values are bounded. The others are
// summed into one row, whose labels are kOtherRows.
inline constexpr std::size_t kMaxLabelledRows = 128;
inline constexpr std::string_view kOtherRows = "_other";

// Histograms are read here and now.
std::string MetricsText(const MetricRegistry& registry, const MetricSnapshot& snapshot);

}  // namespace cistern::admin
