// SPDX-License-Identifier: Apache-2.0
// The ways in which what a node left is damaged, exchanged or set back before the next one starts.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/random.h"

namespace cistern {

// The files of a node, or copies of them. A directory each, so that a copy is a directory too.
struct NodeFiles {
  std::string memory, flash;  // with the tenant

  std::string arena() const { return memory + "/arena"; }
  std::string index() const { return memory + "/index"; }
  std::string device() const { return flash + "/flash"; }
  std::string journal() const { return flash + "/journal"; }
  std::string copy() const { return flash + "/journal.copy"; }
};

struct DamageScene {
  NodeFiles node;
  NodeFiles running;  // as it was before the drops, copied while the node ran
  NodeFiles ended;    // as it was before the drops, with the node's end between
  NodeFiles other;    // of another node with the same keys
  Random& random;
};

struct DamageWay {
  enum class Copies : std::uint8_t { kNone, kRunning, kEnded };
  enum class Memory : std::uint8_t { kStays, kGoes, kEither };

  std::string_view name;
  void (*harm)(DamageScene&);
  Copies copies = Copies::kNone;
  Memory memory = Memory::kEither;
  // All of it is of one earlier moment: what was dropped since may come back.
  bool sets_all_back = false;
};
std::span<const DamageWay> DamageWays();

}  // namespace cistern
