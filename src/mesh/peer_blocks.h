// SPDX-License-Identifier: Apache-2.0
// Blocks of the other members as this node's clients ask for them: a match goes on to the member that has
// more of the chain, an acquire reads what was found there into memory, where it is a block as any other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/metrics.h"
#include "base/task.h"
#include "mesh/finder.h"
#include "mesh/found_runs.h"
#include "mesh/peer_reader.h"
#include "store/block_store.h"
#include "store/remote_blocks.h"

namespace cistern::mesh {

class PeerBlocks final : public store::RemoteBlocks {
 public:
  // A match waits no longer for members, whatever its caller's deadline: an engine's scheduler takes a node
  // that is silent for 50 ms for stopped, and the first member that is asked has half of this.
  static constexpr std::int64_t kMatchUs = 40'000;

  struct Parts {  // borrowed
    Executor& executor;
    const Clock& clock;
    store::BlockStore& store;
    Finder& finder;
    PeerReader& reader;
  };
  PeerBlocks(const Parts& parts, std::uint64_t seed) : parts_(parts), runs_(seed) {}
  PeerBlocks(const PeerBlocks&) = delete;
  PeerBlocks& operator=(const PeerBlocks&) = delete;

  Executor& executor() { return parts_.executor; }

  bool MayHaveMore(std::uint32_t slot, std::span<const BlockKey> chain, std::size_t local) override {
    return parts_.finder.MayFind(slot, chain, local);
  }
  Task<std::vector<MatchRun>> Match(std::uint32_t slot, std::span<const BlockKey> chain, std::size_t local,
                                    Instant deadline) override;
  bool Found(std::uint32_t slot, std::span<const catalog::BlockName> blocks) const override;
  Task<std::vector<store::RemoteMiss>> Bring(std::uint32_t slot, std::span<const catalog::BlockName> blocks,
                                             Instant worth) override;

  struct Counters {
    Counter found;  // blocks behind the local ones, at other members
    Counter late;   // blocks that were not asked for, or did not come, in time
  };
  const Counters& counters() const { return counters_; }

 private:
  // Blocks of one run that an acquire asks for.
  struct Wanted {
    std::shared_ptr<const FoundRuns::Kept> kept;
    std::size_t begin = 0, end = 0;  // in the run's chain: from the first to the last of them
    struct At {
      std::size_t asked;  // which of the acquire's blocks
      std::size_t block;  // in the run's chain
    };
    std::vector<At> at;
  };
  // A read of them, from a block of the run's chain on.
  struct RunRead {
    const Wanted* wanted;
    std::size_t from;
    std::unique_ptr<Status> why_no_more;
    Task<Result<std::size_t>> read;
  };
  RunRead Read(const Wanted& wanted, std::size_t from, Instant worth) {
    auto why = std::make_unique<Status>();
    Status* const to = why.get();
    return {&wanted, from, std::move(why),
            parts_.reader.Read(wanted.kept->run, from, wanted.end - from, 0, worth, to)};
  }
  // How long it takes from there on, as the match said.
  static std::int64_t ReadyInUs(const Wanted& wanted, std::size_t from) {
    const auto count = static_cast<std::int64_t>(wanted.end - from);
    return wanted.kept->ready_in_us * count / static_cast<std::int64_t>(wanted.kept->run->count);
  }
  // Whether what they stand on is on its way.
  bool Follows(const Wanted& wanted) const {
    const PeerRun& run = *wanted.kept->run;
    return wanted.begin > run.first && parts_.reader.Coming(run.incarnation, run.chain[wanted.begin - 1]);
  }
  Task<std::vector<Wanted>> Collect(std::uint32_t slot, std::span<const catalog::BlockName> blocks);
  // The first of the run's blocks that is not here; blocks stand on those before them.
  std::size_t FirstMissing(const Wanted& wanted) const;

  const Parts parts_;
  FoundRuns runs_;
  Counters counters_;
};

}  // namespace cistern::mesh
