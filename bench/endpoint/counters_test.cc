// SPDX-License-Identifier: Apache-2.0
#include "endpoint/counters.h"

#include <gtest/gtest.h>

namespace cistern {
namespace {

TEST(Counters, AreSummedOverTheirSeries) {
  const CacheCounters counters = ReadCounters(
      "# HELP vllm:prefix_cache_queries_total Tokens.\n"
      "vllm:prefix_cache_queries_total{engine=\"0\",model_name=\"a } b\\\" 7\"} 1024.0\n"
      "vllm:prefix_cache_queries_total{engine=\"1\"} 1e3 1700000000\r\n"
      "vllm:prefix_cache_queries_created{engine=\"0\"} 1.7e9\n"
      "vllm:prefix_cache_hits_total 512\n"
      "vllm:external_prefix_cache_hits_total{engine=\"0\"}\n"
      "vllm:cistern_hit_tokens_total{engine=\"0\"} NaN");
  EXPECT_EQ(counters.engine_asked, 2024);
  EXPECT_EQ(counters.engine_hits, 512);
  EXPECT_FALSE(counters.external_asked);
  EXPECT_FALSE(counters.external_hits);
  EXPECT_FALSE(counters.cistern_hits);
}

TEST(Counters, UsageComesBeforeMetrics) {
  const CacheCounters before{.engine_asked = 100, .engine_hits = 50};
  const CacheCounters after{
      .engine_asked = 300, .engine_hits = 60, .external_asked = 190, .external_hits = 90};
  const Hits told = ShareOf(HitSource{"usage", 200, 150}, before, after);
  EXPECT_EQ(told.from, "usage");
  EXPECT_DOUBLE_EQ(told.share.value(), 0.75);
  const Hits counted = ShareOf(std::nullopt, before, after);
  EXPECT_EQ(counted.from, "metrics");
  EXPECT_DOUBLE_EQ(counted.share.value(), 0.5) << "the engine's 10 and the connector's 90 of 200";
  ASSERT_EQ(counted.sources.size(), 2u);
  EXPECT_EQ(counted.sources[1].name, "external");
}

TEST(Counters, WhatIsNotToldIsNotGuessed) {
  EXPECT_FALSE(ShareOf(std::nullopt, {}, {}).share);
  EXPECT_EQ(ShareOf(std::nullopt, {}, {}).from, "not told");
  const CacheCounters before{.engine_asked = 100, .engine_hits = 50};
  const CacheCounters restarted{.engine_asked = 10, .engine_hits = 5};
  EXPECT_FALSE(ShareOf(std::nullopt, before, restarted).share);
  const CacheCounters idle = before;
  EXPECT_FALSE(ShareOf(std::nullopt, before, idle).share) << "nothing was asked";
  EXPECT_FALSE(ShareOf(std::nullopt, {}, {.cistern_asked = 10, .cistern_hits = 10}).share)
      << "a connector sees only what the engine lacks";
}

}  // namespace
}  // namespace cistern
