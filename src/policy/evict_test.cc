// SPDX-License-Identifier: Apache-2.0
#include "policy/evict.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <random>
#include <set>

namespace cistern::policy {
namespace {

// The order as its header describes it, by searching: coldest in front.
class NaiveLru {
 public:
  bool Contains(EntryId id) const { return parked_.contains(id) || Find(id) != order_.end(); }
  bool Parked(EntryId id) const { return parked_.contains(id); }
  std::size_t size() const { return order_.size() + parked_.size(); }
  std::optional<EntryId> Coldest() const {
    return order_.empty() ? std::nullopt : std::optional(order_.front());
  }
  std::optional<EntryId> Warmest() const {
    return order_.empty() ? std::nullopt : std::optional(order_.back());
  }

  void Insert(EntryId id) { order_.push_back(id); }
  void InsertCold(EntryId id) {
    if (Parked(id)) return;
    Remove(id);
    order_.push_front(id);
  }
  void Touch(EntryId id) {
    Remove(id);
    order_.push_back(id);
  }
  void Remove(EntryId id) {
    parked_.erase(id);
    if (auto at = Find(id); at != order_.end()) order_.erase(at);
  }
  void Park(EntryId id) {
    Remove(id);
    parked_.insert(id);
  }
  void Unpark(EntryId id) {
    if (parked_.erase(id)) order_.push_front(id);
  }

 private:
  std::deque<EntryId>::const_iterator Find(EntryId id) const {
    return std::find(order_.begin(), order_.end(), id);
  }
  std::deque<EntryId> order_;
  std::set<EntryId> parked_;
};

TEST(Lru, EqualsTheNaiveModelOverRandomOperations) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    Lru lru;
    NaiveLru model;
    for (int step = 0; step < 5'000; ++step) {
      // Mostly few ids, so that the list often has one, two or no members; now and then a far one.
      const EntryId id = random() % 50 ? random() % (seed * 3) : random() % 5'000;
      const std::uint32_t operation = random() % 6;
      if (!model.Contains(id)) {
        operation ? (lru.Insert(id), model.Insert(id)) : (lru.InsertCold(id), model.InsertCold(id));
      } else if (operation == 0) {
        lru.Remove(id), model.Remove(id);
      } else if (operation == 1) {
        lru.Remove(id), lru.InsertCold(id), model.Remove(id), model.InsertCold(id);
      } else if (operation == 2) {
        lru.Unpark(id), model.Unpark(id);
      } else if (operation == 3) {
        const EntryId coldest = model.Coldest().value_or(id);
        lru.Park(coldest), model.Park(coldest);
      } else {
        lru.Touch(id), model.Touch(id);
      }
      ASSERT_EQ(lru.Coldest(), model.Coldest()) << "seed " << seed << " step " << step;
      ASSERT_EQ(lru.size(), model.size()) << "seed " << seed << " step " << step;
      ASSERT_EQ(lru.Contains(id), model.Contains(id)) << "seed " << seed << " step " << step;
      ASSERT_EQ(lru.Parked(id), model.Parked(id)) << "seed " << seed << " step " << step;
    }
    while (model.Coldest()) {
      ASSERT_EQ(lru.Coldest(), model.Coldest()) << "seed " << seed;
      lru.Remove(*lru.Coldest());
      model.Remove(*model.Coldest());
    }
    EXPECT_EQ(lru.Coldest(), std::nullopt);
    EXPECT_EQ(lru.size(), lru.parked());
  }
}

// What serves a newcomer of one kind, in the one order over all.
TEST(Lru, EachShelfKnowsItsColdest) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    Lru lru;
    std::array<NaiveLru, 3> shelves;
    NaiveLru all;
    const auto shelf = [](EntryId id) { return static_cast<Shelf>(id % 3 * 100); };
    for (int step = 0; step < 5'000; ++step) {
      const EntryId id = random() % (seed * 3);
      NaiveLru& own = shelves[id % 3];
      const std::uint32_t operation = random() % 5;
      if (!all.Contains(id)) {
        lru.Insert(id, shelf(id)), own.Insert(id), all.Insert(id);
      } else if (operation == 0) {
        lru.Remove(id), own.Remove(id), all.Remove(id);
      } else if (operation == 1) {
        lru.Remove(id), lru.InsertCold(id, shelf(id));
        own.Remove(id), own.InsertCold(id), all.Remove(id), all.InsertCold(id);
      } else if (operation == 2) {
        lru.Unpark(id), own.Unpark(id), all.Unpark(id);
      } else if (operation == 3) {
        lru.Park(id), own.Park(id), all.Park(id);
      } else {
        lru.Touch(id), own.Touch(id), all.Touch(id);
      }
      ASSERT_EQ(lru.Coldest(), all.Coldest()) << "seed " << seed << " step " << step;
      for (EntryId i = 0; i < 3; ++i) {
        ASSERT_EQ(lru.Coldest(shelf(i)), shelves[i].Coldest()) << "seed " << seed << " step " << step;
        ASSERT_EQ(lru.Warmest(shelf(i)), shelves[i].Warmest()) << "seed " << seed << " step " << step;
      }
      const EntryId among = id % 2;  // the first two of the shelves, or the last two
      const auto other = lru.ColdestAmong(among * 100, among * 100 + 101);
      const auto coldest = lru.Coldest();
      const EntryId out = among == 0 ? 2 : 0;
      if (coldest && *coldest % 3 != out) {
        ASSERT_EQ(other, coldest);
      } else if (other) {
        ASSERT_NE(*other % 3, out);
        ASSERT_LT(lru.Age(*other), lru.Age(*coldest));
      }
    }
  }
}

TEST(Lru, ParkedIsOlderThanAllUntilTouched) {
  Lru lru;
  for (EntryId id : {0u, 1u, 2u}) lru.Insert(id);
  lru.Park(0);
  lru.Park(1);
  EXPECT_EQ(lru.Coldest(), 2u);
  EXPECT_EQ(lru.size(), 3u);
  lru.Unpark(1);
  EXPECT_EQ(lru.Coldest(), 1u);
  lru.Touch(0);
  lru.Unpark(0);
  lru.Remove(1);
  lru.Remove(2);
  EXPECT_EQ(lru.Coldest(), 0u);
  EXPECT_EQ(lru.parked(), 0u);
}

TEST(Lru, WhatIsBehindTheReachGoesFirst) {
  Lru lru;
  for (EntryId id : {0u, 1u, 2u}) lru.Insert(id);
  lru.Remove(2);
  lru.InsertCold(2);
  EXPECT_EQ(lru.Coldest(), 2u);
  lru.InsertCold(3);
  EXPECT_EQ(lru.Coldest(), 3u);
}

TEST(LruDeathTest, IdsThatTheOwnerDoesNotHoldAreWrongDecisions) {
  Lru lru;
  lru.Insert(1);
  EXPECT_DEATH(lru.Insert(1), "assertion");
  EXPECT_DEATH(lru.Touch(0), "assertion");
  EXPECT_DEATH(lru.Remove(2), "assertion");
  EXPECT_DEATH(lru.Insert(Lru::kMaxEntries), "assertion");
}

}  // namespace
}  // namespace cistern::policy
