// SPDX-License-Identifier: Apache-2.0
// Drops that were decided elsewhere, by the cell that the node is a member of: they take effect here whatever
// the journal says and no bound refuses them, and Settle makes them durable. What a node's own clients drop
// goes by Drops and Namespaces where there is no cell.
#pragma once

#include <cstdint>
#include <span>

#include "base/task.h"
#include "catalog/journal.h"
#include "cistern/key.h"
#include "residency/context.h"
#include "store/drops.h"
#include "store/namespaces.h"

namespace cistern::store {

class CellDrops final {
 public:
  CellDrops(const residency::StoreContext& context, Drops& drops, Namespaces& namespaces)
      : context_(context), drops_(drops), namespaces_(namespaces) {}
  CellDrops(const CellDrops&) = delete;
  CellDrops& operator=(const CellDrops&) = delete;

  Executor& executor() { return context_.executor; }

  // Each ends when nothing that it drops is read any more. The number of blocks removed; 0 in a slot without
  // a namespace. Past StoreOptions::max_tombstones keys and conversations take the whole namespace with them.
  Task<std::uint64_t> BeginKeys(std::uint32_t slot, std::span<const BlockKey> keys);
  Task<std::uint64_t> BeginNamespace(std::uint32_t slot);
  Task<std::uint64_t> BeginEnd(std::uint32_t slot, std::uint64_t conversation);
  Task<std::uint64_t> BeginAll();
  // Of every conversation: what has notes.
  Task<std::uint64_t> BeginAllEnds();

  // Drops begun before this call are durable when it ends with ok, and so is the standing behind them, where
  // one is given. kIoError: neither may be.
  Task<Status> Settle(const catalog::CellStanding* standing = nullptr) {
    return context_.journal.Settle(standing);
  }
  const catalog::CellStanding& standing() const { return context_.journal.standing(); }

 private:
  const residency::StoreContext context_;
  Drops& drops_;
  Namespaces& namespaces_;
};

}  // namespace cistern::store
