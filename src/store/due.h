// SPDX-License-Identifier: Apache-2.0
// What is due when, by dense ids: which is first, and out again at any time. Instants of any one clock.
#pragma once

#include <cstdint>
#include <vector>

#include "store/slab.h"

namespace cistern {

class Due final {
 public:
  // Ids are below `ids`.
  explicit Due(std::size_t ids) : at_(ids) {}

  // `id` is due at `when` from now on, whether it was before or not. O(log n).
  void Set(std::uint32_t id, std::int64_t when);
  // Nothing happens to one that is not due.
  void Remove(std::uint32_t id);
  bool Contains(std::uint32_t id) const { return at_[id] != 0; }

  bool empty() const { return heap_.empty(); }
  std::size_t size() const { return heap_.size(); }
  // Not when empty.
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

}  // namespace cistern
