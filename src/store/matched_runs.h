// SPDX-License-Identifier: Apache-2.0
// The runs of a match while it walks a chain: what is in memory, and what lies on flash and when that could
// be here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "flash/tier.h"
#include "store/block_store.h"

namespace cistern {

class MatchedRuns final {
 public:
  // The next block, of which `below_bytes` lie on flash, the last of them at `below`. `whole`: a match may
  // end with it.
  void Add(std::uint64_t below_bytes, const FlashPlace& below, bool whole) {
    const bool is_below = below_bytes > 0;
    if (is_below && blocks_ < first_below_) first_below_ = blocks_;
    if (runs_.empty() || runs_.back().run.below != is_below) runs_.push_back({{.below = is_below}, 0, {}});
    Run& last = runs_.back();
    ++last.run.blocks;
    last.bytes += below_bytes;
    last.place = below;
    ++blocks_;
    if (whole) whole_ = blocks_;
  }

  // Of all blocks; past the end when there is none.
  std::size_t first_below() const { return first_below_; }

  // The runs as far as a match may reach.
  std::vector<MatchedRun> Take(const Tier* tier) const {
    std::vector<MatchedRun> taken;
    std::size_t left = whole_;
    for (const Run& one : runs_) {
      if (left == 0) break;
      MatchedRun run = one.run;
      run.blocks = static_cast<std::uint32_t>(run.blocks < left ? run.blocks : left);
      left -= run.blocks;
      if (run.below && tier != nullptr) run.ready_in_us = tier->EstimateUs(one.place, one.bytes);
      taken.push_back(run);
    }
    return taken;
  }

 private:
  struct Run {
    MatchedRun run;
    std::uint64_t bytes;
    FlashPlace place;
  };
  std::vector<Run> runs_;
  std::size_t blocks_ = 0;
  std::size_t whole_ = 0;
  std::size_t first_below_ = SIZE_MAX;
};

}  // namespace cistern
