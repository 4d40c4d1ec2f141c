// SPDX-License-Identifier: Apache-2.0
// The runs of a match during its walk along a chain: blocks in memory, and blocks in the lower tier with the
// time at which they could be in memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cistern/where.h"
#include "residency/lower_tier.h"

namespace cistern::store {

class MatchedRuns final {
 public:
  // Adds the next block, of which `lower_bytes` lie in the lower tier, the last of them at `location`.
  // `whole`: a match may end with it.
  void Add(std::uint64_t lower_bytes, const tier::Location& location, bool whole) {
    const bool is_lower = lower_bytes > 0;
    if (is_lower && blocks_ < first_lower_) first_lower_ = blocks_;
    const Where where = is_lower ? Where::kFlash : Where::kMemory;
    if (runs_.empty() || runs_.back().run.where != where) runs_.push_back({{.where = where}, 0, {}});
    Run& last = runs_.back();
    ++last.run.blocks;
    last.bytes += lower_bytes;
    last.location = location;
    ++blocks_;
    if (whole) whole_ = blocks_;
  }

  // The largest over all blocks; past the end when there is none.
  std::size_t first_lower() const { return first_lower_; }

  // Runs up to the match's possible end.
  std::vector<MatchRun> Take(const residency::LowerTier& lower) const {
    std::vector<MatchRun> taken;
    std::size_t left = whole_;
    for (const Run& one : runs_) {
      if (left == 0) break;
      MatchRun run = one.run;
      run.blocks = static_cast<std::uint32_t>(run.blocks < left ? run.blocks : left);
      left -= run.blocks;
      if (run.where != Where::kMemory && lower.present())
        run.ready_in_us = std::max<std::int64_t>(lower.ReadyInUs(one.location, one.bytes), 0);
      taken.push_back(run);
    }
    return taken;
  }

 private:
  struct Run {
    MatchRun run;
    std::uint64_t bytes;
    tier::Location location;
  };
  std::vector<Run> runs_;
  std::size_t blocks_ = 0;
  std::size_t whole_ = 0;
  std::size_t first_lower_ = SIZE_MAX;
};

}  // namespace cistern::store
