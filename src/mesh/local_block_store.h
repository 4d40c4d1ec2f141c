// SPDX-License-Identifier: Apache-2.0
// The store of a node as its cell asks it: a drop of the cell takes effect in the node's tree and journal,
// and how far the node has come is a record of that journal. What the cell names and the node does not know
// has nothing to drop; another tenant's neither.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_set>
#include <vector>

#include "base/metrics.h"
#include "base/task.h"
#include "mesh/local_store.h"
#include "mesh/shared_names.h"
#include "store/block_store.h"

namespace cistern::mesh {

class LocalBlockStore final : public LocalStore {
 public:
  // Borrowed; the store has recovered.
  LocalBlockStore(Executor& executor, store::BlockStore& store, SharedNames& names)
      : executor_(executor), store_(store), names_(names) {}
  LocalBlockStore(const LocalBlockStore&) = delete;
  LocalBlockStore& operator=(const LocalBlockStore&) = delete;

  Executor& executor() { return executor_; }

  Standing remembered() const override;
  Task<void> Begin(const std::vector<CellDrop>& drops) override;
  Task<Status> Discard() override;
  Task<Status> DiscardNoted() override;
  Task<Status> Settle(const Standing& standing) override;

  // Counts the blocks that a drop removes here, as long as it stands: of all its parts, and of others' drops
  // that begin with one of its keys meanwhile. Of many keys those that it has not yet are added.
  class Count {
   public:
    Count(LocalBlockStore& store, const CellDrop& drop);
    ~Count();
    Count(const Count&) = delete;
    Count& operator=(const Count&) = delete;
    void Add(std::span<const BlockKey> keys);
    std::uint64_t blocks() const { return blocks_; }

   private:
    friend class LocalBlockStore;
    bool Covers(const CellDrop& part) const;
    LocalBlockStore& store_;
    const CellDrop::What what_;
    const SharedNamespace name_;
    const std::uint64_t conversation_;
    std::unordered_set<std::uint64_t> keys_;  // their hashes
    std::uint64_t blocks_ = 0;
  };

  struct Counters {
    Counter drops;      // of keys and namespaces that have begun, as the cell wrote them
    Counter ends;       // of conversations
    Counter unknown;    // of both, those of namespaces that are not here
    Counter blocks;     // removed
    Counter discards;   // of everything, where there was something
    Counter discarded;  // blocks, by these
  };
  const Counters& counters() const { return counters_; }

 private:
  Executor& executor_;
  store::BlockStore& store_;
  SharedNames& names_;
  Counters counters_;
  std::vector<Count*> counts_;
};

}  // namespace cistern::mesh
