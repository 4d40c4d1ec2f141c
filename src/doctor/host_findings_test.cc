// SPDX-License-Identifier: Apache-2.0
#include "doctor/host_findings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cistern::doctor {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kGiB = 1u << 30;

node::NodeOptions Options() {
  node::NodeOptions options;
  options.memory_dir = "/dev/shm/cistern-7";
  options.memory_bytes = 8 * kGiB;
  return options;
}

// A host on which nothing is to be said.
HostFacts Sound() {
  HostFacts facts;
  facts.kernel = "6.1.0-28-amd64";
  facts.memory = {.limit_bytes = 32 * kGiB, .available_bytes = 24 * kGiB};
  facts.memory_dir = {.path = "/dev/shm/cistern-7",
                      .kind = FileSystemFacts::Kind::kTmpfs,
                      .bytes = 16 * kGiB,
                      .free_bytes = 16 * kGiB};
  facts.shmem_huge = "advise";
  facts.numa = {{.number = 0, .bytes = 32 * kGiB, .processors = {0}}};
  facts.kernels = {"avx512", "avx2", "portable"};
  facts.uid = 7;
  facts.clock_source = "tsc";
  facts.clock_synchronised = true;
  return facts;
}

// The first of the name.
Finding Of(const Findings& findings, std::string_view name) {
  for (const Finding& finding : findings) {
    if (finding.name == name) return finding;
  }
  ADD_FAILURE() << "no finding " << name;
  return {};
}

Finding Of(std::string_view name, const HostFacts& facts, const node::NodeOptions& options = Options()) {
  return Of(FindingsOfHost(facts, options), name);
}

void ExpectMend(const Finding& finding, Verdict verdict, const std::string& mend) {
  EXPECT_EQ(VerdictName(finding.verdict), VerdictName(verdict)) << finding.name << ": " << finding.value;
  EXPECT_THAT(finding.mend, HasSubstr(mend)) << finding.name;
}

TEST(HostFindings, ASoundHostHasNothingToMend) {
  for (const Finding& finding : FindingsOfHost(Sound(), Options())) {
    EXPECT_EQ(VerdictName(finding.verdict), "ok") << finding.name << ": " << finding.value;
    EXPECT_EQ(finding.mend, "") << finding.name;
    EXPECT_NE(finding.value, "") << finding.name;
  }
}

TEST(HostFindings, AKernelOlderThanTheFloorIsAWarning) {
  HostFacts facts = Sound();
  for (const char* older : {"5.10.0", "6.0.19", "4.18.0-553.el8"}) {
    facts.kernel = older;
    ExpectMend(Of("kernel", facts), Verdict::kWarning, "newer kernel");
  }
  for (const char* enough : {"6.1", "6.12.3", "7.0-rc1", "10.0.1"}) {
    facts.kernel = enough;
    ExpectMend(Of("kernel", facts), Verdict::kOk, "");
  }
}

TEST(HostFindings, ACgroupBelowTheMemoryIsAProblemThatNamesTheCgroup) {
  HostFacts facts = Sound();
  facts.memory = {.limit_bytes = 4 * kGiB, .available_bytes = 4 * kGiB, .cgroup = "/sys/fs/cgroup/pod"};
  const Finding finding = Of("memory", facts);
  ExpectMend(finding, Verdict::kProblem, "/sys/fs/cgroup/pod");
  EXPECT_THAT(finding.limit, HasSubstr("4GiB"));
  EXPECT_THAT(finding.value, HasSubstr("8."));
}

TEST(HostFindings, ALimitThatLeavesNoRoomBesideTheArenaIsAWarning) {
  HostFacts facts = Sound();
  facts.memory = {.limit_bytes = 9 * kGiB, .available_bytes = 9 * kGiB, .cgroup = "/sys/fs/cgroup/pod"};
  ExpectMend(Of("memory", facts), Verdict::kWarning, "lower `memory` to 7.19GiB");
}

TEST(HostFindings, TheTablesOfFlashCountAsMemory) {
  HostFacts facts = Sound();
  facts.memory = {.limit_bytes = 16 * kGiB, .available_bytes = 16 * kGiB, .cgroup = "/sys/fs/cgroup/pod"};
  node::NodeOptions options = Options();
  options.memory_bytes = 12 * kGiB;
  options.alignment = 512;
  EXPECT_EQ(Of(FindingsOfHost(facts, options), "memory").verdict, Verdict::kOk);
  options.flash = {{"/mnt/nvme", 400 * kGiB}};
  const Finding finding = Of(FindingsOfHost(facts, options), "memory");
  ExpectMend(finding, Verdict::kWarning, "lower `memory` to 11.1");
  EXPECT_THAT(finding.value, HasSubstr("tables of flash"));
}

TEST(HostFindings, TheTablesOfADeviceThatIsTakenWholeCountAsMemory) {
  HostFacts facts = Sound();
  facts.memory = {.limit_bytes = 16 * kGiB, .available_bytes = 16 * kGiB, .cgroup = "/sys/fs/cgroup/pod"};
  facts.flash = {{.path = "/dev/nvme1n1", .device_bytes = 400 * kGiB}};
  node::NodeOptions options = Options();
  options.memory_bytes = 12 * kGiB;
  options.alignment = 512;
  options.flash = {{.path = "/dev/nvme1n1"}};
  ExpectMend(Of(FindingsOfHost(facts, options), "memory"), Verdict::kWarning, "lower `memory` to 11.1");
}

TEST(HostFindings, MemoryThatOthersTookIsAProblemUnlessItIsTheNodesOwnArena) {
  HostFacts facts = Sound();
  facts.memory.available_bytes = kGiB;
  ExpectMend(Of("memory", facts), Verdict::kProblem, "refused until so much is free");
  facts.arenas = {{.directory = "/dev/shm/cistern-7/default", .bytes = 8 * kGiB, .in_use = true}};
  ExpectMend(Of("memory", facts), Verdict::kOk, "");
}

TEST(HostFindings, AMemoryDirectoryWithASlashAtItsEndIsTheNodesOwn) {
  HostFacts facts = Sound();
  node::NodeOptions options = Options();
  options.memory_dir += "/";
  facts.arenas = {{.directory = "/dev/shm/cistern-7/default", .bytes = 8 * kGiB}};
  for (const Finding& finding : FindingsOfHost(facts, options)) {
    EXPECT_NE(finding.verdict, Verdict::kProblem) << finding.name;
    EXPECT_TRUE(finding.name != "arenas" || finding.verdict == Verdict::kOk) << finding.value;
  }
}

TEST(HostFindings, AFileSystemThatIsTooSmallFullOrNoTmpfsSaysHowToMendIt) {
  HostFacts facts = Sound();
  facts.memory_dir.bytes = facts.memory_dir.free_bytes = 64u << 20;  // what Docker gives
  ExpectMend(Of("memory_dir", facts), Verdict::kProblem, "--shm-size");
  facts = Sound();
  facts.memory_dir.free_bytes = kGiB;
  ExpectMend(Of("memory_dir", facts), Verdict::kProblem, "arenas");
  facts.arenas = {{.directory = "/dev/shm/cistern-7/default", .bytes = 8 * kGiB}};
  ExpectMend(Of("memory_dir", facts), Verdict::kOk, "");
  facts = Sound();
  facts.memory_dir.kind = FileSystemFacts::Kind::kHugetlbfs;
  ExpectMend(Of("memory_dir", facts), Verdict::kProblem, "tmpfs");
  facts.memory_dir.kind = FileSystemFacts::Kind::kOther;
  ExpectMend(Of("memory_dir", facts), Verdict::kWarning, "tmpfs");
}

TEST(HostFindings, MemoryThatLogindRemovesAtALogoutIsAWarning) {
  HostFacts facts = Sound();
  facts.removes_ipc = true;
  ExpectMend(Of("logout", facts), Verdict::kOk, "");  // of a system's user it removes nothing
  facts.uid = 1000;
  ExpectMend(Of("logout", facts), Verdict::kWarning, "enable-linger");
  node::NodeOptions options = Options();
  options.memory_dir = "/mnt/kv";
  ExpectMend(Of("logout", facts, options), Verdict::kOk, "");
}

TEST(HostFindings, HugePagesThatAreDeniedOrMissingAreAWarning) {
  HostFacts facts = Sound();
  facts.shmem_huge = "deny";
  ExpectMend(Of("huge_pages", facts), Verdict::kWarning, "shmem_enabled");
  facts.shmem_huge = "";
  ExpectMend(Of("huge_pages", facts), Verdict::kWarning, "4 KiB");
}

TEST(HostFindings, LockedMemoryCountsWhereADeviceLocksIt) {
  HostFacts facts = Sound();
  facts.memlock_bytes = 64u << 10;
  ExpectMend(Of("memlock", facts), Verdict::kOk, "");
  facts.rdma = true;
  ExpectMend(Of("memlock", facts), Verdict::kWarning, "LimitMEMLOCK=infinity");
  facts.memlock_bytes = std::nullopt;
  ExpectMend(Of("memlock", facts), Verdict::kOk, "");
}

TEST(HostFindings, IoUringThatIsForbiddenMattersWithFlashAndWhereItWasAskedFor) {
  HostFacts facts = Sound();
  facts.uring_error = "io_uring_setup: Operation not permitted (EPERM)";
  node::NodeOptions options = Options();
  ExpectMend(Of("io_uring", facts, options), Verdict::kOk, "");
  options.flash.push_back({.path = "/mnt/nvme0"});
  ExpectMend(Of("io_uring", facts, options), Verdict::kWarning, "seccomp");
  options.loop = "epoll";
  ExpectMend(Of("io_uring", facts, options), Verdict::kOk, "");
  options.loop = "io_uring";
  ExpectMend(Of("io_uring", facts, options), Verdict::kProblem, "does not start");
}

TEST(HostFindings, EachVolumeWithoutDirectIoIsAProblemOfItsOwn) {
  HostFacts facts = Sound();
  facts.flash = {{.path = "/mnt/a"}, {.path = "/tmp/b", .direct_error = "Invalid argument (EINVAL)"}};
  const Findings findings = FindingsOfHost(facts, Options());
  std::vector<std::string> verdicts;
  for (const Finding& finding : findings) {
    if (finding.name == "flash")
      verdicts.push_back(std::string(VerdictName(finding.verdict)) + " " + finding.value);
  }
  EXPECT_THAT(verdicts, testing::ElementsAre("ok /mnt/a", "problem /tmp/b: Invalid argument (EINVAL)"));
}

TEST(HostFindings, WhatARebootLosesOfFlashIsAWarningEach) {
  HostFacts facts = Sound();
  facts.lost_at_reboot = {{.what = "journal_dir: /run/x lies on a tmpfs", .way_out = "name another"}};
  EXPECT_EQ(Of("reboot", facts).value, facts.lost_at_reboot[0].what);
  ExpectMend(Of("reboot", facts), Verdict::kWarning, "name another");
}

TEST(HostFindings, WhatAStartRefusesOfAPlaceIsThatPlacesProblem) {
  HostFacts facts = Sound();
  facts.memory_dir.refused = "memory_dir: /dev/shm/cistern-7 is no directory: name one";
  EXPECT_EQ(Of("memory_dir", facts).value, facts.memory_dir.refused);
  ExpectMend(Of("memory_dir", facts), Verdict::kProblem, "no node starts with it");
  facts.flash = {{.path = "/mnt/a", .refused = "flash device /mnt/a: size is 1MiB"}};
  EXPECT_EQ(Of("flash", facts).value, facts.flash[0].refused);
  ExpectMend(Of("flash", facts), Verdict::kProblem, "no node starts with it");
}

TEST(HostFindings, SeveralMemoryNodesAreWellAndThoseWithoutProcessorsAreCounted) {
  HostFacts facts = Sound();
  facts.numa.push_back({.number = 1, .bytes = 32 * kGiB, .processors = {1}});
  facts.numa.push_back({.number = 2, .bytes = 64 * kGiB, .distance = 24});
  const Finding finding = Of("numa", facts);
  EXPECT_EQ(finding.verdict, Verdict::kOk);
  EXPECT_EQ(finding.value,
            "3 memory nodes, 1 without processors, of which 1 is slower memory for what is cold");
  facts.numa.back().device = true;
  EXPECT_EQ(Of("numa", facts).value,
            "3 memory nodes, 1 without processors, left to the system: as fast as the others, or a device's");
}

TEST(HostFindings, AProcessorThatChecksSlowlyIsAWarning) {
  HostFacts facts = Sound();
  facts.kernels = {"portable"};
  ExpectMend(Of("cpu", facts), Verdict::kWarning, "AVX2");
}

TEST(HostFindings, ProcessesOfTheSameUserAreNamedAndRootIsAWarning) {
  HostFacts facts = Sound();
  facts.processes_of_uid = 12;
  EXPECT_EQ(Of("clients", facts).value, "uid 7, 12 other processes of it");
  EXPECT_THAT(Of("clients", facts).limit, HasSubstr("can write to the arena"));
  facts.uid = 0;
  ExpectMend(Of("clients", facts), Verdict::kWarning, "a user of its own");
}

TEST(HostFindings, WhatNodesThatAreGoneLeftSaysHowToFreeIt) {
  HostFacts facts = Sound();
  facts.arenas = {{.directory = "/dev/shm/cistern-7/default", .bytes = 8 * kGiB},
                  {.directory = "/dev/shm/kv/blue", .bytes = 2 * kGiB},
                  {.directory = "/dev/shm/kv/red", .bytes = 2 * kGiB, .in_use = true}};
  const Findings findings = FindingsOfHost(facts, Options());
  ExpectMend(Of(findings, "arenas"), Verdict::kWarning,
             "cistern forget --memory-dir /dev/shm/kv --tenant blue");
  EXPECT_EQ(std::ranges::count(findings, "arenas", &Finding::name), 1);
}

TEST(HostFindings, AProcessThatKeepsADiscardedArenaIsNamed) {
  HostFacts facts = Sound();
  facts.mapped = {{.pid = 4711, .bytes = 3 * kGiB}};
  const Finding finding = Of("arenas", facts);
  ExpectMend(finding, Verdict::kWarning, "process 4711");
  EXPECT_THAT(finding.value, HasSubstr("3GiB"));
}

TEST(HostFindings, AClockThatIsSlowOrWrongIsAWarning) {
  HostFacts facts = Sound();
  facts.clock_source = "hpet";
  ExpectMend(Of("clock", facts), Verdict::kWarning, "clocksource=tsc");
  facts = Sound();
  facts.clock_synchronised = false;
  ExpectMend(Of("clock", facts), Verdict::kWarning, "chrony");
  facts.clock_synchronised = std::nullopt;
  ExpectMend(Of("clock", facts), Verdict::kOk, "");
}

}  // namespace
}  // namespace cistern::doctor
