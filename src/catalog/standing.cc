// SPDX-License-Identifier: Apache-2.0
#include "catalog/standing.h"

#include <ranges>
#include <vector>

namespace cistern::catalog {
namespace {

constexpr std::uint32_t kApart = kStandingLooks / 2;
constexpr int kTries = 8;

// Every kApart-th ancestor, from the block up to one of which is known whether it stands.
Task<std::vector<KeyHash>> WayUp(Executor&, Catalog& catalog, StepBudget& steps, TreeId tree,
                                 KeyHash key_hash) {
  Forest& forest = catalog.forest();
  std::vector<KeyHash> way;
  BlockId at = forest.FindKeyHash(tree, key_hash);
  for (std::uint32_t above = 1; at != kNoId; ++above) {
    std::uint32_t no_looks = 0;
    if (forest.Standing(at, &no_looks) != Forest::Answer::kUnknown) break;
    if (above % kApart == 0) way.push_back(forest.block(at).key_hash());
    at = forest.block(at).parent;
    steps.Count();
    if (!steps.Spent() || !forest.block(at).has_key()) continue;
    // The id may be another block's after the yield.
    const KeyHash hash = forest.block(at).key_hash();
    co_await Yield();
    at = catalog.EntryOf(tree) == nullptr ? kNoId : forest.FindKeyHash(tree, hash);
  }
  co_return way;
}

}  // namespace

Task<void> LearnStanding(Executor& executor, Catalog& catalog, StepBudget& steps, TreeId tree,
                         KeyHash key_hash) {
  for (int tries = 0; catalog.EntryOf(tree) != nullptr; ++tries) {
    bool unsure = false;
    catalog.FindKeyHash(tree, key_hash, &unsure);
    if (!unsure || tries == kTries) co_return;
    const std::vector<KeyHash> way = co_await WayUp(executor, catalog, steps, tree, key_hash);
    for (const KeyHash ancestor : std::views::reverse(way)) {
      if (steps.Spent()) co_await Yield();
      if (catalog.EntryOf(tree) == nullptr) co_return;
      catalog.FindKeyHash(tree, ancestor);  // which is remembered
    }
    if (steps.Spent()) co_await Yield();
  }
}

}  // namespace cistern::catalog
