// SPDX-License-Identifier: Apache-2.0
#include "store/shared_uses.h"

namespace cistern::store {

Task<void> ShareUses(Executor&, catalog::Catalog& catalog, StepBudget& steps) {
  for (;;) {
    std::uint32_t budget = kSpentTouches / 2;
    const bool more = catalog.conversations().ShareSome(&budget);
    steps.Count(kSpentTouches / 2 - budget);
    if (!more) co_return;
    co_await Yield();
  }
}

}  // namespace cistern::store
