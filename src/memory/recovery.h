// SPDX-License-Identifier: Apache-2.0
// Records that an arena still has after a restart (R1, R11), found from its headers alone: chunks whose
// header checks, and in them slots with an even generation whose directory entry has a right CRC, lies where
// it says and was made for that generation. All other slots are left, or made, free: their generation odd.
// Bodies are not read here.
//
// Whatever the headers contain, no memory outside of them is touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "arena/geometry.h"
#include "arena/layout.h"
#include "arena/words.h"
#include "cistern/key.h"
#include "memory/slots.h"

namespace cistern::memory {

struct RecoveredBlock {
  arena::Place place = 0;
  std::uint64_t generation = 0;
  BlockKey key;
  BlockKey parent;  // none(): the chain's first block
  std::uint16_t group = 0;
  std::uint16_t parts = 1;
  std::uint64_t incarnation = 0;
  std::uint32_t body_bytes = 0;
  std::uint32_t expiry = 0;
  std::uint64_t born = 0;
  std::uint64_t sequence = 0;
  std::uint64_t conversation = 0;
};

class Recovery final {
 public:
  // `slots` knows no chunk yet; it gets those that are found, with the slots of believed blocks as used, and
  // EndAdoption from the caller once it has freed what it does not keep.
  Recovery(arena::Words& words, Slots& slots);

  // The next believed blocks, in the order of places, at most as many as fit; a call looks at no more than 16
  // slots for each that fits, so it may find none before done(). The caller retires and frees those that it
  // does not keep; several may have one key, of which the highest sequence counts.
  std::size_t Next(std::span<RecoveredBlock> blocks);
  bool done() const { return header_ == slots_.headers(); }

  struct Counts {
    std::uint64_t believed = 0;
    std::uint64_t refused = 0;         // even generation, entry not believed
    std::uint64_t damaged = 0;         // of them, but for those whose retirement a kill cut off
    std::uint64_t damaged_chunks = 0;  // not carved by the word of their header
    std::uint64_t last_sequence = 0;   // the highest, refused ones not counted
    std::uint64_t last_born = 0;
  };
  const Counts& counts() const { return counts_; }

 private:
  void EnterHeader();
  void PrefetchSlot(std::uint64_t slot) const;
  void LeaveHeader(std::uint32_t headers);
  bool Believe(arena::Place place, std::uint64_t generation, RecoveredBlock* block);

  arena::Words& words_;
  Slots& slots_;
  arena::ArenaSpace arena_;
  std::uint32_t header_ = 0;  // the position: a chunk's first header, or one without a chunk
  enum class Stage { kEnter, kChunk, kSweep } stage_ = Stage::kEnter;
  SlotSize size_;
  std::uint64_t next_ = 0;  // slot in the chunk, or unit in the header that is swept
  Counts counts_;
};

}  // namespace cistern::memory
