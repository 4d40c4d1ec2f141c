// SPDX-License-Identifier: Apache-2.0
// Who has which bytes of a fixed area: first fit, neighbours join when freed. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/assert.h"

namespace cistern::client {

class Extents final {
 public:
  static constexpr std::uint64_t kGrain = 64;

  explicit Extents(std::uint64_t bytes) : free_{{0, bytes / kGrain * kGrain}} {}

  static std::uint64_t Rounded(std::uint64_t bytes) { return (bytes + kGrain - 1) / kGrain * kGrain; }

  // The offset of `bytes`, rounded up to the grain; none when no gap is large enough.
  std::optional<std::uint64_t> Take(std::uint64_t bytes) {
    bytes = Rounded(bytes);
    for (auto gap = free_.begin(); gap != free_.end(); ++gap) {
      if (gap->bytes < bytes) continue;
      std::uint64_t offset = gap->offset;
      gap->offset += bytes;
      gap->bytes -= bytes;
      if (gap->bytes == 0) free_.erase(gap);
      return offset;
    }
    return std::nullopt;
  }

  // What Take gave for `bytes`.
  void Free(std::uint64_t offset, std::uint64_t bytes) {
    bytes = Rounded(bytes);
    if (bytes == 0) return;
    auto after = std::lower_bound(free_.begin(), free_.end(), offset,
                                  [](const Gap& gap, std::uint64_t at) { return gap.offset < at; });
    CISTERN_ASSERT(after == free_.end() || offset + bytes <= after->offset);
    bool joins_after = after != free_.end() && after->offset == offset + bytes;
    bool joins_before =
        after != free_.begin() && std::prev(after)->offset + std::prev(after)->bytes == offset;
    if (joins_before && joins_after) {
      std::prev(after)->bytes += bytes + after->bytes;
      free_.erase(after);
    } else if (joins_before) {
      std::prev(after)->bytes += bytes;
    } else if (joins_after) {
      after->offset = offset;
      after->bytes += bytes;
    } else {
      free_.insert(after, Gap{offset, bytes});
    }
  }

  std::uint64_t largest() const {
    std::uint64_t most = 0;
    for (const Gap& gap : free_) most = std::max(most, gap.bytes);
    return most;
  }

 private:
  struct Gap {
    std::uint64_t offset;
    std::uint64_t bytes;
  };
  std::vector<Gap> free_;  // by offset
};

}  // namespace cistern::client
