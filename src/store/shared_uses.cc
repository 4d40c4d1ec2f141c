// SPDX-License-Identifier: Apache-2.0
#include "store/shared_uses.h"

namespace cistern::store {

Task<void> ShareUses(Executor&, catalog::Catalog& catalog, StepBudget& steps) {
  for (;;) {
    // Each look is two touches.
    std::uint32_t budget = kSpentTouches / 4;
    const bool more = catalog.conversations().ShareSome(catalog.forest(), &budget);
    steps.Count(2 * (kSpentTouches / 4 - budget));
    if (!more) co_return;
    co_await Yield();
  }
}

}  // namespace cistern::store
