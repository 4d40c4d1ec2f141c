// SPDX-License-Identifier: Apache-2.0
// What an operator has switched off: reads or writes, of one namespace or of all. With reads off everything
// is a miss, with writes off nothing new is kept; what is there stays. A switch lasts until it is turned
// back, the namespace goes or the node ends. A node that drains closes both, whatever the switches say.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>

#include "arena/layout.h"

namespace cistern::store {

enum class Switch : std::uint8_t { kReads = 0, kWrites = 1 };

class Switches final {
 public:
  bool on(Switch which, std::uint32_t slot) const {
    const Off& off = Of(which);
    return !off.closed && !off.all && !(slot < off.slots.size() && off.slots.test(slot));
  }
  bool all_on(Switch which) const { return !Of(which).all; }
  // Namespaces that are switched off by themselves.
  std::uint64_t off_count(Switch which) const { return Of(which).slots.count(); }

  void Turn(Switch which, std::uint32_t slot, bool on) {
    if (slot < arena::kMaxNamespaces) Of(which).slots.set(slot, !on);
  }
  // On: each one that was off by itself is on again, too.
  void TurnAll(Switch which, bool on) {
    Of(which).all = !on;
    if (on) Of(which).slots.reset();
  }
  void Close(Switch which, bool closed) { Of(which).closed = closed; }
  bool closed(Switch which) const { return Of(which).closed; }
  // The slot number is another list's from now on.
  void Forget(std::uint32_t slot) {
    for (Off& off : off_) {
      if (slot < off.slots.size()) off.slots.reset(slot);
    }
  }

 private:
  struct Off {
    bool all = false;
    bool closed = false;
    std::bitset<arena::kMaxNamespaces> slots;
  };
  const Off& Of(Switch which) const { return off_[static_cast<std::size_t>(which)]; }
  Off& Of(Switch which) { return off_[static_cast<std::size_t>(which)]; }

  std::array<Off, 2> off_;
};

}  // namespace cistern::store
