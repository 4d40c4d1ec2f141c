// SPDX-License-Identifier: Apache-2.0
// Policies that `reuse` is compared with: textbook ones, over dense ids. All evict leaf first: a block leaves
// before the block that it extends. Room for measuring, not for a node: some cost O(log n) a call, and some
// remember more ids than are resident.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "policy/evict.h"

namespace cistern::workload {

// Blocks extended by resident ones, which therefore stay.
class Extended final {
 public:
  bool operator()(policy::EntryId id) const { return id < children_.size() && children_[id] > 0; }
  void Add(policy::EntryId parent) {
    if (parent >= children_.size()) children_.resize(std::size_t{parent} + 1);
    ++children_[parent];
  }
  // True: it was the last.
  bool Drop(policy::EntryId parent) { return --children_[parent] == 0; }

 private:
  std::vector<std::uint32_t> children_;
};

class Contender {
 public:
  virtual ~Contender() = default;
  // A resident id is used again; an absent one becomes resident with its first use.
  virtual void Touch(policy::EntryId id) = 0;
  virtual void Insert(policy::EntryId id) = 0;
  // Removes the next to leave of those that are not extended, and returns it. One at least is resident.
  virtual policy::EntryId Evict() = 0;
  // The id is extended no more.
  virtual void Unpark(policy::EntryId) {}
};

// Each is for `blocks` resident ids and borrows `extended`.
std::unique_ptr<Contender> MakeLru(const Extended& extended);
std::unique_ptr<Contender> MakeFifo(const Extended& extended);
// Segmented LRU: a fifth of the blocks is for those used again.
std::unique_ptr<Contender> MakeSlru(const Extended& extended, std::uint64_t blocks);
// Least frequently used, then least recently. An id that returns starts at the count that was evicted last.
std::unique_ptr<Contender> MakeLfu(const Extended& extended);
// Oldest second last use first; remembers the uses of 4 * blocks evicted ids.
std::unique_ptr<Contender> MakeLru2(const Extended& extended, std::uint64_t blocks);
// Adaptive replacement: ids used once and ids used again, in shares that follow which of the ids evicted of
// late are asked for.
std::unique_ptr<Contender> MakeArc(const Extended& extended, std::uint64_t blocks);

}  // namespace cistern::workload
