// SPDX-License-Identifier: Apache-2.0
// Where the blocks of a match lie.
#pragma once

#include <cstdint>
#include <string_view>

namespace cistern {

// From near to far.
enum class Where : std::uint8_t {
  kMemory = 0,  // the node's memory: read from there, without the node
  kFlash = 1,   // the node's own flash: fetched into memory first
  kPeer = 2,    // another node of the cell: fetched into this one's memory first
  kObject = 3,  // an object store or shared file system, the same; no node of this version has one
};

// "memory", "flash", "peer", "object".
std::string_view ToString(Where where);

// Blocks that follow each other in one place. Outside of memory, `ready_in_us` is about how long from the
// match on all of them could be in memory, if they were asked for then; in memory 0.
struct MatchRun {
  std::uint32_t blocks = 0;
  Where where = Where::kMemory;
  std::int64_t ready_in_us = 0;
};

}  // namespace cistern
