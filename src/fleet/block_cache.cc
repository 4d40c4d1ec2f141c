// SPDX-License-Identifier: Apache-2.0
#include "fleet/block_cache.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/random.h"

namespace cistern::fleet {

using policy::EntryId;

namespace {
constexpr std::uint64_t kCopyShare = 16;  // of the room, one in so many
}  // namespace

BlockCache::BlockCache(EvictionPolicy policy, std::uint64_t blocks)
    : blocks_(blocks), order_(policy, std::max<std::uint64_t>(blocks, 1)) {}

std::size_t BlockCache::Match(Chain chain, std::vector<HomeRun>* homes) const {
  if (homes) homes->clear();
  std::size_t matched = 0;
  for (EntryId id = kNone; matched < chain.size() && (id = FindBehind(id, chain[matched])) != kNone;
       ++matched) {
    if (!homes) continue;
    const Slot& slot = slots_[id];
    const bool copied = slot.copies != kNone;
    const bool joins =
        !homes->empty() && !copied && homes->back().home == slot.home && homes->back().copies == nullptr;
    if (!joins) homes->push_back({slot.home, 0, copied ? &copies_[slot.copies].at : nullptr});
    ++homes->back().blocks;
  }
  return matched;
}

void BlockCache::Move(Chain chain, NodeNumber to) {
  EntryId id = kNone;
  for (const std::uint64_t hash_id : chain) {
    id = FindBehind(id, hash_id);
    if (id == kNone) return;
    const NodeNumber from = std::exchange(slots_[id].home, to);
    DropCopy(id, to);
    if (slots_[id].children > 1) AddCopy(id, from);
  }
}

void BlockCache::AddCopy(EntryId id, NodeNumber node) {
  if (slots_[id].home == node || HasCopy(slots_[id], node)) return;
  while (copies_count_ > 0 && (copies_count_ + 1) * kCopyShare > blocks_) DropOldestCopy();
  if ((copies_count_ + 1) * kCopyShare > blocks_ || !MakeRoom({})) return;
  std::uint32_t& at = slots_[id].copies;
  if (at == kNone) {
    if (free_copies_.empty()) {
      free_copies_.push_back(static_cast<std::uint32_t>(copies_.size()));
      copies_.emplace_back();
    }
    at = free_copies_.back();
    free_copies_.pop_back();
  }
  Copies& copies = copies_[at];
  if (node >= copies.at.size()) copies.at.resize(node + 1);
  copies.at[node] = true;
  ++copies.count;
  copied_.emplace_back(id, node);
  ++copies_count_;
}

// True: it was there.
bool BlockCache::DropCopy(EntryId id, NodeNumber node) {
  if (!HasCopy(slots_[id], node)) return false;
  Copies& copies = copies_[slots_[id].copies];
  copies.at[node] = false;
  --copies_count_;
  if (--copies.count == 0) FreeCopies(id);
  return true;
}

void BlockCache::FreeCopies(EntryId id) {
  const std::uint32_t at = std::exchange(slots_[id].copies, kNone);
  copies_[at].at.clear();
  copies_[at].count = 0;
  free_copies_.push_back(at);
}

void BlockCache::DropOldestCopy() {
  for (bool dropped = false; !dropped; copied_.pop_front())
    dropped = DropCopy(copied_.front().first, copied_.front().second);
}

void BlockCache::Store(Chain chain, bool partial, std::uint64_t now_ms, NodeNumber home) {
  if (blocks_ == 0) return;
  chain_.clear();
  for (const std::uint64_t hash_id : chain) {
    const EntryId id = FindBehind(chain_.empty() ? kNone : chain_.back(), hash_id);
    if (id == kNone) break;
    slots_[id].held = true;
    chain_.push_back(id);
  }
  keys_.clear();
  for (const std::uint64_t hash_id : chain) keys_.push_back(SplitMix(hash_id));
  order_.SetNow(now_ms);
  for (const EntryId id : chain_) {
    if (slots_[id].children > 1) AddCopy(id, home);
  }
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
  while (found_.size() + copies_count_ >= blocks_) {
    const std::optional<EntryId> leaves = order_.LeavesFor(
        newcomer, [this](EntryId id) { return slots_[id].children == 0 && !slots_[id].held; });
    if (!leaves) return false;
    Evict(*leaves);
  }
  return true;
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
  if (parent != kNone) {
    ++slots_[parent].children;
    slots_[parent].next = id;
  }
  found_.emplace(hash_id, id);
  chain_.push_back(id);
  order_.Insert(id, 0, standing);
}

void BlockCache::Evict(EntryId id) {
  order_.Remove(id);
  found_.erase(slots_[id].hash_id);
  if (slots_[id].copies != kNone) {
    copies_count_ -= copies_[slots_[id].copies].count;
    FreeCopies(id);
  }
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
      Slot& slot = slots_[way[i]];
      DropCopy(way[i], home);
      if (slot.home == home && slot.copies != kNone) {
        const std::vector<bool>& copies = copies_[slot.copies].at;
        slot.home = static_cast<NodeNumber>(std::ranges::find(copies, true) - copies.begin());
        DropCopy(way[i], slot.home);
      }
      if (slot.home == home) above = kGoes;
      fate[way[i]] = above;
      if (above == kGoes) going.push_back(way[i]);
    }
  }
  // Children stand behind their parents in `going`.
  for (std::size_t i = going.size(); i-- > 0;) Evict(going[i]);
}

}  // namespace cistern::fleet
