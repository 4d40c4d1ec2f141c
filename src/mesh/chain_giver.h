// SPDX-License-Identifier: Apache-2.0
// Gives what this node's memory has, or its lower tier too, to the other members before the node ends: offers
// each chain's blocks to the member that its branch chooses (policy/hand_over.h), several at a time.
#pragma once

#include <cstdint>
#include <memory>

#include "base/event.h"
#include "base/metrics.h"
#include "base/task.h"
#include "base/task_group.h"
#include "mesh/chain_offers.h"
#include "store/hand_over.h"
#include "store/whole_chains.h"

namespace cistern::mesh {

class ChainGiver final {
 public:
  // Borrowed.
  ChainGiver(ChainOffers& offers, store::BlockStore& store, const Clock& clock)
      : offers_(offers), store_(store), clock_(clock), tasks_(offers.executor()) {}
  // Close was awaited, or the node crashed.
  ~ChainGiver() { tasks_.Drop(); }
  ChainGiver(const ChainGiver&) = delete;
  ChainGiver& operator=(const ChainGiver&) = delete;

  Executor& executor() { return offers_.executor(); }

  // As store::HandOver's. One after the other: a Give that goes on ends soon when another one begins.
  Task<store::HandedOver> Give(store::GiveOrder order);
  void Stop();
  // What is under way ends: no answer to an offer is waited for.
  Task<void> Close();
  // As Sharing's.
  void Abandon() { tasks_.Drop(); }

  struct Counters {
    Counter blocks;   // that others have published
    Counter bytes;    // of their bodies
    Counter refused;  // offers of which not all was taken
    Counter failed;   // of these, that were not answered
    Counter left;     // blocks that nobody took
  };
  const Counters& counters() const { return counters_; }

 private:
  // Of one Give.
  struct Work {
    std::uint64_t number = 0;
    Instant deadline;
    std::size_t under_way = 0;
    std::uint64_t offered_bytes = 0;  // of these
    std::unique_ptr<store::WholeChains> walk;
    std::uint64_t blocks = 0, bytes = 0;
  };

  // Until what nobody took is offered again, at first, and twice as long after each round; and rounds.
  static constexpr std::int64_t kAgainUs = 500'000, kMostAgainUs = 30'000'000;
  static constexpr int kRounds = 8;

  bool GoesOn(const Work& work) const { return work.number == number_ && clock_.Now() < work.deadline; }
  // Until so much time has passed, or the Give is to end.
  Task<void> Rest(std::shared_ptr<Work> work, std::int64_t us);
  Task<void> OfferPart(std::shared_ptr<Work> work, ChainPart part);

  ChainOffers& offers_;
  store::BlockStore& store_;
  const Clock& clock_;
  Counters counters_;
  std::uint64_t number_ = 0;  // of the last Give or Stop
  std::uint64_t gives_ = 0;   // under way
  Event moved_;               // an offer or a Give has ended, or Stop was called
  TaskGroup tasks_;
};

}  // namespace cistern::mesh
