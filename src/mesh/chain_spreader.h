// SPDX-License-Identifier: Apache-2.0
// Offers blocks to other members while the node is in service, in the background:
// - of namespaces that are to be at several members, what came or was used here since the last pass;
// - to a member that has joined with room, the branches that are its by rendezvous, the hottest first;
// - to members whose role is to store, what has cooled here, once blocks begin to leave this node.
// So a block is offered once unless it was used since, or was refused for a reason that passes: the store
// notes what was, or the walk goes by when each was used last. Offers go out one at a time, and behind each
// there is a rest of nineteen times as long as it took: so they take at most a twentieth of what the rails
// carry, however fast these are.
//
// A member whose role is to store does none of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/event.h"
#include "base/metrics.h"
#include "base/task.h"
#include "base/task_group.h"
#include "mesh/chain_offers.h"
#include "mesh/role.h"
#include "policy/hand_over.h"

namespace cistern::mesh {

struct SpreadLimits {
  static constexpr std::int64_t kPassUs = 2'000'000;       // between two passes
  static constexpr std::int64_t kRests = 19;               // times of what an offer took
  static constexpr std::uint64_t kOfferBytes = 64u << 20;  // one block always may
  static constexpr std::int64_t kOfferUs = 60'000'000;
  // Over the same, while some of it is refused for reasons that pass; twice as long between two as before.
  static constexpr int kPasses = 16;
  static constexpr std::int64_t kMostPassUs = 32'000'000;
  // A member has joined with room if so many parts of its memory are free.
  static constexpr std::uint64_t kFreeShare = 2;
};

class ChainSpreader final {
 public:
  struct Parts {  // borrowed
    ChainOffers& offers;
    store::BlockStore& store;
    const Clock& clock;
    PeerTable& peers;
    std::uint64_t process_number = 0;
    Role role = Role::kEngine;
  };
  explicit ChainSpreader(const Parts& parts) : parts_(parts), tasks_(parts.offers.executor()) {}
  // Close was awaited, or the node crashed.
  ~ChainSpreader() { tasks_.Drop(); }
  ChainSpreader(const ChainSpreader&) = delete;
  ChainSpreader& operator=(const ChainSpreader&) = delete;

  Executor& executor() { return parts_.offers.executor(); }

  void Start();
  // What is under way ends: no answer to an offer is waited for.
  void Close() { tasks_.Drop(); }

  // Nothing is offered while the node drains: that is ChainGiver's then.
  void SetDraining(bool draining) { draining_ = draining; }
  // Its weight among the others.
  void SetMemory(std::uint64_t bytes) { memory_bytes_ = bytes; }
  // Of namespaces whose users say nothing of it, from the next pass on.
  void SetCopies(std::vector<policy::Copies> copies) { copies_ = std::move(copies); }
  // A member has said what room it has: for the first time, if it has joined.
  void Heard(std::uint64_t peer, const RoomNotice& room);

  // Of blocks that another member lacked and has.
  struct Counters {
    Counter copied_blocks, copied_bytes;
    Counter warmed_blocks, warmed_bytes;  // at members that joined
    Counter stored_blocks, stored_bytes;  // at members whose role that is
    Counter refused;                      // offers of which not all was taken
    Counter failed;                       // of these, that were not answered
  };
  const Counters& counters() const { return counters_; }
  // Members that have joined and are being offered blocks, or wait for it.
  std::size_t newcomers() const { return newcomers_.size(); }

 private:
  struct Pass {
    store::WalkOrder walk;
    std::function<std::size_t(const catalog::NamespaceEntry&)> copies;
    bool free_room = false;  // and ends when a member has none
    bool last = false;       // what is refused is not offered again
    Candidates to;
    Counter* blocks = nullptr;
    Counter* bytes = nullptr;
  };

  // What became of it. kRefused: some is to be offered again, that was refused for a reason that passes;
  // kNobody: nobody was there for some.
  enum class Ended : std::uint8_t { kSettled, kRefused, kNobody };
  struct Newcomer {
    std::uint64_t number = 0;
    int passes = 0;
    Instant from;  // the next one
  };

  bool GoesOn() const { return !draining_; }
  // After so many passes over the same.
  static std::int64_t PauseUs(int passes) {
    return std::min(SpreadLimits::kPassUs << std::min(passes, 8), SpreadLimits::kMostPassUs);
  }
  std::uint32_t CopiesOf(const catalog::NamespaceEntry& entry) const {
    return entry.copies ? *entry.copies : policy::CopiesOf(copies_, entry.names, entry.fields);
  }
  // Notes uses where some namespace is to be at several members: from the first such one on all that is here
  // is offered once.
  bool NoteUses();
  Task<void> CopyFromTimeToTime();
  Task<void> HandOnFromTimeToTime();
  Task<void> WarmNewcomers();
  Task<Ended> Warm(std::uint64_t newcomer);
  Task<Ended> Go(Pass pass);
  // Offers part of a chain when its turn has come.
  Task<OfferOutcome> Offer(const Pass& pass, ChainPart part);
  // Blocks that have left this node, for good.
  std::uint64_t Gone() const;

  const Parts parts_;
  Counters counters_;
  std::uint64_t memory_bytes_ = 0;
  std::vector<policy::Copies> copies_;
  bool draining_ = false;
  std::vector<Newcomer> newcomers_;
  Event joined_;
  bool offering_ = false;
  Instant rests_until_;
  Event turn_;
  TaskGroup tasks_;
};

}  // namespace cistern::mesh
