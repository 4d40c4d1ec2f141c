// SPDX-License-Identifier: Apache-2.0
// The term of a node's membership in its cell: strict namespaces are read only while it lasts. It stands in
// the arena's header, where readers without a hop find it, and the core looks there too. A node that never
// was in a cell serves them always: its own drops are all that there are.
#pragma once

#include "arena/protocol.h"
#include "arena/words.h"
#include "base/clock.h"
#include "catalog/namespace_table.h"

namespace cistern::store {

class Term final {
 public:
  // All is borrowed; `boot` is the host's boot clock.
  Term(arena::Words& words, const arena::ArenaSpace& arena, const Clock& boot)
      : words_(words), arena_(arena), boot_(boot) {}

  // On the boot clock; an instant in the past ends it.
  void SetEnd(Instant end) { arena::SetValidUntil(words_, arena_, end.ns); }
  // To be asked when a call begins, and when it goes on after it waited.
  bool Serves(const catalog::NamespaceEntry& entry) const {
    return !entry.strict || arena::IsValid(words_, arena_, boot_.Now().ns);
  }

 private:
  arena::Words& words_;
  const arena::ArenaSpace arena_;
  const Clock& boot_;
};

}  // namespace cistern::store
