// SPDX-License-Identifier: Apache-2.0
#include "base/metric_registry.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace cistern {

MetricSection& MetricRegistry::At(std::string_view section) {
  const auto found = std::ranges::find(sections_, section, &MetricSection::name);
  return found != sections_.end() ? *found : sections_.emplace_back(MetricSection{.name = section});
}

MetricEntry& MetricRegistry::AddEntry(std::string_view section, const MetricField& field) {
  MetricSection& at = At(section);
  CISTERN_ASSERT(std::ranges::none_of(
      at.entries, [&](const MetricEntry& entry) { return entry.field.name == field.name; }));
  return at.entries.emplace_back(MetricEntry{.field = field});
}

void MetricRegistry::Label(std::string_view section, std::string_view label, std::string_view help) {
  MetricSection& at = At(section);
  CISTERN_ASSERT(at.entries.empty());
  at.label = label;
  at.help = help;
}

void MetricRegistry::Add(std::string_view section, const MetricField& field,
                         std::function<MetricValue()> read) {
  MetricEntry& entry = AddEntry(section, field);
  entry.at = values_++;
  entry.read = std::move(read);
}

void MetricRegistry::Add(std::string_view section, std::string_view name, std::string_view help,
                         const Counter& counter) {
  Add(section, {name, MetricKind::kCounter, help}, [&counter] { return MetricValue(counter.value()); });
}

void MetricRegistry::Add(std::string_view section, std::string_view name, std::string_view help,
                         const Histogram& histogram) {
  AddEntry(section, {name, MetricKind::kHistogram, help}).histogram = &histogram;
}

void MetricRegistry::Add(std::string_view section, MetricTable table) {
  MetricEntry& entry = AddEntry(section, {table.name, MetricKind::kGauge, table.help});
  entry.at = tables_++;
  entry.table = std::move(table);
}

Task<MetricSnapshot> ReadMetrics(Executor&, const MetricRegistry& registry) {
  MetricSnapshot snapshot;
  snapshot.values.resize(registry.values());
  snapshot.tables.resize(registry.tables());
  std::size_t in_step = 0;
  for (const MetricSection& section : registry.sections()) {
    for (const MetricEntry& entry : section.entries) {
      if (entry.read != nullptr) {
        if (in_step++ >= kMetricsPerStep) {
          co_await Yield();
          in_step = 1;
        }
        snapshot.values[entry.at] = entry.read();
      }
      if (!entry.table) continue;
      const MetricTable& table = *entry.table;
      std::vector<MetricRow>& rows = snapshot.tables[entry.at];
      for (std::size_t at = 0; at < kMaxMetricRows; ++at) {
        if ((in_step += table.columns.size()) > kMetricsPerStep) {
          co_await Yield();
          in_step = table.columns.size();
        }
        MetricRow row;
        const MetricTable::Found found = table.rows(at, row);
        if (found == MetricTable::Found::kEnd) break;
        if (found == MetricTable::Found::kNone) continue;
        CISTERN_ASSERT(row.size() == table.columns.size());
        rows.push_back(std::move(row));
      }
    }
  }
  co_return snapshot;
}

}  // namespace cistern
