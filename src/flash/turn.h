// SPDX-License-Identifier: Apache-2.0
// How long records lie in a log before their room is given up: since as many bytes were appended as it holds.
// Times come in as values.
#pragma once

#include <cstdint>
#include <deque>

#include "base/clock.h"

namespace cistern::flash {

class Turn {
 public:
  explicit Turn(Instant now) : marks_{{0, now}} {}

  // So many bytes more, to a log that holds `capacity`, at least 1.
  void Append(std::uint64_t bytes, std::uint64_t capacity, Instant now) {
    appended_ += bytes;
    if (appended_ - marks_.back().appended >= capacity / kMarks) marks_.push_back({appended_, now});
    while (marks_.size() > 1 && marks_[1].appended + capacity <= appended_) marks_.pop_front();
  }
  // In milliseconds; 0 before a 64th of it was appended. As long as it was not filled once since the start,
  // by how fast it was filled.
  double Ms(std::uint64_t capacity, Instant now) const {
    const Mark& first = marks_.front();
    const std::uint64_t since = appended_ - first.appended;
    if (since < capacity / kMarks || since == 0) return 0;
    const double ms = static_cast<double>(now.NsSince(first.at)) / 1e6;
    return since >= capacity ? ms : ms * (static_cast<double>(capacity) / static_cast<double>(since));
  }

 private:
  static constexpr std::uint64_t kMarks = 64;
  struct Mark {
    std::uint64_t appended;
    Instant at;
  };
  std::uint64_t appended_ = 0;
  std::deque<Mark> marks_;
};

}  // namespace cistern::flash
