// SPDX-License-Identifier: Apache-2.0
// How often and when last the records of each tree were used, since the node's start: for people who ask
// which namespaces pay. Nothing is decided by it.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "base/clock.h"
#include "catalog/forest.h"

namespace cistern::catalog {

struct TreeUse {
  std::uint64_t uses = 0;
  Instant last;  // to the last SetTime before it; of no meaning where uses is 0
};

class TreeUses final {
 public:
  // The time of uses from now on: a look at the clock for each use would cost as much as the use.
  void SetTime(Instant now) { now_ = now; }
  void Note(TreeId tree, std::uint64_t uses = 1) {
    // Uses come in batches of one namespace mostly.
    if (tree != noted_) {
      use_ = &uses_[tree];
      noted_ = tree;
    }
    use_->uses += uses;
    use_->last = now_;
  }
  TreeUse Of(TreeId tree) const {
    const auto found = uses_.find(tree);
    return found == uses_.end() ? TreeUse() : found->second;
  }
  // The tree's id is never another's.
  void Forget(TreeId tree) {
    uses_.erase(tree);
    noted_ = kNoId;
  }

 private:
  std::unordered_map<TreeId, TreeUse> uses_;
  TreeId noted_ = kNoId;
  TreeUse* use_ = nullptr;  // of noted_
  Instant now_;
};

}  // namespace cistern::catalog
