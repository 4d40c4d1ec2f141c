// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/task.h"
#include "catalog/catalog.h"

namespace cistern::catalog {

// While blocks are being collected, one step can tell of a block whether it stands if one of its next
// ancestors is known to (kStandingLooks). Deeper in a chain this asks from the ancestors down, in as
// many steps as it takes, and Catalog::Find then knows; unless others are cut faster than it asks.
Task<void> LearnStanding(Executor& executor, Catalog& catalog, StepBudget& steps, TreeId tree,
                         KeyHash key_hash);

}  // namespace cistern::catalog
