// SPDX-License-Identifier: Apache-2.0
#include "mesh/local_block_store.h"

#include <algorithm>
#include <optional>

#include "store/cell_drops.h"

namespace cistern::mesh {
namespace {

catalog::CellStanding Kept(const Standing& standing) {
  return {.history = standing.history,
          .cluster_id = standing.cluster_id,
          .highest_revision = static_cast<std::uint64_t>(standing.highest_revision),
          .applied = static_cast<std::uint64_t>(standing.applied),
          .last_revision = static_cast<std::uint64_t>(standing.last.revision),
          .last_hash = standing.last.name_hash};
}

}  // namespace

Standing LocalBlockStore::remembered() const {
  const catalog::CellStanding& kept = store_.cell_drops().standing();
  return {.history = kept.history,
          .cluster_id = kept.cluster_id,
          .highest_revision = static_cast<std::int64_t>(kept.highest_revision),
          .applied = static_cast<std::int64_t>(kept.applied),
          .last = {static_cast<std::int64_t>(kept.last_revision), kept.last_hash}};
}

Task<void> LocalBlockStore::Begin(const std::vector<CellDrop>& drops) {
  store::CellDrops& store = store_.cell_drops();
  for (const CellDrop& drop : drops) {
    // Each time anew: a namespace that comes meanwhile may have been attached before the drop was asked for.
    co_await names_.Refresh();
    (drop.is_end() ? counters_.ends : counters_.drops).Add();
    const std::optional<std::uint32_t> slot = names_.DroppedSlotOf(drop.name);
    if (!slot) {
      counters_.unknown.Add();
      continue;
    }
    std::uint64_t blocks = 0;
    switch (drop.what) {
      case CellDrop::What::kNamespace: blocks = co_await store.BeginNamespace(*slot); break;
      case CellDrop::What::kKeys: blocks = co_await store.BeginKeys(*slot, drop.keys); break;
      case CellDrop::What::kConversation: blocks = co_await store.BeginEnd(*slot, drop.conversation); break;
    }
    counters_.blocks.Add(blocks);
    for (Count* count : counts_) {
      if (count->Covers(drop)) count->blocks_ += blocks;
    }
  }
}

Task<Status> LocalBlockStore::Discard() {
  // Who comes for the first time has nothing yet.
  if (const std::uint64_t blocks = co_await store_.cell_drops().BeginAll(); blocks > 0) {
    counters_.discards.Add();
    counters_.discarded.Add(blocks);
    counters_.blocks.Add(blocks);
  }
  co_return co_await store_.cell_drops().Settle();
}

Task<Status> LocalBlockStore::DiscardNoted() {
  counters_.blocks.Add(co_await store_.cell_drops().BeginAllEnds());
  co_return co_await store_.cell_drops().Settle();
}

Task<Status> LocalBlockStore::Settle(const Standing& standing) {
  const catalog::CellStanding kept = Kept(standing);
  co_return co_await store_.cell_drops().Settle(&kept);
}

LocalBlockStore::Count::Count(LocalBlockStore& store, const CellDrop& drop)
    : store_(store), what_(drop.what), name_(drop.name), conversation_(drop.conversation) {
  Add(drop.keys);
  store_.counts_.push_back(this);
}

LocalBlockStore::Count::~Count() { std::erase(store_.counts_, this); }

void LocalBlockStore::Count::Add(std::span<const BlockKey> keys) {
  for (const BlockKey& key : keys) keys_.insert(key.Hash());
}

bool LocalBlockStore::Count::Covers(const CellDrop& part) const {
  if (part.what != what_ || part.name != name_ || part.conversation != conversation_) return false;
  return part.keys.empty() || keys_.contains(part.keys.front().Hash());
}

}  // namespace cistern::mesh
