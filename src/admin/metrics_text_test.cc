// SPDX-License-Identifier: Apache-2.0
#include "admin/metrics_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "admin/metrics_table.h"
#include "admin/status_text.h"

namespace cistern::admin {
namespace {

using testing::HasSubstr;
using testing::Not;

MetricTable Rows(std::string_view metric) {
  return {.name = "devices",
          .metric = metric,
          .help = "devices",
          .columns = {{"path", MetricKind::kLabel, "which"},
                      {"why", MetricKind::kText, "words"},
                      {"wait_us", MetricKind::kGauge, "how long"}}};
}

TEST(MetricsText, NamesSayUnitAndKind) {
  MetricRegistry registry;
  Counter bytes;
  bytes.Add(1'234'567'890'123);
  registry.Add("flash", "written_bytes", "bytes written", bytes);
  registry.Add("node", {"uptime_us", MetricKind::kGauge, "since its start"}, [] { return 0; });
  registry.Add("flash", {"budget_bytes", MetricKind::kGauge, "none: no limit"}, [] { return MetricValue(); });
  MetricSnapshot snapshot;
  snapshot.values = {bytes.value(), std::int64_t{1'500'000}, MetricValue()};
  const std::string text = MetricsText(registry, snapshot);
  EXPECT_THAT(text, HasSubstr("# HELP cistern_flash_written_bytes_total bytes written\n"
                              "# TYPE cistern_flash_written_bytes_total counter\n"
                              "cistern_flash_written_bytes_total 1234567890123\n"));
  EXPECT_THAT(text, HasSubstr("\ncistern_node_uptime_seconds 1.5\n"));
  EXPECT_THAT(text, Not(HasSubstr("\ncistern_flash_budget_bytes ")));
  EXPECT_EQ(StatusText(registry, snapshot),
            "{\"flash\":{\"written_bytes\":1234567890123,\"budget_bytes\":null},"
            "\"node\":{\"uptime_us\":1500000}}");
}

TEST(MetricsText, WordsAreLabelsOfOneLineAndAreEscaped) {
  MetricRegistry registry;
  registry.Add("node", {"socket", MetricKind::kText, "where"}, [] { return MetricValue(); });
  registry.Add("node", {"loop", MetricKind::kText, "which"}, [] { return MetricValue(); });
  MetricSnapshot snapshot;
  snapshot.values = {std::string("a\"b\\c\nd\xff"), std::string("epoll")};
  EXPECT_THAT(MetricsText(registry, snapshot),
              HasSubstr("\ncistern_node_info{socket=\"a\\\"b\\\\c\\nd\\\\xff\",loop=\"epoll\"} 1\n"));
  EXPECT_EQ(StatusText(registry, snapshot),
            "{\"node\":{\"socket\":\"a\\\"b\\\\c\\u000ad\xc7\xbf\",\"loop\":\"epoll\"}}");
}

// Two lines of one name and the same labels are a scrape that Prometheus complains of, and half of it is
// lost.
TEST(MetricsText, ANameThatLooksLikeAnotherEscapedIsNotTheOther) {
  MetricRegistry registry;
  registry.Add("flash", Rows("device"));
  MetricSnapshot snapshot;
  snapshot.tables = {{{std::string("a\xff"), std::string(), std::int64_t{1'000'000}},
                      {std::string("a\\xff"), std::string(), std::int64_t{2'000'000}},
                      {std::string("a\\\\xff"), std::string(), std::int64_t{3'000'000}}}};
  const std::string text = MetricsText(registry, snapshot);
  EXPECT_THAT(text, HasSubstr("cistern_device_wait_seconds{path=\"a\\\\xff\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("cistern_device_wait_seconds{path=\"a\\\\x5cxff\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("cistern_device_wait_seconds{path=\"a\\\\\\\\x5cxff\"} 3\n"));
}

TEST(MetricsText, APathInUtf8IsTheSamePathInStatus) {
  MetricRegistry registry;
  registry.Add("node", {"socket", MetricKind::kText, "where"}, [] { return MetricValue(); });
  MetricSnapshot snapshot;
  snapshot.values = {std::string("/mnt/caf\xc3\xa9\xc3")};
  EXPECT_EQ(StatusText(registry, snapshot), "{\"node\":{\"socket\":\"/mnt/caf\xc3\xa9\xc7\x83\"}}");
}

TEST(MetricsText, RemarksAreInStatusAndNoLabel) {
  MetricRegistry registry;
  registry.Add("cell", {"zone", MetricKind::kText, "where"}, [] { return MetricValue(); });
  registry.Add("cell", {"trouble", MetricKind::kRemark, "any words"}, [] { return MetricValue(); });
  MetricSnapshot snapshot;
  snapshot.values = {std::string("a"), std::string("connect 10.0.0.7:2379: refused after 17 ms")};
  const std::string text = MetricsText(registry, snapshot);
  EXPECT_THAT(text, HasSubstr("\ncistern_cell_info{zone=\"a\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("trouble")));
  EXPECT_THAT(StatusText(registry, snapshot), HasSubstr("\"trouble\":\"connect 10.0.0.7:2379"));
  EXPECT_THAT(MetricsTable(registry), HasSubstr("| `cell.trouble` |  |  | any words |\n"));
}

TEST(MetricsText, ASectionWithALabelIsOneMetric) {
  MetricRegistry registry;
  Counter evicted, expired;
  evicted.Add(2);
  registry.Label("misses", "reason", "blocks not found");
  registry.Add("misses", "evicted", "left", evicted);
  registry.Add("misses", "expired", "over", expired);
  MetricSnapshot snapshot;
  snapshot.values = {evicted.value(), expired.value()};
  EXPECT_EQ(MetricsText(registry, snapshot),
            "# HELP cistern_misses_total blocks not found\n# TYPE cistern_misses_total counter\n"
            "cistern_misses_total{reason=\"evicted\"} 2\ncistern_misses_total{reason=\"expired\"} 0\n");
}

TEST(MetricsText, AHistogramsBucketsAreCumulativeAndEndWithItsCount) {
  MetricRegistry registry;
  Histogram times;
  registry.Label("calls", "call", "how long");
  registry.Add("calls", "match", "a match", times);
  for (const std::uint64_t ns : {500u, 1'500u, 3'000'000u}) times.Record(ns);
  times.Record(std::uint64_t{1} << 39);
  const std::string text = MetricsText(registry, {});
  EXPECT_THAT(text, HasSubstr("cistern_calls_seconds_bucket{call=\"match\",le=\"1.024e-06\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("cistern_calls_seconds_bucket{call=\"match\",le=\"2.048e-06\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("cistern_calls_seconds_bucket{call=\"match\",le=\"+Inf\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("cistern_calls_seconds_count{call=\"match\"} 4\n"));
  EXPECT_THAT(StatusText(registry, {}), HasSubstr("{\"calls\":{\"match\":{\"count\":4,\"mean_us\":"));
}

TEST(MetricsText, RowsPastTheBoundShareOneLabelValue) {
  MetricRegistry registry;
  registry.Add("flash", Rows("device"));
  MetricSnapshot snapshot;
  snapshot.tables.resize(1);
  for (std::size_t i = 0; i < kMaxLabelledRows + 3; ++i)
    snapshot.tables[0].push_back({"d" + std::to_string(i), std::string("fine"), std::int64_t{2'000'000}});
  const std::string text = MetricsText(registry, snapshot);
  EXPECT_THAT(text, HasSubstr("cistern_device_wait_seconds{path=\"d127\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("cistern_device_wait_seconds{path=\"_other\"} 6\n"));
  EXPECT_THAT(text, Not(HasSubstr("d128")));
  EXPECT_THAT(text, Not(HasSubstr("fine")));
}

TEST(StatusText, RowsAreObjectsAndSectionsMembers) {
  MetricRegistry registry;
  registry.Label("empty", "of", "a section that nothing was added to");
  registry.Add("", Rows("device"));
  registry.Add("last", {"n", MetricKind::kGauge, "a number"}, [] { return MetricValue(); });
  MetricSnapshot snapshot;
  snapshot.values = {1.5};
  snapshot.tables = {{{std::string("a"), std::string("b"), std::int64_t{1}},
                      {std::string("c"), std::string("d"), MetricValue()}}};
  EXPECT_EQ(StatusText(registry, snapshot),
            "{\"devices\":[{\"path\":\"a\",\"why\":\"b\",\"wait_us\":1},"
            "{\"path\":\"c\",\"why\":\"d\",\"wait_us\":null}],\"last\":{\"n\":1.5}}");
  snapshot.tables = {{}};
  EXPECT_EQ(StatusText(registry, snapshot), "{\"devices\":[],\"last\":{\"n\":1.5}}");
}

}  // namespace
}  // namespace cistern::admin
