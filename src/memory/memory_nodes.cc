// SPDX-License-Identifier: Apache-2.0
#include "memory/memory_nodes.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>

#include "base/format.h"
#include "memory/node_plan.h"

namespace cistern::memory {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaskBits = 1024;  // nodes that a kernel may have
constexpr std::size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;
using Mask = std::array<unsigned long, kMaskBits / kWordBits>;
// The kernel takes one off the bits that it is told.
constexpr unsigned long kTold = kMaskBits + 1;

bool Has(const Mask& mask, std::uint32_t bit) {
  return bit < kMaskBits && (mask[bit / kWordBits] >> bit % kWordBits & 1) != 0;
}

std::optional<std::uint64_t> NumberAt(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  std::uint64_t number = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), number);
  return end.ec == std::errc() ? std::optional(number) : std::nullopt;
}

std::string FirstLine(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The processors that a process may run on; none: the kernel does not say.
std::vector<std::uint32_t> AffinityOf(std::int32_t pid) {
  std::array<unsigned long, 8192 / kWordBits> mask{};
  const long bytes = ::syscall(SYS_sched_getaffinity, pid, sizeof(mask), mask.data());
  std::vector<std::uint32_t> processors;
  for (std::uint32_t i = 0; bytes > 0 && i < bytes * CHAR_BIT; ++i) {
    if ((mask[i / kWordBits] >> i % kWordBits & 1) != 0) processors.push_back(i);
  }
  return processors;
}

// The 39th field; the second, its name, may hold anything up to its last bracket.
std::optional<std::uint32_t> LastProcessorOf(std::int32_t pid) {
  constexpr int kSpacesBetween = 37;
  const std::string line = FirstLine(Text("/proc/", pid, "/stat"));
  std::size_t at = line.rfind(')');
  for (int i = 0; at != std::string::npos && i < kSpacesBetween; ++i) at = line.find(' ', at + 1);
  const auto number = at == std::string::npos ? std::nullopt : NumberAt(std::string_view(line).substr(at));
  return number ? std::optional(static_cast<std::uint32_t>(*number)) : std::nullopt;
}

// Numbers of the nodes that are the memory of a GPU.
std::vector<std::uint32_t> DeviceNodes(const std::string& root) {
  std::vector<std::uint32_t> nodes;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(root + "/proc/driver/nvidia/gpus", error)) {
    std::ifstream file(entry.path() / "numa_status");
    for (std::string line; std::getline(file, line);) {
      if (!line.starts_with("Node:")) continue;
      if (const auto number = NumberAt(line.substr(5))) nodes.push_back(static_cast<std::uint32_t>(*number));
    }
  }
  return nodes;
}

// Numbers in a line, one for each node that is online.
std::vector<std::uint32_t> DistancesOf(const fs::path& node) {
  std::ifstream file(node / "distance");
  std::vector<std::uint32_t> distances;
  for (std::uint32_t distance; file >> distance;) distances.push_back(distance);
  return distances;
}

bool Holds(const MemoryNode& node, std::uint32_t processor) {
  return std::ranges::find(node.processors, processor) != node.processors.end();
}

}  // namespace

std::vector<std::uint32_t> ParseNumbers(const std::string& list) {
  constexpr std::uint64_t kMost = 8192;
  std::vector<std::uint32_t> numbers;
  std::string_view rest(list);
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
    const auto first = NumberAt(part);
    const std::size_t dash = part.find('-');
    const auto last = dash == std::string_view::npos ? first : NumberAt(part.substr(dash + 1));
    if (!first || !last || *last >= kMost) continue;
    for (std::uint64_t i = *first; i <= *last; ++i) numbers.push_back(static_cast<std::uint32_t>(i));
  }
  return numbers;
}

std::vector<MemoryNode> ReadMemoryNodes(const std::string& root) {
  std::vector<MemoryNode> nodes;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(root + "/sys/devices/system/node", error)) {
    const std::string name = entry.path().filename().string();
    const auto number = name.starts_with("node") ? NumberAt(std::string_view(name).substr(4)) : std::nullopt;
    if (!number) continue;
    MemoryNode node{.number = static_cast<std::uint32_t>(*number),
                    .processors = ParseNumbers(FirstLine(entry.path() / "cpulist"))};
    node.read_mb_s = static_cast<std::uint32_t>(
        NumberAt(FirstLine(entry.path() / "access0/initiators/read_bandwidth")).value_or(0));
    std::ifstream file(entry.path() / "meminfo");
    for (std::string line; std::getline(file, line);) {
      if (const std::size_t at = line.find("MemTotal:"); at != std::string::npos)
        node.bytes = NumberAt(std::string_view(line).substr(at + 9)).value_or(0) * 1024;
    }
    nodes.push_back(std::move(node));
  }
  std::ranges::sort(nodes, {}, &MemoryNode::number);
  const std::vector<std::uint32_t> devices = DeviceNodes(root);
  for (MemoryNode& node : nodes) {
    node.device = std::ranges::find(devices, node.number) != devices.end();
    const auto distances =
        DistancesOf(fs::path(root + "/sys/devices/system/node") / Text("node", node.number));
    for (std::size_t i = 0; i < nodes.size() && distances.size() == nodes.size(); ++i) {
      if (nodes[i].processors.empty()) continue;
      node.distance = node.distance == 0 ? distances[i] : std::min(node.distance, distances[i]);
    }
  }
  return nodes;
}

std::vector<MemoryNode> ArenaNodes(const std::vector<MemoryNode>& nodes) {
  constexpr std::uint32_t kLocal = 10;
  std::vector<MemoryNode> of;
  std::uint32_t least_mb_s = 0;
  for (const MemoryNode& node : nodes) {
    if (node.processors.empty()) continue;
    least_mb_s = of.empty() ? node.read_mb_s : std::min(least_mb_s, node.read_mb_s);
    of.push_back(node);
  }
  if (of.empty()) return of;
  std::ranges::copy_if(nodes, std::back_inserter(of), [&](const MemoryNode& node) {
    const bool as_fast = least_mb_s > 0 && node.read_mb_s >= least_mb_s;
    return node.processors.empty() && node.bytes > 0 && !node.device && node.distance > kLocal && !as_fast;
  });
  return of;
}

std::uint32_t NearCount(const std::vector<MemoryNode>& nodes) {
  return static_cast<std::uint32_t>(
      std::ranges::count_if(nodes, [](const MemoryNode& node) { return !node.processors.empty(); }));
}

std::vector<std::uint32_t> SharesOf(const std::vector<MemoryNode>& nodes) {
  const std::uint32_t near = NearCount(nodes);
  std::vector<std::uint32_t> shares(nodes.size(), 1);
  if (near == 0 || near == nodes.size()) return shares;
  double bytes = 0;
  for (std::uint32_t i = 0; i < near; ++i) bytes += static_cast<double>(nodes[i].bytes) / near;
  double least = bytes;
  for (std::size_t i = near; i < nodes.size(); ++i)
    least = std::min(least, static_cast<double>(nodes[i].bytes));
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const double has = i < near ? bytes : static_cast<double>(nodes[i].bytes);
    shares[i] =
        static_cast<std::uint32_t>(std::clamp(std::round(has / least), 1.0, double{NodePlan::kMostShare}));
  }
  return shares;
}

std::vector<MemoryNode> AllowedNodes(std::vector<MemoryNode> nodes) {
  Mask allowed{};
  if (::syscall(SYS_get_mempolicy, nullptr, allowed.data(), kTold, nullptr, MPOL_F_MEMS_ALLOWED) != 0)
    return {};
  int mode = MPOL_DEFAULT;
  Mask bound{};
  const bool told = ::syscall(SYS_get_mempolicy, &mode, bound.data(), kTold, nullptr, 0) == 0;
  std::erase_if(nodes, [&](const MemoryNode& node) {
    return node.bytes == 0 || !Has(allowed, node.number) ||
           (told && mode == MPOL_BIND && !Has(bound, node.number));
  });
  return nodes;
}

bool PreferNode(std::byte* from, std::uint64_t bytes, std::uint32_t node, bool move) {
  if (node >= kMaskBits) return false;
  Mask mask{};
  mask[node / kWordBits] = 1ul << node % kWordBits;
  return ::syscall(SYS_mbind, from, bytes, MPOL_PREFERRED, mask.data(), kTold, move ? MPOL_MF_MOVE : 0) == 0;
}

std::optional<std::uint32_t> NodeOfPage(const std::byte* page) {
  int node = -1;
  const long done = ::syscall(SYS_get_mempolicy, &node, nullptr, 0, page, MPOL_F_NODE | MPOL_F_ADDR);
  return done == 0 && node >= 0 ? std::optional(static_cast<std::uint32_t>(node)) : std::nullopt;
}

bool RunOn(const std::vector<std::uint32_t>& processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (std::uint32_t processor : processors) {
    if (processor < CPU_SETSIZE) CPU_SET(processor, &set);
  }
  return ::sched_setaffinity(0, sizeof(set), &set) == 0;
}

std::optional<std::size_t> NodeOfProcess(const std::vector<MemoryNode>& nodes, std::int32_t pid) {
  if (pid <= 0) return std::nullopt;
  const std::vector<std::uint32_t> may = AffinityOf(pid);
  const auto index = [&](auto is) -> std::optional<std::size_t> {
    const auto found = std::ranges::find_if(nodes, is);
    if (found == nodes.end()) return std::nullopt;
    return static_cast<std::size_t>(found - nodes.begin());
  };
  const auto alone = index([&](const MemoryNode& node) {
    return !may.empty() && std::ranges::all_of(may, [&](std::uint32_t p) { return Holds(node, p); });
  });
  if (alone) return alone;
  const std::optional<std::uint32_t> last = LastProcessorOf(pid);
  if (!last) return std::nullopt;
  return index([&](const MemoryNode& node) { return Holds(node, *last); });
}

}  // namespace cistern::memory
