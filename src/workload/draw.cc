// SPDX-License-Identifier: Apache-2.0
#include "workload/draw.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/assert.h"

namespace cistern::workload {
namespace {

using Wide = unsigned __int128;

constexpr std::uint64_t kLn2Q32 = 2'977'044'472;  // ln(2) * 2^32, rounded

constexpr std::uint64_t SquareRoot(Wide square) {
  std::uint64_t root = 0;
  for (std::uint64_t bit = std::uint64_t{1} << 63; bit != 0; bit >>= 1) {
    const Wide next = root | bit;
    if (next * next <= square) root |= bit;
  }
  return root;
}

// 2^-(1/2), 2^-(1/4), 2^-(1/8) ... with 63 fractional bits: each the root of the one before.
constexpr std::array<std::uint64_t, 32> kRootsOfHalf = [] {
  std::array<std::uint64_t, 32> roots{};
  std::uint64_t last = std::uint64_t{1} << 62;
  for (std::uint64_t& root : roots) root = last = SquareRoot(Wide{last} << 63);
  return roots;
}();

}  // namespace

std::uint64_t Draws::Next() {
  state_ += 0x9e37'79b9'7f4a'7c15;
  std::uint64_t mixed = state_;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58'476d'1ce4'e5b9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d0'49bb'1331'11eb;
  return mixed ^ (mixed >> 31);
}

std::uint64_t Draws::Below(std::uint64_t bound) {
  return static_cast<std::uint64_t>((Wide{Next()} * bound) >> 64);
}

std::uint64_t Draws::Exponential(std::uint64_t mean) {
  const std::uint64_t uniform = std::max<std::uint64_t>(Next(), 1);
  const std::uint64_t minus_log2 = (std::uint64_t{64} << 32) - Log2Q32(uniform);
  const auto minus_ln = static_cast<std::uint64_t>((Wide{minus_log2} * kLn2Q32) >> 32);
  return static_cast<std::uint64_t>((Wide{mean} * minus_ln) >> 32);
}

std::uint64_t Log2Q32(std::uint64_t x) {
  CISTERN_ASSERT(x >= 1);
  const int zeros = std::countl_zero(x);
  std::uint64_t log = static_cast<std::uint64_t>(63 - zeros);
  std::uint64_t fraction = x << zeros;  // in [1, 2), 63 fractional bits
  for (int bit = 0; bit < 32; ++bit) {
    // Squaring doubles the logarithm, which brings its next bit before the point.
    const Wide square = Wide{fraction} * fraction >> 63;
    const bool two = square >> 64 != 0;
    log = log << 1 | (two ? 1 : 0);
    fraction = static_cast<std::uint64_t>(two ? square >> 1 : square);
  }
  return log;
}

std::uint64_t Exp2MinusQ40(std::uint64_t y_q32) {
  const std::uint64_t halvings = y_q32 >> 32;
  if (halvings > 40) return 0;
  std::uint64_t power = std::uint64_t{1} << 63;
  for (int bit = 0; bit < 32; ++bit) {
    if (y_q32 >> (31 - bit) & 1) power = static_cast<std::uint64_t>((Wide{power} * kRootsOfHalf[bit]) >> 63);
  }
  return power >> 23 >> halvings;
}

Zipf::Zipf(std::uint64_t ranks, std::uint64_t milli_exponent) {
  CISTERN_ASSERT(ranks >= 1 && ranks <= kMaxRanks && milli_exponent <= kMaxMilliExponent);
  upto_.reserve(ranks);
  std::uint64_t sum = 0;
  for (std::uint64_t rank = 1; rank <= ranks; ++rank) {
    // The rarest still have a chance: a weight is never zero.
    sum += std::max<std::uint64_t>(1, Exp2MinusQ40(Log2Q32(rank) * milli_exponent / 1'000));
    upto_.push_back(sum);
  }
}

std::uint64_t Zipf::Draw(Draws& random) const {
  const auto rank = std::ranges::upper_bound(upto_, random.Below(upto_.back()));
  return static_cast<std::uint64_t>(rank - upto_.begin());
}

}  // namespace cistern::workload
