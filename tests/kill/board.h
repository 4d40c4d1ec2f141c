// SPDX-License-Identifier: Apache-2.0
// What the processes of the kill loop share: which blocks there are, what is known of each, how far everyone
// is, and what each client counted. Lies in anonymous shared memory.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "cistern/cistern.h"

namespace cistern {

inline constexpr std::uint32_t kClients = 3;
inline constexpr std::uint32_t kChainBlocks = 8;

// A namespace holds blocks of one size; each client writes and drops `chains` of its own in it, times
// Board::scale, and reads all.
struct Space {
  std::uint64_t block_bytes;
  std::uint32_t chains;
};
// Together about what the node's memory holds by default, in slot sizes that must take chunks from each
// other; in kRoomyBytes all of it has room and nothing is evicted. With flash there are kBelowScale times as
// many: most of them lie on flash.
inline constexpr std::array<Space, 5> kSpaces = {
    {{4u << 10, 64}, {16u << 10, 32}, {64u << 10, 12}, {256u << 10, 8}, {1u << 20, 8}}};
inline constexpr std::uint32_t kOwnChains = [] {
  std::uint32_t chains = 0;
  for (const Space& space : kSpaces) chains += space.chains;
  return chains;
}();
inline constexpr std::uint64_t kMaxBlockBytes = 1u << 20;
inline constexpr std::uint32_t kBelowScale = 3;
inline constexpr std::uint64_t kMemoryBytes = 256u << 20;
inline constexpr std::uint64_t kMemoryBytesAboveFlash = 192u << 20;
inline constexpr std::uint64_t kRoomyBytes = 1u << 30;

NamespaceSpec SpecOf(std::uint32_t space);

struct ChainName {
  std::uint32_t owner = 0;
  std::uint32_t space = 0;
  std::uint32_t chain = 0;
};
// The chain's keys, from block 0 on.
std::array<BlockKey, kChainBlocks> KeysOf(const ChainName& name, std::uint64_t seed);

// What is known of a block. Only its owner changes it, and before the call that makes it true: kWritten says
// that it may be found, kDropping that a drop was sent. kPublished and kDropped follow the acknowledgement: a
// dropped block that is found is a fault until its owner writes it again, and so is a published one that is
// missing where nothing need be evicted.
enum class Known : std::uint32_t { kUnknown = 0, kWritten = 1, kPublished = 2, kDropping = 3, kDropped = 4 };

class BlockWord {
 public:
  void Set(Known known) {
    std::uint32_t count = (word_.load() >> 3) + 1;
    word_.store(count << 3 | static_cast<std::uint32_t>(known));
  }
  std::uint32_t Load() const { return word_.load(); }
  static Known KnownOf(std::uint32_t word) { return static_cast<Known>(word & 7); }
  // Dropped, or published, since before a call that began at `before`, and nothing else up to now.
  bool StillDropped(std::uint32_t before) const {
    return KnownOf(before) == Known::kDropped && Load() == before;
  }
  bool StillPublished(std::uint32_t before) const {
    return KnownOf(before) == Known::kPublished && Load() == before;
  }

 private:
  std::atomic<std::uint32_t> word_{0};  // changes so far, and Known in the low three bits
};

// Blocks compared one by one after a kill.
struct Compared {
  std::uint64_t blocks = 0, hits = 0, bytes = 0;
  std::uint64_t misses = 0;           // of what was written and not dropped: evicted, or killed on its way
  std::uint64_t lost = 0;             // of them published: evicted, or else a fault
  std::uint64_t dropped = 0;          // misses of what a drop was sent for
  std::uint64_t missed_resident = 0;  // misses of what the last census found and nobody dropped
  std::uint64_t asked_again = 0;      // blocks that were late, busy or missing at first
};

// One client's; read by others when it has ended.
struct Counts {
  std::uint64_t requests = 0, published = 0, refused = 0, drops = 0, acquires = 0, load_hits = 0;
  std::uint64_t resident = 0;  // blocks that were found by a census, of all of them
  Compared with_new, with_old;
  std::uint64_t views_after_kill = 0, views_still_good = 0;       // before the successor serves
  std::uint64_t views_after_restart = 0, good_after_restart = 0;  // since: none may be good
  std::uint64_t wrong_bytes = 0, revived_drops = 0;
};

class Board {
 public:
  std::uint32_t chains(std::uint32_t space) const { return kSpaces[space].chains * scale; }
  BlockWord& word(const ChainName& name, std::uint32_t block) { return words_[At(name)][block]; }
  // How many blocks of the chain, from 0 on, its last census found.
  std::atomic<std::uint32_t>& resident(const ChainName& name) { return resident_[At(name)]; }

  // Before the clients begin.
  std::uint32_t scale = 1;
  bool flash = false;   // blocks are found below memory as well
  bool reboot = false;  // memory goes with the node

  // Rounds, from 1 on. `counting`, of a round with a census, is stored when the load is to end, `killing`
  // before the node is killed, `killed` when it is dead, `restarted` when its successor serves, `going_on`
  // when all have found out what it has.
  std::atomic<std::uint64_t> counting{0}, killing{0}, killed{0}, restarted{0}, going_on{0};
  std::atomic<std::uint32_t> connected{0};             // clients with their first session
  std::atomic<std::uint64_t> counted[kClients] = {};   // a client has done its part of this round's census
  std::atomic<std::uint64_t> found[kClients] = {};     // ... has compared all that the successor has
  std::atomic<std::uint64_t> compared[kClients] = {};  // ... and what its old mapping has
  std::atomic<std::uint64_t> published{0};             // acknowledged, by any client
  Counts counts[kClients];

 private:
  static std::size_t At(const ChainName& name) {
    std::uint32_t first = 0;
    for (std::uint32_t i = 0; i < name.space; ++i) first += kSpaces[i].chains * kBelowScale;
    return name.owner * kOwnChains * kBelowScale + first + name.chain;
  }
  BlockWord words_[kClients * kOwnChains * kBelowScale][kChainBlocks];
  std::atomic<std::uint32_t> resident_[kClients * kOwnChains * kBelowScale] = {};
};

}  // namespace cistern
