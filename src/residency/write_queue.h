// SPDX-License-Identifier: Apache-2.0
// Records that wait to be written to the lower tier, first in, first out.
#pragma once

#include <cstddef>
#include <deque>

#include "catalog/forest.h"

namespace cistern::residency {

class WriteQueue final {
 public:
  static constexpr std::size_t kMostRecords = 65'536;

  bool empty() const { return records_.empty(); }
  std::size_t size() const { return records_.size(); }
  bool full() const { return records_.size() >= kMostRecords; }
  // So that what is queued of one block may not fit.
  bool nearly_full() const { return records_.size() + kMaxGroups > kMostRecords; }
  void Push(catalog::RecordHandle record) { records_.push_back(record); }
  catalog::RecordHandle front() const { return records_.front(); }
  void Pop() { records_.pop_front(); }
  void Clear() { records_.clear(); }

  // Refusals of a search for a record that may be lost unwritten. The search starts at the front, puts each
  // record that it refuses to the back, and may take several steps; the count restarts after each one found.
  std::size_t refused() const { return refused_; }
  void Refuse(catalog::RecordHandle record) {
    records_.push_back(record);
    ++refused_;
  }
  void Skip() { ++refused_; }
  void EndLook() { refused_ = 0; }

 private:
  std::deque<catalog::RecordHandle> records_;
  std::size_t refused_ = 0;
};

}  // namespace cistern::residency
