// SPDX-License-Identifier: Apache-2.0
// Runs that matches have found at other members, by their blocks: an acquire names blocks alone, so what a
// match has learned of them is kept here until it is asked for. A hint: the member may have given the blocks
// up since. Bounded; the oldest match is forgotten first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "cistern/key.h"
#include "mesh/peer_reader.h"

namespace cistern::mesh {

class FoundRuns final {
 public:
  static constexpr std::size_t kKeys = 262'144;  // of the chains of all runs
  static constexpr std::int64_t kGoodUs = 60'000'000;

  struct Kept {
    std::shared_ptr<const PeerRun> run;
    std::int64_t ready_in_us = 0;  // when all of it could be here, from its match on
    Instant found_at;
    std::size_t trimmed = 0;  // of its blocks, from its first on
  };
  struct Found {
    std::shared_ptr<const Kept> kept;
    std::size_t block = 0;  // in the run's chain
  };

  // The seed: random, so that nobody chooses keys that collide.
  explicit FoundRuns(std::uint64_t seed) : by_block_(kKeys, HashOf{seed}) {}
  FoundRuns(const FoundRuns&) = delete;
  FoundRuns& operator=(const FoundRuns&) = delete;

  // A run, none of whose blocks is found yet.
  std::shared_ptr<Kept> Begin(std::shared_ptr<const PeerRun> run, std::int64_t ready_in_us, Instant now);
  // Blocks [from, end) of its chain are found under it from now on, and not under an earlier one.
  void Add(const std::shared_ptr<Kept>& kept, std::size_t from, std::size_t end);
  std::optional<Found> Find(std::uint64_t incarnation, const BlockKey& key, Instant now) const;
  // Forgets runs that are too old or too many, `most` blocks a call; true: there are more.
  bool Trim(Instant now, std::size_t most);
  bool empty() const { return by_block_.empty(); }
  std::size_t blocks() const { return by_block_.size(); }

 private:
  struct Block {
    std::uint64_t incarnation = 0;
    BlockKey key;
    friend bool operator==(const Block&, const Block&) = default;
  };
  struct HashOf {
    std::uint64_t seed = 0;
    std::size_t operator()(const Block& block) const {
      return static_cast<std::size_t>(block.key.Hash(seed ^ block.incarnation));
    }
  };

  std::deque<std::shared_ptr<Kept>> runs_;  // the oldest first
  std::unordered_map<Block, std::pair<std::shared_ptr<Kept>, std::size_t>, HashOf> by_block_;
  std::size_t keys_ = 0;
};

}  // namespace cistern::mesh
