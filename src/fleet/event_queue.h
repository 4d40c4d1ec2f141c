// SPDX-License-Identifier: Apache-2.0
// What happens next: events by time, those of one time in the order in which they were scheduled, so that a
// run is the same run on every machine.
//
// A ladder: the next few events stand in order, those behind them in buckets of time whose events are put in
// order when their turn comes, and those behind all buckets in a heap of no order. A bucket with many events
// becomes buckets of less time first. So an event costs the same however many are scheduled, and it is known
// a few events ahead what will be needed.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace cistern::fleet {

template <class T>
class EventQueue final {
 public:
  void Schedule(double at_s, T event) {
    ++size_;
    Put({at_s, next_++, std::move(event)});
    if (near_.empty()) Refill();
  }
  bool empty() const { return size_ == 0; }
  double now_s() const { return now_s_; }
  std::uint64_t taken() const { return taken_; }
  // The event that is `ahead` behind the next, as it is scheduled now; null where it is not known yet. The
  // next one, 0, is.
  const T* Ahead(std::size_t ahead) const {
    return ahead < near_.size() ? &near_[near_.size() - 1 - ahead].event : nullptr;
  }
  // The next event; the clock stands at its time from then on. One at least is scheduled.
  T Take() {
    Timed timed = std::move(near_.back());
    near_.pop_back();
    --size_;
    ++taken_;
    now_s_ = timed.at_s;
    if (near_.empty()) Refill();
    return std::move(timed.event);
  }

 private:
  static constexpr std::size_t kFew = 32;    // of a bucket, put in order
  static constexpr std::size_t kMany = 256;  // in order at a time, where their times differ
  static constexpr std::size_t kABucket = 8;
  static constexpr std::size_t kMostRungs = 12;

  struct Timed {
    double at_s;
    std::uint64_t number;
    T event;
  };
  static bool Later(const Timed& a, const Timed& b) {
    return a.at_s != b.at_s ? a.at_s > b.at_s : a.number > b.number;
  }
  // Buckets of one width. Rounding moves their bounds, and never the order of two times.
  struct Rung {
    double from_s = 0, buckets_a_second = 0;
    std::size_t used = 0;  // of the buckets; the others keep their memory
    std::size_t next = 0;  // those before it are taken
    std::vector<std::vector<Timed>> buckets;

    std::size_t BucketOf(double at_s) const {
      const double bucket = (at_s - from_s) * buckets_a_second;
      return bucket > 0 ? static_cast<std::size_t>(std::min(bucket, static_cast<double>(used - 1))) : 0;
    }
  };

  void Put(Timed timed) {
    if (timed.at_s >= far_from_s_) return far_.push_back(std::move(timed));
    for (std::size_t i = 0; i < rungs_used_; ++i) {
      Rung& rung = rungs_[i];
      const std::size_t bucket = rung.BucketOf(timed.at_s);
      if (bucket >= rung.next) return rung.buckets[bucket].push_back(std::move(timed));
    }
    near_.insert(std::ranges::lower_bound(near_, timed, Later), std::move(timed));
    if (near_.size() % kMany == 0) Spread(near_);
  }

  // The events become the buckets of another rung, if there is one left and their times differ.
  bool Spread(std::vector<Timed>& events) {
    const auto [first, last] = std::ranges::minmax(events, {}, &Timed::at_s);
    const double from_s = first.at_s;
    const std::size_t buckets = events.size() / kABucket + 1;
    const double buckets_a_second = static_cast<double>(buckets) / (last.at_s - from_s);
    if (rungs_used_ == kMostRungs || !(buckets_a_second < kMostBucketsASecond)) return false;
    Rung& rung = rungs_[rungs_used_++];
    rung.from_s = from_s;
    rung.buckets_a_second = buckets_a_second;
    rung.used = buckets;
    rung.next = 0;
    if (rung.buckets.size() < buckets) rung.buckets.resize(buckets);
    for (Timed& timed : events) rung.buckets[rung.BucketOf(timed.at_s)].push_back(std::move(timed));
    events.clear();
    return true;
  }

  // near_ is empty: the events that come next.
  void Refill() {
    while (near_.empty() && size_ > 0) {
      std::vector<Timed>* events = &far_;
      if (rungs_used_ > 0) {
        Rung& rung = rungs_[rungs_used_ - 1];
        while (rung.next < rung.used && rung.buckets[rung.next].empty()) ++rung.next;
        if (rung.next == rung.used) {
          --rungs_used_;
          continue;
        }
        events = &rung.buckets[rung.next++];
      } else {
        far_from_s_ = std::ranges::max(far_, {}, &Timed::at_s).at_s;
      }
      if (events->size() > kFew && Spread(*events)) continue;
      near_.swap(*events);
      std::ranges::sort(near_, Later);
    }
  }

  static constexpr double kMostBucketsASecond = 1e15;  // not for times that are equal but for a rounding

  std::vector<Timed> near_;             // the next ones, the soonest last
  std::array<Rung, kMostRungs> rungs_;  // each within one bucket of the one before
  std::size_t rungs_used_ = 0;
  std::vector<Timed> far_;  // at far_from_s_ or later
  double far_from_s_ = 0;
  std::size_t size_ = 0;
  double now_s_ = 0;
  std::uint64_t next_ = 0, taken_ = 0;
};

}  // namespace cistern::fleet
