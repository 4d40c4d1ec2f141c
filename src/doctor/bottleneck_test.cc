// SPDX-License-Identifier: Apache-2.0
#include "doctor/bottleneck.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/format.h"
#include "doctor/status_fields.h"

namespace cistern::doctor {
namespace {

using testing::HasSubstr;

Findings Of(std::string_view sections) {
  const auto status = ParseStatus(Text(R"({"node":{},"memory":{},)", sections, "}"));
  EXPECT_TRUE(status.has_value()) << sections;
  Findings findings;
  if (status) AddBottlenecks(*status, findings);
  return findings;
}

TEST(Bottleneck, TheOrderIsThatOfTheBlocksThatWereNotHad) {
  const Findings findings =
      Of(R"("reads":{"asked_blocks":1000},"cell":{"peer_late_blocks":30},)"
         R"("misses":{"unknown":100,"evicted":200,"too_late":60,"pending":3,"lease_lost":4,"expired":500})");
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].name, "bottleneck");
  EXPECT_EQ(findings[0].value,
            "memory capacity 20 %, compute 10 %, bandwidth 6 %, network 3 %, scheduling under 1 % of 1000 "
            "blocks asked for were not had for it");
  EXPECT_EQ(findings[0].verdict, Verdict::kWarning);
  EXPECT_THAT(findings[0].mend, testing::StartsWith("memory capacity: "));
}

TEST(Bottleneck, WhatIsFirstAndCanBeMendedSaysHow) {
  const auto mend = [](const char* sections) {
    return Of(Text(R"("reads":{"asked_blocks":100},)", sections))[0].mend;
  };
  EXPECT_THAT(mend(R"("misses":{"too_late":9,"evicted":8})"), HasSubstr("cistern device list"));
  EXPECT_THAT(mend(R"("cell":{"peer_late_blocks":9})"), HasSubstr("cell_bandwidth"));
  EXPECT_THAT(mend(R"("misses":{"unknown":60,"pending":3,"lease_lost":2})"), HasSubstr("scheduling: "));
}

TEST(Bottleneck, ACacheThatFillsAndLittleThingsAreNothingToMend) {
  for (const char* misses :
       {R"("unknown":900)", R"("unknown":900,"evicted":49,"too_late":49)", R"("dropped":900)"}) {
    const Findings findings = Of(Text(R"("reads":{"asked_blocks":1000},"misses":{)", misses, "}"));
    ASSERT_EQ(findings.size(), 1u) << misses;
    EXPECT_EQ(findings[0].verdict, Verdict::kOk) << misses;
    EXPECT_EQ(findings[0].mend, "") << misses;
  }
  EXPECT_TRUE(Of(R"("reads":{"asked_blocks":0})").empty());
}

TEST(Bottleneck, TheCoresLatenessAndWaitingThatDoesNotPayAreNamed) {
  Findings findings = Of(R"("waits":{"tick":{"count":5000,"p99_us":250000}})");
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].name, "core");
  EXPECT_THAT(findings[0].value, HasSubstr("250ms"));
  findings = Of(R"("waits":{"tick":{"count":5000,"p99_us":268435.455}})");  // as a node writes it
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].name, "core");
  EXPECT_TRUE(Of(R"("waits":{"tick":{"count":5000,"p99_us":90000}})").empty());
  EXPECT_TRUE(Of(R"("waits":{"tick":{"count":3,"p99_us":250000}})").empty()) << "of a start";
  findings = Of(R"("engines":{"saved_us":1000000,"spent_us":3000000})");
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].name, "worth");
  EXPECT_TRUE(Of(R"("engines":{"saved_us":3000000,"spent_us":1000000})").empty());
}

TEST(Bottleneck, BlocksOfAnotherNamespaceOfTheModelAreNamedWhereTheyAreMany) {
  const Findings findings = Of(R"("reads":{"asked_blocks":100},"misses":{"other_namespace":5})");
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[1].name, "sharing");
  EXPECT_THAT(findings[1].mend, HasSubstr("namespaces diff"));
  EXPECT_EQ(Of(R"("reads":{"asked_blocks":100},"misses":{"other_namespace":4})").size(), 1u);
}

TEST(StatusFields, WhatIsNotThereIsZero) {
  const auto status =
      ParseStatus(R"({"node":{"pid":7},"memory":{"bytes":"x"},"waits":{"tick":{"p99_us":5}}})");
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(NumberAt(*status, "/node/pid"), 7u);
  EXPECT_EQ(NumberAt(*status, "/waits/tick/p99_us"), 5u);
  for (const char* pointer :
       {"/node/pid/x", "/memory/bytes", "/no/such", "/waits/tock/p99_us", "/waits/tick"})
    EXPECT_EQ(NumberAt(*status, pointer), 0u) << pointer;
}

}  // namespace
}  // namespace cistern::doctor
