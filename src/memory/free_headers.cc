// SPDX-License-Identifier: Apache-2.0
#include "memory/free_headers.h"

#include <algorithm>
#include <bit>

#include "base/assert.h"

namespace cistern::memory {

FreeHeaders::FreeHeaders(std::uint32_t header_count, std::uint32_t free) : nodes_(header_count) {
  for (std::uint32_t& list : lists_) list = kNone;
  // Long runs first: each of the number's bits is a run, and lies at a multiple of its length.
  std::uint32_t first = 0;
  for (int order = kOrders - 1; order >= 0; --order) {
    if ((free >> order & 1) == 0) continue;
    Push(first, order);
    first += std::uint32_t{1} << order;
  }
}

bool FreeHeaders::Has(std::uint32_t count) const {
  return std::any_of(lists_ + std::countr_zero(count), lists_ + kOrders,
                     [](std::uint32_t list) { return list != kNone; });
}

std::optional<std::uint32_t> FreeHeaders::Take(std::uint32_t count) {
  const int order = std::countr_zero(count);
  for (int longer = order; longer < kOrders; ++longer) {
    if (lists_[longer] == kNone) continue;
    const std::uint32_t first = lists_[longer];
    Split(first, longer, first, order);
    return first;
  }
  return std::nullopt;
}

bool FreeHeaders::TakeAt(std::uint32_t first, std::uint32_t count) {
  const int order = std::countr_zero(count);
  for (int longer = order; longer < kOrders; ++longer) {
    const std::uint32_t run = first >> longer << longer;
    if (!IsRun(run, longer)) continue;
    Split(run, longer, first, order);
    return true;
  }
  return false;
}

void FreeHeaders::Give(std::uint32_t first, std::uint32_t count) {
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

bool FreeHeaders::IsRun(std::uint32_t first, int order) const {
  return first < nodes_.size() && nodes_[first].order == order;
}

void FreeHeaders::Split(std::uint32_t run, int run_order, std::uint32_t first, int order) {
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

void FreeHeaders::Push(std::uint32_t first, int order) {
  CISTERN_ASSERT(nodes_[first].order == -1);
  nodes_[first] = {order, lists_[order], kNone};
  if (lists_[order] != kNone) nodes_[lists_[order]].previous = first;
  lists_[order] = first;
}

void FreeHeaders::Remove(std::uint32_t first) {
  Node& node = nodes_[first];
  if (node.next != kNone) nodes_[node.next].previous = node.previous;
  if (node.previous != kNone) {
    nodes_[node.previous].next = node.next;
  } else {
    lists_[node.order] = node.next;
  }
  node = {};
}

}  // namespace cistern::memory
