// SPDX-License-Identifier: Apache-2.0
#include "fleet/event_queue.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <utility>

#include "base/random.h"
#include "fleet/ranking.h"

namespace cistern::fleet {
namespace {

// Beside a set of (time, number): what is taken is always its least.
class Both final {
 public:
  void Schedule(double at_s) {
    queue_.Schedule(at_s, next_);
    set_.emplace(at_s, next_++);
  }
  void Take() {
    ASSERT_FALSE(queue_.empty());
    const std::uint64_t next = *queue_.Ahead(0);
    const auto [at_s, number] = *set_.begin();
    ASSERT_EQ(next, number);
    ASSERT_EQ(queue_.Take(), number);
    ASSERT_EQ(queue_.now_s(), at_s);
    set_.erase(set_.begin());
    ASSERT_EQ(queue_.empty(), set_.empty());
  }
  double now_s() const { return queue_.now_s(); }
  std::size_t size() const { return set_.size(); }

 private:
  EventQueue<std::uint64_t> queue_;
  std::set<std::pair<double, std::uint64_t>> set_;
  std::uint64_t next_ = 0;
};

// Delays of all sizes, none among them, and times that many events share.
double Delay(Random& random, double now_s) {
  switch (random.Below(6)) {
    case 0: return 0;
    case 1: return random.Unit() * 1e-6;
    case 2: return std::ceil(now_s) - now_s;
    case 3: return -std::log(1 - random.Unit()) * 3'600;
    default: return random.Unit();
  }
}

TEST(EventQueue, TakesByTimeAndThenByNumberWhateverTheDelays) {
  for (const std::size_t under_way : {1u, 20u, 300u, 5'000u}) {
    Random random(under_way);
    Both both;
    for (int i = 0; i < 60'000; ++i) {
      if (both.size() < under_way && random.Below(3) > 0) {
        both.Schedule(both.now_s() + Delay(random, both.now_s()));
      } else if (both.size() > 0) {
        ASSERT_NO_FATAL_FAILURE(both.Take());
      }
    }
    while (both.size() > 0) ASSERT_NO_FATAL_FAILURE(both.Take());
  }
}

TEST(EventQueue, ThousandsAtOneTimeAndAtNeighbouringOnesComeInTheirOrder) {
  Both both;
  const double next_s = std::nextafter(5.0, std::numeric_limits<double>::infinity());
  for (int i = 0; i < 3'000; ++i) both.Schedule(i % 7 == 0 ? next_s : 5.0);
  for (int i = 0; i < 100; ++i) ASSERT_NO_FATAL_FAILURE(both.Take());
  for (int i = 0; i < 3'000; ++i) both.Schedule(i % 2 == 0 ? 5.0 : 6.0);
  while (both.size() > 0) ASSERT_NO_FATAL_FAILURE(both.Take());
}

TEST(Ranking, FirstOnesAreTheLeastAsNodesChangePlace) {
  Random random(5);
  Ranking ranking;
  std::set<std::pair<double, NodeNumber>> expected;
  std::vector<double> work(500);
  for (NodeNumber node = 0; node < work.size(); ++node) {
    ranking.Insert({0, 0, node});
    expected.emplace(0, node);
  }
  for (int i = 0; i < 20'000; ++i) {
    const auto node = static_cast<NodeNumber>(random.Below(work.size()));
    const bool there = expected.erase({work[node], node}) > 0;
    if (there) ranking.Erase({work[node], 0, node});
    work[node] = random.Below(4) == 0 ? 0 : static_cast<double>(random.Below(100));
    if (random.Below(10) > 0) {
      ranking.Insert({work[node], 0, node});
      expected.emplace(work[node], node);
    }
    ASSERT_EQ(ranking.size(), expected.size());
    ASSERT_EQ(ranking.first(), expected.begin()->second);
    auto at = expected.begin();
    ranking.ForFirst(i % 100 == 0 ? 500 : 8, [&](NodeNumber one) { ASSERT_EQ(one, (at++)->second); });
  }
}

}  // namespace
}  // namespace cistern::fleet
