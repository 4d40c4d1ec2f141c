// SPDX-License-Identifier: Apache-2.0
// Namespaces as clients attach and drop them.
#pragma once

#include <cstdint>
#include <utility>

#include "base/event.h"
#include "base/task.h"
#include "cistern/namespace.h"
#include "residency/context.h"
#include "residency/residents.h"
#include "store/deletions.h"

namespace cistern::store {

struct Attached {
  std::uint32_t slot = 0;
  std::uint64_t incarnation = 0;
};

// What becomes of a list that no namespace has.
enum class IfNew : bool { kMake, kRefuse };

// kMiss, with what to do about it.
Status UnknownNamespace(std::uint32_t slot);

class Namespaces final {
 public:
  Namespaces(const residency::StoreContext& context, residency::Residents& residents, Deletions& deletions)
      : executor_(context.executor),
        words_(context.words),
        slots_(context.slots),
        journal_(context.journal),
        catalog_(context.catalog),
        forest_(context.catalog.forest()),
        sequences_(context.catalog.sequences()),
        namespaces_(context.catalog.namespaces()),
        residents_(residents),
        deletions_(deletions) {}
  Namespaces(const Namespaces&) = delete;
  Namespaces& operator=(const Namespaces&) = delete;

  Executor& executor() { return executor_; }

  // kMismatch: the name stands for another list (message: the differing field, both values). kMiss for a new
  // list that is to be refused; then one that is known stays as it is, too.
  Task<Result<Attached>> Attach(NamespaceSpec spec, IfNew if_new = IfNew::kMake);
  // kMiss when the slot number is unknown or has another incarnation by now.
  Status Check(std::uint32_t slot, std::uint64_t incarnation) const;
  // Blocks removed, and the new incarnation.
  Task<Result<std::pair<std::uint64_t, std::uint64_t>>> Drop(std::uint32_t slot);

 private:
  Executor& executor_;
  arena::Words& words_;
  memory::Slots& slots_;
  catalog::Journal& journal_;
  catalog::Catalog& catalog_;
  catalog::Forest& forest_;
  catalog::Sequences& sequences_;
  catalog::NamespaceTable& namespaces_;
  residency::Residents& residents_;
  Deletions& deletions_;
  bool changing_ = false;  // one change at a time: two that attach the same new list get one namespace
  Event changed_;
};

}  // namespace cistern::store
