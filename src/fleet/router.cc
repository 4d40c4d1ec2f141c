// SPDX-License-Identifier: Apache-2.0
#include "fleet/router.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/assert.h"

namespace cistern::fleet {
namespace {

// More nodes than these are not all estimated: the first level names those that have most of the prompt and
// those with the least to do, the second estimates them.
constexpr std::size_t kFew = 64;
constexpr std::size_t kIdle = 8;
constexpr std::size_t kHolders = 8;
constexpr std::size_t kAffinityBlocks = 2;
constexpr std::size_t kMostTaken = 1u << 22;

// A prompt's last token is always computed: it says the first of the answer.
std::size_t UsableBlocks(const workload::Request& request) {
  return (request.input_tokens - 1) / workload::kTraceBlockTokens;
}

}  // namespace

Backlogs::Backlogs(std::uint32_t nodes) : nodes_(nodes) {
  for (NodeNumber node = 0; node < nodes; ++node) {
    nodes_[node].added = ++added_;
    order_.Insert(RankOf(node));
  }
}

void Backlogs::Add(NodeNumber node, double seconds) {
  order_.Erase(RankOf(node));
  nodes_[node].seconds += seconds;
  nodes_[node].added = ++added_;
  ++nodes_[node].pieces;
  order_.Insert(RankOf(node));
}

void Backlogs::Drop(NodeNumber node, double seconds) {
  Backlog& backlog = nodes_[node];
  CISTERN_ASSERT(backlog.pieces > 0);
  order_.Erase(RankOf(node));
  backlog.seconds = --backlog.pieces == 0 ? 0 : std::max(0.0, backlog.seconds - seconds);
  order_.Insert(RankOf(node));
}

void Backlogs::Remove(NodeNumber node) {
  order_.Erase(RankOf(node));
  nodes_[node] = {.added = nodes_[node].added, .up = false};
}

void Backlogs::Return(NodeNumber node) {
  nodes_[node].up = true;
  order_.Insert(RankOf(node));
}

Router::Router(const ClusterOptions& options, const Backlogs& backlogs, const std::vector<BlockCache>& caches,
               const std::vector<NodeLinks>& links)
    : options_(options),
      backlogs_(backlogs),
      caches_(caches),
      links_(links),
      random_(options.seed),
      block_bytes_(options.block_bytes()) {
  // Prefill of n tokens as a n + b n^2, through its values at two lengths.
  constexpr double kShort = 4'096, kLong = 32'768;
  const double brief = options.engine.PrefillSeconds(0, 4'096) * 1e6;
  const double extended = options.engine.PrefillSeconds(0, 32'768) * 1e6;
  us_per_square_ = std::max(0.0, (extended / kLong - brief / kShort) / (kLong - kShort));
  us_per_token_ = brief / kShort - us_per_square_ * kShort;
}

NodeNumber Router::Up(NodeNumber from) const {
  while (!backlogs_.up(from)) from = (from + 1) % backlogs_.nodes();
  return from;
}

// The queues are looked at once for all nodes that are estimated.
void Router::Match(const BlockCache& cache, const workload::Request& request, double now_s) {
  matched_ = cache.Match(request.hash_ids, &homes_);
  waits_s_.clear();
  for (const HomeRun& run : homes_) waits_s_.push_back(links_[run.home].out.QueuedSeconds(now_s));
}

// Until the first `blocks` of homes_ are in the node. The slowest queue of those that have them holds up all.
double Router::LoadSeconds(NodeNumber node, std::size_t blocks, double now_s) const {
  const NodeLinks& links = links_[node];
  std::size_t own = 0, others = 0;
  double queued_s = links.in.QueuedSeconds(now_s);
  for (std::size_t i = 0; own + others < blocks; ++i) {
    const std::size_t some = std::min<std::size_t>(homes_[i].blocks, blocks - own - others);
    const bool here = homes_[i].At(node);
    (here ? own : others) += some;
    if (!here) queued_s = std::max(queued_s, waits_s_[i]);
  }
  const double bytes = block_bytes_;
  const double own_s = links.own.QueuedSeconds(now_s) + links.own.latency_s() +
                       bytes * static_cast<double>(own) / links.own.bytes_per_s();
  const double others_s =
      queued_s + links.in.latency_s() + bytes * static_cast<double>(others) / links.in.bytes_per_s();
  return std::max(own ? own_s : 0, others ? others_s : 0);
}

std::size_t Router::BlocksToLoad(const workload::Request& request, NodeNumber node, std::size_t usable,
                                 double all_s, double now_s) {
  const double backlog = backlogs_.seconds(node);
  if (all_s <= backlog) return usable;  // over before the engine is free
  const NodeLinks& links = links_[node];
  double queued_s = links.in.QueuedSeconds(now_s);
  runs_.clear();
  for (std::size_t i = 0, left = usable; left > 0; ++i) {
    const HomeRun& run = homes_[i];
    const auto blocks = std::min(run.blocks, static_cast<std::uint32_t>(left));
    left -= blocks;
    const bool here = run.At(node);
    if (runs_.empty() || runs_.back().source != (here ? 0u : 1u)) runs_.push_back({0, here ? 0u : 1u});
    runs_.back().blocks += blocks;
    if (!here) queued_s = std::max(queued_s, waits_s_[i]);
  }
  const auto source = [&](const Link& link, double waits_s) {
    return policy::LoadSource{.latency_us = link.latency_s() * 1e6,
                              .queued_us = std::max(0.0, waits_s - backlog) * 1e6,
                              .us_per_block = block_bytes_ / link.bytes_per_s() * 1e6};
  };
  const std::array sources = {source(links.own, links.own.QueuedSeconds(now_s)), source(links.in, queued_s)};
  const policy::LoadPlan plan =
      policy::PlanLoad(runs_, sources,
                       {.us_per_token = us_per_token_,
                        .us_per_square = us_per_square_,
                        .block_tokens = workload::kTraceBlockTokens,
                        .tail_tokens = request.input_tokens - usable * workload::kTraceBlockTokens});
  std::size_t blocks = 0;  // loads before computing: the first of all
  for (const policy::LoadStretch& stretch : plan.loads) blocks += stretch.blocks;
  return blocks;
}

double Router::ComputeSeconds(const workload::Request& request, std::size_t loaded) const {
  const auto from = static_cast<double>(loaded * workload::kTraceBlockTokens);
  const double to = request.input_tokens;
  return (us_per_token_ * (to - from) + us_per_square_ * (to * to - from * from)) / 1e6;
}

Router::Estimated Router::Estimate(const workload::Request& request, NodeNumber node, double now_s) {
  if (!options_.global_store) Match(caches_[node], request, now_s);
  const std::size_t usable = std::min(matched_, UsableBlocks(request));
  const double all_s = LoadSeconds(node, usable, now_s);
  Estimated estimated{.node = node, .blocks = BlocksToLoad(request, node, usable, all_s, now_s)};
  estimated.compute_s = ComputeSeconds(request, estimated.blocks);
  const double load_s = estimated.blocks == usable ? all_s : LoadSeconds(node, estimated.blocks, now_s);
  estimated.first_token_s = std::max(backlogs_.seconds(node), load_s) + estimated.compute_s;
  return estimated;
}

Decision Router::Carry(const workload::Request& request, const Estimated& estimated) {
  const NodeNumber node = estimated.node;
  if (!options_.global_store) caches_[node].Match(request.hash_ids, &homes_);
  Decision decision{.node = node,
                    .blocks = estimated.blocks,
                    .compute_s = estimated.compute_s,
                    .first_token_s = estimated.first_token_s};
  for (std::size_t i = 0, left = decision.blocks; left > 0; ++i) {
    const auto blocks = std::min(homes_[i].blocks, static_cast<std::uint32_t>(left));
    decision.loads.push_back({homes_[i].At(node) ? node : homes_[i].home, blocks});
    left -= blocks;
  }
  return decision;
}

void Router::Candidates(const workload::Request& request) {
  candidates_.clear();
  const Ranking& order = backlogs_.order();
  const bool few = order.size() <= kFew;
  order.ForFirst(few ? kFew : kIdle, [this](NodeNumber node) { candidates_.push_back(node); });
  if (few) return;
  const auto add = [&](NodeNumber node) {
    if (backlogs_.up(node) && std::ranges::find(candidates_, node) == candidates_.end())
      candidates_.push_back(node);
  };
  // From the deepest block up: who has it has what is before it.
  if (options_.global_store) {
    for (std::size_t i = homes_.size(); i-- > 0 && candidates_.size() < kIdle + kHolders;)
      add(homes_[i].home);
    return;
  }
  for (std::size_t i = request.hash_ids.size(); i-- > 0 && candidates_.size() < kIdle + kHolders;) {
    if (const auto at = taken_.find(request.hash_ids[i]); at != taken_.end()) add(at->second);
  }
}

// A node that would be too late with all of the prompt loaded at once is not estimated.
Decision Router::Soonest(const workload::Request& request, double now_s) {
  Candidates(request);
  std::size_t most = UsableBlocks(request);
  if (options_.global_store) most = std::min(most, matched_);
  const double least_s = ComputeSeconds(request, most);
  Estimated best;
  bool any = false;
  for (const NodeNumber node : candidates_) {
    if (any && backlogs_.seconds(node) + least_s >= best.first_token_s) continue;
    Estimated estimated = Estimate(request, node, now_s);
    // A router that knows local caches alone does not see what loading takes.
    if (options_.routing == Routing::kLocal)
      estimated.first_token_s = backlogs_.seconds(node) + estimated.compute_s;
    if (any && estimated.first_token_s >= best.first_token_s) continue;
    best = estimated;
    any = true;
  }
  return Carry(request, best);
}

std::optional<Decision> Router::Choose(const workload::Request& request, double now_s) {
  if (backlogs_.order().empty()) return std::nullopt;
  if (options_.global_store) Match(caches_[0], request, now_s);
  NodeNumber node = 0;
  switch (options_.routing) {
    case Routing::kRandom: {
      do node = static_cast<NodeNumber>(random_.Below(backlogs_.nodes()));
      while (!backlogs_.up(node));
      break;
    }
    case Routing::kRoundRobin:
      node = Up(next_);
      next_ = (node + 1) % backlogs_.nodes();
      break;
    case Routing::kLeastLoaded: node = backlogs_.order().first(); break;
    case Routing::kAffinity: {
      std::uint64_t hash = options_.seed;
      for (std::size_t i = 0; i < std::min(kAffinityBlocks, request.hash_ids.size()); ++i)
        hash = SplitMix(hash ^ request.hash_ids[i]);
      node = Up(static_cast<NodeNumber>(hash % backlogs_.nodes()));
      break;
    }
    case Routing::kLocal:
    case Routing::kGlobal: return Soonest(request, now_s);
  }
  return Carry(request, Estimate(request, node, now_s));
}

void Router::Note(const workload::Request& request, NodeNumber node) {
  if (options_.global_store || options_.routing < Routing::kLocal || backlogs_.nodes() <= kFew) return;
  if (taken_.size() > kMostTaken) taken_.clear();
  for (const std::uint64_t id : request.hash_ids) taken_[id] = node;
}

}  // namespace cistern::fleet
