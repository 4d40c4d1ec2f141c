// SPDX-License-Identifier: Apache-2.0
#include "store/standing.h"

#include <ranges>
#include <vector>

namespace cistern::store {
namespace {

constexpr std::uint32_t kApart = catalog::kStandingLooks / 2;
constexpr int kTries = 8;

// Every kApart-th ancestor, from the block up to one of which is known whether it stands.
Task<std::vector<catalog::KeyHash>> WayUp(Executor&, catalog::Catalog& catalog, StepBudget& steps,
                                          catalog::TreeId tree, catalog::KeyHash key_hash) {
  catalog::Forest& forest = catalog.forest();
  std::vector<catalog::KeyHash> way;
  catalog::BlockId at = forest.FindKeyHash(tree, key_hash);
  for (std::uint32_t above = 1; at != catalog::kNoId; ++above) {
    std::uint32_t no_looks = 0;
    if (forest.Standing(at, &no_looks) != catalog::Forest::Answer::kUnknown) break;
    if (above % kApart == 0) way.push_back(forest.block(at).key_hash());
    at = forest.block(at).parent;
    steps.Count();
    if (!steps.Spent() || !forest.block(at).has_key()) continue;
    // The id may be another block's after the yield.
    const catalog::KeyHash hash = forest.block(at).key_hash();
    co_await Yield();
    at = catalog.EntryOf(tree) == nullptr ? catalog::kNoId : forest.FindKeyHash(tree, hash);
  }
  co_return way;
}

}  // namespace

Task<void> LearnStanding(Executor& executor, catalog::Catalog& catalog, StepBudget& steps,
                         catalog::TreeId tree, catalog::KeyHash key_hash) {
  for (int tries = 0; catalog.EntryOf(tree) != nullptr; ++tries) {
    bool unsure = false;
    catalog.FindKeyHash(tree, key_hash, &unsure);
    if (!unsure || tries == kTries) co_return;
    const std::vector<catalog::KeyHash> way = co_await WayUp(executor, catalog, steps, tree, key_hash);
    for (const catalog::KeyHash ancestor : std::views::reverse(way)) {
      if (steps.Spent()) co_await Yield();
      if (catalog.EntryOf(tree) == nullptr) co_return;
      catalog.FindKeyHash(tree, ancestor);  // which is remembered
    }
    if (steps.Spent()) co_await Yield();
  }
}

}  // namespace cistern::store
