// SPDX-License-Identifier: Apache-2.0
// Match from the index alone: the longest prefix of a chain from which an engine could go on, over all groups
// together. After n blocks the next token needs of a full group blocks 0 to n-1, and of a window group the
// blocks that hold the `window_tokens` tokens before it; what lies further back may be gone.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "arena/reader.h"
#include "base/limits.h"
#include "cistern/key.h"

namespace cistern::arena {

// A group as match sees it.
struct MatchGroup {
  std::uint16_t group = 0;
  std::uint32_t reach_blocks = 0;  // 0: all of them
};

// The blocks before a block's end position that a window reaches into: window_tokens / block_tokens, rounded
// up. The window is counted as namespaces say it, in tokens before the position. An engine whose window
// includes the token itself may give one token less and gains a block where that is a multiple of the block;
// one that does not is answered too cautiously, never wrongly.
constexpr std::uint32_t WindowBlocks(std::uint32_t window_tokens, std::uint32_t block_tokens) {
  return static_cast<std::uint32_t>((std::uint64_t{window_tokens} + block_tokens - 1) / block_tokens);
}

// Number of blocks of `chain`, from block 0 on, that suffice to go on from by the index's word; 0: none.
// `groups` has 1 to kMaxGroups entries and is all groups of the namespace.
//
// Full groups are walked from block 0 to their first miss; window groups then backwards from there, and each
// miss at block b lowers the end to b, since every longer prefix that ends within the window needs b. A
// window group asks for each block at most once.
template <class W, class Policy>
std::uint32_t MatchPrefix(const Reader<W, Policy>& reader, const ReadCall& call,
                          std::span<const BlockKey> chain, std::span<const MatchGroup> groups) {
  CISTERN_ASSERT(groups.size() <= kMaxGroups);
  std::size_t end = chain.size();
  for (const MatchGroup& group : groups) {
    if (group.reach_blocks == 0) end = reader.Run(call, group.group, chain.first(end));
  }
  // Of each window group: the blocks [known, end) are there.
  std::array<std::size_t, kMaxGroups> known;
  known.fill(end);
  for (std::size_t i = 0; i < groups.size() && end > 0;) {
    const MatchGroup& group = groups[i];
    // A full group, whose reach is 0 here, is asked for nothing again.
    const std::size_t first = group.reach_blocks < end ? end - group.reach_blocks : 0;
    known[i] = std::min(known[i], end);
    while (known[i] > first && reader.Find(call, group.group, chain[known[i] - 1])) known[i]--;
    if (known[i] <= first) {
      i++;
      continue;
    }
    end = known[i] = known[i] - 1;
    i = 0;
  }
  return static_cast<std::uint32_t>(end);
}

}  // namespace cistern::arena
