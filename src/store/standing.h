// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/task.h"
#include "catalog/catalog.h"

namespace cistern::store {

// While blocks are being collected, one step can tell of a block whether it stands if one of its next
// ancestors is known to (catalog::kStandingLooks). Deeper in a chain this asks from the ancestors down, in as
// many steps as it takes, and Catalog::Find then knows; unless others are cut faster than it asks.
Task<void> LearnStanding(Executor& executor, catalog::Catalog& catalog, StepBudget& steps,
                         catalog::TreeId tree, catalog::KeyHash key_hash);

}  // namespace cistern::store
