// SPDX-License-Identifier: Apache-2.0
// A store's ticks one after the other, for as long as there is time.
#pragma once

#include "base/clock.h"
#include "base/task.h"
#include "store/block_store.h"

namespace cistern::store {

// Each in a step of its own, until nothing is left to be done or the time has come. True: there is more.
inline Task<bool> TickUntil(Executor& executor, BlockStore& store, Instant until) {
  while (store.Tick()) {
    if (executor.Now() >= until) co_return true;
    co_await Yield();
  }
  co_return false;
}

}  // namespace cistern::store
