// SPDX-License-Identifier: Apache-2.0
// Which owners use which namespaces, and who brought them: what nobody uses may make room, and what an owner
// brought counts against its share of the table.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <map>

#include "arena/layout.h"
#include "cistern/options.h"

namespace cistern::catalog {

class NamespaceUsers final {
 public:
  // The owner uses what has this slot number until OwnerEnded.
  void Use(const OwnerToken& owner, std::uint32_t slot) {
    Slots& uses = owners_[owner].uses;
    if (uses.test(slot)) return;
    uses.set(slot);
    users_[slot]++;
  }
  // It brought it, too.
  void Bring(const OwnerToken& owner, std::uint32_t slot) {
    Use(owner, slot);
    owners_[owner].brought.set(slot);
  }
  // No session of the owner is left, and no call of one.
  void OwnerEnded(const OwnerToken& owner) {
    const auto ended = owners_.find(owner);
    if (ended == owners_.end()) return;
    for (std::uint32_t slot = 0; slot < arena::kMaxNamespaces; ++slot)
      if (ended->second.uses.test(slot)) users_[slot]--;
    owners_.erase(ended);
  }

  bool used(std::uint32_t slot) const { return users_[slot] != 0; }
  // Owners that use it.
  std::uint32_t count(std::uint32_t slot) const { return users_[slot]; }
  // How many the owner brought.
  std::uint64_t BroughtBy(const OwnerToken& owner) const {
    const auto found = owners_.find(owner);
    return found == owners_.end() ? 0 : found->second.brought.count();
  }

 private:
  using Slots = std::bitset<arena::kMaxNamespaces>;
  struct Owner {
    Slots uses, brought;
  };
  std::map<OwnerToken, Owner> owners_;
  std::array<std::uint32_t, arena::kMaxNamespaces> users_{};  // owners, by slot number
};

}  // namespace cistern::catalog
