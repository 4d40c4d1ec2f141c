// SPDX-License-Identifier: Apache-2.0
// Which node takes a request, and how much of its prompt that node loads.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/random.h"
#include "fleet/block_cache.h"
#include "fleet/link.h"
#include "fleet/options.h"
#include "fleet/ranking.h"
#include "policy/load.h"
#include "workload/request.h"

namespace cistern::fleet {

// What routers know of the nodes that prefill: the seconds of prefill that each has not done, in order. Nodes
// with the same are taken in turn.
class Backlogs final {
 public:
  explicit Backlogs(std::uint32_t nodes);

  void Add(NodeNumber node, double seconds);
  void Drop(NodeNumber node, double seconds);  // one that was added is done
  void Remove(NodeNumber node);                // it failed: as if it had nothing, and not chosen
  void Return(NodeNumber node);
  double seconds(NodeNumber node) const { return nodes_[node].seconds; }
  bool up(NodeNumber node) const { return nodes_[node].up; }
  std::uint32_t nodes() const { return static_cast<std::uint32_t>(nodes_.size()); }

  const Ranking& order() const { return order_; }  // those that are up

 private:
  struct Backlog {
    double seconds = 0;
    std::uint64_t added = 0;  // when it was given work last
    std::uint32_t pieces = 0;
    bool up = true;
  };
  Rank RankOf(NodeNumber node) const { return {nodes_[node].seconds, nodes_[node].added, node}; }

  std::vector<Backlog> nodes_;
  Ranking order_;
  std::uint64_t added_ = 0;
};

// The ways into a node.
struct NodeLinks {
  Link own;  // from its own tier
  Link in;   // from other nodes
  Link out;  // to other nodes
};

struct Decision {
  NodeNumber node = 0;
  std::vector<HomeRun> loads;  // the prompt's first blocks
  std::size_t blocks = 0;      // of them
  double compute_s = 0;
  double first_token_s = 0;  // expected, from now
};

class Router final {
 public:
  // All are borrowed. `caches` has one for each node, or one for all with a global store.
  Router(const ClusterOptions& options, const Backlogs& backlogs, const std::vector<BlockCache>& caches,
         const std::vector<NodeLinks>& links);

  // Nothing where no node is up. `request` has a token at least.
  std::optional<Decision> Choose(const workload::Request& request, double now_s);
  // `node` took this prompt: where there are many nodes with caches of their own, that is how it is found.
  void Note(const workload::Request& request, NodeNumber node);

 private:
  NodeNumber Up(NodeNumber from) const;
  void Match(const BlockCache& cache, const workload::Request& request, double now_s);
  struct Estimated {
    NodeNumber node = 0;
    std::size_t blocks = 0;
    double compute_s = 0, first_token_s = 0;
  };
  Estimated Estimate(const workload::Request& request, NodeNumber node, double now_s);
  Decision Carry(const workload::Request& request, const Estimated& estimated);
  double ComputeSeconds(const workload::Request& request, std::size_t loaded) const;
  double LoadSeconds(NodeNumber node, std::size_t blocks, double now_s) const;
  // `all_s`: until all of the usable ones are there.
  std::size_t BlocksToLoad(const workload::Request& request, NodeNumber node, std::size_t usable,
                           double all_s, double now_s);
  void Candidates(const workload::Request& request);
  Decision Soonest(const workload::Request& request, double now_s);

  const ClusterOptions& options_;
  const Backlogs& backlogs_;
  const std::vector<BlockCache>& caches_;
  const std::vector<NodeLinks>& links_;
  Random random_;
  NodeNumber next_ = 0;
  const double block_bytes_;
  double us_per_token_ = 0, us_per_square_ = 0;
  std::vector<HomeRun> homes_;   // of the request's matched blocks
  std::vector<double> waits_s_;  // for the ways out of these
  std::size_t matched_ = 0;
  std::vector<NodeNumber> candidates_;
  std::vector<policy::LoadRun> runs_;
  boost::unordered_flat_map<std::uint64_t, NodeNumber> taken_;  // who took a block last; local caches alone
};

}  // namespace cistern::fleet
