// SPDX-License-Identifier: Apache-2.0
// The registry of metrics. Each folder says once what each of its numbers is called and what it means, and
// how it is read; status, /metrics and docs/metrics.md are written from that (src/admin), and nowhere is a
// list of them kept by hand.
//
// A number stands in a section and has a name there: store.published of status is
// cistern_store_published_total of /metrics. The name says its unit: one that ends in "bytes" counts bytes,
// one that ends in "_us" microseconds, which /metrics gives in seconds; any other counts what it is called
// after.
//
// A registry is filled before it is read, by one thread, and does not change afterwards. What it reads
// belongs to the thread that calls ReadMetrics and must live as long as that may be called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/metrics.h"
#include "base/task.h"

namespace cistern {

enum class MetricKind : std::uint8_t {
  kCounter,    // only grows while the node runs
  kGauge,      // of the moment
  kText,       // words, of few values: in status as they are, in /metrics labels of one line that is always 1
  kRemark,     // words of any number, such as messages: in status alone
  kLabel,      // of a table: names the row
  kHistogram,  // of durations in nanoseconds
};

struct MetricField {
  std::string_view name;
  MetricKind kind;
  std::string_view help;
};

// None: there is no such number now. It is null in status, and not in /metrics.
using MetricValue = std::variant<std::monostate, std::uint64_t, std::int64_t, double, bool, std::string>;
using MetricRow = std::vector<MetricValue>;

// Rows of one kind of thing, such as devices; in status a list of objects.
struct MetricTable {
  std::string_view name;    // in status
  std::string_view metric;  // begins its metrics' names: cistern_device_read_bytes_total{device="..."}
  std::string_view help;
  std::vector<MetricField> columns;
  // Row number `at`, a value a column. Rows may be looked at in several steps of the core, between which
  // they come and go.
  enum class Found : std::uint8_t { kRow, kNone, kEnd };
  std::function<Found(std::size_t at, MetricRow& row)> rows;
};

// What all of it was at one moment, or nearly: as long as it took to read.
struct MetricSnapshot {
  std::vector<MetricValue> values;             // by MetricEntry::at
  std::vector<std::vector<MetricRow>> tables;  // likewise
};

struct MetricEntry {
  MetricField field;
  std::size_t at = 0;
  std::function<MetricValue()> read;     // of a number
  const Histogram* histogram = nullptr;  // read by whoever writes it out, on its own thread
  std::optional<MetricTable> table;
};

struct MetricSection {
  std::string_view name;
  // Not empty: its numbers are one metric, told apart by this label.
  std::string_view label;
  std::string_view help;  // of that metric
  std::vector<MetricEntry> entries;
};

class MetricRegistry final {
 public:
  MetricRegistry() = default;
  MetricRegistry(const MetricRegistry&) = delete;
  MetricRegistry& operator=(const MetricRegistry&) = delete;

  // The section's numbers are one metric with a label. Before any of them is added.
  void Label(std::string_view section, std::string_view label, std::string_view help);

  void Add(std::string_view section, const MetricField& field, std::function<MetricValue()> read);
  void Add(std::string_view section, std::string_view name, std::string_view help, const Counter& counter);
  // Borrowed; any thread may read it.
  void Add(std::string_view section, std::string_view name, std::string_view help,
           const Histogram& histogram);
  // `section` may be empty: the list stands by itself.
  void Add(std::string_view section, MetricTable table);

  // In the order in which they were named first.
  const std::vector<MetricSection>& sections() const { return sections_; }
  std::size_t values() const { return values_; }
  std::size_t tables() const { return tables_; }

 private:
  MetricSection& At(std::string_view section);
  MetricEntry& AddEntry(std::string_view section, const MetricField& field);

  std::vector<MetricSection> sections_;
  std::size_t values_ = 0;
  std::size_t tables_ = 0;
};

// A number that is a member of Owner: a row of a folder's table of them.
template <class Owner, class Value = std::uint64_t>
struct MetricMember {
  std::string_view name;
  MetricKind kind;
  Value Owner::* member;
  std::string_view help;
};

// Adds each of the members; `read` returns their owner, or a reference to it.
template <class Owner, class Value, std::size_t kCount, class Read>
void AddFields(MetricRegistry& registry, std::string_view section,
               const MetricMember<Owner, Value> (&fields)[kCount], const Read& read) {
  for (const MetricMember<Owner, Value>& field : fields) {
    registry.Add(section, {field.name, field.kind, field.help},
                 [read, member = field.member]() -> MetricValue {
                   if constexpr (std::is_same_v<Value, Counter> || std::is_same_v<Value, SharedCounter>) {
                     return (read().*member).value();
                   } else {
                     return read().*member;
                   }
                 });
  }
}

// Values that one step of the core reads: 256 are about 10 us.
inline constexpr std::size_t kMetricsPerStep = 256;
// Rows of a table that are looked at; what is past them is not read.
inline constexpr std::size_t kMaxMetricRows = 4096;

// On the thread of what is read.
Task<MetricSnapshot> ReadMetrics(Executor& executor, const MetricRegistry& registry);

}  // namespace cistern
