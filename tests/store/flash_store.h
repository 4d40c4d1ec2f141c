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

inline TestTier OnFlash(FlashOptions flash) {
  return [flash = std::move(flash)](TestStore& store, std::uint64_t journal_id,
                                    std::vector<std::uint64_t> known) {
    return OpenFlash({*store.loop, *store.log, [&store] { return store.random.Next(); }}, flash, journal_id,
                     std::move(known));
  };
}

inline FlashTier& FlashOf(TestStore& store) { return static_cast<FlashTier&>(*store.store->tier()); }

}  // namespace cistern
