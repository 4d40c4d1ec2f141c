// SPDX-License-Identifier: Apache-2.0
// Names of a node's namespaces as members of a cell say them to each other: the tenant and SHA-256 over the
// list that is the namespace's identity (docs/formats/cell.md). Slots and incarnations are each node's own.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/event.h"
#include "base/task.h"
#include "mesh/cell_drop.h"
#include "mesh/reach.h"
#include "store/block_store.h"

namespace cistern::mesh {

// Of a namespace of the tenant.
SharedNamespace NameOf(const std::string& tenant, const catalog::NamespaceEntry& entry);

// What makes it the same namespace at another member: its list, and what its users said of it, without the
// names that stand for it here (docs/formats/journal.md). None for bytes that are no such list.
std::vector<std::byte> EncodeNamespace(catalog::NamespaceEntry entry);
std::optional<catalog::NamespaceEntry> DecodeNamespace(std::span<const std::byte> bytes);

class SharedNames final : public SharedNamespaces {
 public:
  // The store is borrowed. The tenant: whose blocks it has.
  SharedNames(Executor& executor, const store::BlockStore& store, std::string tenant)
      : executor_(executor), store_(store), tenant_(std::move(tenant)) {}
  SharedNames(const SharedNames&) = delete;
  SharedNames& operator=(const SharedNames&) = delete;

  Executor& executor() { return executor_; }
  const std::string& tenant() const { return tenant_; }

  // Takes notice of the namespaces that have come since the last time: a list has up to 64 KiB, so each in a
  // step of its own. Before the others are asked; namespaces that come later are not known to them.
  Task<void> Refresh();
  // As drops have them, which reach a namespace that stays on this node as well. None: no namespace that was
  // looked at has the name.
  std::optional<std::uint32_t> DroppedSlotOf(const SharedNamespace& name) const;
  // Looks at the namespace now, if it came or changed since.
  std::optional<SharedNamespace> DroppedNameAt(std::uint32_t slot) const;
  std::optional<std::uint32_t> SlotOf(const SharedNamespace& name) const override;
  std::optional<SharedNamespace> NameAt(std::uint32_t slot) const override;
  std::uint64_t switches() const override { return switches_; }
  SharedNamespace NameOf(const catalog::NamespaceEntry& entry) const override {
    return mesh::NameOf(tenant_, entry);
  }
  // Pulsed when a namespace was looked at for the first time since it came or changed.
  Event& changed() const { return changed_; }
  // Those that others may read of: their names, and where they are now. The same as the last time where that
  // is so: they are asked for at each change of the member, and to list a thousand takes longer than a step.
  std::shared_ptr<const ServedNamespaces> Served() const;

 private:
  struct Known {
    std::uint64_t put_number = 0;  // of the namespace that the hash is of
    std::array<std::byte, 32> list_hash{};
    bool shared = false;
  };
  void Learn(std::uint32_t slot, const catalog::NamespaceEntry& entry) const;
  bool IsShared(std::uint32_t slot) const { return store_.NamespaceAt(slot)->in_mesh(); }
  bool IsCurrent(std::uint32_t slot) const {
    return slot < known_.size() && store_.NamespaceAt(slot) != nullptr &&
           known_[slot].put_number == store_.NamespacePutNumberOf(slot);
  }

  Executor& executor_;
  const store::BlockStore& store_;
  const std::string tenant_;
  // Of what the store has: each is computed when it is first asked for.
  mutable std::vector<Known> known_;  // by slot
  mutable std::map<std::array<std::byte, 32>, std::uint32_t> slots_;
  mutable Event changed_;
  mutable std::uint64_t switches_ = 0;
  mutable std::shared_ptr<const ServedNamespaces> served_;
  mutable std::vector<ServedNamespace> served_now_;  // what it lists, by list hash
  std::uint64_t looked_at_ = 0;                      // of the store's puts of namespaces
};

}  // namespace cistern::mesh
