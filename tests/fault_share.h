// SPDX-License-Identifier: Apache-2.0
// How often a kind of fault must have been seen in a storm.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace cistern {

// What is hardly ever tried proves little: each kind has its share of all faults. Three standard deviations
// of a count of that size may lack, or a third of it where that is more: worlds of some seeds hardly come to
// some kinds, and 79 worlds of one run lacked a quarter.
inline double LeastSeen(double share, std::uint64_t faults) {
  const double expected = share * static_cast<double>(faults);
  return expected - std::max(3 * std::sqrt(expected), expected / 3);
}

}  // namespace cistern
