// SPDX-License-Identifier: Apache-2.0
#include "admin/metrics_table.h"

#include <string_view>

#include "admin/metric_names.h"
#include "base/format.h"

namespace cistern::admin {
namespace {

std::string_view KindName(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter: return "counter";
    case MetricKind::kGauge: return "gauge";
    case MetricKind::kHistogram: return "histogram";
    case MetricKind::kText:
    case MetricKind::kRemark:
    case MetricKind::kLabel: return "";
  }
  return "";
}

void AppendHead(std::string& out) {
  out += "| in status | in /metrics | kind | what it is |\n|---|---|---|---|\n";
}

void AppendRow(std::string& out, std::string_view status, std::string_view metric, const MetricField& field) {
  out += Text("| `", status, "` | ", metric.empty() ? "" : "`", metric, metric.empty() ? "" : "`", " | ",
              KindName(field.kind), " | ", field.help, " |\n");
}

std::string LabelsOf(const MetricTable& table) {
  std::string labels;
  for (const MetricField& field : table.columns) {
    if (field.kind == MetricKind::kLabel) labels += Text(labels.empty() ? "" : ",", field.name);
  }
  return labels;
}

void AppendTable(std::string& out, std::string_view path, const MetricTable& table) {
  const std::string labels = LabelsOf(table);
  out += Text("\n`", path, "`: ", table.help, ". ");
  out += labels.empty() ? "It is in status alone.\n\n"
                        : Text("In /metrics each line has the label `", labels, "`.\n\n");
  AppendHead(out);
  for (const MetricField& field : table.columns) {
    const bool words = KindName(field.kind).empty();
    AppendRow(out, Text(path, "[].", field.name), words ? std::string() : MetricName(table, field), field);
  }
}

std::string MetricOf(const MetricSection& section, const MetricField& field) {
  if (field.kind == MetricKind::kRemark) return "";
  if (field.kind == MetricKind::kText) return Text(InfoName(section), "{", field.name, "}");
  const std::string name = MetricName(section, field);
  return section.label.empty() ? name : Text(name, "{", section.label, "=\"", field.name, "\"}");
}

}  // namespace

std::string MetricsTable(const MetricRegistry& registry) {
  std::string out;
  for (const MetricSection& section : registry.sections()) {
    if (!section.name.empty()) out += Text(out.empty() ? "" : "\n", "## ", section.name, "\n");
    if (!section.help.empty()) out += Text("\n", section.help, ".\n");
    bool headed = false;
    for (const MetricEntry& entry : section.entries) {
      if (entry.table) continue;
      if (!headed) AppendHead(out += '\n');
      headed = true;
      AppendRow(out, Text(section.name, ".", entry.field.name), MetricOf(section, entry.field), entry.field);
    }
    for (const MetricEntry& entry : section.entries) {
      if (!entry.table) continue;
      if (section.name.empty()) out += Text("\n## ", entry.table->name, "\n");
      AppendTable(
          out,
          section.name.empty() ? std::string(entry.table->name) : Text(section.name, ".", entry.table->name),
          *entry.table);
    }
  }
  return out;
}

}  // namespace cistern::admin
