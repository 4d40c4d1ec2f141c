// SPDX-License-Identifier: Apache-2.0
// The node's lower tier as residency sees it: present or not, and the tasks that move blocks between it and
// memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/task_group.h"
#include "catalog/catalog.h"
#include "tier/tier.h"

namespace cistern::residency {

// How a node opens its lower tier.
using OpenTierCall = std::function<Task<Result<std::unique_ptr<tier::Tier>>>(tier::JournalView journal)>;

class LowerTier final {
 public:
  LowerTier(Executor& executor, catalog::Catalog& catalog) : catalog_(catalog), tasks_(executor) {}
  // Close was awaited, or the node crashed.
  ~LowerTier() { tasks_.Drop(); }

  void Open(std::unique_ptr<tier::Tier> tier) { tier_ = std::move(tier); }
  // False: the node has memory alone.
  bool present() const { return tier_ != nullptr; }
  tier::Tier* get() const { return tier_.get(); }
  tier::Tier* operator->() const { return tier_.get(); }

  // The tier forgets the location of a tree's record.
  void Forget(catalog::TreeId tree, const catalog::Forest::Copy& copy) {
    if (tier_ == nullptr || copy.location.none()) return;
    tier_->Forget(copy.location, catalog_.RecordBytesOf(tree, copy.group, copy.body_bytes));
  }
  // Estimated time of a read of so many bytes, from now on; Tier::kNever where there is no tier to read
  // from.
  std::int64_t ReadyInUs(const tier::Location& location, std::uint64_t bytes) const {
    return tier_ == nullptr ? tier::Tier::kNever : tier_->EstimateUs(location, bytes);
  }

  // The tasks between memory and the tier; none is spawned once they are closed.
  TaskGroup& tasks() { return tasks_; }
  bool closed() const { return tasks_.closed(); }
  void Spawn(Task<void> task) { tasks_.Spawn(std::move(task)); }

 private:
  catalog::Catalog& catalog_;
  std::unique_ptr<tier::Tier> tier_;
  TaskGroup tasks_;  // last, so that it ends first
};

}  // namespace cistern::residency
