// SPDX-License-Identifier: Apache-2.0
// Which memory node each header of an arena, with its slots, is of (docs/decisions/0033-memory-nodes.md):
// runs of the headers of one chunk of the largest kind, a run a node in turn, so that each node has its share
// of an arena of any size, and growing and shrinking at the end keep it so. Pure arithmetic; a plain value.
//
// Nodes are counted from 0 among those that the arena lies on. An arena of one has no runs: nothing of this
// costs anything there.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace cistern::memory {

using NodeIndex = std::uint8_t;
inline constexpr NodeIndex kAnyNode = 0xff;  // of who has none, or does not care
inline constexpr std::uint32_t kMaxNodes = 16;

class NodePlan final {
 public:
  NodePlan() = default;
  // For an arena that is to have so many headers. Where these are too few to divide there is one node.
  NodePlan(std::uint32_t nodes, std::uint32_t headers) {
    if (nodes < 2 || headers < nodes) return;
    nodes_ = std::min(nodes, kMaxNodes);
    run_ = std::clamp(std::bit_floor(headers / (2 * nodes_)), 1u, kMostRun);
  }

  std::uint32_t nodes() const { return nodes_; }
  NodeIndex Of(std::uint32_t header) const {
    return nodes_ == 1 ? NodeIndex{0} : static_cast<NodeIndex>(header / run_ % nodes_);
  }
  // Of the first `headers`, how many are of the node.
  std::uint64_t CountOn(NodeIndex node, std::uint32_t headers) const {
    if (nodes_ == 1) return headers;
    const std::uint32_t round = run_ * nodes_;
    const std::uint32_t left = headers % round, before = node * run_;
    return headers / round * run_ + std::clamp(left, before, before + run_) - before;
  }
  // Headers of a run: no chunk is longer. 0: there are no runs.
  std::uint32_t run() const { return run_; }

 private:
  static constexpr std::uint32_t kMostRun = 32;  // of a chunk of the largest blocks, 1 GiB

  std::uint32_t nodes_ = 1;
  std::uint32_t run_ = 0;
};

}  // namespace cistern::memory
