// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/task.h"
#include "catalog/catalog.h"

namespace cistern::store {

// Marks all ancestors of the blocks that several conversations use as shared.
Task<void> ShareUses(Executor& executor, catalog::Catalog& catalog, StepBudget& steps);

}  // namespace cistern::store
