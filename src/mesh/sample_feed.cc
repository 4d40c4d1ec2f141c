// SPDX-License-Identifier: Apache-2.0
#include "mesh/sample_feed.h"

#include <algorithm>
#include <array>
#include <utility>

namespace cistern::mesh {
namespace {

constexpr std::uint32_t kIdsAStep = 4'096;  // of which most have a depth that says they are no samples
constexpr std::uint32_t kSamplesAStep = 256;
constexpr std::size_t kTreesBefore = 64;          // those that are no more are forgotten
constexpr std::size_t kRootsAndHomes = 1u << 16;  // ids of which no block was counted

}  // namespace

SampleFeed::SampleFeed(Executor& executor, store::BlockStore& store, const SharedNamespaces& names)
    : executor_(executor),
      store_(store),
      names_(names),
      forest_(store.forest()),
      depths_(forest_.max_blocks() + kRootsAndHomes) {}

SampleFeed::~SampleFeed() {
  if (listening_) store_.ListenToBlocks(nullptr);
}

// Of trees that are no more.
void SampleFeed::ForgetTrees() {
  if (trees_.size() < 2 * std::size_t{forest_.trees()} + kTreesBefore) return;
  std::erase_if(trees_, [this](const auto& of) { return forest_.tree(of.first) == nullptr; });
  std::erase_if(newest_, [this](const auto& newest) { return !trees_.contains(newest.second); });
}

const SampleFeed::OfTree& SampleFeed::TreeOf(catalog::TreeId tree) {
  if (const auto known = trees_.find(tree); known != trees_.end()) return known->second;
  ForgetTrees();
  OfTree& of = trees_[tree];
  const catalog::IncarnationTree* known = forest_.tree(tree);
  const catalog::NamespaceEntry* entry = known == nullptr ? nullptr : store_.NamespaceAt(known->slot);
  const std::optional<SharedNamespace> name = known == nullptr ? std::nullopt : names_.NameAt(known->slot);
  if (entry == nullptr || !name || entry->incarnation != known->incarnation) return of;
  // A namespace of windows alone stays on its node.
  of.shared = entry->first_full != catalog::kNoGroup;
  of.seed = SampleSeed(history_, *name);
  of.grid = SampleGrid(entry->block_tokens);
  of.group = entry->first_full;
  newest_[of.seed] = tree;
  return of;
}

std::optional<Sample> SampleFeed::SampleOf(catalog::BlockId block) {
  const Depth depth = depths_[block];
  if (depth == 0 || depth == kDeepest) return std::nullopt;
  const catalog::Block& b = forest_.block(block);
  const OfTree& of = TreeOf(b.tree);
  if (!of.shared || !of.grid.Sampled(depth - 1u)) return std::nullopt;
  return Sample{SampleHash(of.seed, catalog::HashOfKey(b.tree, b.key_hash())), of.grid.NumberOf(depth - 1u)};
}

void SampleFeed::SetDepth(catalog::BlockId block, Depth depth) {
  depths_[block] = depth;
  const std::optional<Sample> sample = SampleOf(block);
  if (!sample) return;
  ++samples_;
  Tell({*sample, false});
}

bool SampleFeed::Resolve(catalog::BlockId block) {
  std::array<catalog::BlockId, kLooks> unknown;
  std::uint32_t count = 0;
  Depth depth = 0;
  for (catalog::BlockId at = block;; at = forest_.block(at).parent) {
    if (at == catalog::kNoId) return false;
    const catalog::Block& b = forest_.block(at);
    if (b.is(catalog::Block::kHome)) return false;
    if (b.is(catalog::Block::kRoot)) break;
    depth = depths_[at];
    if (depth != 0) break;
    // An ancestor that is not here cannot be asked for either.
    if (!forest_.See(at, TreeOf(b.tree).group)) return false;
    if (count == unknown.size()) return false;
    unknown[count++] = at;
  }
  while (count > 0) {
    if (depth < kDeepest) ++depth;
    SetDepth(unknown[--count], depth);
  }
  return true;
}

void SampleFeed::Came(catalog::BlockId block, std::uint16_t group) {
  if (clearing_) return;
  const OfTree& of = TreeOf(forest_.block(block).tree);
  if (of.shared && of.group == group && depths_[block] == 0) (void)Resolve(block);
}

void SampleFeed::Went(catalog::BlockId block, std::uint16_t group) {
  if (clearing_) depths_[block] = 0;
  if (depths_[block] == 0) return;
  const OfTree& of = TreeOf(forest_.block(block).tree);
  if (of.shared && of.group != group) return;
  if (const std::optional<Sample> sample = SampleOf(block)) {
    --samples_;
    if (!HasNamesake(block)) Tell({*sample, true});
  }
  depths_[block] = 0;
}

// Whether the sample is that of a later block as well: its namespace was dropped, and it was put again before
// this one was collected. To the others both are one.
bool SampleFeed::HasNamesake(catalog::BlockId block) {
  const catalog::Block& b = forest_.block(block);
  const auto newest = newest_.find(TreeOf(b.tree).seed);
  if (newest == newest_.end() || newest->second == b.tree) return false;
  const std::uint64_t key = catalog::HashOfKey(b.tree, b.key_hash());
  const catalog::BlockId later = forest_.FindKeyHash(newest->second, catalog::HashOfKey(newest->second, key));
  return later != catalog::kNoId && SampleOf(later).has_value();
}

void SampleFeed::Tell(const SampleChange& change) {
  kept_.push_back(change);
  if (kept_.size() > kKept) {
    kept_.pop_front();
    ++first_kept_;
  }
  changed_.Pulse();
}

Task<void> SampleFeed::Begin(std::uint64_t history) {
  first_kept_ = end() + 1;  // a gap, so that nobody goes on from what was told under another history
  kept_.clear();
  trees_.clear();
  newest_.clear();
  samples_ = 0;
  history_ = history;
  switches_ = names_.switches();
  if (!listening_) store_.ListenToBlocks(this);
  clearing_ = std::exchange(listening_, true);
  for (catalog::BlockId id = 0; clearing_ && id < forest_.block_end(); ++id) {
    depths_[id] = 0;
    if (id % kIdsAStep == kIdsAStep - 1) co_await Yield();
  }
  clearing_ = false;
  // Ids rise along most chains, so most blocks find a parent that knows its depth; the rest is found in
  // further rounds.
  for (bool found = true; found;) {
    found = false;
    std::uint32_t looks = 0;
    for (catalog::BlockId id = 0; id < forest_.block_end(); ++id) {
      if (++looks % kSamplesAStep == 0) co_await Yield();
      const catalog::Block& b = forest_.block(id);
      if (!b.has_key() || depths_[id] != 0 || b.is(catalog::Block::kCut)) continue;
      const OfTree& of = TreeOf(b.tree);
      if (!of.shared || !forest_.See(id, of.group)) continue;
      found = Resolve(id) || found;
    }
  }
  changed_.Pulse();
}

std::optional<std::vector<SampleChange>> SampleFeed::From(std::uint64_t first, std::size_t most) const {
  if (first < first_kept_ || first > end()) return std::nullopt;
  const auto from = kept_.begin() + static_cast<std::ptrdiff_t>(first - first_kept_);
  const auto count = std::min<std::size_t>(most, static_cast<std::size_t>(kept_.end() - from));
  return std::vector<SampleChange>(from, from + static_cast<std::ptrdiff_t>(count));
}

Task<SnapshotPage> SampleFeed::Page(std::uint32_t from) {
  SnapshotPage page{.history = history_, .as_of = end()};
  std::uint32_t looked = 0;
  for (catalog::BlockId id = from;; ++id) {
    if (id >= forest_.block_end() || clearing_) co_return page;
    if (page.samples.size() == kPage) {
      page.next = id;
      co_return page;
    }
    if (depths_[id] == 0) {
      if (++looked % kIdsAStep == 0) co_await Yield();
      continue;
    }
    looked += kIdsAStep / kSamplesAStep;
    if (const std::optional<Sample> sample = SampleOf(id)) page.samples.push_back(*sample);
    if (looked >= kIdsAStep) {
      looked = 0;
      co_await Yield();
    }
  }
}

}  // namespace cistern::mesh
