// SPDX-License-Identifier: Apache-2.0
#include "fleet/block_cache.h"

#include <optional>

#include "base/random.h"

namespace cistern::fleet {

using policy::EntryId;

BlockCache::BlockCache(CachePolicy policy, std::uint64_t blocks) : blocks_(blocks) {
  if (policy == CachePolicy::kReuse && blocks > 0) reuse_ = std::make_unique<policy::Reuse>(blocks);
}

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
  if (reuse_) {
    keys_.clear();
    for (const std::uint64_t hash_id : chain) keys_.push_back(SplitMix(hash_id));
    reuse_->Begin({.now_ms = now_ms, .keys = keys_, .resident = chain_, .partial = partial});
  }
  for (std::size_t i = chain_.size(); i < chain.size(); ++i) {
    if (Find(chain[i]) != kNone || !MakeRoom(i)) break;
    Insert(chain[i], i, home);
  }
  for (std::size_t i = chain_.size(); i-- > 0;) {
    reuse_ ? reuse_->Touch(chain_[i], i) : lru_.Touch(chain_[i]);
    slots_[chain_[i]].held = false;
  }
}

bool BlockCache::MakeRoom(std::size_t position) {
  if (found_.size() < blocks_) return true;
  while (const std::optional<EntryId> id = reuse_ ? reuse_->Coldest() : lru_.Coldest()) {
    if (slots_[*id].children > 0 || slots_[*id].held) {
      reuse_ ? reuse_->Park(*id) : lru_.Park(*id);
      continue;
    }
    if (reuse_ && !reuse_->Outranks(position, *id)) return false;
    Evict(*id);
    return true;
  }
  return false;
}

void BlockCache::Insert(std::uint64_t hash_id, std::size_t position, NodeNumber home) {
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
  reuse_ ? reuse_->Insert(id, position) : lru_.Insert(id);
}

void BlockCache::Evict(EntryId id) {
  reuse_ ? reuse_->Remove(id) : lru_.Remove(id);
  found_.erase(slots_[id].hash_id);
  free_.push_back(id);
  const EntryId parent = slots_[id].parent;
  slots_[id].parent = kNone;
  if (parent == kNone || --slots_[parent].children > 0) return;
  reuse_ ? reuse_->Unpark(parent) : lru_.Unpark(parent);
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
