// SPDX-License-Identifier: Apache-2.0
// Offers blocks of a chain to other members, parents first: each of them reads what it lacks as it reads any
// other block of a peer, and says how far it has published them. Until then they are held here; then they
// count as given. A member that does not take them, fails or is late is followed by the branch's next one.
// Whom to offer what, and when, others decide (chain_giver.h, chain_spreader.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/task.h"
#include "mesh/peer_message.h"
#include "mesh/peer_table.h"
#include "mesh/reach.h"
#include "policy/hand_over.h"
#include "store/block_store.h"
#include "store/whole_chains.h"

namespace cistern::mesh {

struct HandOverLimits {
  static constexpr std::size_t kOffers = 8;         // under way from a member that drains
  static constexpr std::size_t kTaken = 32;         // under way at a member
  static constexpr std::size_t kOfferBlocks = 512;  // of an offer
  static constexpr std::size_t kMembers = 3;        // that refuse a chain, before it is offered to no more
  // An offer has so long, and a microsecond more for so many bytes.
  static constexpr std::int64_t kOfferUs = 5'000'000;
  static constexpr std::uint64_t kBytesAUs = 20;
};

// Blocks of a chain that belong to one branch.
struct ChainPart {
  std::shared_ptr<const store::WholeChain> chain;
  std::size_t begin = 0, end = 0;
  std::uint64_t branch = 0;

  std::uint64_t bytes() const;
};
// In the order in which they stand on each other.
std::vector<ChainPart> PartsOf(store::WholeChain chain);

// Members that a part may be offered to.
struct Candidates {
  // Members for a branch, the preferred one first. Called for each offer.
  std::function<std::vector<std::uint64_t>(std::uint64_t branch)> order;
  // Members that `order` leaves out for now and may name soon.
  std::function<std::vector<std::uint64_t>()> away;
};

struct OfferPlan {
  Instant deadline;
  std::size_t copies = 1;  // members that are to have it
  bool free_room = false;  // which take it into free room alone
  // False: nothing more is offered.
  std::function<bool()> goes_on;
  Candidates to;
  // A member has the blocks [begin, end) of the chain, of which it lacked so many with so many bytes.
  struct Given {
    std::size_t begin = 0, end = 0;
    std::uint64_t blocks = 0, bytes = 0;
  };
  std::function<void(const store::WholeChain& chain, const Given& given)> given;
};

struct OfferOutcome {
  std::uint64_t refused = 0;  // offers of which not all was taken
  std::uint64_t failed = 0;   // of these, that were not answered
  bool no_room = false;       // one was refused because there was no room for it
  // Of the last copy some nobody took, and might: nobody was there, or not all who may be, or it was refused
  // for a reason that passes, no answer or a read that failed.
  bool passing = false;
};

class ChainOffers final {
 public:
  struct Parts {  // borrowed
    Executor& executor;
    const Clock& clock;
    store::BlockStore& store;
    const CellRule& rule;
    const SharedNamespaces& names;
    PeerLinks& links;
    PeerTable& peers;
  };
  explicit ChainOffers(const Parts& parts) : parts_(parts) {}
  ChainOffers(const ChainOffers&) = delete;
  ChainOffers& operator=(const ChainOffers&) = delete;

  Executor& executor() { return parts_.executor; }

  // Members that take blocks now. `stores`: those alone whose role that is, or all.
  enum class Whom : std::uint8_t { kAll, kStores };
  std::vector<policy::Taker> Takers(Whom whom) const;
  // Members that may be Takers soon: they did not answer lately, or their connection is lost.
  std::vector<std::uint64_t> Away(Whom whom) const;
  // Both of these, by the branch.
  Candidates Among(Whom whom) const;
  // A walk of the namespaces that are shared, and of these those for which `wanted` holds; null: of all.
  store::WalkOrder WalkOfShared(
      const std::function<bool(const catalog::NamespaceEntry&)>& wanted = nullptr) const;

  Task<OfferOutcome> OfferPart(ChainPart part, OfferPlan plan);

 private:
  struct Asked {
    std::vector<std::uint64_t> members;  // that have it, or took no more
    std::size_t refused = 0;
    bool passing = false;
    int changed = 0;  // times that a part was looked at anew because some of it was dropped meanwhile
  };
  // One member has all of the part afterwards, or several have it together; what the last one left is
  // `part`'s.
  Task<void> OfferOnce(ChainPart& part, const OfferPlan& plan, Asked& asked, OfferOutcome& outcome);
  // The chain's blocks, from its first on, that are here still.
  std::size_t CountHere(const store::WholeChain& chain) const;
  Task<Result<OfferReply>> OfferTo(std::uint64_t peer, ChainPart part, Instant until, bool free_room);
  Task<std::vector<std::byte>> Question(ChainPart part, SharedNamespace name, std::uint64_t history,
                                        bool free_room);
  // What it says of the namespace beside its name: its list, if it is to, and what it is called here.
  void AppendWho(std::vector<std::byte>& question, std::uint32_t slot, std::span<const std::byte> list) const;
  // One question and its answer.
  Task<Result<OfferReply>> Ask(std::uint64_t peer, std::vector<std::byte> question, std::uint64_t history,
                               Instant deadline);

  const Parts parts_;
};

}  // namespace cistern::mesh
