// SPDX-License-Identifier: Apache-2.0
#include "policy/fair_order.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>

#include "base/random.h"

namespace cistern::policy {
namespace {

TEST(FairOrder, P5WhoComesNewWaitsForOneServiceOfEachAtMost) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Random random(seed);
    FairOrder order;
    std::array<FairOrder::Customer, 8> greedy;
    for (FairOrder::Customer& one : greedy) order.Wait(one);
    FairOrder::Customer comes;
    for (int visit = 0; visit < 100; ++visit) {
      for (std::uint64_t served = random.Below(100); served > 0; --served) {
        FairOrder::Customer* next = order.Next();
        order.Charge(*next, random.Between(1, 512));
        order.Wait(*next);
      }
      order.Wait(comes);
      std::size_t before = 0;
      for (FairOrder::Customer* next; (next = order.Next()) != &comes; ++before) {
        order.Charge(*next, random.Between(1, 512));
        order.Wait(*next);
      }
      ASSERT_LE(before, greedy.size()) << seed;
      order.Charge(comes, 1);
    }
  }
}

TEST(FairOrder, WhoWaitAllTheTimeGetTheSameWorkWhateverAServiceTakes) {
  FairOrder order;
  std::array<FairOrder::Customer, 3> customers;
  constexpr std::array<std::uint64_t, 3> kTakes = {1, 30, 512};
  std::array<std::uint64_t, 3> used{};
  for (FairOrder::Customer& one : customers) order.Wait(one);
  for (int i = 0; i < 100'000; ++i) {
    FairOrder::Customer* next = order.Next();
    const auto which = static_cast<std::size_t>(next - customers.data());
    order.Charge(*next, kTakes[which]);
    used[which] += kTakes[which];
    order.Wait(*next);
  }
  for (const std::uint64_t one : used) {
    EXPECT_LE(one, used[0] + 512);
    EXPECT_GE(one + 512, used[0]);
  }
}

TEST(FairOrder, WhoHadNothingToAskForHasSavedNothing) {
  FairOrder order;
  FairOrder::Customer busy, rests;
  order.Wait(busy);
  for (int i = 0; i < 1000; ++i) {
    order.Charge(*order.Next(), 10);
    order.Wait(busy);
  }
  order.Wait(rests);
  // From now on it has its half, and not the thousand services that it did without.
  int served = 0;
  for (int i = 0; i < 100; ++i) {
    FairOrder::Customer* next = order.Next();
    served += next == &rests;
    order.Charge(*next, 10);
    order.Wait(*next);
  }
  EXPECT_LE(std::abs(served - 50), 1);
}

}  // namespace
}  // namespace cistern::policy
