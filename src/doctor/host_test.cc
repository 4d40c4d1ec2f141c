// SPDX-License-Identifier: Apache-2.0
#include "doctor/host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "arena/layout.h"
#include "base/fd.h"
#include "base/format.h"
#include "io/files.h"

namespace cistern::doctor {
namespace {

// The kernel's files as this test writes them.
class PlantedHost : public testing::Test {
 protected:
  PlantedHost() : root_(testing::TempDir() + "cistern-doctor-XXXXXX") {
    EXPECT_NE(mkdtemp(root_.data()), nullptr);
    File("/proc/meminfo", "MemTotal: 1048576 kB\nMemAvailable: 524288 kB\n");
  }
  ~PlantedHost() override { std::filesystem::remove_all(root_); }
  std::string File(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
    return file.string();
  }
  void Arena(const std::string& directory) {
    File(directory + "/arena", std::string(reinterpret_cast<const char*>(&arena::kArenaMagic), 8) + "rest");
    File(directory + "/lock", "");
  }
  HostFacts Read(std::uint64_t node_pid = 0) {
    LookAt at{.memory_dir = root_ + "/dev/shm/mine", .flash = flash_, .node_pid = node_pid, .root = root_};
    const Result<HostFacts> facts = ReadHostFacts(at);
    EXPECT_TRUE(facts.has_value());
    return facts.value_or(HostFacts());
  }

  std::string root_;
  std::vector<std::string> flash_;
};

TEST_F(PlantedHost, WithoutAnythingToReadHasNoFactsAndNoError) {
  const HostFacts facts = Read();
  EXPECT_EQ(facts.memory.limit_bytes, 1u << 30);
  EXPECT_EQ(facts.memlock_bytes, std::nullopt);
  EXPECT_TRUE(facts.numa.empty());
  EXPECT_TRUE(facts.arenas.empty());
  EXPECT_EQ(facts.shmem_huge, "");
  EXPECT_FALSE(facts.kernels.empty());
}

TEST_F(PlantedHost, WhatOthersPutWhereArenasAreKeepsNobodyWaiting) {
  std::filesystem::create_directories(root_ + "/dev/shm/theirs/x");
  ASSERT_EQ(mkfifo((root_ + "/dev/shm/theirs/x/arena").c_str(), 0666), 0);
  Arena("/dev/shm/real/x");
  std::filesystem::create_directories(root_ + "/dev/shm/theirs/y");
  std::filesystem::create_symlink(root_ + "/dev/shm/real/x/arena", root_ + "/dev/shm/theirs/y/arena");
  const HostFacts facts = Read();
  ASSERT_EQ(facts.arenas.size(), 1u);
  EXPECT_EQ(facts.arenas[0].directory, root_ + "/dev/shm/real/x");
}

TEST_F(PlantedHost, KernelFilesBecomeFacts) {
  File("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size [advise] never deny force\n");
  File("/proc/self/limits",
       "Limit                     Soft Limit           Hard Limit           Units\n"
       "Max locked memory         65536                65536                bytes\n");
  File("/sys/devices/system/node/node0/cpulist", "0-3\n");
  File("/sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:        2048 kB\n");
  File("/sys/devices/system/node/node1/cpulist", "\n");
  File("/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:        4096 kB\n");
  File("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n");
  File("/sys/class/infiniband/mlx5_0/node_guid", "1\n");
  const HostFacts facts = Read();
  EXPECT_EQ(facts.shmem_huge, "advise");
  EXPECT_EQ(facts.memlock_bytes, 65536u);
  EXPECT_EQ(facts.clock_source, "hpet");
  EXPECT_TRUE(facts.rdma);
  ASSERT_EQ(facts.numa.size(), 2u);
  EXPECT_FALSE(facts.numa[0].processors.empty());
  EXPECT_TRUE(facts.numa[1].processors.empty());
  EXPECT_EQ(facts.numa[1].bytes, 4096u << 10);
}

TEST_F(PlantedHost, TheNodesOwnLimitsCountWhereItsProcessIsSeen) {
  File("/proc/77/comm", "cisternd\n");
  File("/proc/77/cgroup", "0::/node\n");
  File("/proc/77/limits", "Max locked memory         unlimited            unlimited            bytes\n");
  File("/proc/77/smaps_rollup", "Rss: 1 kB\nShmemPmdMapped:     2048 kB\n");
  File("/sys/fs/cgroup/node/memory.max", "268435456\n");
  File("/proc/self/limits", "Max locked memory         65536                65536                bytes\n");
  EXPECT_EQ(Read(77).memory.limit_bytes, 256u << 20);
  EXPECT_EQ(Read(77).memlock_bytes, std::nullopt);
  EXPECT_EQ(Read(77).node_huge_bytes, 2u << 20);
  // Another process has that number here: the node runs in a container.
  File("/proc/77/comm", "bash\n");
  EXPECT_EQ(Read(77).memory.limit_bytes, 1u << 30);
  EXPECT_EQ(Read(77).memlock_bytes, 65536u);
}

TEST_F(PlantedHost, ArenasAreFoundAndThoseInUseAreTold) {
  Arena("/dev/shm/mine/default");
  Arena("/dev/shm/other/blue");
  File("/dev/shm/other/green/arena", "something else");
  const Fd lock = Fd(open((root_ + "/dev/shm/other/blue/lock").c_str(), O_RDWR));
  ASSERT_TRUE(io::TryLock(lock.get(), "lock").ok());
  const HostFacts facts = Read();
  ASSERT_EQ(facts.arenas.size(), 2u);
  EXPECT_EQ(facts.arenas[0].directory, root_ + "/dev/shm/mine/default");
  EXPECT_FALSE(facts.arenas[0].in_use);
  EXPECT_EQ(facts.arenas[1].directory, root_ + "/dev/shm/other/blue");
  EXPECT_TRUE(facts.arenas[1].in_use);
  // The look leaves the lock to whoever starts next.
  const Fd free = Fd(open((root_ + "/dev/shm/mine/default/lock").c_str(), O_RDWR));
  EXPECT_TRUE(io::TryLock(free.get(), "lock").ok());
}

TEST_F(PlantedHost, ADiscardedArenaCountsOnceForEachProcessThatMapsIt) {
  const std::string gone = "/dev/shm/cistern-0/default/arena (deleted)\n";
  File("/proc/12/cmdline", "engine");
  File("/proc/12/maps", "7f0000000000-7f0000200000 r--s 00000000 00:1a 99 " + gone +
                            "7f1000000000-7f1000200000 rw-s 00000000 00:1a 99 " + gone +
                            "7f2000000000-7f2000100000 r--s 00000000 00:1a 98 /dev/shm/other (deleted)\n");
  File("/proc/13/cmdline", "");
  const HostFacts facts = Read();
  ASSERT_EQ(facts.mapped.size(), 1u);
  EXPECT_EQ(facts.mapped[0].pid, 12u);
  EXPECT_EQ(facts.mapped[0].bytes, 2u << 20);
  EXPECT_EQ(facts.processes_of_uid, 1u);
}

TEST_F(PlantedHost, LogindRemovesIpcUnlessItIsToldOtherwiseOrTheUserLingers) {
  EXPECT_FALSE(Read().removes_ipc) << "there is no logind";
  std::filesystem::create_directories(root_ + "/run/systemd/seats");
  EXPECT_TRUE(Read().removes_ipc);
  File("/etc/systemd/logind.conf", "[Login]\n#RemoveIPC=no\nRemoveIPC = no\n");
  EXPECT_FALSE(Read().removes_ipc);
  File("/usr/lib/systemd/logind.conf.d/10-site.conf", "[Login]\nRemoveIPC=yes\n");
  EXPECT_TRUE(Read().removes_ipc);
  File("/etc/systemd/logind.conf.d/10-site.conf", "");  // in that one's place
  EXPECT_FALSE(Read().removes_ipc);
  File("/etc/systemd/logind.conf.d/20-site.conf", "[Login]\nRemoveIPC=1\n");
  EXPECT_TRUE(Read().removes_ipc);
  const passwd* user = getpwuid(geteuid());
  if (user == nullptr) GTEST_SKIP() << "this user has no name";
  File(Text("/var/lib/systemd/linger/", user->pw_name), "");
  EXPECT_FALSE(Read().removes_ipc);
}

TEST_F(PlantedHost, AVolumeThatIsNotThereSaysSo) {
  flash_ = {root_ + "/nowhere"};
  const HostFacts facts = Read();
  ASSERT_EQ(facts.flash.size(), 1u);
  EXPECT_THAT(facts.flash[0].direct_error, testing::HasSubstr("ENOENT"));
}

}  // namespace
}  // namespace cistern::doctor
