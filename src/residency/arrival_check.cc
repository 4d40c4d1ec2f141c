// SPDX-License-Identifier: Apache-2.0
#include "residency/arrival_check.h"

#include <algorithm>

namespace cistern::residency {

ArrivalCheck::ArrivalCheck(Executor& executor, memory::Movers& movers, const std::byte* body,
                           std::span<const std::uint32_t> part_bytes)
    : movers_(movers), body_(body), part_bytes_(part_bytes.begin(), part_bytes.end()), jobs_(executor) {
  segments_.reserve(record::SegmentCount(part_bytes));
  std::uint64_t offset = 0;
  for (std::uint32_t part = 0; part < part_bytes.size(); ++part) {
    for (std::uint64_t in = 0; in < part_bytes[part]; in += record::kSegmentBytes) {
      const std::uint64_t bytes = std::min<std::uint64_t>(part_bytes[part] - in, record::kSegmentBytes);
      segments_.push_back({static_cast<std::uint32_t>(segments_.size()), part, offset + in, bytes});
    }
    offset += part_bytes[part];
  }
  states_.resize(segments_.size(), State::kAbsent);
  crcs_.resize(segments_.size());
}

void ArrivalCheck::Arrived(std::span<const std::byte> bytes) {
  const std::byte* const end = bytes.data() + bytes.size();
  const auto from = std::ranges::partition_point(
      segments_, [&](const record::Segment& segment) { return body_ + segment.offset < bytes.data(); });
  const auto to = std::ranges::partition_point(segments_, [&](const record::Segment& segment) {
    return body_ + segment.offset + segment.bytes <= end;
  });
  if (from >= to) return;
  Take(static_cast<std::uint32_t>(from - segments_.begin()),
       static_cast<std::uint32_t>(to - segments_.begin()));
}

void ArrivalCheck::Take(std::uint32_t first, std::uint32_t end) {
  while (first < end) {
    const auto begin = std::find(states_.begin() + first, states_.begin() + end, State::kAbsent);
    const auto stop = std::find(begin, states_.begin() + end, State::kTaken);
    std::fill(begin, stop, State::kTaken);
    const auto at = static_cast<std::size_t>(begin - states_.begin());
    const auto count = static_cast<std::size_t>(stop - begin);
    if (count > 0) jobs_.Spawn(Sum(std::span(segments_).subspan(at, count)));
    first = static_cast<std::uint32_t>(at + count);
  }
}

Task<void> ArrivalCheck::Sum(std::span<const record::Segment> segments) {
  memory::ChecksumTask task(movers_, body_, segments, std::span(crcs_).subspan(segments.front().number));
  co_await task;
}

Task<void> ArrivalCheck::Finish(bool whole) {
  if (whole) Take(0, static_cast<std::uint32_t>(segments_.size()));
  co_await jobs_.Close();
}

bool ArrivalCheck::HasPartsOf(const record::SealView& seal) const {
  if (seal.part_count() != part_bytes_.size()) return false;
  for (std::uint32_t part = 0; part < part_bytes_.size(); ++part) {
    if (seal.part_bytes(part) != part_bytes_[part]) return false;
  }
  return true;
}

bool ArrivalCheck::Sound(const record::SealView& seal) const {
  return HasPartsOf(seal) && record::CrcsMatch(seal, 0, crcs_);
}

}  // namespace cistern::residency
