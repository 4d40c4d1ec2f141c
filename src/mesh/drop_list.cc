// SPDX-License-Identifier: Apache-2.0
#include "mesh/drop_list.h"

#include <algorithm>

#include "base/assert.h"
#include "base/random.h"

namespace cistern::mesh {

void DropList::Names::Restart(std::int64_t from) {
  listed.clear();
  last.clear();
  begin = from;
}

void DropList::Restart(std::int64_t from) {
  drops_.Restart(from);
  ends_.Restart(from);
  last_ = from;
}

void DropList::RestartEnds(std::int64_t from) { ends_.Restart(from); }

void DropList::Add(std::int64_t revision, const CellDrop& drop) {
  if (drop.what == CellDrop::What::kKeys) return AddKeys(revision, drop.name, drop.keys);
  CISTERN_ASSERT(revision >= last_);
  last_ = revision;
  const std::uint64_t name = HashOf(drop.name);
  if (drop.is_end()) {
    List(ends_, revision, HashOf(name, drop.conversation));
  } else {
    List(drops_, revision, name);
  }
}

void DropList::AddKeys(std::int64_t revision, const SharedNamespace& name, std::span<const BlockKey> keys) {
  CISTERN_ASSERT(revision >= last_);
  last_ = revision;
  const std::uint64_t namespace_hash = HashOf(name);
  for (const BlockKey& key : keys) List(drops_, revision, HashOf(namespace_hash, key));
}

void DropList::List(Names& names, std::int64_t revision, std::uint64_t hash) {
  names.listed.push_back({revision, hash});
  names.last[hash] = revision;
  ++names.ever;
  while (size() > most_)
    Forget(drops_.listed.empty() ||
                   (!ends_.listed.empty() && ends_.listed.front().revision < drops_.listed.front().revision)
               ? ends_
               : drops_);
}

void DropList::Forget(Names& names) {
  const Listed oldest = names.listed.front();
  names.listed.pop_front();
  names.begin = oldest.revision;
  // It may have been dropped again since, in the same revision too.
  const auto last = names.last.find(oldest.hash);
  if (last != names.last.end() && last->second == oldest.revision) names.last.erase(last);
}

bool DropList::DroppedAfter(const Names& names, std::uint64_t hash, std::int64_t a) const {
  const auto last = names.last.find(hash);
  return last != names.last.end() && last->second > a;
}

std::uint64_t DropList::HashOf(const SharedNamespace& name) const {
  return BlockKey::FromBytes(name.list_hash)->Hash(HashOfText(SplitMix(seed_), name.tenant));
}

std::uint64_t DropList::HashOf(std::uint64_t namespace_hash, const BlockKey& key) {
  return key.Hash(namespace_hash);
}

std::uint64_t DropList::HashOf(std::uint64_t namespace_hash, std::uint64_t conversation) {
  return SplitMix(namespace_hash ^ SplitMix(conversation));
}

std::int64_t DropList::LastOf(const SharedNamespace& name, std::span<const BlockKey> keys) const {
  const std::uint64_t namespace_hash = HashOf(name);
  std::int64_t revision = 0;
  const auto look = [&](std::uint64_t hash) {
    const auto last = drops_.last.find(hash);
    if (last != drops_.last.end()) revision = std::max(revision, last->second);
  };
  if (keys.empty()) look(namespace_hash);
  for (const BlockKey& key : keys) look(HashOf(namespace_hash, key));
  return revision;
}

Verdict DropList::CheckNotes(const SharedNamespace& name, std::vector<std::uint64_t>* notes,
                             std::int64_t a) const {
  if (notes->empty()) return Verdict::kTake;
  if (a < ends_.begin) return Verdict::kBehind;
  const std::uint64_t namespace_hash = HashOf(name);
  std::erase_if(*notes, [&](std::uint64_t conversation) {
    return DroppedAfter(ends_, HashOf(namespace_hash, conversation), a);
  });
  return notes->empty() ? Verdict::kCovered : Verdict::kTake;
}

ChainCheck::ChainCheck(const DropList& list, const SharedNamespace& name, std::span<const BlockKey> chain,
                       std::int64_t a)
    : list_(list), chain_(chain), a_(a), name_(name), looked_to_(list.drops_.ever) {}

bool ChainCheck::Step(std::size_t touches) {
  const DropList::Names& drops = list_.drops_;
  if (a_ < drops.begin) verdict_ = Verdict::kBehind;
  if (verdict_ != Verdict::kTake) return true;
  // Revisions are listed in order.
  if (drops.listed.empty() || drops.listed.back().revision <= a_) return true;
  if (hashes_.empty()) {
    namespace_hash_ = list_.HashOf(name_);
    hashes_.reserve(chain_.size() + 1);
    hashes_.push_back(namespace_hash_);
    looked_to_ = drops.ever;
    if (list_.DroppedAfter(drops, namespace_hash_, a_)) verdict_ = Verdict::kCovered;
  }
  while (hashes_.size() <= chain_.size() && verdict_ == Verdict::kTake) {
    if (touches == 0) return false;
    --touches;
    ++looked_;
    hashes_.push_back(DropList::HashOf(namespace_hash_, chain_[hashes_.size() - 1]));
    if (list_.DroppedAfter(drops, hashes_.back(), a_)) verdict_ = Verdict::kCovered;
  }
  // What was listed since the first slice may cover what an earlier one has looked at.
  const std::uint64_t front = drops.ever - drops.listed.size();
  // What has left the list meanwhile is no later than `a`.
  looked_to_ = std::max(looked_to_, front);
  const std::size_t a_look = 1 + hashes_.size() / 64;  // a line of the cache is a touch
  while (looked_to_ < drops.ever && verdict_ == Verdict::kTake) {
    if (touches == 0) return false;
    touches -= std::min(touches, a_look);
    looked_ += a_look;
    const DropList::Listed& drop = drops.listed[looked_to_++ - front];
    if (std::ranges::find(hashes_, drop.hash) != hashes_.end()) verdict_ = Verdict::kCovered;
  }
  return true;
}

}  // namespace cistern::mesh
