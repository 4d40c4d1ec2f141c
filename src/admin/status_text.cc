// SPDX-License-Identifier: Apache-2.0
#include "admin/status_text.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "admin/json_string.h"
#include "base/format.h"

namespace cistern::admin {
namespace {

void AppendValue(std::string& out, const MetricValue& value) {
  if (const auto* u = std::get_if<std::uint64_t>(&value)) {
    AppendText(out, *u);
  } else if (const auto* i = std::get_if<std::int64_t>(&value)) {
    AppendText(out, *i);
  } else if (const auto* d = std::get_if<double>(&value)) {
    if (std::isfinite(*d)) {
      AppendText(out, *d);
    } else {
      out += "null";
    }
  } else if (const auto* b = std::get_if<bool>(&value)) {
    out += *b ? "true" : "false";
  } else if (const auto* s = std::get_if<std::string>(&value)) {
    AppendJsonString(out, *s);
  } else {
    out += "null";
  }
}

void AppendHistogram(std::string& out, const Histogram& histogram) {
  const auto us = [](std::uint64_t ns) { return static_cast<double>(ns) / 1e3; };
  out += Text("{\"count\":", histogram.count(), ",\"mean_us\":", histogram.mean() / 1e3,
              ",\"p50_us\":", us(histogram.Percentile(0.5)), ",\"p99_us\":", us(histogram.Percentile(0.99)),
              ",\"max_us\":", us(histogram.max()), "}");
}

// One thing after the other: a number, a histogram or a row a call.
class StatusWriter final {
 public:
  StatusWriter(const MetricRegistry& registry, const MetricSnapshot& snapshot, std::size_t max_rows)
      : sections_(registry.sections()), snapshot_(snapshot), max_rows_(max_rows) {
    out_ += '{';
  }

  // How much that was, in values; 0: all is written.
  std::size_t Next() {
    if (section_ == sections_.size()) return 0;
    const MetricSection& section = sections_[section_];
    if (entry_ == section.entries.size()) {
      if (!section.name.empty() && entry_ > 0) out_ += '}';
      ++section_;
      entry_ = 0;
      if (section_ == sections_.size()) out_ += '}';
      return 1;
    }
    const MetricEntry& entry = section.entries[entry_];
    if (row_ == 0) {
      const bool opens = entry_ == 0 && !section.name.empty();
      if (opens ? any_ : entry_ > 0 || any_) out_ += ',';
      any_ = true;
      if (opens) {
        AppendJsonString(out_, section.name);
        out_ += ":{";
      }
      AppendJsonString(out_, entry.field.name);
      out_ += ':';
    }
    if (entry.table) return Row(*entry.table, snapshot_.tables[entry.at]);
    ++entry_;
    if (entry.histogram == nullptr) {
      AppendValue(out_, snapshot_.values[entry.at]);
      return 1;
    }
    AppendHistogram(out_, *entry.histogram);
    return kHistogramCost;
  }

  std::string Take() { return std::move(out_); }

 private:
  static constexpr std::size_t kHistogramCost = 64;  // it sums its 1,152 buckets three times

  std::size_t Row(const MetricTable& table, const std::vector<MetricRow>& rows) {
    if (row_ == 0) out_ += '[';
    if (row_ == std::min(rows.size(), max_rows_)) {
      out_ += ']';
      row_ = 0;
      ++entry_;
      return 1;
    }
    out_ += row_ == 0 ? "{" : ",{";
    const MetricRow& row = rows[row_++];
    for (std::size_t c = 0; c < row.size(); ++c) {
      out_ += c == 0 ? "" : ",";
      AppendJsonString(out_, table.columns[c].name);
      out_ += ':';
      AppendValue(out_, row[c]);
    }
    out_ += '}';
    return row.size();
  }

  const std::vector<MetricSection>& sections_;
  const MetricSnapshot& snapshot_;
  const std::size_t max_rows_;
  std::size_t section_ = 0, entry_ = 0, row_ = 0;
  bool any_ = false;
  std::string out_;
};

}  // namespace

std::string StatusText(const MetricRegistry& registry, const MetricSnapshot& snapshot) {
  StatusWriter writer(registry, snapshot, kMaxMetricRows);
  while (writer.Next() > 0) continue;
  return writer.Take();
}

Task<std::string> StatusTextInSteps(Executor& executor, const MetricRegistry& registry,
                                    std::size_t max_rows) {
  const MetricSnapshot snapshot = co_await ReadMetrics(executor, registry);
  StatusWriter writer(registry, snapshot, max_rows);
  std::size_t in_step = kMetricsPerStep;
  while (const std::size_t wrote = writer.Next()) {
    if ((in_step += wrote) < kMetricsPerStep) continue;
    co_await Yield();
    in_step = 0;
  }
  co_return writer.Take();
}

}  // namespace cistern::admin
