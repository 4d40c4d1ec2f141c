// SPDX-License-Identifier: Apache-2.0
// Blocks that one node of a cell has and another one reads. A block that was read is the reader's own from
// then on, so each measurement writes new ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "bench.h"
#include "fill.h"
#include "measure.h"

namespace cistern {

// What the working set makes of a node of a cell: bytes of a measurement's blocks, and flags for memory that
// holds those of two and more of them.
struct CellSizes {
  explicit CellSizes(const BenchOptions& options)
      : piece_bytes(std::max<std::uint64_t>(options.working_set_bytes / 4, 8u << 20)) {}
  std::uint64_t memory_bytes() const { return std::max<std::uint64_t>(piece_bytes / 2 * 5, 256u << 20); }
  const std::uint64_t piece_bytes;
};

// A piece of new blocks that `from` has and `to` has found there, in chains of a few MiB. `ns` is `to`'s.
Result<FilledBlocks> BlocksAtPeer(Store& from, Store& to, std::uint64_t piece_bytes,
                                  std::uint64_t block_bytes, std::uint64_t* next_number);

// Brings all keys into the node's memory, `at_once` a call and `calls` of them under way; GB/s. The times of
// calls go to `series`. kMiss: one did not come.
Result<double> AcquireAll(Store& store, const FilledBlocks& blocks, std::span<const BlockKey> keys,
                          std::size_t at_once, std::size_t calls, Samples* series);

// Compares one in `step` of the blocks with what their keys must hold; they are in the node's memory.
Status Verify(BenchOptions& options, Store& store, const FilledBlocks& blocks, std::size_t step);

}  // namespace cistern
