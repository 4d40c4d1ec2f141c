// SPDX-License-Identifier: Apache-2.0
// The node's lower tier as residency sees it: present or not, and the tasks that move blocks between it and
// memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/task_group.h"
#include "catalog/catalog.h"
#include "residency/fetch_cost.h"
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

  // A record of the tree has a location from now on.
  void NoteThere(catalog::TreeId tree, std::uint64_t body_bytes, std::uint64_t record_bytes) {
    catalog_.counted().AddBelow(tree, body_bytes, record_bytes);
  }
  // The tier forgets the location of a tree's record.
  void Forget(catalog::TreeId tree, const catalog::Forest::Copy& copy) {
    if (tier_ == nullptr || copy.location.none()) return;
    const std::uint64_t record_bytes = catalog_.RecordBytesOf(tree, copy.group, copy.body_bytes);
    catalog_.counted().TakeBelow(tree, copy.body_bytes, record_bytes);
    tier_->Forget(copy.location, record_bytes);
  }
  // Estimated time of a fetch of so many bytes, from now on: the read and what is done beside it.
  // Tier::kNever where there is no tier to read from.
  std::int64_t ReadyInUs(const tier::Location& location, std::uint64_t bytes) const {
    const std::int64_t us = tier_ == nullptr ? tier::Tier::kNever : tier_->EstimateUs(location, bytes);
    if (us == tier::Tier::kNever) return us;
    return us + static_cast<std::int64_t>(
                    cost_.Us(bytes, fetches_, static_cast<double>(us), tasks_.executor().Now()));
  }
  // A fetch began; how many others were under way.
  std::size_t FetchBegan() { return fetches_++; }
  // It ended: what it took beside the read, none where that says nothing.
  void FetchEnded(std::uint64_t bytes, std::size_t others, std::optional<double> beside_us) {
    --fetches_;
    if (beside_us) cost_.Took(bytes, others, *beside_us, tasks_.executor().Now());
  }

  // Whether what lies there cannot be read any more: its device left service, and nobody has come by yet.
  bool Gone(const tier::Location& location) const {
    return outs_ > 0 && !location.none() && tier_->EstimateUs(location, 1) == tier::Tier::kNever;
  }

  // A device left service, and how many have. Who waits for a transfer of one may wait for ever: what he did
  // is another's from then on.
  void NoteOut() { ++outs_; }
  std::uint64_t outs() const { return outs_; }

  // The tasks between memory and the tier; none is spawned once they are closed.
  TaskGroup& tasks() { return tasks_; }
  bool closed() const { return tasks_.closed(); }
  void Spawn(Task<void> task) { tasks_.Spawn(std::move(task)); }

 private:
  catalog::Catalog& catalog_;
  std::unique_ptr<tier::Tier> tier_;
  std::size_t fetches_ = 0;
  FetchCost cost_;
  std::uint64_t outs_ = 0;
  TaskGroup tasks_;  // last, so that it ends first
};

}  // namespace cistern::residency
