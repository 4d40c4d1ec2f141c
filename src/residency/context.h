// SPDX-License-Identifier: Apache-2.0
// References that each part of a store works with. All are borrowed and outlive the parts. A part keeps the
// context by value, so that what it works with is as near as a member of its own.
#pragma once

#include "arena/words.h"
#include "base/clock.h"
#include "base/executor.h"
#include "base/log.h"
#include "base/step_budget.h"
#include "catalog/catalog.h"
#include "catalog/store_counters.h"
#include "catalog/store_options.h"
#include "memory/movers.h"
#include "memory/slots.h"

namespace cistern {
class CallStations;
class SlowCalls;
}  // namespace cistern

namespace cistern::residency {

struct StoreContext {
  Executor& executor;
  const Clock& clock;
  arena::Words& words;
  memory::Slots& slots;
  memory::Movers& movers;
  catalog::Journal& journal;
  Logger& log;
  const catalog::StoreOptions& options;
  catalog::StoreCounters& counters;
  StepBudget& steps;
  catalog::Catalog& catalog;
  SlowCalls* slow_calls = nullptr;  // null: nobody counts them

  // The catalog's.
  catalog::Forest& forest = catalog.forest();
  catalog::PendingPuts& pending = catalog.pending();
  catalog::Leases& leases = catalog.leases();
  catalog::Conversations& conversations = catalog.conversations();
  catalog::Sequences& sequences = catalog.sequences();
  catalog::NamespaceTable& namespaces = catalog.namespaces();
};

}  // namespace cistern::residency
