// SPDX-License-Identifier: Apache-2.0
#include "fleet/block_cache.h"

#include <algorithm>
#include <optional>

#include "base/random.h"

namespace cistern::fleet {

using policy::EntryId;

BlockCache::BlockCache(EvictionPolicy policy, std::uint64_t blocks)
    : blocks_(blocks), order_(policy, std::max<std::uint64_t>(blocks, 1)) {}

std::size_t BlockCache::Match(Chain chain, std::vector<HomeRun>* homes) const {
  if (homes) homes->clear();
  std::size_t matched = 0;
  for (EntryId id; matched < chain.size() && (id = Find(chain[matched])) != kNone; ++matched) {
    if (!homes) continue;
    if (homes->empty() || homes->back().home != slots_[id].home) homes->push_back({slots_[id].home});
    ++homes->back().blocks;
  }
  return matched;
}

void BlockCache::Move(Chain chain, NodeNumber to) {
  for (const std::uint64_t hash_id : chain) {
    const EntryId id = Find(hash_id);
    if (id == kNone) return;
    slots_[id].home = to;
  }
}

void BlockCache::Store(Chain chain, bool partial, std::uint64_t now_ms, NodeNumber home) {
  if (blocks_ == 0) return;
  chain_.clear();
  for (const std::uint64_t hash_id : chain) {
    const EntryId id = Find(hash_id);
    if (id == kNone) break;
    slots_[id].held = true;
    chain_.push_back(id);
  }
  keys_.clear();
  for (const std::uint64_t hash_id : chain) keys_.push_back(SplitMix(hash_id));
  order_.SetNow(now_ms);
  order_.TakeIn({.partial = partial}, keys_, chain_);
  policy::Standing standing = chain_.empty() ? policy::Standing() : order_.StandingOf(chain_.back());
  for (std::size_t i = chain_.size(); i < chain.size() && Find(chain[i]) == kNone; ++i) {
    standing = order_.StandingOf(keys_[i], standing);
    if (!MakeRoom(standing)) break;
    Insert(chain[i], home, standing);
  }
  for (std::size_t i = chain_.size(); i-- > 0;) {
    order_.Touch(chain_[i], keys_[i]);
    slots_[chain_[i]].held = false;
  }
}

bool BlockCache::MakeRoom(const policy::Standing& newcomer) {
  if (found_.size() < blocks_) return true;
  const std::optional<EntryId> leaves =
      order_.LeavesFor(newcomer, [this](EntryId id) { return slots_[id].children == 0 && !slots_[id].held; });
  if (leaves) Evict(*leaves);
  return leaves.has_value();
}

void BlockCache::Insert(std::uint64_t hash_id, NodeNumber home, const policy::Standing& standing) {
  if (free_.empty()) {
    free_.push_back(static_cast<EntryId>(slots_.size()));
    slots_.emplace_back();
  }
  const EntryId id = free_.back();
  free_.pop_back();
  const EntryId parent = chain_.empty() ? kNone : chain_.back();
  slots_[id] = {.hash_id = hash_id, .parent = parent, .home = home, .held = true};
  if (parent != kNone) ++slots_[parent].children;
  found_.emplace(hash_id, id);
  chain_.push_back(id);
  order_.Insert(id, 0, standing);
}

void BlockCache::Evict(EntryId id) {
  order_.Remove(id);
  found_.erase(slots_[id].hash_id);
  free_.push_back(id);
  const EntryId parent = slots_[id].parent;
  slots_[id].parent = kNone;
  if (parent == kNone || --slots_[parent].children > 0) return;
  order_.Unpark(parent);
}

void BlockCache::Lose(NodeNumber home) {
  // A block goes when it or one that it extends is lost; what was decided on the way up is kept.
  enum : std::uint8_t { kUnseen, kStays, kGoes };
  std::vector<std::uint8_t> fate(slots_.size(), kUnseen);
  std::vector<EntryId> going, way;
  for (EntryId first = 0; first < slots_.size(); ++first) {
    if (Find(slots_[first].hash_id) != first) continue;  // free
    way.clear();
    EntryId id = first;
    for (; id != kNone && fate[id] == kUnseen; id = slots_[id].parent) way.push_back(id);
    std::uint8_t above = id == kNone ? std::uint8_t{kStays} : fate[id];
    for (std::size_t i = way.size(); i-- > 0;) {
      if (slots_[way[i]].home == home) above = kGoes;
      fate[way[i]] = above;
      if (above == kGoes) going.push_back(way[i]);
    }
  }
  // Children stand behind their parents in `going`.
  for (std::size_t i = going.size(); i-- > 0;) Evict(going[i]);
}

}  // namespace cistern::fleet
