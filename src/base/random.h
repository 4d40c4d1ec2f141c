// SPDX-License-Identifier: Apache-2.0
// A small seeded generator (xoshiro256++, seeded by splitmix64) for simulation and workloads: the same seed
// gives the same numbers on every machine and compiler. Not for secrets: owner tokens come from getrandom.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "base/assert.h"

namespace cistern {

// splitmix64's finalizer: a bijection that spreads the bits of all but 0, which it leaves as it is.
constexpr std::uint64_t MixBits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// One step of splitmix64: turns a counter into well spread bits. Also serves as a cheap mixing function.
constexpr std::uint64_t SplitMix(std::uint64_t x) { return MixBits(x + 0x9e3779b97f4a7c15); }

// A hash of the text that begins with `hash`: of a seed, or of what comes before.
constexpr std::uint64_t HashOfText(std::uint64_t hash, std::string_view text) {
  for (const char c : text) hash = SplitMix(hash ^ static_cast<unsigned char>(c));
  return hash;
}

class Random {
 public:
  using result_type = std::uint64_t;  // a standard uniform random bit generator

  explicit Random(std::uint64_t seed) {
    for (auto& word : state_) word = seed = SplitMix(seed);
  }

  std::uint64_t Next() {
    std::uint64_t result = std::rotl(state_[0] + state_[3], 23) + state_[0];
    std::uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  // Uniform in [0, limit), without bias; limit > 0.
  std::uint64_t Below(std::uint64_t limit) {
    CISTERN_ASSERT(limit > 0);
    std::uint64_t reject_below = (0 - limit) % limit;
    for (;;) {
      std::uint64_t x = Next();
      if (x >= reject_below) return x % limit;
    }
  }
  // Uniform in [low, high], both included.
  std::uint64_t Between(std::uint64_t low, std::uint64_t high) {
    CISTERN_ASSERT(low <= high);
    std::uint64_t width = high - low + 1;
    return low + (width == 0 ? Next() : Below(width));
  }
  // Uniform in [0, 1).
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }
  bool Chance(double probability) { return Unit() < probability; }

  template <class T>
  void Shuffle(std::span<T> items) {
    for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[Below(i)]);
  }
  // An independent stream, so that one part of a simulation drawing more does not shift another's numbers.
  Random Fork() { return Random(Next()); }

  static constexpr std::uint64_t min() { return 0; }
  static constexpr std::uint64_t max() { return ~std::uint64_t{0}; }
  std::uint64_t operator()() { return Next(); }

 private:
  std::uint64_t state_[4];
};

}  // namespace cistern
