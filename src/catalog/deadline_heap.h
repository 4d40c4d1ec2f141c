// SPDX-License-Identifier: Apache-2.0
// Deadlines of dense ids: the first one, and removal at any time. Instants of any one clock.
#pragma once

#include <cstdint>
#include <vector>

#include "catalog/slab.h"

namespace cistern::catalog {

class DeadlineHeap final {
 public:
  // Ids are less than `ids`.
  explicit DeadlineHeap(std::size_t ids) : at_(ids) {}

  // Sets or changes the deadline of `id`. O(log n).
  void Set(std::uint32_t id, std::int64_t when);
  // No effect on an id without a deadline.
  void Remove(std::uint32_t id);
  bool Contains(std::uint32_t id) const { return at_[id] != 0; }

  bool empty() const { return heap_.empty(); }
  std::size_t size() const { return heap_.size(); }
  // The heap is not empty.
  std::uint32_t first() const { return heap_.front().id; }
  std::int64_t first_when() const { return heap_.front().when; }

 private:
  struct Entry {
    std::int64_t when;
    std::uint32_t id;
  };

  void Place(std::size_t at, Entry entry);
  void Up(std::size_t at);
  void Down(std::size_t at);

  std::vector<Entry> heap_;
  LazyArray<std::uint32_t> at_;  // where in the heap, plus one
};

}  // namespace cistern::catalog
