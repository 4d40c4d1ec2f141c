// SPDX-License-Identifier: Apache-2.0
// Why blocks that were here are not: of the last ones that went, for metrics alone. A table of one word a
// block, in which a later block takes the place of an earlier one, so it forgets and never grows; an answer
// is another block's once in 2^56.
#pragma once

#include <cstddef>
#include <cstdint>

#include "catalog/forest.h"
#include "catalog/slab.h"

namespace cistern::catalog {

enum class WentBy : std::uint8_t {
  kUnknown,  // it was never here, or went too long ago
  kEvicted,
  kExpired,
  kDropped,
  kBad,
  kOrphaned,  // an ancestor went
};

class GoneBlocks final {
 public:
  GoneBlocks() : words_(kBlocks) {}

  void Note(KeyHash key_hash, WentBy why) {
    words_[key_hash % kBlocks] = (key_hash & ~kWhy) | static_cast<std::uint64_t>(why);
  }
  WentBy Of(KeyHash key_hash) const {
    const std::uint64_t word = words_[key_hash % kBlocks];
    return (word ^ key_hash) > kWhy ? WentBy::kUnknown : static_cast<WentBy>(word & kWhy);
  }

 private:
  static constexpr std::size_t kBlocks = 65'536;
  static constexpr std::uint64_t kWhy = 0xff;
  LazyArray<std::uint64_t> words_;
};

}  // namespace cistern::catalog
