// SPDX-License-Identifier: Apache-2.0
#include "policy/far_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace cistern::policy {
namespace {

constexpr SizeClass kNear = 3, kFar = 128 + 3;
constexpr FarMemory kMemory(128);
constexpr auto kAny = [](EntryId) { return true; };

TEST(FarMemory, SizeClassesAreNearOrFar) {
  EXPECT_TRUE(kMemory.near()(kNear));
  EXPECT_FALSE(kMemory.near()(kFar));
  EXPECT_TRUE(kMemory.far()(kFar));
  EXPECT_TRUE(kMemory.SideOf(kFar)(kFar));
  EXPECT_FALSE(kMemory.SideOf(kFar)(kNear));
}

TEST(FarMemory, ByLruTheOlderOfBothLeavesAndAllThatIsUsedFarMovesNear) {
  Order order(EvictionPolicy::kLru, 100);
  order.Insert(0, kFar, {});
  order.Insert(1, kNear, {});
  EXPECT_EQ(WayOf(order, {}, 1, 0), NearWay::kMoves);
  order.Touch(0, 0);
  EXPECT_EQ(WayOf(order, {}, 1, 0), NearWay::kLeaves);
  EXPECT_EQ(WayOf(order, {}, 1, std::nullopt), NearWay::kLeaves) << "nothing far may leave";
  EXPECT_TRUE(MovesNear(order, kMemory, 0, kAny));
}

// One that is to be kept is worth more than all others.
class KeptAndOthers : public testing::Test {
 protected:
  static constexpr EntryId kKept = 0;

  void SetUp() override {
    const auto ask = [&](std::vector<EntryId> ids, Importance importance) {
      const std::vector<std::uint64_t> keys(ids.begin(), ids.end());
      order_.SetNow(now_ms_ += 1'000);
      order_.TakeIn({.hints = {.importance = importance}}, keys, {});
      Standing standing;
      for (const EntryId id : ids) order_.Insert(id, kNear, standing = order_.StandingOf(id, standing));
    };
    ask({kKept}, Importance::kKeep);
    ask({1, 2, 3}, Importance::kHigh);
  }
  // All but one lie far.
  void LeaveNear(EntryId near) {
    for (EntryId id = 0; id < 4; ++id) order_.Reclass(id, id == near ? kNear : kFar);
  }

  Order order_{EvictionPolicy::kReuse, 100};
  std::uint64_t now_ms_ = 0;
};

TEST_F(KeptAndOthers, WhatIsUsedFarStaysThereWhereAllThatIsNearIsWorthMore) {
  LeaveNear(kKept);
  EXPECT_FALSE(MovesNear(order_, kMemory, 1, kAny));
  EXPECT_TRUE(MovesNear(order_, kMemory, 1, [](EntryId) { return false; })) << "nothing is asked of it";
  LeaveNear(2);
  EXPECT_TRUE(MovesNear(order_, kMemory, 1, kAny));
  EXPECT_TRUE(MovesNear(order_, kMemory, kKept, kAny));
}

TEST_F(KeptAndOthers, WhatIsWorthLessThanAllThatIsFarLeavesAndSoDoesWhatIsWorthLessThanBothStayOut) {
  LeaveNear(2);
  EXPECT_EQ(WayOf(order_, {}, 2, 1), NearWay::kMoves) << "1 is older";
  EXPECT_EQ(WayOf(order_, {}, 2, kKept), NearWay::kLeaves);
  LeaveNear(kKept);
  EXPECT_EQ(WayOf(order_, {}, kKept, 1), NearWay::kMoves);
  const Standing other = order_.StandingOf(1);
  EXPECT_EQ(WayOf(order_, other, kKept, std::nullopt), NearWay::kNewStaysOut);
  EXPECT_EQ(WayOf(order_, {}, kKept, std::nullopt), NearWay::kLeaves) << "nobody told of it";
}

}  // namespace
}  // namespace cistern::policy
