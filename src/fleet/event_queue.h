// SPDX-License-Identifier: Apache-2.0
// What happens next: events by time, those of one time in the order in which they were scheduled, so that a
// run is the same run on every machine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace cistern::fleet {

template <class T>
class EventQueue final {
 public:
  void Schedule(double at_s, T event) {
    heap_.push_back({at_s, next_++, std::move(event)});
    std::ranges::push_heap(heap_, Later);
  }
  bool empty() const { return heap_.empty(); }
  const T& next() const { return heap_.front().event; }  // as it is scheduled now; not empty
  double now_s() const { return now_s_; }
  std::uint64_t taken() const { return taken_; }
  // The next event; the clock stands at its time from then on. One at least is scheduled.
  T Take() {
    std::ranges::pop_heap(heap_, Later);
    Timed timed = std::move(heap_.back());
    heap_.pop_back();
    now_s_ = timed.at_s;
    ++taken_;
    return std::move(timed.event);
  }

 private:
  struct Timed {
    double at_s;
    std::uint64_t number;
    T event;
  };
  static bool Later(const Timed& a, const Timed& b) {
    return a.at_s != b.at_s ? a.at_s > b.at_s : a.number > b.number;
  }

  std::vector<Timed> heap_;
  double now_s_ = 0;
  std::uint64_t next_ = 0, taken_ = 0;
};

}  // namespace cistern::fleet
