// SPDX-License-Identifier: Apache-2.0
#include "mesh/found_runs.h"

#include <algorithm>
#include <array>

#include "base/assert.h"

namespace cistern::mesh {

std::shared_ptr<FoundRuns::Kept> FoundRuns::Begin(std::shared_ptr<const PeerRun> run,
                                                  std::int64_t ready_in_us, Instant now) {
  keys_ += run->chain.size();
  runs_.push_back(std::make_shared<Kept>(Kept{std::move(run), ready_in_us, now, ++last_number_}));
  return runs_.back();
}

std::size_t FoundRuns::PlaceOf(std::uint64_t hash) const {
  std::size_t at = hash & (kPlaces - 1);
  while (!places_[at].none() && places_[at].hash != hash) at = Next(at);
  return at;
}

void FoundRuns::Add(const Kept& kept, std::size_t from, std::size_t end) {
  if (runs_.empty() || kept.number < runs_.front()->number) return;
  const PeerRun& run = *kept.run;
  std::array<std::uint64_t, kWave> hashes;
  from = std::max(from, run.first + kept.trimmed);
  while (from < end && blocks_ + kWave <= kMost) {
    const std::size_t count = std::min(kWave, end - from);
    for (std::size_t i = 0; i < count; ++i) {
      hashes[i] = HashOf(run.incarnation, run.chain[from + i]);
      __builtin_prefetch(&places_[hashes[i] & (kPlaces - 1)], 1);
    }
    for (std::size_t i = 0; i < count; ++i) {
      Place& place = places_[PlaceOf(hashes[i])];
      // Matches of one time may be noted in turns.
      if (place.run() > kept.number) continue;
      if (place.none()) ++blocks_;
      place = {hashes[i], kept.number << 24 | (from + i)};
    }
    from += count;
  }
}

std::optional<FoundRuns::Found> FoundRuns::Find(std::uint64_t incarnation, const BlockKey& key,
                                                Instant now) const {
  if (blocks_ == 0) return std::nullopt;
  const Place& place = places_[PlaceOf(HashOf(incarnation, key))];
  if (place.none()) return std::nullopt;
  CISTERN_ASSERT(place.run() >= runs_.front()->number);
  const std::shared_ptr<Kept>& kept = runs_[place.run() - runs_.front()->number];
  const PeerRun& run = *kept->run;
  if (run.incarnation != incarnation || run.chain[place.block()] != key ||
      now.UsSince(kept->found_at) >= kGoodUs)
    return std::nullopt;
  return Found{kept, place.block()};
}

// Later places move up where they stay reachable from their home, so that no gap ends a search too early.
void FoundRuns::Remove(std::size_t hole) {
  for (std::size_t at = Next(hole); !places_[at].none(); at = Next(at)) {
    const std::size_t home = places_[at].hash & (kPlaces - 1);
    if (((at - home) & (kPlaces - 1)) < ((at - hole) & (kPlaces - 1))) continue;
    places_[hole] = places_[at];
    hole = at;
  }
  places_[hole].run_and_block = 0;
  --blocks_;
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
      const std::size_t at = PlaceOf(HashOf(run.incarnation, run.chain[run.first + oldest->trimmed]));
      if (places_[at].run() == oldest->number) Remove(at);
    }
    keys_ -= run.chain.size();
    runs_.pop_front();
  }
  return false;
}

}  // namespace cistern::mesh
