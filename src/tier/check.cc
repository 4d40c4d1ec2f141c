// SPDX-License-Identifier: Apache-2.0
#include "tier/check.h"

#include <algorithm>

namespace cistern::tier {

std::optional<FetchedRecord> CheckRecord(std::span<const std::byte> end, std::uint64_t record_bytes,
                                         std::uint32_t unit, const StampedPlace& place) {
  const std::uint64_t most =
      std::min<std::uint64_t>(record::TrailerOffset(record::kMaxTrailerBytes, unit), end.size());
  for (std::uint64_t bytes = unit; bytes <= most && bytes < record_bytes; bytes += unit) {
    const auto trailer = end.last(bytes);
    const auto seal = record::CheckSeal(trailer);
    if (!seal) continue;
    if (record::RecordBytes(seal->body_bytes(), seal->segment_count(), seal->part_count(), unit) !=
            record_bytes ||
        record::TrailerOffset(seal->body_bytes(), unit) != record_bytes - bytes) {
      continue;
    }
    const auto stamp = record::CheckStamp(trailer, *seal);
    if (!stamp || stamp->region != place.region || stamp->region_epoch != place.epoch) return std::nullopt;
    // A device may give another place's bytes, where this very block lay before it was dropped (R11).
    if (stamp->unit != place.unit && stamp->unit != 0) return std::nullopt;
    return FetchedRecord{*seal, *stamp};
  }
  return std::nullopt;
}

}  // namespace cistern::tier
