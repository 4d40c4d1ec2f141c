// SPDX-License-Identifier: Apache-2.0
#include "memory/free_heads.h"

#include <bit>

#include "base/assert.h"

namespace cistern {

FreeHeads::FreeHeads(std::uint32_t head_count) : nodes_(head_count) {
  for (std::uint32_t& list : lists_) list = kNone;
  // Long runs first: each of the number's bits is a run, and lies at a multiple of its length.
  std::uint32_t first = 0;
  for (int order = kOrders - 1; order >= 0; --order) {
    if ((head_count >> order & 1) == 0) continue;
    Push(first, order);
    first += std::uint32_t{1} << order;
  }
}

std::optional<std::uint32_t> FreeHeads::Take(std::uint32_t count) {
  const int order = std::countr_zero(count);
  for (int longer = order; longer < kOrders; ++longer) {
    if (lists_[longer] == kNone) continue;
    const std::uint32_t first = lists_[longer];
    Split(first, longer, first, order);
    return first;
  }
  return std::nullopt;
}

bool FreeHeads::TakeAt(std::uint32_t first, std::uint32_t count) {
  const int order = std::countr_zero(count);
  for (int longer = order; longer < kOrders; ++longer) {
    const std::uint32_t run = first >> longer << longer;
    if (!IsRun(run, longer)) continue;
    Split(run, longer, first, order);
    return true;
  }
  return false;
}

void FreeHeads::Give(std::uint32_t first, std::uint32_t count) {
  int order = std::countr_zero(count);
  CISTERN_ASSERT(std::has_single_bit(count) && first % count == 0 && nodes_.size() - first >= count);
  for (;;) {
    const std::uint32_t neighbour = first ^ std::uint32_t{1} << order;
    if (!IsRun(neighbour, order)) break;
    Remove(neighbour);
    first &= ~(std::uint32_t{1} << order);
    order++;
  }
  Push(first, order);
}

bool FreeHeads::IsRun(std::uint32_t first, int order) const {
  return first < nodes_.size() && nodes_[first].order == order;
}

void FreeHeads::Split(std::uint32_t run, int run_order, std::uint32_t first, int order) {
  Remove(run);
  while (run_order > order) {
    run_order--;
    const std::uint32_t upper = run + (std::uint32_t{1} << run_order);
    if (first >= upper) {
      Push(run, run_order);
      run = upper;
    } else {
      Push(upper, run_order);
    }
  }
}

void FreeHeads::Push(std::uint32_t first, int order) {
  CISTERN_ASSERT(nodes_[first].order == -1);
  nodes_[first] = {order, lists_[order], kNone};
  if (lists_[order] != kNone) nodes_[lists_[order]].previous = first;
  lists_[order] = first;
}

void FreeHeads::Remove(std::uint32_t first) {
  Node& node = nodes_[first];
  if (node.next != kNone) nodes_[node.next].previous = node.previous;
  if (node.previous != kNone) {
    nodes_[node.previous].next = node.next;
  } else {
    lists_[node.order] = node.next;
  }
  node = {};
}

}  // namespace cistern
