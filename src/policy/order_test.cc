// SPDX-License-Identifier: Apache-2.0
#include "policy/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace cistern::policy {
namespace {

// A store that has room for all, so that a test alone decides what leaves. Ids are keys.
class Store {
 public:
  struct Asked {
    std::vector<EntryId> blocks;
    bool partial = false;
    PromptHints hints{};
  };

  explicit Store(EvictionPolicy policy = EvictionPolicy::kReuse) : order_(policy, 1'000) {}

  void Ask(std::uint64_t now_ms, const Asked& asked) {
    const std::vector<EntryId>& blocks = asked.blocks;
    const auto miss = std::ranges::find_if(blocks, [&](EntryId id) { return !order_.Contains(id); });
    const auto hits = static_cast<std::size_t>(miss - blocks.begin());
    order_.SetNow(now_ms);
    const std::vector<std::uint64_t> keys(blocks.begin(), blocks.end());
    order_.TakeIn({.partial = asked.partial, .hints = asked.hints}, keys, std::span(blocks).first(hits));
    Standing standing = hits == 0 ? Standing() : order_.StandingOf(blocks[hits - 1]);
    for (std::size_t i = hits; i < blocks.size(); ++i) {
      standing = order_.StandingOf(blocks[i], standing);
      order_.Insert(blocks[i], 0, standing);
    }
    for (std::size_t i = blocks.size(); i-- > 0;) order_.Touch(blocks[i], blocks[i]);
  }
  void Touch(std::uint64_t now_ms, EntryId id) {
    order_.SetNow(now_ms);
    order_.Touch(id, id);
  }
  // Blocks in the order in which they would leave now.
  std::vector<EntryId> Leaving() {
    std::vector<EntryId> leaving;
    while (const auto id = order_.Coldest()) {
      leaving.push_back(*id);
      order_.Park(*id);
    }
    for (std::size_t i = leaving.size(); i-- > 0;) order_.Unpark(leaving[i]);
    return leaving;
  }
  Order& order() { return order_; }

 private:
  Order order_;
};

std::size_t PlaceOf(const std::vector<EntryId>& leaving, EntryId id) {
  return static_cast<std::size_t>(std::ranges::find(leaving, id) - leaving.begin());
}

TEST(Order, UntilItHasLearnedItIsLruLeafFirst) {
  Store store;
  store.Ask(0, {{1, 2, 3}});
  store.Ask(60'000, {{4, 5}});
  store.Ask(120'000, {{6}});
  EXPECT_EQ(store.Leaving(), (std::vector<EntryId>{3, 2, 1, 5, 4, 6}));
  EXPECT_EQ(store.order().size(), 6u);
}

TEST(Order, WhatIsHeldLeavesLastHoweverItIsUsedUntilItIsLetGo) {
  Store store;
  Order& order = store.order();
  store.Ask(0, {{1}});
  store.Ask(1'000, {{2}});
  store.Ask(2'000, {{3}});
  order.Hold(1);
  order.Hold(2);
  EXPECT_EQ(order.held(), 2u);
  order.Touch(1, 1);
  EXPECT_EQ(order.Oldest(), 2u) << "by recency alone it is no other";
  EXPECT_EQ(order.OldestOf([](SizeClass) { return true; }), 3u);
  EXPECT_EQ(store.Leaving(), (std::vector<EntryId>{3, 2, 1})) << "and not never";
  order.LetGo(1);
  order.LetGo(1);
  EXPECT_EQ(order.held(), 1u);
  EXPECT_EQ(order.FirstHeld(), 2u);
  store.Ask(3'000, {{4}});
  EXPECT_EQ(store.Leaving(), (std::vector<EntryId>{3, 1, 4, 2}));
  order.MakeColdest(2, 0);
  EXPECT_EQ(order.held(), 0u);
  EXPECT_EQ(store.Leaving().front(), 2u);
}

TEST(Order, NothingIsHeldByLru) {
  Order order(EvictionPolicy::kLru, 8);
  order.Insert(1, 0, {});
  order.Insert(2, 0, {});
  order.Hold(1);
  EXPECT_FALSE(order.Held(1));
  EXPECT_EQ(order.Coldest(), 1u);
}

TEST(Order, APartialLastBlockLeavesFirstOnceItIsLearnedThatItNeverReturns) {
  Store store;
  EntryId next = 0;
  // Two turns each: the second has the first's whole blocks and another last one.
  std::uint64_t now_ms = 0;
  for (int session = 0; session < 300; ++session) {
    std::vector<EntryId> blocks{next, next + 1, next + 2};
    store.Ask(now_ms, {blocks, true});
    blocks[2] = next + 3;
    blocks.push_back(next + 4);
    store.Ask(now_ms += 30'000, {blocks, true});
    next += 5;
    now_ms += 1'000;
  }
  store.Ask(now_ms, {{next, next + 1, next + 2}, true});
  store.Ask(now_ms += 20'000, {{next + 3, next + 4, next + 5}, true});
  const std::vector<EntryId> leaving = store.Leaving();
  EXPECT_LT(PlaceOf(leaving, next + 5), PlaceOf(leaving, next));  // younger, and leaves earlier
}

TEST(Order, ASessionWithAPaceOfSecondsIsKeptPastOneThatNeverCameBack) {
  Store store;
  EntryId next = 100;
  std::vector<EntryId> agent{1, 2};
  std::uint64_t now_ms = 0;
  for (int turn = 0; turn < 200; ++turn) {
    agent.push_back(next++);
    store.Ask(now_ms += 20'000, {agent});
    store.Ask(now_ms += 2'000, {{next, next + 1}});  // asked once
    next += 2;
  }
  const std::vector<EntryId> leaving = store.Leaving();
  // The last that was asked once is younger than the agent's blocks, and leaves before them.
  EXPECT_LT(PlaceOf(leaving, next - 1), PlaceOf(leaving, agent.back()));
  EXPECT_LT(PlaceOf(leaving, agent.back()), PlaceOf(leaving, agent.front()));
}

// Of an agent's blocks it is proven that they return, of what was asked once that it does not.
TEST(Order, WhatIsFetchedPassesWhereAllThatWouldLeaveForItIsWorthMore) {
  Store store;
  Order& order = store.order();
  const auto any = [](EntryId) { return true; };
  EntryId next = 100;
  std::vector<EntryId> agent{1, 2};
  std::uint64_t now_ms = 0;
  for (int turn = 0; turn < 200; ++turn) {
    agent.push_back(next++);
    store.Ask(now_ms += 20'000, {agent});
    store.Ask(now_ms += 2'000, {{next, next + 1}});
    order.Remove(next);
    order.Remove(next + 1);
    next += 2;
  }
  store.Ask(now_ms += 15'000, {{next}});
  order.Remove(next);
  // A prompt of which one block lies below says what that block is.
  EXPECT_FALSE(order.StandingBelow(next + 5, {}).told);
  const std::uint64_t keys[] = {next + 5, next + 6};
  const EntryId there[] = {kBelow};
  order.TakeIn({}, keys, there);
  const Standing asked_once = order.StandingBelow(next + 5, {});
  EXPECT_TRUE(asked_once.told);
  EXPECT_TRUE(order.Passes(asked_once, kAllGroups, any));
  EXPECT_FALSE(order.Passes({}, kAllGroups, any)) << "no prompt told of it";
  // What leaves before all others does not make room for one that stays: the next that passes needs it.
  order.MakeColdest(agent.back(), 0);
  EXPECT_TRUE(order.Passes(asked_once, kAllGroups, any));
  // Those that may not leave are parked, a few at most.
  std::size_t asked = 0;
  EXPECT_FALSE(order.Passes(asked_once, kAllGroups, [&](EntryId) { return ++asked, false; }));
  EXPECT_EQ(asked, 64u);
  EXPECT_TRUE(order.Parked(agent[agent.size() - 2]));
  order.SetNow(now_ms + 3'600'000);
  EXPECT_FALSE(order.Passes(asked_once, kAllGroups, any)) << "nobody was seen to come back after an hour";
}

TEST(Order, ByLruNothingPasses) {
  Store store(EvictionPolicy::kLru);
  store.Ask(0, {{1, 2, 3}});
  EXPECT_FALSE(store.order().Passes({.told = true}, kAllGroups, [](EntryId) { return true; }));
}

TEST(Order, AnOutlookIsBelievedAsFarAsItCameTrue) {
  for (const bool truthful : {true, false}) {
    Store store;
    EntryId next = 0;
    std::uint64_t now_ms = 0;
    for (int session = 0; session < 400; ++session) {
      const bool returns = session % 2 == 0;
      const Outlook said = returns == truthful ? Outlook::kExtended : Outlook::kEnded;
      store.Ask(now_ms += 1'000, {{next, next + 1}, false, {said}});
      if (returns) store.Ask(now_ms += 40'000, {{next, next + 1, next + 2}});
      next += 3;
    }
    store.Ask(now_ms += 1'000, {{next}, false, {truthful ? Outlook::kExtended : Outlook::kEnded}});
    store.Ask(now_ms, {{next + 1}, false, {truthful ? Outlook::kEnded : Outlook::kExtended}});
    const std::vector<EntryId> leaving = store.Leaving();
    EXPECT_GT(PlaceOf(leaving, next), PlaceOf(leaving, next + 1)) << truthful;
  }
}

TEST(Order, OfTwoThatWillReturnTheLaterOneLeavesFirst) {
  Store store;
  EntryId next = 0;
  std::uint64_t now_ms = 0;
  // Each tells truly when it will return: in 20 s or in 6 min.
  std::vector<std::pair<std::uint64_t, EntryId>> due;
  const auto ask = [&](std::uint32_t after_ms) {
    store.Ask(now_ms += 1'000, {{next, next + 1}, false, {.next_turn_ms = after_ms}});
    due.emplace_back(now_ms + after_ms, next);
    next += 3;
    std::ranges::sort(due);
    for (; !due.empty() && due.front().first <= now_ms; due.erase(due.begin()))
      store.Ask(now_ms, {{due.front().second, due.front().second + 1, due.front().second + 2}});
  };
  for (int session = 0; session < 2'000; ++session) ask(session % 2 == 0 ? 20'000 : 360'000);
  ask(20'000);
  ask(360'000);
  const std::vector<EntryId> leaving = store.Leaving();
  EXPECT_LT(PlaceOf(leaving, next - 3), PlaceOf(leaving, next - 6));
}

TEST(Order, AToolThatRunsIsAnOutlookOfItsOwn) {
  Store store;
  EntryId next = 0;
  std::uint64_t now_ms = 0;
  // Who runs a tool is back in seconds; who only goes on, in minutes.
  for (int session = 0; session < 600; ++session) {
    const bool tool = session % 2 == 0;
    store.Ask(now_ms += 1'000, {{next, next + 1}, false, {tool ? Outlook::kTool : Outlook::kExtended}});
    if (tool) store.Ask(now_ms += 3'000, {{next, next + 1, next + 2}});
    if (!tool && session > 100) store.Ask(now_ms, {{next - 300, next - 299, next - 298}});
    next += 3;
  }
  store.Ask(now_ms += 1'000, {{next, next + 1}, false, {Outlook::kTool}});
  store.Ask(now_ms, {{next + 2, next + 3}, false, {Outlook::kExtended}});
  const std::vector<EntryId> leaving = store.Leaving();
  EXPECT_GT(PlaceOf(leaving, next), PlaceOf(leaving, next + 2));
}

TEST(Order, OfPromptsThatAreAlikeTheLessImportantLeavesFirst) {
  Store store;
  store.Ask(0, {{1, 2}, false, {.importance = Importance::kHigh}});
  store.Ask(1'000, {{3, 4}});
  store.Ask(2'000, {{5, 6}, false, {.importance = Importance::kLow}});
  EXPECT_EQ(store.Leaving(), (std::vector<EntryId>{6, 5, 4, 3, 2, 1}));
}

TEST(Order, KeptBlocksLeaveLastForAnHour) {
  Store store;
  store.Ask(0, {{1}, false, {.importance = Importance::kKeep}});
  store.Ask(1'000, {{2, 3, 4}, false, {.importance = Importance::kHigh}});
  EXPECT_EQ(store.Leaving(), (std::vector<EntryId>{4, 3, 2, 1}));
  const Standing other = store.order().StandingOf(2);
  EXPECT_TRUE(store.order().StaysOut(other, 1));
  store.Ask(3'601'000, {{2, 3, 4}, false, {.importance = Importance::kHigh}});
  EXPECT_EQ(store.Leaving().front(), 1u);
}

TEST(Order, MoreThanAQuarterIsNotKept) {
  Store store;
  store.Ask(0, {{1, 2}, false, {.importance = Importance::kKeep}});
  store.Ask(1'000, {{3, 4, 5, 6, 7, 8}, false, {.importance = Importance::kHigh}});
  EXPECT_EQ(store.Leaving().back(), 1u);
  store.Ask(2'000, {{9}, false, {.importance = Importance::kKeep}});
  EXPECT_EQ(store.Leaving().front(), 2u) << "3 of 9: they leave as others do";
  store.order().Remove(2);
  EXPECT_EQ(store.Leaving().back(), 9u) << "2 of 8";
}

TEST(Order, ANextPromptWithoutHintsEndsThem) {
  Store store;
  store.Ask(0, {{1}, false, {.importance = Importance::kKeep}});
  store.Ask(1'000, {{2, 3, 4, 5}});
  EXPECT_EQ(store.Leaving().back(), 1u);
  store.Ask(2'000, {{1}});
  store.Ask(60'000, {{2, 3, 4, 5}});
  EXPECT_EQ(store.Leaving().front(), 1u);
}

TEST(Order, TheSameRequestsGiveTheSameOrder) {
  std::vector<std::vector<EntryId>> orders;
  for (int run = 0; run < 2; ++run) {
    Store store;
    for (EntryId i = 0; i < 2'000; ++i) {
      store.Ask(i * 700, {{i % 7, 10 + i * 37 % 90, 200 + i % 600}, i % 3 == 0});
    }
    orders.push_back(store.Leaving());
  }
  EXPECT_EQ(orders[0], orders[1]);
}

TEST(Order, TimesPast32BitsAndRunsPastTheMemoryAreOrdinary) {
  Store store;
  std::uint64_t now_ms = (std::uint64_t{1} << 32) - 60'000;
  for (EntryId i = 0; i < 40'000; ++i) store.Ask(now_ms += 100, {{i % 5'000 * 2, i % 5'000 * 2 + 1}});
  EXPECT_EQ(store.order().size(), 10'000u);
  EXPECT_EQ(store.Leaving().size(), 10'000u);
}

TEST(Order, BlocksThatNoPromptToldOfLeaveAsByLru) {
  Store reuse, lru(EvictionPolicy::kLru);
  std::uint64_t now_ms = 0;
  for (Store* store : {&reuse, &lru}) {
    for (EntryId id = 0; id < 50; ++id) store->order().Insert(id, 0, {});
    for (EntryId i = 0; i < 500; ++i) store->Touch(now_ms += i * 37 % 5'000, i * i % 50);
    now_ms = 0;
  }
  EXPECT_EQ(reuse.Leaving(), lru.Leaving());
}

TEST(Order, OnlyABlockOfAPromptStaysOut) {
  Store store;
  EntryId next = 1;
  std::uint64_t now_ms = 0;
  // Conversations that come back, and documents that never do.
  for (int session = 0; session < 300; ++session) {
    store.Ask(now_ms += 1'000, {{next, next + 1}});
    store.Ask(now_ms += 20'000, {{next, next + 1, next + 2}});
    std::vector<EntryId> document;
    for (EntryId i = 0; i < 70; ++i) document.push_back(next + 3 + i);
    store.Ask(now_ms += 1'000, {document});
    next += 73;
  }
  store.Ask(now_ms += 1'000, {{next, next + 1}});
  const Standing of_document = store.order().StandingOf(next - 1);  // of the last
  EXPECT_TRUE(store.order().StaysOut(of_document, next));
  EXPECT_FALSE(store.order().StaysOut({}, next));
  EXPECT_FALSE(store.order().StaysOut(store.order().StandingOf(next), next - 1));
}

TEST(Order, UntilItHasLearnedNothingStaysOut) {
  for (const std::uint64_t after_ms : {100, 1'100, 1'500, 2'000, 60'000}) {
    Store store;
    store.Ask(0, {{1}});
    store.order().SetNow(after_ms);
    EXPECT_FALSE(store.order().StaysOut({.told = true}, 1)) << after_ms;
  }
}

// However fast they come: what was seen not to return soon is not worth less than what is older.
TEST(Order, UntilOneReturnsTheOldestLeavesFirst) {
  for (const std::uint64_t gap_ms : {50, 300, 1'000, 3'000, 60'000}) {
    Store store;
    std::vector<EntryId> oldest;
    for (EntryId id = 0; id < 60; ++id) {
      store.Ask(id * gap_ms, {{id}});
      oldest.push_back(id);
    }
    EXPECT_EQ(store.Leaving(), oldest) << gap_ms;
  }
}

TEST(Order, WhatNeverReturnedKeepsNothingOut) {
  for (const std::uint64_t gap_ms : {20, 300, 1'000, 20'000}) {
    Store store;
    EntryId next = 0;
    std::vector<EntryId> lasts;  // of prompts of each length, partial or not
    for (std::uint64_t prompt = 0; prompt < 400; ++prompt) {
      std::vector<EntryId> blocks(prompt < 8 ? 1 + 9 * prompt : 3);
      std::ranges::generate(blocks, [&next] { return next++; });
      store.Ask(prompt * gap_ms, {blocks, prompt % 3 == 0});
      if (prompt < 8) lasts.push_back(blocks.back());
    }
    const Standing newcomer = store.order().StandingOf(next - 1);
    ASSERT_TRUE(newcomer.told);
    for (const EntryId resident : lasts)
      EXPECT_FALSE(store.order().StaysOut(newcomer, resident)) << gap_ms << " ms, " << resident;
  }
}

TEST(Order, ABlockBehindItsReachLeavesBeforeAllUntilItIsTouched) {
  for (const EvictionPolicy policy : {EvictionPolicy::kReuse, EvictionPolicy::kLru}) {
    Store store(policy);
    store.Ask(0, {{1, 2}});
    store.Ask(5'000, {{3, 4}});
    store.order().MakeColdest(3, 0);
    EXPECT_EQ(store.order().Coldest(), 3u);
    store.order().Park(3);
    store.order().MakeColdest(3, 0);
    EXPECT_EQ(store.order().Coldest(), 3u);
    store.order().MakeColdest(9, 0);
    EXPECT_EQ(store.order().Coldest(), 9u);
    store.order().Remove(9);
    store.Touch(10'000, 3);
    EXPECT_EQ(store.order().Coldest(), 2u);
  }
}

TEST(Order, EachSizeClassKnowsItsNext) {
  for (const EvictionPolicy policy : {EvictionPolicy::kReuse, EvictionPolicy::kLru}) {
    Order order(policy, 100);
    for (EntryId id = 0; id < 9; ++id) {
      order.SetNow(id * 2'000);
      order.Insert(id, static_cast<SizeClass>(id % 3 * 100), {});
    }
    EXPECT_EQ(order.Coldest(), 0u);
    for (EntryId id = 0; id < 3; ++id) {
      const auto size_class = static_cast<SizeClass>(id * 100);
      EXPECT_EQ(order.Coldest(size_class), id);
      EXPECT_EQ(order.Oldest(size_class), id);
      EXPECT_EQ(order.size_class(id + 3), size_class);
      EXPECT_EQ(order.LeastAge(size_class), order.Age(id + 6));
    }
    EXPECT_EQ(order.Coldest(7), std::nullopt);
    EXPECT_EQ(order.OldestOf([](SizeClass on) { return on != 0; }), 1u);
    EXPECT_EQ(order.shelves_in_use(), 3u);
  }
}

}  // namespace
}  // namespace cistern::policy
