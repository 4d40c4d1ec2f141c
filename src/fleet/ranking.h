// SPDX-License-Identifier: Apache-2.0
// Nodes in the order of what they have to do. In runs of memory, since the first ones are asked for at each
// decision and one or two change place at each event.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "base/assert.h"
#include "fleet/block_cache.h"

namespace cistern::fleet {

struct Rank {
  double work = 0;
  std::uint64_t added = 0;  // when it was given work last
  NodeNumber node = 0;

  bool operator<(const Rank& other) const {
    return std::tie(work, added, node) < std::tie(other.work, other.added, other.node);
  }
};

class Ranking final {
 public:
  void Insert(const Rank& rank) {
    ++size_;
    if (runs_.empty()) {
      runs_.push_back({rank});
      return;
    }
    std::size_t at = std::min(RunOf(rank), runs_.size() - 1);
    if (runs_[at].size() == kRun) {
      std::vector<Rank> half(runs_[at].begin() + kRun / 2, runs_[at].end());
      runs_[at].resize(kRun / 2);
      runs_.insert(runs_.begin() + static_cast<std::ptrdiff_t>(at) + 1, std::move(half));
      at += runs_[at].back() < rank;
    }
    std::vector<Rank>& run = runs_[at];
    run.insert(std::ranges::lower_bound(run, rank, std::less()), rank);
  }
  // One that is there.
  void Erase(const Rank& rank) {
    const std::size_t at = RunOf(rank);
    CISTERN_ASSERT(at < runs_.size());
    std::vector<Rank>& run = runs_[at];
    const auto found = std::ranges::lower_bound(run, rank, std::less());
    CISTERN_ASSERT(found->node == rank.node);
    run.erase(found);
    if (run.empty()) runs_.erase(runs_.begin() + static_cast<std::ptrdiff_t>(at));
    --size_;
  }
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  NodeNumber first() const { return runs_.front().front().node; }  // not empty
  // The first `most` nodes, in order.
  template <class See>
  void ForFirst(std::size_t most, See see) const {
    for (const std::vector<Rank>& run : runs_) {
      for (const Rank& rank : run) {
        if (most-- == 0) return;
        see(rank.node);
      }
    }
  }

 private:
  static constexpr std::size_t kRun = 64;

  // The first run that ends at the rank or behind it.
  std::size_t RunOf(const Rank& rank) const {
    const auto ends_before = [](const std::vector<Rank>& run, const Rank& at) { return run.back() < at; };
    return static_cast<std::size_t>(std::lower_bound(runs_.begin(), runs_.end(), rank, ends_before) -
                                    runs_.begin());
  }

  std::vector<std::vector<Rank>> runs_;  // none is empty, each within the one before and the one behind
  std::size_t size_ = 0;
};

}  // namespace cistern::fleet
