// SPDX-License-Identifier: Apache-2.0
#include "policy/write_price.h"

#include <gtest/gtest.h>

#include <span>
#include <vector>

namespace cistern::policy {
namespace {

// Sessions of two kinds, told apart by the blocks that a prompt adds: those of one block come back after half
// a minute, time and again; those of twenty never do.
class WritePriceTest : public testing::Test {
 protected:
  WritePriceTest() {
    for (std::uint64_t at_ms = 0; at_ms < 1'800'000; at_ms += 1'000) {
      order_.SetNow(at_ms);
      if (at_ms >= 30'000) Ask(at_ms / 1'000 - 30, 1, 1);
      Ask(at_ms / 1'000, 1, 0);
      Ask(1'000'000 + at_ms, 20, 0);
    }
  }
  void Ask(std::uint64_t first_key, std::size_t blocks, std::size_t residents) {
    std::vector<std::uint64_t> keys;
    for (std::size_t i = 0; i < blocks; ++i) keys.push_back(first_key + i * 10'000'000);
    const auto id = static_cast<EntryId>(first_key);
    if (residents > 0 && !order_.Contains(id)) residents = 0;
    order_.TakeIn({}, keys, std::span(&id, residents));
    const Standing standing = order_.StandingOf(keys[0], {});
    if (!order_.Contains(id)) order_.Insert(id, 0, standing);
    (blocks == 1 ? short_ : long_) = order_.ClassOf(id);
  }
  // A thousand times, evenly over half an hour.
  void Offer(std::uint64_t short_bytes, std::uint64_t long_bytes) {
    for (std::uint64_t at_ms = 1'800; at_ms <= 1'800'000; at_ms += 1'800) {
      price_.Offer(short_, short_bytes, at_ms);
      price_.Offer(long_, long_bytes, at_ms);
    }
  }
  bool Pays(Reuse::Class in) const { return price_.Pays(order_, in); }

  Order order_{EvictionPolicy::kReuse, 1'000};
  WritePrice price_;
  Reuse::Class short_ = 0, long_ = 0;
};

TEST_F(WritePriceTest, WhatIsLearnedOfReturnsTellsTheKindsApart) {
  EXPECT_GT(order_.ReturnsWithin(short_, 60'000), 3 * order_.ReturnsWithin(long_, 60'000));
  EXPECT_LT(order_.ReturnsWithin(short_, 10'000), order_.ReturnsWithin(short_, 60'000));
  EXPECT_EQ(order_.ReturnsWithin(short_, 0), 0);
  EXPECT_LE(order_.ReturnsWithin(short_, 1e12), 1);
}

TEST_F(WritePriceTest, WhileThereIsRoomAllPay) {
  Offer(1'000, 20'000);
  price_.Set(order_, {}, 1'800'000);
  EXPECT_EQ(price_.price(), 0);
  EXPECT_TRUE(Pays(short_));
  EXPECT_TRUE(Pays(long_));
}

TEST_F(WritePriceTest, WhereTheTurnIsAboutAsLongAsTheReturnTakesOnlyWhatReturnsPays) {
  Offer(10'000, 10'000);
  price_.Set(order_, {.turn_ms = 40'000}, 1'800'000);
  EXPECT_TRUE(Pays(short_));
  EXPECT_FALSE(Pays(long_));
}

// Each write would push out another one shortly before its use: what is there stays, until it has lain there
// for long enough.
TEST_F(WritePriceTest, WhereTheTurnIsTooShortForAnyReturnNothingPays) {
  Offer(10'000, 10'000);
  price_.Set(order_, {.turn_ms = 25'000}, 1'800'000);
  EXPECT_FALSE(Pays(short_));
  EXPECT_FALSE(Pays(long_));
}

// All that returns has done so by then: room is worth nothing.
TEST_F(WritePriceTest, WhereTheTurnIsMuchLongerAllPay) {
  Offer(10'000, 10'000);
  price_.Set(order_, {.turn_ms = 8 * 3'600'000.0}, 1'800'000);
  EXPECT_TRUE(Pays(short_));
  EXPECT_TRUE(Pays(long_));
}

TEST_F(WritePriceTest, ABudgetIsSpentOnWhatReturns) {
  Offer(9'000, 9'000);  // 10 bytes a millisecond of both together
  price_.Set(order_, {.budget_bytes_a_ms = 5}, 1'800'000);
  EXPECT_TRUE(Pays(short_));
  EXPECT_FALSE(Pays(long_));
  price_.Set(order_, {.budget_bytes_a_ms = 11}, 1'800'000);
  EXPECT_TRUE(Pays(long_)) << "it pays for all";
  price_.Set(order_, {.moved = 1, .budget_bytes_a_ms = 9}, 1'800'000);
  EXPECT_FALSE(Pays(long_)) << "what is moved spends half of it";
  price_.Set(order_, {.moved = 1, .budget_bytes_a_ms = 9, .saved = 1}, 1'800'000);
  EXPECT_TRUE(Pays(long_)) << "as much again is saved up";
}

TEST_F(WritePriceTest, OffersOfLongAgoAreForgotten) {
  price_.Offer(long_, 1'000'000'000, 1'800'000);
  const std::uint64_t later = 1'800'000 + 12 * 3'600'000;
  price_.Offer(short_, 1'000, later);
  price_.Set(order_, {.budget_bytes_a_ms = 1}, later);
  EXPECT_EQ(price_.price(), 0);
}

TEST_F(WritePriceTest, ByLruAllPay) {
  const Order lru(EvictionPolicy::kLru, 1'000);
  price_.Offer(0, 1'000'000'000, 0);
  price_.Set(lru, {.turn_ms = 1'000, .budget_bytes_a_ms = 1}, 1'000);
  EXPECT_TRUE(price_.Pays(lru, lru.ClassOf(7)));
}

TEST(WritePrice, IsWorkedOutOnceASecond) {
  WritePrice price;
  EXPECT_FALSE(price.Due(999));
  EXPECT_TRUE(price.Due(1'000));
  price.Set(Order(EvictionPolicy::kLru, 1), {}, 1'000);
  EXPECT_FALSE(price.Due(1'999));
}

}  // namespace
}  // namespace cistern::policy
