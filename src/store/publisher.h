// SPDX-License-Identifier: Apache-2.0
// Publication of puts: a put is visible once it is whole, its parent is reachable, and there is room for it
// (R7).
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/task.h"
#include "residency/context.h"
#include "residency/evictor.h"
#include "residency/lower_tier.h"
#include "residency/removal.h"
#include "residency/residents.h"
#include "residency/write_back.h"
#include "store/deletions.h"
#include "store/open_puts.h"

namespace cistern::store {

class Publisher final {
 public:
  Publisher(const residency::StoreContext& context, residency::LowerTier& lower,
            residency::Residents& residents, residency::Removal& removal, residency::Evictor& evictor,
            residency::WriteBack& write_back, OpenPuts& puts, Deletions& deletions)
      : context_(context),
        lower_(lower),
        residents_(residents),
        removal_(removal),
        evictor_(evictor),
        write_back_(write_back),
        puts_(puts),
        deletions_(deletions) {}
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

  Executor& executor() { return context_.executor; }

  // Of a put that is made now: whether a block of its parent's key stands. Asked with a lower tier alone.
  bool ParentStands(catalog::TreeId tree, const BlockKey& parent) const {
    return lower_.present() && !parent.none() && context_.catalog.Find(tree, parent) != catalog::kNoId;
  }
  // kDone: published, or ended. kWaits: not whole, held, or its parent is not reachable.
  residency::Step TryPublish(catalog::PutIndex put);
  // Publishes puts that wait for a published block as their parent, and then their children.
  Task<void> Cascade();
  // Whether Settle has work: puts that waited for a published parent, or notes of shared conversations.
  bool settles() const { return cascade_waits() || context_.conversations.sharing(); }
  Task<void> Settle();
  // A slice of Cascade; true: there is more.
  bool CascadeSlice();
  // True if CascadeSlice has work.
  bool cascade_waits() const {
    return !cascade_.empty() || (!unsure_.empty() && !context_.forest.collecting());
  }

 private:
  residency::Step TryPublishOpen(catalog::PutIndex put);
  // kDone and a parent of kNoId: the parent is absent and not needed.
  residency::Step FindParent(catalog::PutIndex put, const catalog::NamespaceEntry& entry,
                             catalog::BlockId* parent);
  // kDone: the put may be published; `*block` is its block, if the forest has it as a placeholder or with
  // other groups. `*parent` is what FindParent has found, and finds anew where an expired block is cut.
  residency::Step FindPresent(catalog::PutIndex put, const catalog::NamespaceEntry& entry,
                              catalog::BlockId* parent, catalog::BlockId* block);
  // Blocks being collected hide the put's parent or block: the put is looked at again after the collection.
  residency::Step WaitUntilSure(catalog::PutIndex put);
  bool MayDescendFromDropped(const catalog::Put& put, catalog::BlockId parent,
                             const catalog::NamespaceEntry& entry) const;
  // kDone: no drop since it was made has taken it along. kWaits as well where that ended it.
  residency::Step CheckDrops(catalog::PutIndex put, catalog::BlockId parent,
                             const catalog::NamespaceEntry& entry);
  // kUnknown where a step may not look far enough.
  catalog::Forest::Answer DescendsFrom(catalog::BlockId block, catalog::BlockId top);
  catalog::BlockId BlockFor(catalog::PutIndex put, catalog::BlockId parent, catalog::BlockId block);
  void MakeVisible(catalog::PutIndex put, catalog::BlockId block, std::uint32_t index_number,
                   const catalog::NamespaceEntry& entry);
  void MarkBehind(catalog::BlockId block, std::uint16_t group, const catalog::NamespaceEntry& entry);

  const residency::StoreContext context_;
  residency::LowerTier& lower_;
  residency::Residents& residents_;
  residency::Removal& removal_;
  residency::Evictor& evictor_;
  residency::WriteBack& write_back_;
  OpenPuts& puts_;
  Deletions& deletions_;
  struct WaitingChildren {
    catalog::TreeId tree;
    catalog::KeyHash key_hash;
    std::uint32_t groups;  // groups of the waiting puts, a bit each
  };
  std::deque<WaitingChildren> cascade_;  // published blocks whose waiting children were not looked at yet
  struct Unsure {
    catalog::PutIndex put;
    std::uint64_t made;
  };
  std::vector<Unsure> unsure_;  // puts to look at after the collection; at most one each
};

}  // namespace cistern::store
