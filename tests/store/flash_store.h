// SPDX-License-Identifier: Apache-2.0
// A test's store with flash below it, on simulated devices.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "flash/flash_tier.h"
#include "store/test_store.h"

namespace cistern {

inline store::TestTier OnFlash(flash::FlashOptions flash) {
  return [flash = std::move(flash)](store::TestStore& store, tier::JournalView journal) {
    return flash::OpenFlash({*store.loop, *store.log, [&store] { return store.random.Next(); }}, flash,
                            std::move(journal));
  };
}

inline flash::FlashTier& FlashOf(store::TestStore& store) {
  return static_cast<flash::FlashTier&>(*store.store->tier());
}

}  // namespace cistern
