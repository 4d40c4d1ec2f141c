// SPDX-License-Identifier: Apache-2.0
#include "doctor/node_findings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "arena/geometry.h"
#include "base/format.h"

namespace cistern::doctor {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kGiB = 1u << 30;

std::uint64_t SlotsOf(std::uint64_t memory_bytes) {
  return arena::Geometry::Within(memory_bytes, 4096).slots_bytes();
}

// A status with `flash` and `store` as given.
std::string Status(const std::string& flash = R"("devices":[])", const std::string& store = R"("busy":0)",
                   const std::string& node = R"("loop":"io_uring","copy":"avx512")") {
  return Text(R"({"node":{"tenant":"blue","pid":4711,"directory":"/dev/shm/kv/blue",)", node,
              R"(},"memory":{"bytes":)", SlotsOf(kGiB), R"(},"now":{"blocks":5,"namespaces":2},"flash":{)",
              flash, R"(},"store":{)", store, R"(},"door":{"sessions":3}})");
}

HostFacts Sound() {
  HostFacts facts;
  facts.kernels = {"avx512", "portable"};
  return facts;
}

const Finding* Find(const Findings& findings, std::string_view name) {
  for (const Finding& finding : findings) {
    if (finding.name == name) return &finding;
  }
  return nullptr;
}

TEST(NodeFindings, ASoundNodeHasNothingToMend) {
  const Findings findings = FindingsOfNode(Status(), Sound(), std::nullopt);
  for (const Finding& finding : findings) EXPECT_EQ(finding.mend, "") << finding.name << finding.value;
  ASSERT_NE(Find(findings, "node"), nullptr);
  EXPECT_EQ(Find(findings, "node")->value, "pid 4711, 3 sessions, 2 namespaces, 5 blocks");
}

TEST(NodeFindings, AJournalThatFailsOrHasNoSpareIsSaid) {
  const auto found = [](const std::string& journal) {
    std::string status = Status();
    status.insert(status.size() - 1, R"(,"journal":)" + journal);
    const Findings findings = FindingsOfNode(status, Sound(), std::nullopt);
    const Finding* finding = Find(findings, "journal");
    return finding == nullptr ? Finding() : *finding;
  };
  EXPECT_EQ(found(R"({"failed":0,"trouble":null,"spare_bytes":65536})").verdict, Verdict::kOk);
  EXPECT_EQ(found(R"({"failed":0,"trouble":null,"spare_bytes":0})").verdict, Verdict::kWarning);
  const Finding failed = found(R"({"failed":1,"trouble":"journal: /d takes nothing","spare_bytes":0})");
  EXPECT_EQ(failed.verdict, Verdict::kProblem);
  EXPECT_EQ(failed.value, "journal: /d takes nothing");
  EXPECT_EQ(found("{}").name, "") << "an earlier release has none";
}

TEST(NodeFindings, TheStatusSaysWhereToLook) {
  const auto basics =
      BasicsOf(Status(R"("devices":[{"path":"/mnt/a/blue/flash"},{"path":"/dev/sdx","bytes":4096}])",
                      R"("busy":0)", R"("journal":"/mnt/a/blue")"));
  ASSERT_TRUE(basics.has_value());
  EXPECT_EQ(basics->pid, 4711u);
  EXPECT_EQ(basics->memory_dir, "/dev/shm/kv");
  EXPECT_EQ(basics->tenant, "blue");
  EXPECT_EQ(SlotsOf(basics->memory_bytes), SlotsOf(kGiB));
  EXPECT_EQ(SlotsOf(basics->memory_bytes - 1), SlotsOf(kGiB) - arena::kHeaderSpanBytes);
  EXPECT_EQ(basics->journal, "/mnt/a/blue");
  EXPECT_THAT(basics->flash, testing::ElementsAre(testing::FieldsAre("/mnt/a/blue/flash", 0),
                                                  testing::FieldsAre("/dev/sdx", 4096)));
}

TEST(NodeFindings, WhatIsNoStatusIsAProblemAndNoCrash) {
  for (const char* text :
       {"", "{", "[]", "{}", "7", R"({"node":1})", R"({"node":[],"memory":{},"flash":7})"}) {
    static_cast<void>(BasicsOf(text));
    const Findings findings = FindingsOfNode(text, Sound(), std::nullopt);
    ASSERT_FALSE(findings.empty()) << text;
  }
  EXPECT_EQ(FindingsOfNode("{}", Sound(), std::nullopt).front().verdict, Verdict::kProblem);
  EXPECT_FALSE(BasicsOf("{}").has_value());
}

TEST(NodeFindings, AnArenaOfAnotherSizeThanConfiguredSaysHowToChangeIt) {
  node::NodeOptions asked;
  asked.memory_bytes = kGiB;
  asked.memory_dir = "/dev/shm/kv";
  asked.tenant = "blue";
  EXPECT_EQ(Find(FindingsOfNode(Status(), Sound(), asked), "node_memory")->verdict, Verdict::kOk);
  asked.memory_bytes = 2 * kGiB;
  const Findings findings = FindingsOfNode(Status(), Sound(), asked);
  EXPECT_EQ(Find(findings, "node_memory")->verdict, Verdict::kWarning);
  EXPECT_THAT(Find(findings, "node_memory")->mend,
              HasSubstr("cistern forget --memory-dir /dev/shm/kv --tenant blue"));
}

TEST(NodeFindings, MemoryThatGrowsIsToldFromMemoryThatTheHostHasNotAndFromMemoryThatShrinks) {
  node::NodeOptions asked;
  asked.memory_bytes = kGiB;
  const auto mend = [&](std::uint64_t bytes, bool lacks) {
    const std::string status = Text(R"({"node":{},"memory":{"bytes":)", bytes, R"(,"wanted_bytes":)",
                                    SlotsOf(kGiB), R"(,"short":)", lacks ? "true" : "false", "}}");
    return Find(FindingsOfNode(status, Sound(), asked), "node_memory")->mend;
  };
  EXPECT_THAT(mend(SlotsOf(kGiB) / 2, false), HasSubstr("behind the node that serves"));
  EXPECT_THAT(mend(SlotsOf(kGiB) / 2, true), HasSubstr("the host has no more"));
  EXPECT_THAT(mend(SlotsOf(2 * kGiB), false), HasSubstr("leases end"));
  EXPECT_EQ(mend(SlotsOf(kGiB), false), "");
}

TEST(NodeFindings, ANodeThatLiesOnFewerMemoryNodesThanTheHostHasIsAWarning) {
  HostFacts facts = Sound();
  facts.numa = {{.number = 0, .processors = {0}}, {.number = 1, .processors = {1}}, {.number = 2}};
  const auto found = [&](const std::string& rows) {
    return *Find(FindingsOfNode(Text(R"({"node":{},"memory":{"nodes":[)", rows, "]}}"), facts, std::nullopt),
                 "node_numa");
  };
  EXPECT_EQ(found(R"({"node":"0"},{"node":"1"})").verdict, Verdict::kOk);
  EXPECT_THAT(found("").mend, HasSubstr("mbind"));
  facts.numa[2] = {.number = 2, .bytes = 64 * kGiB, .distance = 24};
  EXPECT_EQ(found(R"({"node":"0"},{"node":"1"})").verdict, Verdict::kWarning) << "the one without processors";
  const Finding all = found(R"({"node":"0"},{"node":"1"},{"node":"2"})");
  EXPECT_EQ(all.verdict, Verdict::kOk);
  EXPECT_EQ(all.limit, "2 with processors, 1 of memory alone");
  facts.numa.pop_back();
  facts.numa.pop_back();
  EXPECT_EQ(Find(FindingsOfNode(R"({"node":{},"memory":{"nodes":[]}})", facts, std::nullopt), "node_numa"),
            nullptr);
}

TEST(NodeFindings, ANodeWithoutIoUringThatTheShellHasIsAWarningWhereThereIsFlash) {
  const std::string epoll = R"("loop":"epoll","copy":"avx512")";
  EXPECT_EQ(Find(FindingsOfNode(Status(R"("devices":[])", R"("busy":0)", epoll), Sound(), std::nullopt),
                 "node_loop")
                ->verdict,
            Verdict::kOk);
  const Findings findings = FindingsOfNode(
      Status(R"("devices":[{"path":"/a","in_service":true}])", R"("busy":0)", epoll), Sound(), std::nullopt);
  EXPECT_EQ(Find(findings, "node_loop")->verdict, Verdict::kWarning);
}

TEST(NodeFindings, ACopyKernelThatIsNotTheFastestIsAWarning) {
  const Findings findings =
      FindingsOfNode(Status(R"("devices":[])", R"("busy":0)", R"("loop":"io_uring","copy":"portable")"),
                     Sound(), std::nullopt);
  EXPECT_EQ(Find(findings, "node_copy")->verdict, Verdict::kWarning);
  EXPECT_EQ(Find(findings, "node_copy")->limit, "avx512");
}

TEST(NodeFindings, AMemberThatIsNotReachedOrHasNotJoinedIsAProblem) {
  const auto with = [](const std::string& cell) {
    std::string status = Status();
    status.insert(1, Text(R"("cell":{"member":"a",)", cell, "},"));
    return FindingsOfNode(status, Sound(), std::nullopt);
  };
  const Findings whole = with(R"("joined":true,"trouble":"","members":3,"reachable":2)");
  ASSERT_NE(Find(whole, "node_cell"), nullptr);
  EXPECT_EQ(Find(whole, "node_cell")->verdict, Verdict::kOk);
  EXPECT_EQ(Find(whole, "node_certificate"), nullptr) << "it has a key";
  for (const auto& [cell, value] :
       {std::pair(R"("joined":true,"trouble":"","members":3,"reachable":1)", "3 members, 1 others reached"),
        std::pair(R"("joined":true,"trouble":"etcd is away","members":3,"reachable":2)", "etcd is away"),
        std::pair(R"("joined":true,"trouble":"","members":3,"reachable":2,"without_rail":1)",
                  "no block can be read from 1 of 2 others"),
        std::pair(R"("joined":false,"trouble":"","members":0,"reachable":0)", "it has not joined yet")}) {
    const Findings findings = with(cell);
    EXPECT_EQ(Find(findings, "node_cell")->verdict, Verdict::kProblem) << cell;
    EXPECT_EQ(Find(findings, "node_cell")->value, value);
    EXPECT_NE(Find(findings, "node_cell")->mend, "");
  }
  EXPECT_EQ(Find(FindingsOfNode(Status(), Sound(), std::nullopt), "node_cell"), nullptr);
}

TEST(NodeFindings, ACertificateIsRenewedBeforeItEnds) {
  HostFacts facts = Sound();
  facts.unix_seconds = 1'000'000'000;
  for (const auto& [left_s, verdict] :
       {std::pair(14 * 86'400, Verdict::kOk), std::pair(14 * 86'400 - 1, Verdict::kWarning),
        std::pair(1, Verdict::kWarning), std::pair(0, Verdict::kProblem)}) {
    std::string status = Status();
    status.insert(
        1, Text(R"("cell":{"member":"a","joined":true,"certificate_ends":)", 1'000'000'000 + left_s, "},"));
    const Findings findings = FindingsOfNode(status, facts, std::nullopt);
    ASSERT_NE(Find(findings, "node_certificate"), nullptr);
    EXPECT_EQ(Find(findings, "node_certificate")->verdict, verdict) << left_s;
  }
}

TEST(NodeFindings, ADeviceForRdmaIsNamedAndOneThatIsMissedIsAWarning) {
  const auto with = [](const std::string& cell) {
    std::string status = Status();
    status.insert(1, Text(R"("cell":{)", cell, "},"));
    return FindingsOfNode(status, Sound(), std::nullopt);
  };
  EXPECT_EQ(Find(with(R"("rdma":"","no_rdma":"")"), "node_rdma"), nullptr);
  const Findings found = with(R"("rdma":"verbs;ofi_rxm on mlx5_0","no_rdma":"")");
  ASSERT_NE(Find(found, "node_rdma"), nullptr);
  EXPECT_EQ(Find(found, "node_rdma")->value, "verbs;ofi_rxm on mlx5_0");
  EXPECT_EQ(Find(found, "node_rdma")->verdict, Verdict::kOk);
  const Findings missed = with(R"("rdma":"","no_rdma":"libfabric finds no device of verbs or EFA")");
  ASSERT_NE(Find(missed, "node_rdma"), nullptr);
  EXPECT_EQ(Find(missed, "node_rdma")->verdict, Verdict::kWarning);
  EXPECT_THAT(Find(missed, "node_rdma")->mend, HasSubstr("docs/rdma.md"));
}

TEST(NodeFindings, ADeviceOutOfServiceIsAProblemWithItsReason) {
  const Findings findings = FindingsOfNode(
      Status(R"("devices":[{"path":"/mnt/a","in_service":false,"why":"12 transfers failed"}])"), Sound(),
      std::nullopt);
  ASSERT_NE(Find(findings, "devices"), nullptr);
  EXPECT_EQ(Find(findings, "devices")->verdict, Verdict::kProblem);
  EXPECT_EQ(Find(findings, "devices")->value, "/mnt/a is out of service: 12 transfers failed");
  EXPECT_THAT(Find(findings, "devices")->mend, HasSubstr("cistern device bring-back /mnt/a"));
}

TEST(NodeFindings, EachCounterThatShouldStayZeroIsNamedWithItsCount) {
  const Findings findings =
      FindingsOfNode(Status(R"("devices":[],"bad_records":2)", R"("reported_bad":1,"busy":9,"cut_bad":0)"),
                     Sound(), std::nullopt);
  std::vector<std::string> said;
  for (const Finding& finding : findings) {
    if (finding.verdict != Verdict::kOk)
      said.push_back(std::string(VerdictName(finding.verdict)) + " " + finding.value);
  }
  EXPECT_THAT(said, testing::ElementsAre("problem store.reported_bad = 1", "problem flash.bad_records = 2",
                                         "warning store.busy = 9"));
}

TEST(NodeFindings, RecordsThatAStartDidNotBelieveAreAWarningAndThoseThatHadBeenDroppedAreNot) {
  const auto restart = [](const std::string& store) {
    return std::ranges::count(FindingsOfNode(Status("", store), Sound(), std::nullopt), "restart",
                              &Finding::name);
  };
  EXPECT_EQ(restart(R"("recovery_refused":5,"recovered":3)"), 1);
  EXPECT_EQ(restart(R"("recovery_dropped":5,"recovered":0)"), 0);
}

}  // namespace
}  // namespace cistern::doctor
