// SPDX-License-Identifier: Apache-2.0
#include "workload/lower_log.h"

#include <algorithm>
#include <utility>

namespace cistern::workload {
namespace {
constexpr std::uint64_t kRegions = 64, kLeastRegionBlocks = 16;
constexpr double kHourMs = 3'600'000;
}  // namespace

LowerLog::LowerLog(std::uint64_t blocks, std::uint64_t budget_an_hour)
    : region_blocks_(std::max(blocks / kRegions, kLeastRegionBlocks)),
      regions_(blocks == 0 ? 0 : std::max<std::uint64_t>(blocks / region_blocks_, 2)),
      budget_(static_cast<double>(budget_an_hour)),
      saved_(budget_) {}

void LowerLog::SetNow(std::uint64_t now_ms) {
  saved_ = std::min(budget_, saved_ + static_cast<double>(now_ms - now_ms_) * budget_ / kHourMs);
  now_ms_ = now_ms;
}

LowerLog::Region LowerLog::Append(policy::EntryId id, bool moved) {
  ++(moved ? moved_ : written_);
  if (budget_ > 0) saved_ -= 1;
  if (regions_ == 0) return 0;
  if (log_.empty() || log_.back().ids.size() == region_blocks_) log_.push_back({next_++, now_ms_, {}});
  log_.back().ids.push_back(id);
  return log_.back().region;
}

std::optional<LowerLog::Given> LowerLog::GiveUp() {
  if (regions_ == 0 || log_.size() <= regions_) return std::nullopt;
  Open oldest = std::move(log_.front());
  log_.pop_front();
  full_ = true;
  return Given{oldest.region, std::move(oldest.ids)};
}

policy::WriteTerms LowerLog::terms() const {
  return {.turn_ms = full_ ? static_cast<double>(now_ms_ - log_.front().since_ms + 1) : 0,
          .moved = written_ == 0 ? 0 : static_cast<double>(moved_) / static_cast<double>(written_),
          .budget_bytes_a_ms = budget_ / kHourMs,
          .saved = budget_ == 0 ? 0 : std::max(0.0, saved_ / budget_)};
}

}  // namespace cistern::workload
