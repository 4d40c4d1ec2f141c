// SPDX-License-Identifier: Apache-2.0
// Runs that matches have found at other members, by their blocks: an acquire names blocks alone, so what a
// match has learned of them is kept here until it is asked for. A hint: the member may have given the blocks
// up since. Bounded; the oldest match is forgotten first.
//
// A match waits for its blocks to be noted, a thousand of them and more, so a block is one place of 16 bytes
// in an open table that is never moved: its hash, its run's number, and where in the chain it stands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "catalog/slab.h"
#include "cistern/key.h"
#include "mesh/peer_reader.h"

namespace cistern::mesh {

class FoundRuns final {
 public:
  static constexpr std::size_t kKeys = 262'144;  // of the chains of all runs but the newest
  static constexpr std::int64_t kGoodUs = 60'000'000;

  struct Kept {
    std::shared_ptr<const PeerRun> run;
    std::int64_t ready_in_us = 0;  // when all of it could be here, from its match on
    Instant found_at;
    std::uint64_t number = 0;
    std::size_t trimmed = 0;  // of its blocks, from its first on
  };
  struct Found {
    std::shared_ptr<const Kept> kept;
    std::size_t block = 0;  // in the run's chain
  };

  // The seed: random, so that nobody chooses keys that collide.
  explicit FoundRuns(std::uint64_t seed) : seed_(seed), places_(kPlaces) {}
  FoundRuns(const FoundRuns&) = delete;
  FoundRuns& operator=(const FoundRuns&) = delete;

  // A run, none of whose blocks is found yet.
  std::shared_ptr<Kept> Begin(std::shared_ptr<const PeerRun> run, std::int64_t ready_in_us, Instant now);
  // Blocks [from, end) of its chain are found under it from now on, and not under an earlier one, as far as
  // they have not been forgotten meanwhile and there is room.
  void Add(const Kept& kept, std::size_t from, std::size_t end);
  // Prefetches what Find looks at.
  void Prefetch(std::uint64_t incarnation, const BlockKey& key) const {
    __builtin_prefetch(&places_[HashOf(incarnation, key) & (kPlaces - 1)]);
  }
  std::optional<Found> Find(std::uint64_t incarnation, const BlockKey& key, Instant now) const;
  // Forgets runs that are too old or too many, `most` blocks a call; true: there are more.
  bool Trim(Instant now, std::size_t most);
  bool empty() const { return blocks_ == 0; }
  std::size_t blocks() const { return blocks_; }

 private:
  // A quarter of them stays free, for short searches: matches of one moment may pass kKeys before they trim.
  static constexpr std::size_t kPlaces = 2 * kKeys, kMost = kPlaces / 4 * 3;
  static_assert((kPlaces & (kPlaces - 1)) == 0);
  static constexpr std::size_t kWave = 16;  // places that are prefetched together

  struct Place {
    std::uint64_t hash;
    std::uint64_t run_and_block;  // the run's number above the block's 24 bits; 0: nobody's
    bool none() const { return run_and_block == 0; }
    std::uint64_t run() const { return run_and_block >> 24; }
    std::size_t block() const { return run_and_block & 0xffffff; }
  };

  std::uint64_t HashOf(std::uint64_t incarnation, const BlockKey& key) const {
    return key.Hash(seed_ ^ incarnation);
  }
  static std::size_t Next(std::size_t at) { return (at + 1) & (kPlaces - 1); }
  // The place of the hash, or the one where it would go.
  std::size_t PlaceOf(std::uint64_t hash) const;
  void Remove(std::size_t at);

  const std::uint64_t seed_;
  std::deque<std::shared_ptr<Kept>> runs_;  // the oldest first, numbered one after the other
  std::uint64_t last_number_ = 0;
  catalog::LazyArray<Place> places_;
  std::size_t blocks_ = 0;  // that have a place
  std::size_t keys_ = 0;
};

}  // namespace cistern::mesh
