// SPDX-License-Identifier: Apache-2.0
#include "store/whole_chains.h"

#include <algorithm>
#include <utility>

#include "policy/hand_over.h"

namespace cistern::store {

WholeChains::WholeChains(const residency::StoreContext& context, const residency::Residents& residents,
                         std::vector<bool> wanted)
    : executor_(context.executor),
      steps_(context.steps),
      catalog_(context.catalog),
      forest_(context.catalog.forest()),
      residents_(residents),
      wanted_(std::move(wanted)),
      marks_(forest_.block_end()),
      next_(forest_.block_end()) {}

catalog::RecordId WholeChains::RecordOf(catalog::BlockId block) const {
  const catalog::Block& b = forest_.block(block);
  if (!b.has_key() || b.is(catalog::Block::kCut)) return catalog::kNoId;
  const catalog::IncarnationTree* tree = forest_.tree(b.tree);
  const catalog::NamespaceEntry* entry = tree == nullptr ? nullptr : catalog_.EntryOf(b.tree);
  if (entry == nullptr || entry->first_full == catalog::kNoGroup || tree->slot >= wanted_.size() ||
      !wanted_[tree->slot])
    return catalog::kNoId;
  const catalog::RecordId record = forest_.FindRecord(block, entry->first_full);
  if (record == catalog::kNoId || !forest_.record(record).in_memory() ||
      catalog::Catalog::Expired(forest_.record(record).expiry, catalog_.NowS()))
    return catalog::kNoId;
  return record;
}

std::uint32_t WholeChains::AgeOf(catalog::RecordId record) const {
  const policy::Order& order = residents_.order();
  if (!order.Contains(record)) return 0;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(order.Age(record), UINT32_MAX));
}

bool WholeChains::Due(catalog::RecordId record) const {
  const std::uint64_t most = kHelpings[helping_];
  return most == ~std::uint64_t{0} || AgeOf(record) <= residents_.order().size() * most / 4;
}

Task<std::optional<WholeChain>> WholeChains::Next() {
  for (;;) {
    if (next_ == 0) {
      if (helping_ + 1 < kHelpings.size()) {
        ++helping_;
      } else if (!std::exchange(changed_, false) || ++rounds_ == kRounds) {
        co_return std::nullopt;
      }
      next_ = static_cast<catalog::BlockId>(marks_.size());
      continue;
    }
    const catalog::BlockId block = --next_;
    if (steps_.Spent()) co_await Yield();
    steps_.Count();
    if (block >= forest_.block_end() || marks_[block] != kNew) continue;
    const catalog::RecordId record = RecordOf(block);
    if (record == catalog::kNoId || !Due(record)) continue;
    steps_.Count(2);
    std::vector<Climbed> climbed = co_await Climb(block);
    if (climbed.empty()) continue;
    std::optional<WholeChain> chain = co_await Collect(climbed);
    if (chain) co_return chain;
    changed_ = true;
  }
}

Task<std::vector<WholeChains::Climbed>> WholeChains::Climb(catalog::BlockId block) {
  std::vector<Climbed> climbed;
  catalog::BlockId at = block;
  while (climbed.size() < kMostBlocks) {
    if (steps_.Spent()) {
      const catalog::KeyHash key_hash = forest_.block(at).key_hash();
      co_await Yield();
      // Its id may be another block's by now.
      if (at >= forest_.block_end() || forest_.block(at).key_hash() != key_hash) {
        changed_ = true;
        co_return std::vector<Climbed>();
      }
    }
    steps_.Count(2);
    if (RecordOf(at) == catalog::kNoId) break;
    const catalog::Block& b = forest_.block(at);
    climbed.push_back({at, b.key_hash()});
    if (b.parent == catalog::kNoId || forest_.block(b.parent).is(catalog::Block::kHome)) break;
    if (forest_.block(b.parent).is(catalog::Block::kRoot)) co_return climbed;
    at = b.parent;
  }
  // What stands on a block that is not in memory is worth nothing elsewhere.
  for (std::size_t i = 0; i < climbed.size(); ++i) {
    if (steps_.Spent()) co_await Yield();
    steps_.Count();
    if (climbed[i].block < marks_.size()) marks_[climbed[i].block] = kNotWhole;
  }
  co_return std::vector<Climbed>();
}

bool WholeChains::BeginsBranch(catalog::BlockId block) {
  const catalog::BlockId parent = forest_.block(block).parent;
  const bool has_parent = !forest_.block(parent).is(catalog::Block::kRoot);
  std::size_t siblings = 0;
  for (catalog::BlockId child = forest_.block(parent).first_child;
       has_parent && child != catalog::kNoId && siblings < policy::kManyChildren;
       child = forest_.block(child).next_sibling)
    ++siblings;
  steps_.Count(static_cast<std::uint32_t>(siblings));
  return policy::BeginsBranch(has_parent, siblings);
}

Task<std::optional<WholeChain>> WholeChains::Collect(const std::vector<Climbed>& climbed) {
  WholeChain chain;
  chain.keys.reserve(climbed.size());
  catalog::BlockId parent = catalog::kNoId;
  for (std::size_t i = climbed.size(); i-- > 0;) {
    if (steps_.Spent()) co_await Yield();
    steps_.Count(2);
    const auto [block, key_hash] = climbed[i];
    // It has changed meanwhile.
    if (block >= forest_.block_end()) co_return std::nullopt;
    const catalog::RecordId record = RecordOf(block);
    const catalog::Block& b = forest_.block(block);
    if (record == catalog::kNoId || b.key_hash() != key_hash ||
        (parent != catalog::kNoId && b.parent != parent))
      co_return std::nullopt;
    if (chain.keys.empty()) {
      const catalog::IncarnationTree& tree = *forest_.tree(b.tree);
      chain.slot = tree.slot;
      chain.incarnation = tree.incarnation;
    }
    if (BeginsBranch(block)) chain.branches.push_back(chain.keys.size());
    const catalog::Record& r = forest_.record(record);
    chain.keys.push_back(r.key);
    const bool came = HasCome(block);
    if (came && chain.blocks.empty()) chain.first = chain.keys.size();
    if (!came || !chain.blocks.empty()) chain.blocks.push_back({block, r.body_bytes, AgeOf(record)});
    parent = block;
  }
  for (std::size_t i = 0; i < chain.blocks.size(); ++i) {
    if (steps_.Spent()) co_await Yield();
    steps_.Count();
    const catalog::BlockId block = chain.blocks[i].id;
    if (block < marks_.size()) marks_[block] = kCame;
  }
  co_return chain;
}

void WholeChains::NoteGiven(const WholeChain& chain, std::size_t begin, std::size_t end) {
  for (std::size_t at = begin; at < end; ++at) {
    const catalog::BlockId block = chain.blocks[at - chain.first].id;
    if (block < marks_.size()) marks_[block] = kGiven;
  }
  steps_.Count(static_cast<std::uint32_t>(end - begin) / 8 + 1);
}

Task<std::uint64_t> WholeChains::CountLeft() {
  std::uint64_t left = 0;
  for (catalog::BlockId block = 0; block < forest_.block_end(); ++block) {
    if (steps_.Spent()) co_await Yield();
    steps_.Count();
    if (block < marks_.size() && marks_[block] == kGiven) continue;
    const catalog::Block& b = forest_.block(block);
    if (!b.has_key() || b.folded() || b.is(catalog::Block::kCut)) continue;
    bool alone = false;
    for (catalog::RecordId record = b.first_record; record != catalog::kNoId && !alone;
         record = forest_.record(record).next) {
      steps_.Count();
      alone = forest_.record(record).in_memory() && !forest_.record(record).in_lower_tier();
    }
    left += alone ? 1 : 0;
  }
  co_return left;
}

}  // namespace cistern::store
