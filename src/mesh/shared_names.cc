// SPDX-License-Identifier: Apache-2.0
#include "mesh/shared_names.h"

#include <openssl/evp.h>

#include <algorithm>

#include "base/assert.h"
#include "base/event.h"

namespace cistern::mesh {

SharedNamespace NameOf(const std::string& tenant, const catalog::NamespaceEntry& entry) {
  SharedNamespace name{.tenant = tenant};
  const std::string list = catalog::NamespaceTable::ListOf(entry);
  CISTERN_ASSERT(EVP_Digest(list.data(), list.size(), reinterpret_cast<unsigned char*>(name.list_hash.data()),
                            nullptr, EVP_sha256(), nullptr) == 1);
  return name;
}

std::vector<std::byte> EncodeNamespace(catalog::NamespaceEntry entry) {
  entry.slot = 0;
  entry.incarnation = 1;  // of nobody's
  entry.names.clear();
  entry.copies.reset();  // each node keeps to what its own users say
  return catalog::NamespaceTable::Encode(entry);
}

std::optional<catalog::NamespaceEntry> DecodeNamespace(std::span<const std::byte> bytes) {
  std::optional<catalog::NamespaceEntry> entry = catalog::NamespaceTable::Decode(bytes);
  if (entry && (!entry->names.empty() || !std::ranges::is_sorted(entry->fields))) entry.reset();
  return entry;
}

Task<void> SharedNames::Refresh() {
  while (looked_at_ != store_.namespace_puts()) {
    const std::uint64_t puts = store_.namespace_puts();
    for (std::uint32_t slot = 0; slot < store_.namespace_slots(); ++slot) {
      const catalog::NamespaceEntry* entry = store_.NamespaceAt(slot);
      if (entry == nullptr || IsCurrent(slot)) continue;
      Learn(slot, *entry);
      co_await Yield();
    }
    looked_at_ = puts;
  }
}

void SharedNames::Learn(std::uint32_t slot, const catalog::NamespaceEntry& entry) const {
  if (slot >= known_.size()) known_.resize(slot + 1);
  Known& known = known_[slot];
  if (const auto was = slots_.find(known.list_hash); was != slots_.end() && was->second == slot)
    slots_.erase(was);
  const Known before = known;
  known = {store_.NamespacePutNumberOf(slot), NameOf(entry).list_hash, IsShared(slot)};
  if (known.list_hash == before.list_hash && known.shared != before.shared) ++switches_;
  slots_[known.list_hash] = slot;
  changed_.Pulse();
}

std::shared_ptr<const ServedNamespaces> SharedNames::Served() const {
  std::vector<ServedNamespace> now;
  now.reserve(slots_.size());
  for (const auto& [list_hash, slot] : slots_) {
    if (IsCurrent(slot) && IsShared(slot)) now.push_back({slot, store_.NamespaceAt(slot)->incarnation});
  }
  if (served_ != nullptr && now == served_now_) return served_;
  auto served = std::make_shared<ServedNamespaces>();
  // An incarnation is one namespace's, so what it is called follows from it.
  for (const ServedNamespace& one : now)
    served->emplace_hint(served->end(), SharedNamespace{tenant_, known_[one.slot].list_hash}, one);
  served_ = std::move(served);
  served_now_ = std::move(now);
  return served_;
}

std::optional<std::uint32_t> SharedNames::DroppedSlotOf(const SharedNamespace& name) const {
  if (name.tenant != tenant_) return std::nullopt;
  const auto slot = slots_.find(name.list_hash);
  if (slot == slots_.end() || !IsCurrent(slot->second)) return std::nullopt;
  return slot->second;
}

std::optional<SharedNamespace> SharedNames::DroppedNameAt(std::uint32_t slot) const {
  if (!IsCurrent(slot)) {
    const catalog::NamespaceEntry* entry = store_.NamespaceAt(slot);
    if (entry == nullptr) return std::nullopt;
    Learn(slot, *entry);
  }
  return SharedNamespace{.tenant = tenant_, .list_hash = known_[slot].list_hash};
}

std::optional<std::uint32_t> SharedNames::SlotOf(const SharedNamespace& name) const {
  const std::optional<std::uint32_t> slot = DroppedSlotOf(name);
  return slot && IsShared(*slot) ? slot : std::nullopt;
}

std::optional<SharedNamespace> SharedNames::NameAt(std::uint32_t slot) const {
  std::optional<SharedNamespace> name = DroppedNameAt(slot);
  return name && IsShared(slot) ? name : std::nullopt;
}

}  // namespace cistern::mesh
