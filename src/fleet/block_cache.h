// SPDX-License-Identifier: Apache-2.0
// Blocks that a node, or all nodes of a global store together, keep: the node's own eviction policies over
// block ids of a trace, and which node has each block. Memory is by capacity, however long the run.
#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "policy/order.h"

namespace cistern::fleet {

using NodeNumber = std::uint32_t;

// Neighbouring blocks of a prompt that one node has.
struct HomeRun {
  NodeNumber home = 0;
  std::uint32_t blocks = 0;
  const std::vector<bool>* copies = nullptr;  // by node: others that have it too; null: none. Of one block

  bool At(NodeNumber node) const {
    return home == node || (copies != nullptr && node < copies->size() && (*copies)[node]);
  }
};

class BlockCache final {
 public:
  using Chain = std::span<const std::uint64_t>;

  // `blocks` of 0 keeps nothing.
  BlockCache(EvictionPolicy policy, std::uint64_t blocks);

  // The longest resident run from block 0; where `homes` is given, who has its blocks.
  std::size_t Match(Chain chain, std::vector<HomeRun>* homes = nullptr) const;
  // `to` loaded the chain's first blocks: those that are still there are its from now on. Of a block that
  // several prompts extend a copy stays where it was, so that what many ask for is not behind one node's
  // link.
  void Move(Chain chain, NodeNumber to);
  // A request's blocks were computed or used by `home`: the missing ones enter from the root on, as far as
  // the policy gives them room, and all are touched. Times never go back.
  void Store(Chain chain, bool partial, std::uint64_t now_ms, NodeNumber home);
  // The blocks that `home` alone has are lost, and with them all that extend them.
  void Lose(NodeNumber home);
  std::uint64_t size() const { return found_.size(); }
  std::uint64_t copies() const { return copies_count_; }

 private:
  static constexpr policy::EntryId kNone = 0xffff'ffff;
  struct Slot {
    std::uint64_t hash_id = 0;
    policy::EntryId parent = kNone;
    policy::EntryId next = kNone;  // the child that came last: where a prompt is most likely to go on
    std::uint32_t children = 0;
    NodeNumber home = 0;
    std::uint32_t copies = kNone;  // where in copies_; kNone: there are none
    bool held = false;             // by the request that is being stored
  };

  struct Copies {
    std::vector<bool> at;  // by node
    std::uint32_t count = 0;
  };

  policy::EntryId Find(std::uint64_t hash_id) const {
    const auto at = found_.find(hash_id);
    return at == found_.end() ? kNone : at->second;
  }
  // The same of the block behind `before`, kNone for the first. Blocks of a chain came one after the other
  // and lie so, where the table has them anywhere.
  policy::EntryId FindBehind(policy::EntryId before, std::uint64_t hash_id) const {
    const policy::EntryId next = before == kNone ? kNone : slots_[before].next;
    const bool it = next != kNone && slots_[next].parent == before && slots_[next].hash_id == hash_id;
    return it ? next : Find(hash_id);
  }
  // False: the newcomer stays out, or none may leave.
  bool MakeRoom(const policy::Standing& newcomer);
  bool HasCopy(const Slot& slot, NodeNumber node) const {
    if (slot.copies == kNone) return false;
    const std::vector<bool>& at = copies_[slot.copies].at;
    return node < at.size() && at[node];
  }
  void AddCopy(policy::EntryId id, NodeNumber node);
  bool DropCopy(policy::EntryId id, NodeNumber node);
  void DropOldestCopy();
  void FreeCopies(policy::EntryId id);
  void Insert(std::uint64_t hash_id, NodeNumber home, const policy::Standing& standing);
  void Evict(policy::EntryId id);

  const std::uint64_t blocks_;
  policy::Order order_;
  boost::unordered_flat_map<std::uint64_t, policy::EntryId> found_;
  std::vector<Slot> slots_;
  std::vector<policy::EntryId> free_;
  std::vector<policy::EntryId> chain_;  // resident blocks of the request that is being stored
  std::vector<std::uint64_t> keys_;

  // Copies beside a block's home, at most a sixteenth of the room; the oldest goes first.
  std::deque<Copies> copies_;  // of a block; in use or free
  std::vector<std::uint32_t> free_copies_;
  std::deque<std::pair<policy::EntryId, NodeNumber>> copied_;
  std::uint64_t copies_count_ = 0;
};

}  // namespace cistern::fleet
