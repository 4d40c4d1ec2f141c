// SPDX-License-Identifier: Apache-2.0
// Which memory node each header of an arena, with its slots, is of (docs/decisions/0033-memory-nodes.md):
// runs of the headers of one chunk of the largest kind, a run a node in turn, so that each node has its share
// of an arena of any size, and growing and shrinking at the end keep it so. Pure arithmetic; a plain value.
//
// Nodes are counted from 0 among those that the arena lies on: first those that are near, with processors,
// then those that are far, memory alone (docs/decisions/0040-far-memory.md). An arena of one has no runs:
// nothing of this costs anything there.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace cistern::memory {

using NodeIndex = std::uint8_t;
inline constexpr NodeIndex kAnyNode = 0xff;  // near one: of who has none, or does not care
inline constexpr NodeIndex kAnyFar = 0xfe;
inline constexpr std::uint32_t kMaxNodes = 16;

class NodePlan final {
 public:
  NodePlan() = default;
  // For an arena that is to have so many headers, of which each node has as many. Where these are too few to
  // divide there is one node.
  NodePlan(std::uint32_t nodes, std::uint32_t headers)
      : NodePlan(std::vector<std::uint32_t>(nodes, 1), nodes, headers) {}
  // Each node has so many runs in turn (1 to kMostShare), and the first `near` are near; at least one. Where
  // headers are too few for a turn the far nodes have none.
  NodePlan(std::span<const std::uint32_t> shares, std::uint32_t near, std::uint32_t headers) {
    const std::uint32_t nodes = std::min(static_cast<std::uint32_t>(shares.size()), kMaxNodes);
    std::uint32_t runs = 0;
    for (std::uint32_t i = 0; i < nodes; ++i) first_run_[i] = std::exchange(runs, runs + shares[i]);
    if (headers < runs && near < nodes) {
      *this = NodePlan(near, headers);
      return;
    }
    if (nodes < 2 || headers < runs) return;
    first_run_[nodes] = runs;
    nodes_ = nodes;
    near_ = std::min(near, nodes);
    run_ = std::clamp(std::bit_floor(headers / (2 * runs)), 1u, kMostRun);
  }

  std::uint32_t nodes() const { return nodes_; }
  std::uint32_t near() const { return near_; }
  bool IsFar(NodeIndex node) const { return node == kAnyFar || (node < nodes_ && node >= near_); }
  NodeIndex Of(std::uint32_t header) const {
    NodeIndex node = 0;
    if (nodes_ == 1) return node;
    for (const std::uint32_t run = header / run_ % first_run_[nodes_]; run >= first_run_[node + 1];) ++node;
    return node;
  }
  // Of the first `headers`, how many are of the node.
  std::uint64_t CountOn(NodeIndex node, std::uint32_t headers) const {
    if (nodes_ == 1) return headers;
    const std::uint32_t round = run_ * first_run_[nodes_];
    const std::uint32_t before = run_ * first_run_[node], behind = run_ * first_run_[node + 1];
    return headers / round * (behind - before) + std::clamp(headers % round, before, behind) - before;
  }
  // Headers of a run: no chunk is longer. 0: there are no runs.
  std::uint32_t run() const { return run_; }

  static constexpr std::uint32_t kMostShare = 8;

 private:
  static constexpr std::uint32_t kMostRun = 32;  // of a chunk of the largest blocks, 1 GiB

  std::uint32_t nodes_ = 1;
  std::uint32_t near_ = 1;
  std::array<std::uint32_t, kMaxNodes + 1> first_run_{};  // of each node in a turn; behind them, its runs
  std::uint32_t run_ = 0;
};

}  // namespace cistern::memory
