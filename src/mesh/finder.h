// SPDX-License-Identifier: Apache-2.0
// Who has the rest of a chain: a walk of the index, then one question to one candidate, whose answer says
// what it holds and when it could be here. Of several that are equally deep, two are drawn at random, and the
// one with less to do is asked; members of the own zone come first. Where the first does not answer, one more
// is asked; then it is a miss.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/random.h"
#include "base/task.h"
#include "mesh/peer_reader.h"
#include "mesh/peer_table.h"
#include "mesh/reach.h"
#include "mesh/sample_index.h"
#include "mesh/sample_streams.h"
#include "store/block_store.h"

namespace cistern::mesh {

// What a peer has of a chain behind the blocks that are here. No run: nobody has more.
struct PeerMatch {
  std::shared_ptr<const PeerRun> run;
  std::vector<MatchRun> runs;  // kPeer: when their blocks could be in this node's memory
};

// What one member says of a chain, or why it was not asked.
struct Holding {
  enum class How : std::uint8_t {
    kAnswered,
    kFailed,   // asked, and no answer
    kUnknown,  // not asked: nothing of the chain is known to be there
    kClosed,   // not asked: it did not answer lately
    kBusy,     // not asked: enough is under way to it
  };
  std::uint64_t peer = 0;
  How how = How::kUnknown;
  std::size_t sampled = 0;     // blocks of the chain that its samples say it has
  std::vector<MatchRun> runs;  // of its answer, in its tiers
  std::int64_t a = 0;          // its `applied` before it looked
  Status why;                  // of kFailed
  std::uint64_t blocks() const { return BlocksOf(runs); }
};

class Finder final {
 public:
  static constexpr std::uint32_t kQueued = 64;  // matches at a peer
  static constexpr int kAsked = 2;              // members for one match

  struct Parts {  // borrowed
    Executor& executor;
    const Clock& clock;
    store::BlockStore& store;
    const CellRule& rule;
    const SharedNamespaces& names;
    SampleIndex& index;
    SampleStreams& streams;
    PeerLinks& links;
    PeerTable& peers;
  };
  Finder(const Parts& parts, std::uint64_t seed) : parts_(parts), random_(seed) {}
  Finder(const Finder&) = delete;
  Finder& operator=(const Finder&) = delete;

  Executor& executor() { return parts_.executor; }

  // Whether the index knows of anybody with more of the chain than its first `local` blocks.
  bool MayFind(std::uint32_t slot, std::span<const BlockKey> chain, std::size_t local);
  // `chain` from its first block on, of which `local` are here. Asks nobody where the index knows of nobody.
  // The chain is copied if somebody is asked. Ends by the deadline, with nothing if need be.
  Task<PeerMatch> Find(std::uint32_t slot, std::span<const BlockKey> chain, std::size_t local,
                       Instant deadline);
  // What each member that can be reached says of the chain behind its first `matched` blocks, all asked at
  // once; not `every`: only those that are known to have some of it. The chain stays until the task ends.
  Task<std::vector<Holding>> AskAll(std::uint32_t slot, std::span<const BlockKey> chain, std::size_t matched,
                                    bool every, Instant deadline);
  // The answer to another member's match.
  Task<Result<std::vector<std::byte>>> Answer(net::ConstPiece payload);

  struct Counters {
    std::uint64_t unknown = 0;  // matches that cost no message
    std::uint64_t asked = 0, answered = 0, stale = 0, failed = 0, busy = 0;
  };
  const Counters& counters() const { return counters_; }

 private:
  // What is looked for under a namespace here; none: nothing of it is shared now.
  struct Search {
    SharedNamespace name;
    std::uint64_t seed = 0;
    std::uint64_t incarnation = 0;
    std::uint32_t block_tokens = 0;
  };
  std::optional<Search> SearchOf(std::uint32_t slot) const;
  bool MayAsk(MemberNumber member) const;
  // The members with most of the chain among those that may be asked now; who may not, and has as much of
  // it, costs a look at all of them, which then are no more in `among`. Mostly nobody does.
  SampleIndex::Deepest DeepestToAsk(std::uint64_t seed, std::span<const BlockKey> chain, std::size_t local,
                                    std::uint32_t block_tokens, MemberSet* among) const;
  MemberNumber Choose(const MemberSet& holders);
  Task<Result<MatchReply>> Question(std::uint64_t peer, const SharedNamespace& name,
                                    std::span<const BlockKey> keys, std::size_t matched, Instant deadline);
  // What became of a question that went out at `began`.
  void Note(std::uint64_t peer, const Status& status, Instant began);
  Task<Status> AskOne(const SharedNamespace& name, std::span<const BlockKey> keys, std::size_t matched,
                      Instant deadline, Holding& holding);
  Task<Status> Ask(std::uint64_t peer, Instant deadline, std::shared_ptr<PeerRun> run, PeerMatch* match);
  Status Take(const MatchReply& reply, std::size_t keys, std::shared_ptr<PeerRun> run, PeerMatch* match);

  const Parts parts_;
  Random random_;
  Counters counters_;
};

}  // namespace cistern::mesh
