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

MemoryNode Of(std::uint32_t number, std::uint64_t bytes, std::vector<std::uint32_t> processors,
              std::uint32_t distance, std::uint32_t read_mb_s = 0) {
  return {number, bytes, std::move(processors), distance, read_mb_s, false};
}

TEST(MemoryNodes, DistancesSpeedsAndAGpusMemoryAreReadFromTheKernelsFiles) {
  const std::filesystem::path root = testing::TempDir() + "/far-memory-nodes";
  const auto add = [&](const char* name, const char* processors, const char* distances, const char* speed) {
    const std::filesystem::path directory = root / "sys/devices/system/node" / name;
    std::filesystem::create_directories(directory / "access0/initiators");
    std::ofstream(directory / "cpulist") << processors << '\n';
    std::ofstream(directory / "distance") << distances << '\n';
    std::ofstream(directory / "access0/initiators/read_bandwidth") << speed << '\n';
    std::ofstream(directory / "meminfo") << "Node 0 MemTotal: 1024 kB\n";
  };
  add("node0", "0-1", "10 21 24 80", "300000");
  add("node1", "2", "21 10 14 80", "300000");
  add("node2", "", "24 14 10 80", "60000");
  add("node9", "", "80 80 80 10", "");
  std::filesystem::create_directories(root / "proc/driver/nvidia/gpus/0009:01:00.0");
  std::ofstream(root / "proc/driver/nvidia/gpus/0009:01:00.0/numa_status")
      << "Node:           9\nStatus:         online\n";
  const std::vector<MemoryNode> nodes = ReadMemoryNodes(root.string());
  std::filesystem::remove_all(root);
  MemoryNode gpu = Of(9, 1u << 20, {}, 80);
  gpu.device = true;
  EXPECT_EQ(nodes,
            (std::vector<MemoryNode>{Of(0, 1u << 20, {0, 1}, 10, 300'000), Of(1, 1u << 20, {2}, 10, 300'000),
                                     Of(2, 1u << 20, {}, 14, 60'000), gpu}));
  EXPECT_EQ(ArenaNodes(nodes), (std::vector<MemoryNode>{nodes[0], nodes[1], nodes[2]}));
}

TEST(MemoryNodes, AnArenaLiesOnThoseWithProcessorsFirstThenOnThoseThatAreSlower) {
  const MemoryNode cxl = Of(0, 64, {}, 14, 60), near = Of(1, 64, {0}, 10, 300), hbm = Of(2, 64, {}, 13, 800),
                   unknown = Of(3, 64, {}, 20), silent = Of(4, 64, {}, 0), empty = Of(5, 0, {}, 20);
  EXPECT_EQ(ArenaNodes({cxl, near, hbm, unknown, silent, empty}),
            (std::vector<MemoryNode>{near, cxl, unknown}));
  EXPECT_EQ(NearCount({near, cxl, unknown}), 1u);
  EXPECT_TRUE(ArenaNodes({cxl}).empty()) << "none that a process could run on";
}

TEST(MemoryNodes, SharesAreOfWhatTheNodesHave) {
  constexpr std::uint64_t kGiB = 1u << 30;
  const auto shares = [](std::vector<std::uint64_t> near, std::vector<std::uint64_t> far) {
    std::vector<MemoryNode> nodes;
    for (const std::uint64_t bytes : near) nodes.push_back(Of(0, bytes, {0}, 10));
    for (const std::uint64_t bytes : far) nodes.push_back(Of(0, bytes, {}, 20));
    return SharesOf(nodes);
  };
  using Shares = std::vector<std::uint32_t>;
  EXPECT_EQ(shares({7 * kGiB, kGiB}, {}), (Shares{1, 1})) << "near ones have as much as each other";
  EXPECT_EQ(shares({256 * kGiB}, {127 * kGiB}), (Shares{2, 1}));
  EXPECT_EQ(shares({250 * kGiB, 260 * kGiB}, {128 * kGiB}), (Shares{2, 2, 1}));
  EXPECT_EQ(shares({128 * kGiB, 128 * kGiB}, {512 * kGiB}), (Shares{1, 1, 4}));
  EXPECT_EQ(shares({1'024 * kGiB}, {4 * kGiB}), (Shares{NodePlan::kMostShare, 1}));
}

TEST(NodePlan, HeadersAreInTurnAsManyAsTheNodesShares) {
  const std::uint32_t shares[] = {2, 2, 1};
  const NodePlan plan(shares, 2, 40);
  ASSERT_EQ(plan.run(), 4u);
  EXPECT_EQ(plan.near(), 2u);
  std::uint64_t count[3] = {};
  for (std::uint32_t header = 0; header < 97; ++header) {
    for (NodeIndex node = 0; node < 3; ++node) ASSERT_EQ(plan.CountOn(node, header), count[node]) << header;
    const std::uint32_t run = header / 4 % 5;
    ASSERT_EQ(plan.Of(header), run < 2 ? 0 : run < 4 ? 1 : 2) << header;
    ++count[plan.Of(header)];
  }
  EXPECT_TRUE(plan.IsFar(2));
  EXPECT_TRUE(plan.IsFar(kAnyFar));
  EXPECT_FALSE(plan.IsFar(1));
  EXPECT_FALSE(plan.IsFar(kAnyNode));
  const NodePlan small(shares, 2, 4);
  EXPECT_EQ(small.nodes(), 2u) << "too few headers for a turn: far memory has none";
  EXPECT_FALSE(small.IsFar(1));
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
