// SPDX-License-Identifier: Apache-2.0
#include "policy/load.h"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <string_view>

#include "base/assert.h"
#include "base/format.h"

namespace cistern::policy {
namespace {

constexpr double kPrecision = 5e-3;  // of the time found: 2 % are promised
constexpr int kMostSteps = 20;
constexpr int kGuesses = 3;                 // of these
constexpr double kLate = kPrecision * 0.9;  // of the time: by so much a look that finds it ends the search
constexpr double kRounding = 1e-9;
constexpr double kNearly = 1 - kRounding;
constexpr double kMostWhole = 4e9;  // more blocks than there are

// Rounded down, but for what rounding errors take. (std::floor is a call where the processor is any x86-64.)
double WholeBlocks(double blocks) {
  return static_cast<double>(static_cast<std::int64_t>(std::min(blocks, kMostWhole) + kRounding));
}

// Values of which there are few as a rule: then they need no memory of their own. None is set yet.
template <class T, std::size_t kFew>
class Few final {
 public:
  explicit Few(std::size_t size)
      : many_(size > kFew ? std::make_unique_for_overwrite<T[]>(size) : nullptr),
        data_(many_ ? many_.get() : few_.data()),
        size_(size) {}
  Few(const Few&) = delete;
  Few& operator=(const Few&) = delete;
  T* begin() const { return data_; }
  T* end() const { return data_ + size_; }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) const { return data_[i]; }

 private:
  std::array<T, kFew> few_;
  const std::unique_ptr<T[]> many_;
  T* const data_;
  const std::size_t size_;
};

class Problem final {
 public:
  Problem(std::span<const LoadRun> runs, std::span<const LoadSource> sources, const Prefill& prefill)
      : runs_(runs),
        sources_(sources),
        prefill_(prefill),
        loaded_(runs.size()),
        costs_(prefill.loads_behind ? runs.size() : 0),
        of_source_(sources.size()) {
    // A source that takes no time is as good as one of a picosecond.
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const double us = std::max(sources[i].us_per_block, 1e-6);
      of_source_[i] = {.begin = Begin(sources[i]), .us_per_block = us, .blocks_per_us = 1 / us};
    }
    for (const LoadRun& run : runs) {
      CISTERN_ASSERT(run.source < sources.size());
      of_source_[run.source].all += run.blocks;
    }
    for (const Source& source : of_source_) blocks_ += source.all;
  }

  // To compute blocks [from, to) when all before is there.
  double Compute(double from, double to) const {
    const double a = from * prefill_.block_tokens;
    const double b = to * prefill_.block_tokens;
    return (b - a) * (prefill_.us_per_token + prefill_.us_per_square * (b + a));
  }
  double Tail() const {
    const double a = static_cast<double>(blocks_) * prefill_.block_tokens;
    const auto tail = static_cast<double>(prefill_.tail_tokens);
    return tail * (prefill_.us_per_token + prefill_.us_per_square * (2 * a + tail));
  }
  double All() const { return Compute(0, static_cast<double>(blocks_)); }

  // When a source's first block begins to arrive.
  double Begin(const LoadSource& source) const {
    return prefill_.load_overhead_us + source.latency_us + source.queued_us;
  }

  double LoadAll() const {
    double last = 0;
    for (const Source& source : of_source_) {
      if (source.all > 0)
        last = std::max(last, source.begin + static_cast<double>(source.all) * source.us_per_block);
    }
    return last;
  }

  // About when loads and computing meet, and how much slack a later deadline leaves for each microsecond.
  struct Guess {
    double deadline = 0, slope = 1;
  };
  Guess About(double latest) const;
  double Slack(double deadline);
  double MeetInTheMiddle();
  double BestSplit();
  LoadPlan Plan(double first_token_us);

 private:
  struct Source {
    double begin = 0;
    double us_per_block = 0, blocks_per_us = 0;
    std::uint64_t all = 0;  // its blocks
    double time_us = 0;     // that it still has, where loads run behind
    double blocks = 0;      // that it has loaded so far
  };
  struct Costs {
    double compute_us, load_us;
  };

  const std::span<const LoadRun> runs_;
  const std::span<const LoadSource> sources_;
  const Prefill& prefill_;
  std::uint64_t blocks_ = 0;
  Few<std::uint32_t, 16> loaded_;  // of each run
  Few<Costs, 16> costs_;           // of each run, all of it; where loads run behind
  Few<Source, 8> of_source_;
  std::uint32_t work_ = 0;
};

// How much time is left before the first block if all is to be there by `deadline`; below zero it cannot be.
// loaded_ is what to load for it. From the back: what is behind has to be there at `due`, so a source can
// have delivered so many blocks by then. As long as it can, blocks are loaded; a block that cannot be is
// computed, and all before it is due earlier by that. To load the later of two blocks of a source is never
// worse, so no choice leaves more time.
//
// Runs are mostly loaded or computed as a whole: then no run's outcome waits for the arithmetic of the one
// before it.
double Problem::Slack(double deadline) {
  double due = deadline;
  for (Source& source : of_source_) source.time_us = std::numeric_limits<double>::infinity();
  std::uint64_t end = blocks_;
  for (std::size_t i = runs_.size(); i-- > 0;) {
    const std::uint32_t blocks = runs_[i].blocks;
    Source& source = of_source_[runs_[i].source];
    source.time_us = std::min(source.time_us, due - source.begin);
    end -= blocks;
    if (source.time_us >= costs_[i].load_us * kNearly) {
      source.time_us -= costs_[i].load_us;
      loaded_[i] = blocks;
    } else if (source.time_us < source.us_per_block * kNearly) {
      source.time_us = -1;
      loaded_[i] = 0;
      due -= costs_[i].compute_us;
    } else {
      const double load = WholeBlocks(source.time_us * source.blocks_per_us);
      loaded_[i] = static_cast<std::uint32_t>(load);
      const auto from = static_cast<double>(end);
      due -= Compute(from, from + blocks - load);
      source.time_us = -1;
    }
  }
  work_ += static_cast<std::uint32_t>(runs_.size());
  return due;
}

// As if blocks could be divided, every one took the same to compute, and those of each source lay all over
// the prompt: what the sources cannot bring by the deadline takes as long to compute.
Problem::Guess Problem::About(double latest) const {
  constexpr int kRounds = 7;
  const double compute_us = All() / static_cast<double>(blocks_);
  Guess guess;
  double low = 0, high = latest;
  for (int round = 0; round < kRounds; ++round) {
    guess.deadline = (low + high) / 2;
    double loaded = 0, rate = 0;
    for (const Source& source : of_source_) {
      const double could = (guess.deadline - source.begin) * source.blocks_per_us;
      const auto all = static_cast<double>(source.all);
      loaded += std::clamp(could, 0.0, all);
      rate += could > 0 && could < all ? source.blocks_per_us : 0;
    }
    guess.slope = 1 + compute_us * rate;
    (guess.deadline + compute_us * loaded >= All() ? high : low) = guess.deadline;
  }
  return guess;
}

// The soonest deadline; loaded_ is its choice. A deadline that is later by some time leaves at least that
// much more slack, so each look moves one end of the interval to where it looked, and the other by the slack
// that it found. The first looks are where a guess says, a little late, since then the look's choice may do;
// as slack jumps by a block at a time, others halve the interval. Computing everything is always possible.
double Problem::MeetInTheMiddle() {
  std::uint64_t first = 0;
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    const std::uint32_t blocks = runs_[i].blocks;
    const auto from = static_cast<double>(first);
    first += blocks;
    costs_[i] = {.compute_us = Compute(from, static_cast<double>(first)),
                 .load_us = blocks * of_source_[runs_[i].source].us_per_block};
  }
  double high = std::min(All(), LoadAll()) * (1 + kRounding);
  const Guess guess = About(high);
  double low = 0, looked_at = -1;
  double next = std::min(guess.deadline, high * (1 - kLate));
  for (int step = 0; step < kMostSteps && high - low > kPrecision * high; ++step) {
    looked_at = step < kGuesses && next > low && next < high ? next : (low + high) / 2;
    const double slack = Slack(looked_at);
    if (slack >= 0) {
      high = looked_at;
      low = std::max(low, looked_at - slack);
    } else {
      low = looked_at;
      high = std::min(high, (looked_at - slack) * (1 + kRounding));
    }
    next = looked_at - slack / guess.slope + kLate / 2 * high;
  }
  if (looked_at == high || Slack(high) >= 0) return std::min(high, All());
  std::ranges::fill(loaded_, 0);  // computing everything took as long, but for a rounding
  return All();
}

// The soonest time where the first blocks are loaded, then the rest is computed. Between the ends of runs,
// and the points where a source becomes the last to be ready, loading grows evenly and computing falls ever
// more steeply, so the best is at one of those.
double Problem::BestSplit() {
  double best = All();
  double best_split = 0;
  double ready = 0;  // of all before the run
  double first = 0;
  for (Source& source : of_source_) source.blocks = 0;
  const auto all = static_cast<double>(blocks_);
  const auto look = [&](double split, double loaded) {
    const double time = loaded + Compute(split, all);
    if (time < best) {
      best = time;
      best_split = split;
    }
  };
  for (const LoadRun& run : runs_) {
    ++work_;
    if (run.blocks == 0) continue;  // nobody waits for its source
    const LoadSource& source = sources_[run.source];
    double& taken = of_source_[run.source].blocks;
    const double begin = of_source_[run.source].begin + taken * source.us_per_block;
    // As many blocks of the run as are there without anyone waiting for them, and one more.
    if (source.us_per_block > 0 && ready > begin) {
      const double hidden = WholeBlocks((ready - begin) * of_source_[run.source].blocks_per_us);
      for (const double more : {hidden, hidden + 1}) {
        if (more >= 1 && more < run.blocks)
          look(first + more, std::max(ready, begin + more * source.us_per_block));
      }
    } else if (run.blocks > 1) {
      look(first + 1, std::max(ready, begin + source.us_per_block));
    }
    taken += run.blocks;
    ready = std::max(ready, begin + run.blocks * source.us_per_block);
    first += run.blocks;
    look(first, ready);
  }
  auto left = static_cast<std::uint32_t>(best_split);
  for (std::size_t i = 0; i < runs_.size(); ++i) left -= loaded_[i] = std::min(left, runs_[i].blocks);
  return best;
}

LoadPlan Problem::Plan(double first_token_us) {
  LoadPlan plan{.first_token_us = first_token_us + Tail(), .compute_us = All() + Tail(), .work = work_};
  // Whether a run is loaded is hard to foretell for a processor: all are written down, and those that are not
  // loaded are written over.
  plan.loads.resize(runs_.size());
  std::size_t loads = 0;
  std::uint32_t first = 0;
  std::uint32_t computed_to = 0;  // the end of the last block that is computed
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    const std::uint32_t load = loaded_[i];
    const std::uint32_t at = prefill_.loads_behind ? first + runs_[i].blocks - load : first;
    plan.loads[loads] = {.first = at, .blocks = load, .source = runs_[i].source};
    loads += load > 0;
    first += runs_[i].blocks;
    const std::uint32_t computed_end = prefill_.loads_behind ? at : first;
    computed_to = load < runs_[i].blocks ? computed_end : computed_to;
  }
  plan.loads.resize(loads);
  for (std::size_t i = loads; prefill_.loads_behind && i-- > 0 && plan.loads[i].first >= computed_to;)
    plan.loads[i].from_back = true;
  if (plan.loads.empty()) return plan;
  // Loading first, the rest is computed after it: the loads are worth what they replace.
  double computed = 0;
  if (!prefill_.loads_behind) {
    const LoadStretch& last = plan.loads.back();
    computed = Compute(last.first + last.blocks, static_cast<double>(blocks_));
  }
  plan.worth_us = All() - computed;
  return plan;
}

constexpr double kMostUs = 1e15;

Status CheckTime(std::string_view what, double value) {
  if (value >= 0 && value <= kMostUs) return Status();
  return Status(Code::kInvalid, Text(what, " is ", value, ": expected a number from 0 to ", kMostUs));
}

}  // namespace

Status CheckLoad(std::span<const LoadRun> runs, std::span<const LoadSource> sources, const Prefill& prefill) {
  std::uint64_t blocks = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    blocks += runs[i].blocks;
    if (runs[i].source >= sources.size())
      return Status(Code::kInvalid, Text("runs[", i, "] is of source ", runs[i].source, ", and there are ",
                                         sources.size(), " sources"));
  }
  if (blocks > kMostLoadBlocks)
    return Status(Code::kInvalid, Text("runs have ", blocks, " blocks: at most ", kMostLoadBlocks));
  if (prefill.block_tokens == 0) return Status(Code::kInvalid, "block_tokens is 0: expected at least 1");
  for (std::size_t i = 0; i < sources.size(); ++i) {
    Status status = CheckTime(Text("sources[", i, "]: latency_us"), sources[i].latency_us);
    if (status.ok()) status = CheckTime(Text("sources[", i, "]: queued_us"), sources[i].queued_us);
    if (status.ok()) status = CheckTime(Text("sources[", i, "]: us_per_block"), sources[i].us_per_block);
    if (!status.ok()) return status;
  }
  Status status = CheckTime("us_per_token", prefill.us_per_token);
  if (status.ok()) status = CheckTime("us_per_square", prefill.us_per_square);
  if (status.ok()) status = CheckTime("load_overhead_us", prefill.load_overhead_us);
  return status;
}

LoadPlan PlanLoad(std::span<const LoadRun> runs, std::span<const LoadSource> sources,
                  const Prefill& prefill) {
  Problem problem(runs, sources, prefill);
  return problem.Plan(prefill.loads_behind ? problem.MeetInTheMiddle() : problem.BestSplit());
}

}  // namespace cistern::policy
