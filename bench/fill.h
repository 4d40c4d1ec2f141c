// SPDX-License-Identifier: Apache-2.0
// Blocks to measure with: keys and contents of the workload (workload/content.h).
#pragma once

#include <functional>
#include <vector>

#include "cistern/cistern.h"

namespace cistern {

struct FilledBlocks {
  Namespace ns;
  std::vector<BlockKey> keys;
  std::uint64_t block_bytes = 0;
};

// A namespace for blocks of this size: one full group, one part.
NamespaceSpec BenchNamespace(std::uint64_t block_bytes);

// Writes `count` blocks. With chain_blocks over 1, keys [i * chain_blocks, (i + 1) * chain_blocks) are a
// chain. `pace` is asked after every few MiB with how many there are, and may wait. `first`: the number of
// the first block, for blocks that no other Fill has written.
Result<FilledBlocks> Fill(Store& store, std::size_t count, std::uint64_t block_bytes,
                          std::size_t chain_blocks = 1,
                          const std::function<Status(std::size_t)>& pace = nullptr, std::uint64_t first = 0);

// Puts one block, again and again while the node has no room for it, 10 s at most: a refusal is quicker than
// a put, and nobody is served by it.
Status PutOne(Store& store, const Namespace& ns, const BlockWrite& write);

// Views of all blocks, leased for as long as a lease can be.
Result<Lease> LeaseAll(Store& store, const FilledBlocks& blocks);

}  // namespace cistern
