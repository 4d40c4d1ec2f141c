// SPDX-License-Identifier: Apache-2.0
// How much of something bounded one owner may have, so that one which takes all that it can leaves something
// for each that comes later.
#pragma once

#include <cstdint>

namespace cistern::policy {

// An owner may have as much as kShare times what is free: 4/5 of the whole where it is alone, 4/9 each of
// two, and always something is left for one more. (Dynamic thresholds, as switches share their buffers:
// nobody has to know how many there are, and what is given back counts at once.)
inline constexpr std::uint64_t kShare = 4;

// Whether an owner that has `mine` may take one more, of `limit` of which `used` are taken by all.
constexpr bool MayTakeOne(std::uint64_t limit, std::uint64_t used, std::uint64_t mine) {
  return used < limit && mine < kShare * (limit - used);
}

// Whether it may take `more` at once.
constexpr bool MayTake(std::uint64_t limit, std::uint64_t used, std::uint64_t mine, std::uint64_t more) {
  return used <= limit && more <= limit - used && mine + more <= kShare * (limit - used - more);
}

// The most that it may take at once.
constexpr std::uint64_t MostMore(std::uint64_t limit, std::uint64_t used, std::uint64_t mine) {
  if (used > limit) return 0;
  // What is left then counts, kShare times of which hold these and what it has.
  const std::uint64_t share = kShare * (limit - used);
  return share > mine ? (share - mine) / (kShare + 1) : 0;
}

// Whether it may keep the `mine` that it has already, of `used` by all.
constexpr bool MayKeep(std::uint64_t limit, std::uint64_t used, std::uint64_t mine) {
  return used <= limit && mine <= kShare * (limit - used);
}

}  // namespace cistern::policy
