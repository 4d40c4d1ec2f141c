// SPDX-License-Identifier: Apache-2.0
// Reads blocks that another member has into this node's memory: asked for in batches, checked while they
// land in slots of their own, published as puts of a source once the drops that this member has seen allow
// it. One transfer serves all callers that wait for a block, and goes on without them.
//
// A block that is not here afterwards is a miss, whatever the reason: peers never count as residency.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/event.h"
#include "base/metrics.h"
#include "base/task.h"
#include "base/task_group.h"
#include "mesh/peer_message.h"
#include "mesh/peer_rails.h"
#include "mesh/peer_table.h"
#include "mesh/reach.h"
#include "mesh/refusals.h"
#include "mesh/rule_admission.h"
#include "store/block_store.h"

namespace cistern::mesh {

struct PeerReadLimits {
  static constexpr std::uint64_t kBatchBytes = 512u << 10;
  static constexpr std::size_t kBatches = 6;    // of one chain, asked for and not yet published
  static constexpr std::size_t kStretch = 128;  // blocks of a chain that are begun in one step
  // Landing from one peer, of what lies in its memory and of what it reads from its flash first: the one is
  // what keeps a line busy, the other what keeps disks busy. One block always may.
  static constexpr std::uint64_t kPeerBytes = 16u << 20, kPeerFlashBytes = 32u << 20;
  // Of what it reads from its flash: the rails to it have places for what lies in its memory beside them.
  static constexpr std::uint32_t kPeerFlashBatches = PeerRails::kRails * net::RailLimits::kBatches * 7 / 8;
  static constexpr int kOthers = 3;  // transfers of other calls that a call waits for in vain
  static constexpr std::int64_t kCatchUpUs = 50'000;  // for a drop that the peer has seen before this member
  // Of all peers together memory / so much; of what one reads from its flash no more than that of its own.
  static constexpr std::uint64_t kMemoryShare = 8;
};

// What a member said that it holds of a chain: `count` blocks from `first` on.
struct PeerRun {
  std::uint64_t peer = 0;
  std::uint32_t slot = 0;
  std::uint64_t incarnation = 0;  // of the namespace here
  SharedNamespace name;
  std::vector<BlockKey> chain;  // from its first block on, to the run's end at least
  std::size_t first = 0, count = 0;
  // Of each block of the run, the bytes in each group without a fixed size.
  std::vector<std::uint32_t> body_bytes;
  std::vector<bool> on_flash;  // of each block of the run, as it said; none: all lie in its memory
  // Of each block of the run, if they are spare puts (store::SourceBlock::age). None: they are no such.
  std::vector<std::uint32_t> ages;
  // So many of its first keys were found to be a chain's here. A client names the chain; what was dropped of
  // it decides whether a block is taken, so it has to be the block's.
  mutable std::size_t known = 0;

  bool FromFlash(std::size_t block) const {
    return block - first < on_flash.size() && on_flash[block - first];
  }
};

class PeerReader final {
 public:
  struct Parts {  // borrowed
    Executor& executor;
    const Clock& clock;
    store::BlockStore& store;
    std::uint64_t memory_bytes = 0;
    CellRule& rule;
    BlockRails& rails;
    PeerTable& peers;
    std::uint64_t seed = 0;  // random, so that nobody chooses keys that collide
  };
  explicit PeerReader(const Parts& parts);
  // Close was awaited, or the node crashed.
  ~PeerReader();
  PeerReader(const PeerReader&) = delete;
  PeerReader& operator=(const PeerReader&) = delete;

  Executor& executor() { return parts_.executor; }

  // How many of the run's blocks, from its `from`-th on and at most `count`, are in memory when it ends, one
  // after the other. An error where none is, which says why: kTooLate, kBusy, kMiss, kGone; why those behind
  // some are not, `why_no_more` is told, if it is not null. `conversation`, not 0, is the one that reads.
  Task<Result<std::size_t>> Read(std::shared_ptr<const PeerRun> run, std::size_t from, std::size_t count,
                                 std::uint64_t conversation, Instant deadline, Status* why_no_more = nullptr);
  // Whether a Read, of whatever call, waits for the block.
  bool Coming(std::uint64_t incarnation, const BlockKey& key) const {
    return transfers_.contains({incarnation, key});
  }
  // No turn is waited for any more: what waits for one ends.
  void EndTurns() { ended_.Set(); }
  // The same, and waits for what is under way; no Read is awaited any more. Before the rails end.
  Task<void> Close();
  // Of the store's memory, which was resized.
  void SetMemory(std::uint64_t bytes) { memory_bytes_ = bytes; }

  // Why the block did not become visible here when it was read last; none: it did, or that was long ago.
  const Refusal* RefusalOf(std::uint64_t incarnation, const BlockKey& key) const {
    return refusals_.Find(incarnation, key);
  }
  std::uint64_t landing_bytes() const { return landing_bytes_; }
  std::size_t transfers() const { return transfers_.size(); }

  struct Counters {
    Counter blocks;      // that came and are visible
    Counter bytes;       // of their bodies
    Counter failed;      // batches that a peer did not answer
    Histogram batch_ns;  // of those that came whole: from the question to the last byte
  };
  const Counters& counters() const { return counters_; }

 private:
  // One block on its way, in all of its groups.
  struct Transfer {
    std::uint64_t peer = 0;
    Event asked;  // it needs no more room, or has ended
    Event done;
    Status status;
  };
  struct BlockOf {
    std::uint64_t incarnation;
    BlockKey key;
    friend bool operator==(const BlockOf&, const BlockOf&) = default;
  };
  class Batch;
  struct BatchItem;
  struct HashOfBlock {
    std::uint64_t seed;
    std::size_t operator()(const BlockOf& block) const { return block.key.Hash(seed ^ block.incarnation); }
  };
  // Blocks of a run that one task fetches.
  struct Fetch {
    std::shared_ptr<const PeerRun> run;
    std::vector<std::size_t> blocks;  // in the chain, rising
    std::vector<Transfer> transfers;  // of these; each lives as long as somebody waits for one
    std::uint64_t conversation = 0;
    std::int64_t began = 0;  // the last drop that was listed then
    Instant deadline;
    std::size_t next = 0;       // of these: has no slots yet
    Status failed;              // why no more of it is asked for
    bool published_all = true;  // of what landed so far
    // Of the chain up to the block that was published last, by what the peer had applied then: each key is
    // looked at once.
    std::optional<ChainCheck> check;
  };

  // Of a block that a call waits for.
  struct Awaited {
    std::shared_ptr<Transfer> transfer;
    bool own = false;  // not begun by another call, by its deadline and for what it is for
  };
  // The transfers of these blocks: those that are on their way already, and new ones.
  std::vector<Awaited> Begin(const std::shared_ptr<const PeerRun>& run, std::size_t from, std::size_t count,
                             std::uint64_t conversation, Instant deadline);
  Task<void> FetchAll(std::shared_ptr<Fetch> shared);
  // Slots for as many of the next blocks as make a batch; a block has those of all its groups, or none. Room,
  // on the rail and in memory, is waited for only where the fetch has nothing on its way (`waits`) and no
  // block in the batch: what lands becomes visible by the fetch. kBusy: what it has is to land first.
  Task<Status> Prepare(Fetch& fetch, std::shared_ptr<Batch> batch, bool waits);
  // The batch's turn among all that is read from peers. kTooLate: it comes after the deadline; kGone: the
  // peer is not asked, or the node ends.
  Task<Status> AwaitTurn(const Batch& batch, std::uint64_t peer, Instant deadline);
  // Asks for the batch's `asked`.
  Task<Status> Ask(Batch& batch, std::uint64_t peer, Instant deadline);
  Task<void> Transport(std::shared_ptr<Batch> batch, std::uint64_t peer, Instant deadline);
  // Publishes the batch, block after block, up to the first that does not become visible.
  Task<void> PublishAll(Fetch& fetch, Batch& batch);
  // kMiss: the keys before the block, which is none of the chain's first `known`, are no chain here.
  Task<Status> CheckChain(const PeerRun& run, std::size_t block);
  // Publishes what landed, or says why not; at once: none where it has to wait, or to go on in another step.
  Task<Status> Publish(Fetch& fetch, BatchItem& item);
  std::optional<Status> PublishAtOnce(Fetch& fetch, BatchItem& item);
  // The fetch's check, up to the item's block.
  ChainCheck& CheckOf(Fetch& fetch, BatchItem& item);
  RuleAdmission AdmissionOf(Fetch& fetch, BatchItem& item);
  // Room for so much more on its way from the peer, that a batch wants.
  struct Room {
    const Peer& peer;
    bool from_flash = false;
    std::uint64_t bytes = 0;
    bool first = true;  // of the batch
  };
  bool FitsPeer(const Room& room) const;
  // Whether it may be had now: it fits, and nobody waits for it who came before. Else many small ones would
  // leave none for a large one.
  bool MayTake(const Room& room) const;
  // For the batch, once it may have it. kBusy: not by the deadline.
  Task<Status> TakeRoom(Batch& batch, const Peer& peer, std::uint64_t bytes, Instant deadline);
  void End(Fetch& fetch, std::size_t block, const Status& status);

  // Of another fetch: the block before this one, which stands on it. Null: there is none on its way. Until it
  // was asked for, nothing behind it takes room: the room would be waited for by what it waits for.
  std::shared_ptr<Transfer> ParentOf(const Fetch& fetch, std::size_t block) const;

  const Parts parts_;
  std::uint64_t memory_bytes_;
  Counters counters_;
  std::unordered_map<BlockOf, std::shared_ptr<Transfer>, HashOfBlock> transfers_;
  Refusals refusals_;
  std::uint64_t landing_bytes_ = 0;
  std::list<Room> wanted_rooms_;  // of those who wait, in the order of their coming
  Event landed_;                  // or who waited for room has it, or waits no more
  Event ended_;                   // no turn is waited for any more
  TaskGroup tasks_;
};

}  // namespace cistern::mesh
