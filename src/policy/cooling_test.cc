// SPDX-License-Identifier: Apache-2.0
#include "policy/cooling.h"

#include <gtest/gtest.h>

namespace cistern::policy {
namespace {

// Ids of two sizes: a shelf each.
constexpr SizeClass kSmall = 1, kLarge = 2;

class CoolingTest : public testing::Test {
 protected:
  void Insert(EntryId id, SizeClass size) { order_.Insert(id, size, {}); }
  void Leave(EntryId id) {
    cooling_.NoteLeaves(order_, id);
    order_.Remove(id);
  }
  bool Advance() {
    cooling_.Settle();
    return cooling_.Advance(order_);
  }
  bool Cooled(EntryId id) const { return cooling_.Cooled(order_, id); }

  Order order_{EvictionPolicy::kLru, 1'000};
  Cooling cooling_;
};

TEST_F(CoolingTest, NothingHasCooledWhereNothingLeft) {
  for (EntryId id = 0; id < 100; ++id) Insert(id, kSmall);
  EXPECT_FALSE(Advance());
  EXPECT_FALSE(Cooled(0));
}

TEST_F(CoolingTest, WhatWasNotUsedForHalfOfItsShelfsLifeHasCooledOnce) {
  for (EntryId id = 0; id < 100; ++id) Insert(id, kSmall);
  Leave(0);
  ASSERT_TRUE(Advance());
  for (EntryId id = 1; id < 100; ++id) EXPECT_EQ(Cooled(id), id < 50) << id;
  EXPECT_FALSE(Advance());
  EXPECT_FALSE(Cooled(1));
  for (EntryId id = 100; id < 110; ++id) Insert(id, kSmall);
  order_.Touch(55, 0);
  ASSERT_TRUE(Advance());
  for (EntryId id = 1; id < 110; ++id) EXPECT_EQ(Cooled(id), id >= 50 && id < 61 && id != 55) << id;
}

TEST_F(CoolingTest, ShelfWhoseLifeIsShortCoolsBesideOneFromWhichLittleLeaves) {
  for (EntryId id = 0; id < 10; ++id) Insert(id, kLarge);
  for (EntryId id = 10; id < 1'000; ++id) {
    Insert(id, kSmall);
    if (id >= 110) Leave(id - 100);
  }
  ASSERT_TRUE(Advance());
  for (EntryId id = 0; id < 10; ++id) EXPECT_FALSE(Cooled(id)) << "none of its like has left";
  for (EntryId id = 900; id < 1'000; ++id) EXPECT_EQ(Cooled(id), id < 950) << id;
  // The first of them that leaves says what the life of the others is, and of these alone.
  Leave(0);
  ASSERT_TRUE(Advance());
  for (EntryId id = 1; id < 10; ++id) EXPECT_TRUE(Cooled(id));
  for (EntryId id = 900; id < 1'000; ++id) EXPECT_FALSE(Cooled(id)) << id;
}

TEST_F(CoolingTest, WhatIsNotSettledIsMeantAgainBesideWhatHasCooledSince) {
  for (EntryId id = 0; id < 100; ++id) Insert(id, kSmall);
  Leave(0);
  ASSERT_TRUE(cooling_.Advance(order_));
  for (EntryId id = 100; id < 110; ++id) Insert(id, kSmall);
  ASSERT_TRUE(cooling_.Advance(order_));
  for (EntryId id = 1; id < 110; ++id) EXPECT_EQ(Cooled(id), id < 60) << id;
  cooling_.Settle();
  EXPECT_FALSE(cooling_.Advance(order_));
}

// What leaves as the last of a chain counts as older than all there is, and says little of the others.
TEST_F(CoolingTest, LifeFallsAtOnceAndRisesSlowly) {
  for (EntryId id = 0; id < 400; ++id) Insert(id, kSmall);
  Leave(350);
  Leave(0);
  ASSERT_TRUE(Advance());
  for (const EntryId id : {1, 300, 370, 375, 380}) EXPECT_EQ(Cooled(id), id < 375) << id;
  for (EntryId id = 1; id < 300; ++id) {
    Insert(id + 399, kSmall);
    Leave(id);
  }
  ASSERT_TRUE(Advance());
  for (EntryId id = 480; id < 520; ++id) EXPECT_EQ(Cooled(id), id < 499) << id;
}

}  // namespace
}  // namespace cistern::policy
