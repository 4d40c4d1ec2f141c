// SPDX-License-Identifier: Apache-2.0
// Records that a start has found and that conversations wrote: as many as conversations may have notes, those
// of the latest stamps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "catalog/forest.h"
#include "cistern/key.h"

namespace cistern::store {

struct WrittenRecord {
  catalog::TreeId tree;
  std::uint16_t group;
  BlockKey key;
  BlockKey parent;
  std::uint64_t born;
  std::uint64_t conversation;
  std::uint64_t sequence;  // of the stamp that says so
};

class WrittenRecords final {
 public:
  explicit WrittenRecords(std::size_t most) : most_(most) {}

  void Note(const WrittenRecord& record);
  // Some were found that are not kept here.
  bool left_out() const { return left_out_; }
  // All that are left, in no order.
  const std::vector<WrittenRecord>& records() const { return records_; }

  bool empty() const { return stamps_.empty(); }
  // The one of the earliest stamp; it stays in records().
  const WrittenRecord& TakeEarliest();
  void Clear();

 private:
  using Stamp = std::pair<std::uint64_t, std::uint32_t>;  // its sequence, and where in records_

  const std::size_t most_;
  std::vector<WrittenRecord> records_;
  std::vector<Stamp> stamps_;  // a heap, the earliest on top
  bool left_out_ = false;
};

}  // namespace cistern::store
