// SPDX-License-Identifier: Apache-2.0
#include "client/extents.h"

#include <algorithm>

#include "base/assert.h"

namespace cistern::client {

Extents::Extents(std::uint64_t bytes) : bytes_(bytes / kGrain * kGrain) { free_.push_back({0, bytes_}); }

std::optional<std::uint64_t> Extents::Take(std::uint64_t bytes) {
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

void Extents::Free(std::uint64_t offset, std::uint64_t bytes) {
  bytes = Rounded(bytes);
  if (bytes == 0) return;
  auto after = std::lower_bound(free_.begin(), free_.end(), offset,
                                [](const Gap& gap, std::uint64_t at) { return gap.offset < at; });
  CISTERN_ASSERT(after == free_.end() || offset + bytes <= after->offset);
  bool joins_after = after != free_.end() && after->offset == offset + bytes;
  bool joins_before = after != free_.begin() && std::prev(after)->offset + std::prev(after)->bytes == offset;
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

std::uint64_t Extents::largest() const {
  std::uint64_t most = 0;
  for (const Gap& gap : free_) most = std::max(most, gap.bytes);
  return most;
}

}  // namespace cistern::client
