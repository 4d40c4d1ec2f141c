// SPDX-License-Identifier: Apache-2.0
#include "admin/metrics_text.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "admin/metric_names.h"
#include "base/format.h"

namespace cistern::admin {
namespace {

// From a microsecond to 17 s, a factor of two apart.
constexpr int kFirstBucketBits = 10;
constexpr int kLastBucketBits = 34;

bool IsNumber(const MetricField& field) {
  return field.kind == MetricKind::kCounter || field.kind == MetricKind::kGauge;
}

void AppendNumber(std::string& out, double number) { AppendText(out, number); }

// False: there is none.
bool NumberOf(const MetricValue& value, double& number) {
  if (const auto* u = std::get_if<std::uint64_t>(&value)) {
    number = static_cast<double>(*u);
  } else if (const auto* i = std::get_if<std::int64_t>(&value)) {
    number = static_cast<double>(*i);
  } else if (const auto* d = std::get_if<double>(&value)) {
    number = *d;
  } else if (const auto* b = std::get_if<bool>(&value)) {
    number = *b ? 1 : 0;
  } else {
    return false;
  }
  return true;
}

void AppendLabelValue(std::string& out, std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const auto byte = static_cast<unsigned char>(c);
    // What is not printable stays a value of its own, and the text stays UTF-8; so does what looks like it.
    if ((byte < 0x20 && c != '\n') || byte >= 0x7f || text.substr(i).starts_with("\\x")) {
      char hex[8];
      std::snprintf(hex, sizeof(hex), "\\\\x%02x", byte);
      out += hex;
    } else if (c == '\\' || c == '"') {
      (out += '\\') += c;
    } else if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
}

void AppendLabel(std::string& labels, std::string_view name, std::string_view value) {
  labels += labels.empty() ? "" : ",";
  (labels += name) += "=\"";
  AppendLabelValue(labels, value);
  labels += '"';
}

void AppendHead(std::string& out, std::string_view name, std::string_view type, std::string_view help) {
  ((out += "# HELP ") += name) += ' ';
  for (const char c : help) {
    if (c == '\\' || c == '\n') out += '\\';
    out += c == '\n' ? 'n' : c;
  }
  (((out += "\n# TYPE ") += name) += ' ') += type;
  out += '\n';
}

void AppendLine(std::string& out, std::string_view name, std::string_view labels, double number) {
  out += name;
  if (!labels.empty()) ((out += '{') += labels) += '}';
  out += ' ';
  AppendNumber(out, number);
  out += '\n';
}

std::string_view TypeOf(const MetricField& field) {
  switch (field.kind) {
    case MetricKind::kCounter: return "counter";
    case MetricKind::kHistogram: return "histogram";
    default: return "gauge";
  }
}

double Scaled(const MetricField& field, double number) {
  return InMicroseconds(field) ? number / 1e6 : number;
}

void AppendHistogram(std::string& out, std::string_view name, const std::string& labels,
                     const Histogram& histogram) {
  std::uint64_t seen = 0;
  std::size_t at = 0;
  std::string bounded;
  const std::string bucket = std::string(name) + "_bucket";
  for (int bits = kFirstBucketBits; bits <= kLastBucketBits; ++bits) {
    const std::uint64_t end = std::uint64_t{1} << bits;
    for (; at < Histogram::kBuckets && Histogram::BucketLast(at) < end; ++at) seen += histogram.bucket(at);
    bounded = labels;
    AppendLabel(bounded, "le", Text(static_cast<double>(end) / 1e9));
    AppendLine(out, bucket, bounded, static_cast<double>(seen));
  }
  for (; at < Histogram::kBuckets; ++at) seen += histogram.bucket(at);
  bounded = labels;
  AppendLabel(bounded, "le", "+Inf");
  AppendLine(out, bucket, bounded, static_cast<double>(seen));
  AppendLine(out, std::string(name) + "_sum", labels, static_cast<double>(histogram.sum()) / 1e9);
  AppendLine(out, std::string(name) + "_count", labels, static_cast<double>(seen));
}

class Writer final {
 public:
  explicit Writer(const MetricSnapshot& snapshot) : snapshot_(snapshot) { out_.reserve(64u << 10); }

  void Write(const MetricSection& section) {
    std::string info;
    bool first = true;
    for (const MetricEntry& entry : section.entries) {
      if (entry.table) {
        Write(*entry.table, snapshot_.tables[entry.at]);
        continue;
      }
      if (entry.field.kind == MetricKind::kRemark) continue;
      if (entry.field.kind == MetricKind::kText) {
        const auto* text = std::get_if<std::string>(&snapshot_.values[entry.at]);
        if (text != nullptr) AppendLabel(info, entry.field.name, *text);
        continue;
      }
      Write(section, entry, first);
      first = false;
    }
    if (info.empty()) return;
    AppendHead(out_, InfoName(section), "gauge", "always 1; its labels say what this is");
    AppendLine(out_, InfoName(section), info, 1);
  }

  std::string Take() { return std::move(out_); }

 private:
  void Write(const MetricSection& section, const MetricEntry& entry, bool first) {
    const std::string name = MetricName(section, entry.field);
    std::string labels;
    if (!section.label.empty()) AppendLabel(labels, section.label, entry.field.name);
    if (section.label.empty() || first)
      AppendHead(out_, name, TypeOf(entry.field), section.label.empty() ? entry.field.help : section.help);
    if (entry.histogram != nullptr) {
      AppendHistogram(out_, name, labels, *entry.histogram);
      return;
    }
    double number = 0;
    if (NumberOf(snapshot_.values[entry.at], number))
      AppendLine(out_, name, labels, Scaled(entry.field, number));
  }

  void Write(const MetricTable& table, const std::vector<MetricRow>& rows) {
    const std::size_t shown = std::min(rows.size(), kMaxLabelledRows);
    std::vector<std::string> labels(shown);
    std::string others;
    for (std::size_t c = 0; c < table.columns.size(); ++c) {
      if (table.columns[c].kind != MetricKind::kLabel) continue;
      for (std::size_t r = 0; r < shown; ++r) {
        const auto* text = std::get_if<std::string>(&rows[r][c]);
        AppendLabel(labels[r], table.columns[c].name, text != nullptr ? *text : "");
      }
      AppendLabel(others, table.columns[c].name, kOtherRows);
    }
    for (std::size_t c = 0; c < table.columns.size(); ++c) {
      const MetricField& field = table.columns[c];
      if (!IsNumber(field)) continue;
      const std::string name = MetricName(table, field);
      AppendHead(out_, name, TypeOf(field), field.help);
      double number = 0, sum = 0;
      for (std::size_t r = 0; r < rows.size(); ++r) {
        if (!NumberOf(rows[r][c], number)) continue;
        if (r < shown) {
          AppendLine(out_, name, labels[r], Scaled(field, number));
        } else {
          sum += number;
        }
      }
      if (rows.size() > shown) AppendLine(out_, name, others, Scaled(field, sum));
    }
  }

  const MetricSnapshot& snapshot_;
  std::string out_;
};

}  // namespace

std::string MetricsText(const MetricRegistry& registry, const MetricSnapshot& snapshot) {
  Writer writer(snapshot);
  for (const MetricSection& section : registry.sections()) writer.Write(section);
  return writer.Take();
}

}  // namespace cistern::admin
