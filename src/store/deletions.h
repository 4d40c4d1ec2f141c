// SPDX-License-Identifier: Apache-2.0
// Deletions of dropped, expired and bad blocks (R9, R10). One flag at the top block ends its whole subtree
// at once; the blocks are then collected in slices, deepest first. Trees take turns, so that what is dropped
// of one does not wait for all of another.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/event.h"
#include "base/task.h"
#include "residency/block_owner.h"
#include "residency/context.h"
#include "residency/removal.h"
#include "store/open_puts.h"

namespace cistern::store {

struct Deletion {
  catalog::BlockId top = catalog::kNoId;  // kNoId: the forest has no block of it
  catalog::BlockId at = catalog::kNoId;
  catalog::TreeId tree = catalog::kNoId;  // of the key; the whole tree is deleted where `whole_tree`
  std::uint32_t slot = 0;                 // of the tree
  bool whole_tree = false;
  catalog::PutIndex next_put = 0;
  std::vector<catalog::KeyHash> key_hashes;  // keys whose puts end, with the puts of their descendants
  std::uint64_t made = 0;                    // puts made later stay
  std::uint64_t since = 0;  // `made` of the first deletion that this one was, or may have been, cut out of
  residency::LossReason reason = residency::LossReason::kDropped;
  std::uint64_t blocks = 0;
};

class Deletions final : public residency::BlockOwner {
 public:
  Deletions(const residency::StoreContext& context, residency::Removal& removal, OpenPuts& puts)
      : context_(context), removal_(removal), puts_(puts) {}
  Deletions(const Deletions&) = delete;
  Deletions& operator=(const Deletions&) = delete;

  Executor& executor() { return context_.executor; }

  // Null where the block's namespace was dropped: the block is then collected with it.
  std::shared_ptr<Deletion> Cut(catalog::BlockId block, residency::LossReason reason);
  // Cuts the block where its record of the group is past its time, in whatever tier; true: it was.
  bool CutExpired(catalog::BlockId block, std::uint16_t group, std::uint64_t now_s);
  std::shared_ptr<Deletion> Start(Deletion deletion);
  // Removes a block that was cut with an ancestor from the table, so that a new block can have its key.
  void Detach(catalog::BlockId block);
  // ---- BlockOwner ----
  void Lose(catalog::BlockId block, residency::LossReason reason) override { Cut(block, reason); }
  void Freed(catalog::BlockId block, catalog::BlockId parent) override;
  bool Collect() override;

  bool empty() const { return of_trees_.empty(); }
  // Whether one of them is of the namespace with this slot number, or of one that was dropped there.
  bool Concern(std::uint32_t slot) const { return of_slot_.contains(slot); }
  // Completes when the deletion is collected, and so are those of its tree before it and all that were cut
  // out of these meanwhile: what they have may be below it.
  Task<void> Collected(std::shared_ptr<Deletion> deletion);
  // Completes when the next deletion is collected.
  Event::Waiting NextCollected() { return collected_.Wait(); }
  Event::WaitingUntil NextCollected(Instant deadline) { return collected_.Wait(deadline); }
  // True if a block expired since the last call.
  bool TakeExpired() { return std::exchange(expired_, false); }

 private:
  bool EndPutsStep(Deletion& deletion);
  void CollectNode(Deletion& deletion);
  void End(Deletion& deletion);

  const residency::StoreContext context_;
  residency::Removal& removal_;
  OpenPuts& puts_;
  // Of a tree, in the order in which they were started; the first is being collected.
  struct OfTree {
    std::deque<std::shared_ptr<Deletion>> deletions;
    std::multiset<std::uint64_t> since;  // of each of them
  };
  std::map<catalog::TreeId, OfTree> of_trees_;
  catalog::TreeId turn_ = 0;  // the next that has some is collected in the next slice
  std::unordered_map<std::uint32_t, std::uint32_t> of_slot_;  // how many there are of each slot number
  Event collected_;
  bool expired_ = false;
};

}  // namespace cistern::store
