// SPDX-License-Identifier: Apache-2.0
#include "store/written_records.h"

#include <algorithm>
#include <functional>

namespace cistern::store {

void WrittenRecords::Note(const WrittenRecord& record) {
  if (records_.size() < most_) {
    stamps_.emplace_back(record.sequence, static_cast<std::uint32_t>(records_.size()));
    records_.push_back(record);
  } else {
    left_out_ = true;
    if (stamps_.empty() || record.sequence <= stamps_.front().first) return;
    std::ranges::pop_heap(stamps_, std::greater());
    stamps_.back().first = record.sequence;
    records_[stamps_.back().second] = record;
  }
  std::ranges::push_heap(stamps_, std::greater());
}

const WrittenRecord& WrittenRecords::TakeEarliest() {
  std::ranges::pop_heap(stamps_, std::greater());
  const std::uint32_t at = stamps_.back().second;
  stamps_.pop_back();
  return records_[at];
}

void WrittenRecords::Clear() {
  records_ = {};
  stamps_ = {};
}

}  // namespace cistern::store
