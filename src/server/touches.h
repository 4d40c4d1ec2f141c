// SPDX-License-Identifier: Apache-2.0
// The touches that clients leave in their rings for what they read without asking: taken a slice a step, each
// session in its turn.
#pragma once

#include <cstddef>
#include <vector>

#include "base/executor.h"
#include "server/parts.h"
#include "server/session.h"
#include "store/block_store.h"

namespace cistern::server {

class Touches final : private Work {
 public:
  // All borrowed.
  Touches(Executor& executor, store::BlockStore& store, ServerCounters& counters)
      : executor_(executor), store_(store), counters_(counters) {}

  // Has those in the session's ring taken in steps to come, where there are any.
  void Look(Session& session);
  // Takes a slice of them in this step; how many it were.
  std::size_t Take(Session& session);
  // The session goes.
  void Forget(const Session& session);

 private:
  static constexpr std::size_t kSlice = 128;

  void Run() override;

  Executor& executor_;
  store::BlockStore& store_;
  ServerCounters& counters_;
  std::vector<Session*> waiting_;  // the first one's turn is next
};

}  // namespace cistern::server
