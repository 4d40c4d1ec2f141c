// SPDX-License-Identifier: Apache-2.0
#include "policy/hand_over.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/random.h"

namespace cistern::policy {
namespace {

// Exponentially distributed, with the weight as its rate: the least of several is one's own with a
// probability of its share of the weights.
double Draw(std::uint64_t branch, const Taker& taker) {
  const std::uint64_t bits = SplitMix(SplitMix(branch) ^ taker.id) >> 11;
  const double uniform = (static_cast<double>(bits) + 0.5) * 0x1p-53;
  return -std::log(uniform) / static_cast<double>(taker.weight);
}

}  // namespace

std::vector<std::uint64_t> TakersOf(std::uint64_t branch, std::span<const Taker> takers) {
  std::vector<std::pair<double, std::uint64_t>> drawn;
  for (const Taker& taker : takers) {
    if (taker.weight > 0) drawn.emplace_back(Draw(branch, taker), taker.id);
  }
  std::ranges::sort(drawn);
  std::vector<std::uint64_t> order;
  for (const auto& [draw, id] : drawn) order.push_back(id);
  return order;
}

}  // namespace cistern::policy
