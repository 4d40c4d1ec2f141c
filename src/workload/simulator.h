// SPDX-License-Identifier: Apache-2.0
// A workload's hit rate by decisions alone: no bytes, no clock. With the node's policy it is the figure that
// a real store must reach.
#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cistern/status.h"
#include "policy/far_memory.h"
#include "workload/contender.h"
#include "workload/request.h"

namespace cistern::workload {

enum class SimPolicy : std::uint8_t {
  kLru = 0,    // the node's, where it is told so
  kReuse = 1,  // the node's
  // Those that `reuse` is compared with: contender.h.
  kFifo = 2,
  kSlru = 3,
  kLfu = 4,
  kLru2 = 5,
  kArc = 6,
};
std::string_view ToString(SimPolicy policy);
Result<SimPolicy> ParseSimPolicy(std::string_view text);
// "lru, reuse, ..."
std::string SimPolicies();

// Of the blocks that fit, some in far memory.
struct SimFar {
  std::uint64_t blocks = 0;
  bool placed = true;  // by policy; false: a block stays where it found room, which is either
};

struct SimResult {
  SimPolicy policy = SimPolicy::kLru;
  std::uint64_t blocks = 0;  // the capacity
  std::uint64_t requests = 0;
  std::uint64_t accesses = 0;  // blocks of all requests
  std::uint64_t hits = 0;
  std::uint64_t far_hits = 0;  // of these, in far memory
  std::uint64_t moved_far = 0;
  std::uint64_t moved_near = 0;

  double hit_rate() const {
    return accesses ? static_cast<double>(hits) / static_cast<double>(accesses) : 0.0;
  }
  friend bool operator==(const SimResult&, const SimResult&) = default;
};

// A store of `blocks` distinct blocks. A request's hits are its longest resident run from block 0.
//
// `reuse`: the request's blocks stay while the missing ones enter from the root on, each in place of the
// resident leaf that is worth least, until one is worth less than all of them. The rest of the chain stays
// out. Then its blocks are touched leaf to root.
//
// With far memory, by `reuse` alone, what enters lies near, for which the coldest near block moves far, and
// for that one the coldest leaf there leaves; what was used in far memory moves near then, from leaf to root,
// in place of one that is not worth more (policy/far_memory.h).
//
// The others: the request's blocks are touched leaf to root, the missing ones inserted, the next by the
// policy leaving. So with lru a chain longer than the store keeps its first blocks.
class Simulator final {
 public:
  Simulator(SimPolicy policy, std::uint64_t blocks, const SimFar& far = {});
  Simulator(const Simulator&) = delete;
  Simulator& operator=(const Simulator&) = delete;

  // `reuse` alone makes use of the hints.
  void Submit(const Request& request, const PromptHints& hints = {});
  const SimResult& result() const { return result_; }

 private:
  static constexpr policy::EntryId kRoot = 0xffff'ffff;

  // Ids of a trace may be any numbers; policies want dense ones. They are numbered as they appear.
  policy::EntryId Dense(std::uint64_t hash_id, policy::EntryId parent);
  void SubmitToReuse(const Request& request, std::size_t hits, const PromptHints& hints);
  bool MakeRoom(const policy::Standing& newcomer);
  bool MakeRoomNear(const policy::Standing& newcomer);
  // The coldest on a side for which `may(id)` holds; the others are parked on the way.
  template <class May>
  std::optional<policy::EntryId> ColdestOf(policy::FarMemory::Side side, May may) {
    for (;;) {
      const std::optional<policy::EntryId> id = reuse_->ColdestOf(side);
      if (!id || may(*id)) return id;
      reuse_->Park(*id);
    }
  }
  void MoveFar(policy::EntryId id);
  void MoveNear(policy::EntryId id);
  bool IsFar(policy::EntryId id) const { return far_memory_.Has(reuse_->size_class(id)); }
  void Evict(policy::EntryId id);
  void SubmitToContender();
  void Enter(policy::EntryId id);
  // True: the id's parent is resident and has no resident child any more.
  bool Leave(policy::EntryId id);

  static constexpr policy::SizeClass kNear = 0, kFar = 1;

  SimResult result_;
  SimFar far_;
  policy::FarMemory far_memory_;
  std::uint64_t far_used_ = 0;
  policy::SizeClass freed_ = kNear;       // where the last one that left was
  std::unique_ptr<policy::Order> reuse_;  // one of the two
  std::unique_ptr<Contender> contender_;
  Extended extended_;
  std::vector<bool> resident_;
  std::vector<policy::EntryId> parents_;
  std::uint64_t used_ = 0;

  boost::unordered_flat_map<std::uint64_t, policy::EntryId> dense_;
  std::vector<policy::EntryId> chain_;
  std::vector<std::uint64_t> keys_;
  std::vector<bool> held_;  // by the current request

  TraceTime time_;
};

// All of `requests` through a Simulator. `blocks` is at least 1. Fails as the source fails. `told`: hints for
// each request, in order; the rest have none.
Result<SimResult> Simulate(RequestSource& requests, SimPolicy policy, std::uint64_t blocks,
                           const std::vector<PromptHints>& told = {}, const SimFar& far = {});

// What a caller could say at best of each request: whether the last whole block of its prompt is asked for
// again later, and with `when` in how long.
Result<std::vector<PromptHints>> Foretell(RequestSource& requests, bool when);

}  // namespace cistern::workload
