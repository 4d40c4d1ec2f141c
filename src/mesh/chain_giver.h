// SPDX-License-Identifier: Apache-2.0
// Gives what this node's memory has to the other members before the node ends: offers each chain's blocks,
// parents first, to the member that its branch chooses (policy/hand_over.h). Who is offered some reads them
// as it reads any other block of a peer, and says how far it has published them. Until then they are held
// here; then they count as given. A member that does not take them, fails or is late is followed by the
// branch's next one.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/event.h"
#include "base/metrics.h"
#include "base/task.h"
#include "base/task_group.h"
#include "mesh/peer_message.h"
#include "mesh/peer_table.h"
#include "mesh/reach.h"
#include "policy/hand_over.h"
#include "store/block_store.h"
#include "store/hand_over.h"
#include "store/whole_chains.h"

namespace cistern::mesh {

struct HandOverLimits {
  static constexpr std::size_t kOffers = 8;         // under way from a member
  static constexpr std::size_t kTaken = 32;         // under way at a member
  static constexpr std::size_t kOfferBlocks = 512;  // of an offer
  static constexpr std::size_t kMembers = 3;        // that a chain is offered to
  // An offer has so long, and a microsecond more for so many bytes.
  static constexpr std::int64_t kOfferUs = 5'000'000;
  static constexpr std::uint64_t kBytesAUs = 20;
};

class ChainGiver final {
 public:
  struct Parts {  // borrowed
    Executor& executor;
    const Clock& clock;
    store::BlockStore& store;
    const CellRule& rule;
    const SharedNamespaces& names;
    PeerLinks& links;
    PeerTable& peers;
  };
  explicit ChainGiver(const Parts& parts) : parts_(parts), tasks_(parts.executor) {}
  // Close was awaited, or the node crashed.
  ~ChainGiver() { tasks_.Drop(); }
  ChainGiver(const ChainGiver&) = delete;
  ChainGiver& operator=(const ChainGiver&) = delete;

  Executor& executor() { return parts_.executor; }

  // As store::HandOver's. One after the other: a Give that goes on ends soon when another one begins.
  Task<store::HandedOver> Give(Instant deadline);
  void Stop();
  // What is under way ends: no answer to an offer is waited for.
  Task<void> Close();

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
    std::unique_ptr<store::WholeChains> walk;
    std::uint64_t blocks = 0, bytes = 0;
  };
  // Blocks of a chain that belong to one branch.
  struct Part {
    std::shared_ptr<const store::WholeChain> chain;
    std::size_t begin = 0, end = 0;
    std::uint64_t branch = 0;
  };

  bool GoesOn(const Work& work) const { return work.number == number_ && parts_.clock.Now() < work.deadline; }
  std::vector<policy::Taker> Takers() const;
  static std::vector<Part> PartsOf(std::shared_ptr<const store::WholeChain> chain);
  Task<void> OfferPart(std::shared_ptr<Work> work, Part part);
  // The chain's blocks, from its first on, that are here still.
  std::size_t CountHere(const store::WholeChain& chain) const;
  // How many blocks of the chain, from its first on, the member has now; none: it did not answer.
  Task<Result<std::size_t>> OfferTo(std::uint64_t peer, std::shared_ptr<Work> work, Part part);
  Task<Result<std::vector<std::byte>>> Question(Part part, SharedNamespace name, std::uint64_t history);

  const Parts parts_;
  Counters counters_;
  std::uint64_t number_ = 0;  // of the last Give or Stop
  std::uint64_t gives_ = 0;   // under way
  Event moved_;               // an offer or a Give has ended, or Stop was called
  TaskGroup tasks_;
};

}  // namespace cistern::mesh
