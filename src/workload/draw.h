// SPDX-License-Identifier: Apache-2.0
// Draws draws that are the same on every machine: whole-number arithmetic throughout, because the standard
// distributions and the last bit of pow() and log() differ between libraries and compilers.
#pragma once

#include <cstdint>
#include <vector>

namespace cistern::workload {

// A 64-bit sequence from a seed (SplitMix64). Not base/random.h: a workload must stay the same workload.
class Draws final {
 public:
  explicit Draws(std::uint64_t seed) : state_(seed) {}

  std::uint64_t Next();
  // Uniform from 0 to bound - 1; `bound` is at least 1.
  std::uint64_t Below(std::uint64_t bound);
  // Exponential with this mean, rounded down. `mean` is below 2^55.
  std::uint64_t Exponential(std::uint64_t mean);

 private:
  std::uint64_t state_;
};

// Ranks 0 to n - 1, the k-th in proportion to 1 / (k + 1)^s. n is from 1 to kMaxRanks and s, given in
// thousandths, at most kMaxMilliExponent; 0 is uniform.
class Zipf final {
 public:
  static constexpr std::uint64_t kMaxRanks = 1'000'000;
  static constexpr std::uint64_t kMaxMilliExponent = 4'000;

  Zipf(std::uint64_t ranks, std::uint64_t milli_exponent);
  std::uint64_t Draw(Draws& random) const;

 private:
  std::vector<std::uint64_t> upto_;  // the weights of ranks 0 to k together
};

// log2(x) of x >= 1, and 2^-y of y >= 0, as fixed-point numbers with 32 and 40 fractional bits.
std::uint64_t Log2Q32(std::uint64_t x);
std::uint64_t Exp2MinusQ40(std::uint64_t y_q32);

}  // namespace cistern::workload
