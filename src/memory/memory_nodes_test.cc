// SPDX-License-Identifier: Apache-2.0
#include "memory/memory_nodes.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/fd.h"
#include "memory/node_plan.h"

namespace cistern::memory {
namespace {

TEST(MemoryNodes, AreReadFromTheKernelsFiles) {
  const std::filesystem::path root = testing::TempDir() + "/memory-nodes";
  const auto add = [&](const char* name, const char* processors, const char* kib) {
    const std::filesystem::path directory = root / "sys/devices/system/node" / name;
    std::filesystem::create_directories(directory);
    std::ofstream(directory / "cpulist") << processors << '\n';
    std::ofstream(directory / "meminfo")
        << "\nNode 0 MemTotal:       " << kib << " kB\nNode 0 MemFree: 1 kB\n";
  };
  add("node1", "2-3,6", "2048");
  add("node0", "0-1", "1024");
  add("node10", "", "4096");
  EXPECT_EQ(ReadMemoryNodes(root.string()),
            (std::vector<MemoryNode>{{0, 1u << 20, {0, 1}}, {1, 2u << 20, {2, 3, 6}}, {10, 4u << 20, {}}}));
  std::filesystem::remove_all(root);
  EXPECT_TRUE(ReadMemoryNodes(root.string()).empty());
}

TEST(MemoryNodes, AListOfNumbersLeavesOutWhatIsNone) {
  EXPECT_EQ(ParseNumbers("0-2,5"), (std::vector<std::uint32_t>{0, 1, 2, 5}));
  EXPECT_TRUE(ParseNumbers("").empty());
  EXPECT_TRUE(ParseNumbers("x,-,9-,4294967295,3-99999999").empty());
}

// As of a host that has two: this process runs on one of them, wherever the test does.
TEST(MemoryNodes, AProcessIsOfTheNodeOnWhoseProcessorsItRuns) {
  const cpu_set_t before = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    EXPECT_EQ(::sched_getaffinity(0, sizeof(set), &set), 0);
    return set;
  }();
  std::vector<std::uint32_t> all;
  for (std::uint32_t i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &before)) all.push_back(i);
  }
  ASSERT_FALSE(all.empty());
  const std::vector<MemoryNode> nodes = {{.number = 0, .processors = {CPU_SETSIZE + 1}},
                                         {.number = 1, .processors = {all.back()}}};
  ASSERT_TRUE(RunOn({all.back()}));
  EXPECT_EQ(NodeOfProcess(nodes, ::getpid()), 1u);
  EXPECT_EQ(NodeOfProcess({nodes[0]}, ::getpid()), std::nullopt);
  EXPECT_EQ(NodeOfProcess(nodes, 0), std::nullopt) << "of another pid namespace";
  EXPECT_EQ(::sched_setaffinity(0, sizeof(before), &before), 0);
}

TEST(MemoryNodes, PagesComeFromTheNodeThatIsPreferred) {
  const std::vector<MemoryNode> nodes = AllowedNodes(ReadMemoryNodes());
  if (nodes.empty()) GTEST_SKIP() << "this kernel has no memory nodes, or does not say";
  const std::uint64_t bytes = 4 * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const Fd fd(::memfd_create("memory-nodes", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  void* map = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  ASSERT_NE(map, MAP_FAILED);
  auto* const page = static_cast<std::byte*>(map);
  const MemoryNode& last = nodes.back();
  if (!PreferNode(page, bytes, last.number)) GTEST_SKIP() << "mbind is refused here";
  EXPECT_EQ(NodeOfPage(page), last.number);
  EXPECT_FALSE(PreferNode(page, bytes, 1023)) << "a node that there is not";
  ::munmap(map, bytes);
}

TEST(NodePlan, EachNodeHasItsShareOfEveryLengthThatIsARoundOfRuns) {
  EXPECT_EQ(NodePlan().nodes(), 1u);
  EXPECT_EQ(NodePlan(1, 1000).nodes(), 1u);
  EXPECT_EQ(NodePlan(2, 1).nodes(), 1u) << "too little to divide";
  for (std::uint32_t nodes : {2u, 3u, 8u}) {
    for (std::uint32_t headers : {16u, 50u, 64u * nodes, 5000u}) {
      const NodePlan plan(nodes, headers);
      ASSERT_EQ(plan.nodes(), nodes);
      ASSERT_TRUE(std::has_single_bit(plan.run()) && plan.run() <= 32);
      std::vector<std::uint64_t> counted(nodes);
      for (std::uint32_t header = 0; header < headers; ++header) {
        ASSERT_EQ(plan.Of(header), plan.Of(header / plan.run() * plan.run())) << "a run is of one node";
        ++counted[plan.Of(header)];
        for (std::uint32_t node = 0; node < nodes; ++node)
          ASSERT_EQ(plan.CountOn(static_cast<NodeIndex>(node), header + 1), counted[node]);
      }
      const auto [least, most] = std::ranges::minmax(counted);
      EXPECT_LE(most - least, plan.run());
      EXPECT_GT(least, 0u);
    }
  }
}

}  // namespace
}  // namespace cistern::memory
