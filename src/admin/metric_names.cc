// SPDX-License-Identifier: Apache-2.0
#include "admin/metric_names.h"

namespace cistern::admin {
namespace {

constexpr std::string_view kMicroseconds = "_us";

std::string Ended(std::string name, MetricKind kind) {
  if (name.ends_with(kMicroseconds))
    name.replace(name.size() - kMicroseconds.size(), kMicroseconds.size(), "_seconds");
  if (kind == MetricKind::kHistogram) return name + "_seconds";
  return kind == MetricKind::kCounter ? name + "_total" : name;
}

}  // namespace

std::string MetricName(const MetricSection& section, const MetricField& field) {
  std::string name(kMetricPrefix);
  name += section.name;
  if (section.label.empty()) (name += '_') += field.name;
  return Ended(std::move(name), field.kind);
}

std::string MetricName(const MetricTable& table, const MetricField& field) {
  std::string name(kMetricPrefix);
  (name += table.metric) += '_';
  return Ended(name += field.name, field.kind);
}

bool InMicroseconds(const MetricField& field) { return field.name.ends_with(kMicroseconds); }

std::string InfoName(const MetricSection& section) {
  std::string name(kMetricPrefix);
  return (name += section.name) += "_info";
}

}  // namespace cistern::admin
