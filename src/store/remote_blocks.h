// SPDX-License-Identifier: Apache-2.0
// Blocks that other nodes have, as the calls of this node's clients ask for them: behind what a match has
// found here, and before an acquire looks for what is not here. Where the node is in a cell its members stand
// behind it (mesh/peer_blocks.h); the store itself knows nothing of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/task.h"
#include "catalog/catalog.h"
#include "cistern/key.h"
#include "cistern/status.h"
#include "cistern/where.h"

namespace cistern::store {

// Why a block that was asked for did not come.
struct RemoteMiss {
  std::size_t at = 0;  // of the blocks that were asked for
  Code code = Code::kMiss;
  std::int64_t ready_in_us = 0;  // of one that would have come too late
};

class RemoteBlocks {
 public:
  // Whether another may have more of the chain than its first `local` blocks: only then Match finds anything.
  virtual bool MayHaveMore(std::uint32_t slot, std::span<const BlockKey> chain, std::size_t local) = 0;
  // Runs of Where::kPeer, which others have of the chain behind its first `local` blocks, with the time at
  // which they could be here; what is found is remembered for Bring. The chain is all of it, from its first
  // block on, and stays until the task ends. None where nobody is known to have more: that costs no message
  // and no wait. Ends by the deadline, with none if need be.
  virtual Task<std::vector<MatchRun>> Match(std::uint32_t slot, std::span<const BlockKey> chain,
                                            std::size_t local, Instant deadline) = 0;
  // Whether any of the blocks, which are few, was found lately by a Match: only then Bring can do anything.
  virtual bool Found(std::uint32_t slot, std::span<const catalog::BlockName> blocks) const = 0;
  // Brings those of the blocks into memory that were found and are not here, all of them beside each other,
  // and with them what they stand on. Ends by `worth`, whatever the others do: what did not come by then is a
  // miss, and what would come later is not asked for. The misses that have another reason than kMiss, rising.
  virtual Task<std::vector<RemoteMiss>> Bring(std::uint32_t slot, std::span<const catalog::BlockName> blocks,
                                              Instant worth) = 0;

 protected:
  ~RemoteBlocks() = default;
};

}  // namespace cistern::store
