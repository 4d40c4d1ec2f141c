// SPDX-License-Identifier: Apache-2.0
#include "base/metric_registry.h"

#include <gtest/gtest.h>

#include <map>

#include "base/executor.h"

namespace cistern {
namespace {

template <class T>
T RunToEnd(Executor& executor, Task<T> task) {
  while (!task.done()) executor.RunReady(16);
  return task.Take();
}

TEST(MetricRegistry, ReadsEveryNumberOnceAndRowsAsTheyAre) {
  SimulatedClock clock;
  Executor executor(clock);
  Counter counter;
  counter.Add(7);
  MetricRegistry registry;
  registry.Add("store", "published", "puts", counter);
  registry.Add("node", {"loop", MetricKind::kText, "which"},
               [] { return MetricValue(std::string("epoll")); });
  registry.Add("", MetricTable{.name = "rows",
                               .metric = "row",
                               .help = "rows",
                               .columns = {{"name", MetricKind::kLabel, "which"}},
                               .rows = [](std::size_t at, MetricRow& row) {
                                 if (at == 3) return MetricTable::Found::kEnd;
                                 if (at == 1) return MetricTable::Found::kNone;
                                 row = {std::string(1, static_cast<char>('a' + at))};
                                 return MetricTable::Found::kRow;
                               }});
  const MetricSnapshot snapshot = RunToEnd(executor, ReadMetrics(executor, registry));
  EXPECT_EQ(snapshot.values, (std::vector<MetricValue>{std::uint64_t{7}, std::string("epoll")}));
  EXPECT_EQ(snapshot.tables, (std::vector<std::vector<MetricRow>>{{{std::string("a")}, {std::string("c")}}}));
}

TEST(MetricRegistry, FieldsAreMembersOfWhatIsThereWhenTheyAreRead) {
  struct Counts {
    std::uint64_t used = 0, free = 0;
  };
  struct Counters {
    Counter calls;
  };
  static constexpr MetricMember<Counts> kCounts[] = {{"free", MetricKind::kGauge, &Counts::free, "slots"},
                                                     {"used", MetricKind::kGauge, &Counts::used, "slots"}};
  static constexpr MetricMember<Counters, Counter> kCounters[] = {
      {"calls", MetricKind::kCounter, &Counters::calls, "calls"}};
  SimulatedClock clock;
  Executor executor(clock);
  Counts counts;
  Counters counters;
  MetricRegistry registry;
  AddFields(registry, "memory", kCounts, [&] { return counts; });
  AddFields(registry, "door", kCounters, [&]() -> const Counters& { return counters; });
  counts = {.used = 2, .free = 5};
  counters.calls.Add(9);
  const MetricSnapshot snapshot = RunToEnd(executor, ReadMetrics(executor, registry));
  EXPECT_EQ(snapshot.values,
            (std::vector<MetricValue>{std::uint64_t{5}, std::uint64_t{2}, std::uint64_t{9}}));
  EXPECT_EQ(registry.sections()[0].entries[1].field.name, "used");
  EXPECT_EQ(registry.sections()[1].entries[0].field.kind, MetricKind::kCounter);
}

// Promise 5: with as many namespaces as there may be, no step reads more than 256 values.
TEST(MetricRegistry, R16NoStepReadsMoreThanItsShareHoweverManyRowsThereAre) {
  SimulatedClock clock;
  Executor executor(clock);
  std::map<std::uint64_t, std::size_t> read;  // by step
  MetricRegistry registry;
  static constexpr std::size_t kColumns = 14, kRows = 1024;
  std::vector<MetricField> columns(kColumns, MetricField{"n", MetricKind::kGauge, "a number"});
  registry.Add("", MetricTable{.name = "namespaces",
                               .metric = "namespace",
                               .help = "lists",
                               .columns = std::move(columns),
                               .rows = [&](std::size_t at, MetricRow& row) {
                                 if (at == kRows) return MetricTable::Found::kEnd;
                                 read[executor.steps()] += kColumns;
                                 row.assign(kColumns, std::uint64_t{at});
                                 return MetricTable::Found::kRow;
                               }});
  static const std::vector<std::string> names = [] {
    std::vector<std::string> made;
    for (int i = 0; i < 600; ++i) made.push_back("n" + std::to_string(i));
    return made;
  }();
  for (const std::string& name : names) {
    registry.Add("many", {name, MetricKind::kGauge, "a number"}, [&] {
      ++read[executor.steps()];
      return MetricValue(std::uint64_t{1});
    });
  }
  const MetricSnapshot snapshot = RunToEnd(executor, ReadMetrics(executor, registry));
  EXPECT_EQ(snapshot.tables.at(0).size(), kRows);
  std::size_t all = 0;
  for (const auto& [step, values] : read) {
    EXPECT_LE(values, kMetricsPerStep) << "in step " << step;
    all += values;
  }
  EXPECT_EQ(all, kRows * kColumns + names.size());
}

}  // namespace
}  // namespace cistern
