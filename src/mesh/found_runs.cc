// SPDX-License-Identifier: Apache-2.0
#include "mesh/found_runs.h"

namespace cistern::mesh {

std::shared_ptr<FoundRuns::Kept> FoundRuns::Begin(std::shared_ptr<const PeerRun> run,
                                                  std::int64_t ready_in_us, Instant now) {
  keys_ += run->chain.size();
  runs_.push_back(std::make_shared<Kept>(Kept{std::move(run), ready_in_us, now}));
  return runs_.back();
}

void FoundRuns::Add(const std::shared_ptr<Kept>& kept, std::size_t from, std::size_t end) {
  const PeerRun& run = *kept->run;
  for (std::size_t block = from; block < end; ++block)
    by_block_[{run.incarnation, run.chain[block]}] = {kept, block};
}

std::optional<FoundRuns::Found> FoundRuns::Find(std::uint64_t incarnation, const BlockKey& key,
                                                Instant now) const {
  if (by_block_.empty()) return std::nullopt;
  const auto at = by_block_.find({incarnation, key});
  if (at == by_block_.end() || now.UsSince(at->second.first->found_at) >= kGoodUs) return std::nullopt;
  return Found{at->second.first, at->second.second};
}

bool FoundRuns::Trim(Instant now, std::size_t most) {
  while (!runs_.empty()) {
    const std::shared_ptr<Kept> oldest = runs_.front();
    const bool too_old = now.UsSince(oldest->found_at) >= kGoodUs;
    if (!too_old && (keys_ <= kKeys || runs_.size() == 1)) return false;
    const PeerRun& run = *oldest->run;
    for (; oldest->trimmed < run.count; ++oldest->trimmed) {
      if (most == 0) return true;
      --most;
      const auto at = by_block_.find({run.incarnation, run.chain[run.first + oldest->trimmed]});
      if (at != by_block_.end() && at->second.first == oldest) by_block_.erase(at);
    }
    keys_ -= run.chain.size();
    runs_.pop_front();
  }
  return false;
}

}  // namespace cistern::mesh
