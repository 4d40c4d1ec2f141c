// SPDX-License-Identifier: Apache-2.0
// What a number of the registry is called in /metrics and in docs/metrics.md.
#pragma once

#include <string>
#include <string_view>

#include "base/metric_registry.h"

namespace cistern::admin {

inline constexpr std::string_view kMetricPrefix = "cistern_";

// In /metrics: cistern_SECTION_NAME, of a counter with _total; _us becomes _seconds. Where the section has a
// label, cistern_SECTION.
std::string MetricName(const MetricSection& section, const MetricField& field);
// Of a table's column.
std::string MetricName(const MetricTable& table, const MetricField& field);
// True for a number of microseconds, which /metrics gives in seconds.
bool InMicroseconds(const MetricField& field);
// Of a section's words, all in one.
std::string InfoName(const MetricSection& section);

}  // namespace cistern::admin
