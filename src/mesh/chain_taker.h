// SPDX-License-Identifier: Apache-2.0
// Takes what another member offers: reads the blocks of the chain that are not here, as spare puts, and
// answers how many are when it has ended. The drops that this member has seen decide, as they do for any
// block of a peer. A namespace that nobody has attached here comes into being with its list, as if somebody
// had, and is used by nobody: it goes when nothing of it is left and room is wanted.
#pragma once

#include <cstdint>
#include <vector>

#include "base/event.h"
#include "base/metrics.h"
#include "base/task.h"
#include "mesh/peer_message.h"
#include "mesh/peer_reader.h"
#include "mesh/reach.h"
#include "mesh/role.h"
#include "store/block_store.h"

namespace cistern::mesh {

class ChainTaker final {
 public:
  struct Parts {  // borrowed
    Executor& executor;
    const Clock& clock;
    store::BlockStore& store;
    const CellRule& rule;
    const SharedNamespaces& names;
    PeerReader& reader;
    Role role = Role::kEngine;
  };
  explicit ChainTaker(const Parts& parts) : parts_(parts) {}
  ChainTaker(const ChainTaker&) = delete;
  ChainTaker& operator=(const ChainTaker&) = delete;

  Executor& executor() { return parts_.executor; }

  // Refuses everything from now on, or no longer.
  void SetDraining(bool draining) { draining_ = draining; }
  // As PeerListener::Answer, of an offer.
  Task<Result<std::vector<std::byte>>> Answer(std::uint64_t peer, net::ConstPiece payload, Instant deadline);
  // Waits for what is under way: it ends when its reads do.
  Task<void> Close();

  struct Counters {
    Counter blocks;      // that were taken
    Counter bytes;       // of their bodies, in full groups
    Counter refused;     // offers of which not all was taken
    Counter namespaces;  // that came with their lists
  };
  const Counters& counters() const { return counters_; }

 private:
  Task<Result<Offer>> Read(net::ConstPiece payload);
  Task<OfferReply> Take(std::uint64_t peer, Offer offer, Instant deadline);
  // The slot of the offer's namespace, which it makes where the offer says its list.
  Task<Result<std::uint32_t>> SlotFor(const Offer& offer);
  // The chain's blocks, from its first on, that are here.
  std::size_t CountHere(std::uint32_t slot, std::uint16_t group, std::span<const BlockKey> chain);

  const Parts parts_;
  Counters counters_;
  bool draining_ = false, closed_ = false;
  std::size_t under_way_ = 0;
  Event ended_;
};

}  // namespace cistern::mesh
