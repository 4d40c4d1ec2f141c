// SPDX-License-Identifier: Apache-2.0
// What a member shares with the others and has of them, put together: it tells what its node holds, knows
// what they hold, answers their matches, and reads blocks of theirs for the clients of its node; it gives
// them what the node has when that drains, and takes what they give.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "mesh/chain_giver.h"
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
  };
  explicit Sharing(const Parts& parts);
  // Close was awaited.
  ~Sharing() = default;
  Sharing(const Sharing&) = delete;
  Sharing& operator=(const Sharing&) = delete;

  Executor& executor() { return parts_.executor; }

  void Start() { streams_.Start(); }
  // Waits for the reads that are under way. It is told nothing any more, and asked nothing.
  Task<void> Close();

  // Where clients' matches and acquires go on.
  store::RemoteBlocks& blocks() { return blocks_; }
  void SetMemory(std::uint64_t bytes);
  // Nothing is kept of a start of a member that is no more.
  void Forget(std::uint64_t peer) { peers_.Forget(peer); }

  void SetDraining(bool draining) override;
  Task<store::HandedOver> Give(Instant deadline) override { return giver_.Give(deadline); }
  void Stop() override { giver_.Stop(); }

  void Connected(std::uint64_t peer) override;
  void Disconnected(std::uint64_t peer) override;
  void Heard(std::uint64_t peer, std::uint16_t type, net::ConstPiece payload) override;
  Task<Result<std::vector<std::byte>>> Answer(std::uint64_t peer, std::uint16_t type, net::ConstPiece payload,
                                              Instant deadline) override;

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
  ChainGiver giver_;
  ChainTaker taker_;
};

}  // namespace cistern::mesh
