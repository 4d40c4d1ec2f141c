// SPDX-License-Identifier: Apache-2.0
// What a member shares with the others and has of them, put together: it tells what its node holds, knows
// what they hold, answers their matches, and reads blocks of theirs for the clients of its node; it gives
// them what the node has when that drains, and in the background what they are to have beside it, and takes
// what they give.
#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "mesh/chain_giver.h"
#include "mesh/chain_offers.h"
#include "mesh/chain_spreader.h"
#include "mesh/chain_taker.h"
#include "mesh/finder.h"
#include "mesh/peer_blocks.h"
#include "mesh/peer_reader.h"
#include "mesh/peer_table.h"
#include "mesh/reach.h"
#include "mesh/sample_feed.h"
#include "mesh/sample_index.h"
#include "mesh/sample_streams.h"
#include "store/block_store.h"
#include "store/hand_over.h"

namespace cistern::mesh {

class Sharing final : public PeerListener, public store::HandOver {
 public:
  struct Parts {  // borrowed
    Executor& executor;
    const Clock& clock;
    store::BlockStore& store;
    CellRule& rule;
    const SharedNamespaces& names;
    PeerLinks& links;
    BlockRails& rails;
    std::uint64_t memory_bytes = 0;
    std::uint64_t seed = 0;
    std::uint64_t bytes_a_second = 0;  // that are read from all others; 0: no bound
    std::uint64_t process_number = 0;  // this member's
    Role role = Role::kEngine;
  };
  explicit Sharing(const Parts& parts);
  // Close was awaited, or Abandon called.
  ~Sharing() = default;
  Sharing(const Sharing&) = delete;
  Sharing& operator=(const Sharing&) = delete;

  Executor& executor() { return parts_.executor; }

  void Start();
  // Waits for the reads that are under way. It is told nothing any more, and asked nothing.
  Task<void> Close();
  // The node dies, in simulation: nobody is asked anything any more, so that the connections may go.
  void Abandon();

  // Where clients' matches and acquires go on.
  store::RemoteBlocks& blocks() { return blocks_; }
  void SetMemory(std::uint64_t bytes);
  // As ChainSpreader's.
  void SetCopies(std::vector<policy::Copies> copies) { spreader_.SetCopies(std::move(copies)); }
  // Nothing is kept of a start of a member that is no more.
  void Forget(std::uint64_t peer) { peers_.Forget(peer); }

  void SetDraining(bool draining) override;
  Task<store::HandedOver> Give(store::GiveOrder order) override;
  void Stop() override { giver_.Stop(); }

  void Connected(std::uint64_t peer) override;
  void Disconnected(std::uint64_t peer) override;
  void Heard(std::uint64_t peer, std::uint16_t type, net::ConstPiece payload) override;
  Task<Result<std::vector<std::byte>>> Answer(std::uint64_t peer, std::uint16_t type, net::ConstPiece payload,
                                              Instant deadline) override;

  Role role() const { return parts_.role; }
  // For who asks the others.
  Finder& finder() { return finder_; }
  // For metrics and lists.
  const Finder& finder() const { return finder_; }
  const PeerReader& reader() const { return reader_; }
  const PeerBlocks& peer_blocks() const { return blocks_; }
  const PeerTable& peers() const { return peers_; }
  const SampleIndex& index() const { return index_; }
  const SampleStreams& streams() const { return streams_; }
  const SampleFeed& feed() const { return feed_; }
  const ChainGiver& giver() const { return giver_; }
  const ChainTaker& taker() const { return taker_; }
  const ChainSpreader& spreader() const { return spreader_; }

 private:
  void TellRoom(std::uint64_t peer);
  void TellRoom();

  const Parts parts_;
  RoomNotice room_;
  PeerTable peers_;
  SampleFeed feed_;
  SampleIndex index_;
  SampleStreams streams_;
  Finder finder_;
  PeerReader reader_;
  PeerBlocks blocks_;
  ChainOffers offers_;
  ChainGiver giver_;
  ChainSpreader spreader_;
  ChainTaker taker_;
};

}  // namespace cistern::mesh
