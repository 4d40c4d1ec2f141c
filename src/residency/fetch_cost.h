// SPDX-License-Identifier: Apache-2.0
// What a fetch takes beside its read of the tier: finding room, the check that is not done when the last byte
// comes, publishing. The tier's estimate knows nothing of it, and on a fast device it is a good part of the
// whole. Pure; follows the middle of what fetches took, by their bytes and by how many were under way.
//
// A cost that keeps every reader away would stay what it is, since only fetches teach. So where none told for
// kRestUs no more is expected than of the read: that fetch tells.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/clock.h"

namespace cistern::residency {

class FetchCost final {
 public:
  static constexpr std::int64_t kRestUs = 1'000'000;

  // Of a fetch of so many bytes, whose read is to take `read_us`, that would begin while `under_way` others
  // are; 0 until something was learned.
  double Us(std::uint64_t bytes, std::size_t under_way, double read_us, Instant now) const {
    const std::size_t size = SizeOf(bytes), others = OthersOf(under_way);
    // The nearest size that was seen, with as many others, then with fewer or more.
    for (std::size_t far = 0; far < kOthers; ++far) {
      for (const std::size_t at : {others - far, others + far}) {
        if (at >= kOthers) continue;
        for (std::size_t off = 0; off < kSizes; ++off) {
          for (const std::size_t near : {size - off, size + off}) {
            if (near >= kSizes || costs_[at][near].seen == 0) continue;
            const Cost& cost = costs_[at][near];
            return now.UsSince(cost.told) > kRestUs ? std::min<double>(cost.us, read_us) : cost.us;
          }
        }
      }
    }
    return 0;
  }
  void Took(std::uint64_t bytes, std::size_t under_way, double us, Instant now) {
    Cost& cost = costs_[OthersOf(under_way)][SizeOf(bytes)];
    cost.told = now;
    us = std::max(us, 0.1);
    if (cost.seen == 0) cost.us = static_cast<float>(us);
    const double share = std::max(kShare, 1.0 / (++cost.seen));
    cost.us *= static_cast<float>(std::exp(share * std::clamp(std::log(us / cost.us), -kMost, kMost)));
  }

 private:
  static constexpr std::size_t kSizes = 12;   // octaves from 4 KiB
  static constexpr std::size_t kOthers = 10;  // octaves
  static constexpr double kShare = 1.0 / 8;
  static constexpr double kMost = 0.5;  // logarithm; what lies farther off all counts the same
  struct Cost {
    float us = 0;
    std::uint32_t seen = 0;
    Instant told;
  };
  static std::size_t SizeOf(std::uint64_t bytes) {
    return std::min<std::size_t>(std::bit_width(std::max<std::uint64_t>(bytes, 1) >> 12), kSizes - 1);
  }
  static std::size_t OthersOf(std::size_t under_way) {
    return std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(under_way)), kOthers - 1);
  }

  std::array<std::array<Cost, kSizes>, kOthers> costs_{};
};

}  // namespace cistern::residency
