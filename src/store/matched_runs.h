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
    if (runs_.empty() || runs_.back().run.where != where) runs_.push_back({{.where = where}, 0, {}, whole_});
    Run& last = runs_.back();
    ++last.run.blocks;
    last.bytes += lower_bytes;
    last.location = location;
    ++blocks_;
    if (whole) whole_ = blocks_;
  }

  // The largest over all blocks; past the end when there is none.
  std::size_t first_lower() const { return first_lower_; }

  // Runs up to the match's possible end, which is before a run that can never be in memory: its device left
  // service.
  std::vector<MatchRun> Take(const residency::LowerTier& lower) const {
    std::vector<MatchRun> taken;
    std::size_t left = whole_;
    for (const Run& one : runs_) {
      MatchRun run = one.run;
      if (run.where != Where::kMemory && lower.present()) {
        const std::int64_t us = lower.ReadyInUs(one.location, one.bytes);
        if (us == tier::Tier::kNever) {
          left = one.whole_before;
          break;
        }
        run.ready_in_us = std::max<std::int64_t>(us, 0);
      }
      taken.push_back(run);
    }
    std::size_t count = 0;
    for (; count < taken.size() && left > 0; ++count) {
      MatchRun& run = taken[count];
      run.blocks = static_cast<std::uint32_t>(std::min<std::size_t>(run.blocks, left));
      left -= run.blocks;
    }
    taken.resize(count);
    return taken;
  }

 private:
  struct Run {
    MatchRun run;
    std::uint64_t bytes;
    tier::Location location;
    std::size_t whole_before;  // the match's possible end when the run began
  };
  std::vector<Run> runs_;
  std::size_t blocks_ = 0;
  std::size_t whole_ = 0;
  std::size_t first_lower_ = SIZE_MAX;
};

}  // namespace cistern::store
