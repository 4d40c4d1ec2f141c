// SPDX-License-Identifier: Apache-2.0
// What happened in each namespace since the node's start, and what it has in memory, for metrics; and what it
// has in the lower tier, for quotas. By slot number; what was counted goes with the list that had the slot.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "arena/layout.h"
#include "base/assert.h"
#include "base/clock.h"
#include "catalog/forest.h"
#include "policy/quota.h"

namespace cistern::catalog {

struct NamespaceCounters {
  std::uint64_t memory_records = 0;
  std::uint64_t memory_bytes = 0;        // of their bodies
  std::uint64_t lower_bytes = 0;         // of bodies in the lower tier
  std::uint64_t lower_record_bytes = 0;  // of the whole records there
  std::uint64_t published = 0;           // records
  std::uint64_t uses = 0;                // of records, as clients told them
  Instant last_use;                      // to the last SetTime before it; where uses is 0, when the list came
  std::uint64_t misses = 0;              // blocks that were asked for
  std::uint64_t evicted = 0;             // records
  std::uint64_t fingerprint = 0;         // of the list; 0: not computed yet
  policy::QuotaGroup group = 0;          // whose quota new records count for
};

class CountersOfNamespaces final {
 public:
  explicit CountersOfNamespaces(const Forest& forest) : forest_(forest), counters_(arena::kMaxNamespaces) {}

  NamespaceCounters& of(std::uint32_t slot) { return counters_[slot]; }
  // Of a tree, also one of a dropped namespace that is being collected.
  NamespaceCounters& At(TreeId tree) {
    if (tree == last_tree_) return *last_;  // most work is of one namespace for a while
    const IncarnationTree* found = forest_.tree(tree);
    if (found == nullptr) return nobodys_;
    last_tree_ = tree;
    last_ = &counters_[found->slot];
    return *last_;
  }
  // The time of uses from now on: a look at the clock for each use would cost as much as the use.
  void SetTime(Instant now) { now_ = now; }
  // A record of the tree is used.
  void Use(TreeId tree) {
    NamespaceCounters& counters = At(tree);
    ++counters.uses;
    counters.last_use = now_;
  }
  // Another list has the slot now. What memory and the lower tier still have of the earlier one is counted
  // on.
  void Restart(std::uint32_t slot) {
    SetGroup(slot, 0);
    NamespaceCounters& counters = counters_[slot];
    counters = {.memory_records = counters.memory_records,
                .memory_bytes = counters.memory_bytes,
                .lower_bytes = counters.lower_bytes,
                .lower_record_bytes = counters.lower_record_bytes,
                .last_use = now_};
  }
  // New records of the slot's namespace, and all that it has in the lower tier, count for this quota.
  void SetGroup(std::uint32_t slot, policy::QuotaGroup group) {
    NamespaceCounters& counters = counters_[slot];
    below_[counters.group] -= counters.lower_bytes;
    below_[group] += counters.lower_bytes;
    records_below_[counters.group] -= counters.lower_record_bytes;
    records_below_[group] += counters.lower_record_bytes;
    counters.group = group;
  }
  // A record of the tree has its body in the lower tier from now on, or no longer.
  void AddBelow(TreeId tree, std::uint64_t body_bytes, std::uint64_t record_bytes) {
    NamespaceCounters& counters = At(tree);
    counters.lower_bytes += body_bytes;
    counters.lower_record_bytes += record_bytes;
    below_[counters.group] += body_bytes;
    records_below_[counters.group] += record_bytes;
  }
  void TakeBelow(TreeId tree, std::uint64_t body_bytes, std::uint64_t record_bytes) {
    NamespaceCounters& counters = At(tree);
    CISTERN_ASSERT(counters.lower_bytes >= body_bytes && counters.lower_record_bytes >= record_bytes);
    counters.lower_bytes -= body_bytes;
    counters.lower_record_bytes -= record_bytes;
    below_[counters.group] -= body_bytes;
    records_below_[counters.group] -= record_bytes;
  }
  // Bytes in the lower tier by group: of bodies, and of whole records.
  const policy::QuotaTable::Used& below() const { return below_; }
  const policy::QuotaTable::Used& records_below() const { return records_below_; }

 private:
  const Forest& forest_;
  std::vector<NamespaceCounters> counters_;
  NamespaceCounters nobodys_;
  policy::QuotaTable::Used below_{};
  policy::QuotaTable::Used records_below_{};
  TreeId last_tree_ = kNoId;  // ids of trees are never given out again
  NamespaceCounters* last_ = nullptr;
  Instant now_;
};

}  // namespace cistern::catalog
