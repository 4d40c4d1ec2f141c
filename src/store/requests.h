// SPDX-License-Identifier: Apache-2.0
// Requests of clients to the store, and its answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "arena/geometry.h"
#include "base/clock.h"
#include "catalog/leases.h"
#include "cistern/key.h"
#include "cistern/options.h"
#include "cistern/status.h"
#include "cistern/where.h"

namespace cistern::store {

// One part of one block, its bytes in staging. The store is done with `from` when the write's task ends.
struct PartWrite {
  BlockKey key;
  BlockKey parent;  // none(): the chain's first block
  std::uint16_t group = 0;
  std::uint16_t part = 0;
  PutId put_id;
  std::span<const std::byte> from;
  // CRC32C of each segment of the part as the client computed it while it filled `from` (R6); empty: not
  // known.
  std::vector<std::uint32_t> checksums;
  std::uint32_t ttl_s = 0;
  bool held = false;
  std::uint64_t conversation = 0;  // 0: none
};

// A prompt as a match named it.
struct MatchedPrompt {
  // Of its blocks one after the other, from the last that matched on where that is known, or from the first.
  std::vector<BlockKey> keys;
  std::size_t first_new = 0;  // in keys: the first that did not match; past the end where all did
  // In keys: the first that the index did not have: it lies below memory, or is new.
  std::size_t first_asked = 0;
  std::uint64_t matched = 0;
  PromptHints hints;
  bool partial = false;  // the last block is not full
};

// What a drop names. A cell keeps it as this number (docs/formats/cell.md).
enum class DropWhat : std::uint8_t {
  kNamespace = 1,     // all of it
  kKeys = 2,          // keys and what descends from them
  kConversation = 3,  // the end of a conversation: what it alone wrote and used
};

struct PartOutcome {
  Status status;
  enum class State : std::uint8_t { kNone = 0, kPublished, kPresent, kPending } state = State::kNone;
};

struct ViewGrant {
  Code code = Code::kMiss;
  std::uint32_t place = 0;
  std::uint64_t bytes = 0;
  std::uint64_t generation = 0;
  std::int64_t ready_in_us = 0;  // of a block in the lower tier: the estimate when it was asked for
};

// Blocks that an acquire of one step takes at most.
inline constexpr std::size_t kAtOnce = 128;

struct AcquireGrant {
  catalog::LeaseId lease = 0;  // 0: no block was leased
  Instant ends;                // of the lease
  std::vector<ViewGrant> views;
};

// What a match has left of the blocks behind those that the index had.
struct Unmatched {
  std::size_t from = 0;    // the first block that is not here
  std::size_t blocks = 0;  // with those behind it; 0 also where reads are off
  bool expired = false;    // the first is past its time
};

}  // namespace cistern::store
