// SPDX-License-Identifier: Apache-2.0
// Why a block is not found at a member, or was refused there: a decision over what the member knows of it and
// what the others said, as plain values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/drop_list.h"
#include "mesh/finder.h"
#include "mesh/peer_reader.h"
#include "mesh/reach.h"
#include "mesh/refusals.h"
#include "store/block_store.h"

namespace cistern::mesh {

enum class Finding : std::uint8_t {
  kHere,          // in a tier of this node
  kReadsOff,      // reads are switched off, or the node drains
  kAtPeer,        // another member has it, and it may be taken
  kRefused,       // another member has it, and what it answers may not be taken: a drop, or behind the list
  kBadBytes,      // what came was not the block, or was cut here because its checksums failed
  kPending,       // a put of it waits, for its parent in most cases
  kBeingDropped,  // by a drop that is not durable everywhere yet
  kDropped,
  kEvicted,
  kExpired,
  kOrphaned,   // a block that it stands on went
  kNotShared,  // the namespace stays on this node
  kAlone,      // this node is in no cell now
  kNotAsked,   // nobody has it of those who were asked, and some were not, or did not answer
  kUnknown,    // nobody has it
};
std::string_view ToString(Finding finding);  // "at_peer"

// What each other member said of the block, with what the drop rule says to that.
struct PeerSaid {
  Holding holding;
  Verdict rule = Verdict::kTake;
};

struct FindingFacts {
  store::BlockLook look;
  bool shared = true, joined = true;
  std::int64_t dropped_at = 0;  // revision of the last drop that covers the chain; 0: none is listed
  std::int64_t applied = 0;
  std::vector<PeerSaid> peers;
  std::vector<std::string> unreachable;  // ids of members to which there is no connection
  std::optional<Refusal> refusal;
  std::map<std::uint64_t, std::string> ids;  // of members, by process number
};

struct FindingParts {  // borrowed
  Executor& on;
  store::BlockStore& store;
  Finder& finder;
  const PeerReader& reader;
  const CellRule& rule;
  const SharedNamespaces& names;
  Executor& executor() const { return on; }
};
// The facts about the last block of the chain, for which every member that can be reached is asked; who the
// members are, and which cannot be reached, the caller adds. kMiss: there is no such namespace. The chain
// stays until the task ends.
Task<Result<FindingFacts>> GatherFacts(const FindingParts& parts, std::uint32_t slot,
                                       std::span<const BlockKey> chain, Instant deadline);

struct Explanation {
  Finding finding = Finding::kUnknown;
  std::string text;    // a sentence for a person
  std::string member;  // id of the one that it is about; empty: none
};
Explanation Explain(const FindingFacts& facts);

}  // namespace cistern::mesh
