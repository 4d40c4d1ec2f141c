// SPDX-License-Identifier: Apache-2.0
#include "memory/host_memory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace cistern::memory {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;

class CgroupMemory : public testing::Test {
 protected:
  CgroupMemory() : root_(testing::TempDir() + "cistern-host-memory-XXXXXX") {
    EXPECT_NE(mkdtemp(root_.data()), nullptr);
    File("/proc/meminfo", "MemTotal: 1048576 kB\nMemAvailable: 524288 kB\n");
  }
  ~CgroupMemory() override { std::filesystem::remove_all(root_); }
  void File(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  HostMemory Read(const std::string& process = "self") {
    const Result<HostMemory> memory = ReadHostMemory(root_, process);
    EXPECT_TRUE(memory.has_value());
    return memory.value_or(HostMemory());
  }

 private:
  std::string root_;
};

TEST_F(CgroupMemory, IsTheHostsWithoutACgroup) {
  EXPECT_EQ(Read().limit_bytes, 1024 * kMiB);
  EXPECT_EQ(Read().cgroup, "");
  EXPECT_EQ(Read().available_bytes, 512 * kMiB);
}

TEST_F(CgroupMemory, IsTheLeastOfTheCgroupsOfVersion2) {
  File("/proc/self/cgroup", "0::/a/b\n");
  File("/sys/fs/cgroup/a/b/memory.max", "max\n");
  File("/sys/fs/cgroup/a/memory.max", "268435456\n");
  File("/sys/fs/cgroup/a/memory.current", "134217728\n");
  File("/sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 33554432\n");
  EXPECT_EQ(Read().limit_bytes, 256 * kMiB);
  EXPECT_EQ(Read().available_bytes, 160 * kMiB);
  EXPECT_EQ(Read().cgroup, "/sys/fs/cgroup/a");
}

TEST_F(CgroupMemory, IsTheLeastOfTheCgroupsOfVersion1) {
  File("/proc/self/cgroup", "12:cpu,cpuacct:/x\n7:hugetlb,memory:/docker/c1\n0::/x\n");
  File("/sys/fs/cgroup/memory/docker/c1/memory.limit_in_bytes", "419430400\n");
  File("/sys/fs/cgroup/memory/docker/c1/memory.usage_in_bytes", "104857600\n");
  File("/sys/fs/cgroup/memory/docker/c1/memory.stat", "inactive_file 1\ntotal_inactive_file 52428800\n");
  File("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(Read().limit_bytes, 400 * kMiB);
  EXPECT_EQ(Read().available_bytes, 350 * kMiB);
}

TEST_F(CgroupMemory, OfAnotherProcessIsThatOfItsOwnGroup) {
  File("/proc/self/cgroup", "0::/a\n");
  File("/proc/77/cgroup", "0::/b\n");
  File("/sys/fs/cgroup/a/memory.max", "268435456\n");
  File("/sys/fs/cgroup/b/memory.max", "134217728\n");
  EXPECT_EQ(Read("77").limit_bytes, 128 * kMiB);
  EXPECT_EQ(Read("77").cgroup, "/sys/fs/cgroup/b");
}

// A container sees its own group at the mount's root, and names the path that it has outside.
TEST_F(CgroupMemory, IsTheMountsRootWhereAContainerSeesNoMore) {
  File("/proc/self/cgroup", "7:memory:/docker/c1\n");
  File("/sys/fs/cgroup/memory/memory.limit_in_bytes", "419430400\n");
  EXPECT_EQ(Read().limit_bytes, 400 * kMiB);
}

}  // namespace
}  // namespace cistern::memory
