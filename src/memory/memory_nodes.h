// SPDX-License-Identifier: Apache-2.0
// The memory nodes of the host (NUMA): what there are, what lies where, who runs where. By the kernel's files
// and system calls alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cistern::memory {

struct MemoryNode {
  std::uint32_t number = 0;  // the kernel's
  std::uint64_t bytes = 0;
  std::vector<std::uint32_t> processors;  // none: it is memory alone
  // As the firmware says: from the nearest node with processors, 10 for one itself; 0: nothing is said.
  std::uint32_t distance = 0;
  std::uint32_t read_mb_s = 0;  // its own processors', or the nearest ones'; 0: nothing is said
  bool device = false;          // a GPU's own memory

  friend bool operator==(const MemoryNode&, const MemoryNode&) = default;
};

// By number. `root` stands before the paths of the kernel's files: tests have their own.
std::vector<MemoryNode> ReadMemoryNodes(const std::string& root = "");
// Of these, those that this process may take memory of (a cpuset, numactl --membind).
std::vector<MemoryNode> AllowedNodes(std::vector<MemoryNode> nodes);

// The nodes that an arena is divided among: those with processors, behind them those that are far. What is
// as fast as the others without processors (HBM), and what is a device's, the system gives to whom it will.
std::vector<MemoryNode> ArenaNodes(const std::vector<MemoryNode>& nodes);
std::uint32_t NearCount(const std::vector<MemoryNode>& nodes);
// How much of an arena each of these gets (NodePlan): near ones as much as each other, far ones in proportion
// to what a near one has on average.
std::vector<std::uint32_t> SharesOf(const std::vector<MemoryNode>& nodes);

// "0-3,8": the kernel's way to write a list of numbers, of which others than these are left out.
std::vector<std::uint32_t> ParseNumbers(const std::string& list);

// From now on memory of the range, of a file that is mapped there to be shared, comes from the node as long
// as it has some; whoever touches it first. `move`: what lies elsewhere moves there, unless another process
// maps it. False: the kernel does not.
bool PreferNode(std::byte* from, std::uint64_t bytes, std::uint32_t node, bool move = false);
// The node that the page lies on, which is touched for it.
std::optional<std::uint32_t> NodeOfPage(const std::byte* page);

// This thread runs on these processors from now on.
bool RunOn(const std::vector<std::uint32_t>& processors);
// The index of the node on whose processors alone the process may run, or on one of which it ran last; none:
// the kernel does not say, or it runs on none of them.
std::optional<std::size_t> NodeOfProcess(const std::vector<MemoryNode>& nodes, std::int32_t pid);

}  // namespace cistern::memory
