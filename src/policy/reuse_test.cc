// SPDX-License-Identifier: Apache-2.0
#include "policy/reuse.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

namespace cistern::policy {
namespace {

// A store that has room for all, so that a test alone decides what leaves. Ids are keys.
class Store {
 public:
  struct Asked {
    std::vector<EntryId> blocks;
    bool partial = false;
    Outlook outlook = Outlook::kUnknown;
  };

  void Ask(std::uint64_t now_ms, const Asked& asked) {
    const std::vector<std::uint64_t> keys(asked.blocks.begin(), asked.blocks.end());
    const auto miss = std::ranges::find_if(asked.blocks, [&](EntryId id) { return !reuse_.Contains(id); });
    const auto hits = static_cast<std::size_t>(miss - asked.blocks.begin());
    reuse_.Begin({.now_ms = now_ms,
                  .keys = keys,
                  .resident = std::span(asked.blocks).first(hits),
                  .partial = asked.partial,
                  .outlook = asked.outlook});
    for (std::size_t i = hits; i < asked.blocks.size(); ++i) reuse_.Insert(asked.blocks[i], i);
    for (std::size_t i = asked.blocks.size(); i-- > 0;) reuse_.Touch(asked.blocks[i], i);
  }
  // Blocks in the order in which they would leave now.
  std::vector<EntryId> Leaving() {
    std::vector<EntryId> leaving;
    while (const auto id = reuse_.Coldest()) {
      leaving.push_back(*id);
      reuse_.Park(*id);
    }
    for (std::size_t i = leaving.size(); i-- > 0;) reuse_.Unpark(leaving[i]);
    return leaving;
  }
  Reuse& reuse() { return reuse_; }

 private:
  Reuse reuse_{1'000};
};

std::size_t PlaceOf(const std::vector<EntryId>& leaving, EntryId id) {
  return static_cast<std::size_t>(std::ranges::find(leaving, id) - leaving.begin());
}

TEST(Reuse, UntilItHasLearnedItIsLruLeafFirst) {
  Store store;
  store.Ask(0, {{1, 2, 3}});
  store.Ask(60'000, {{4, 5}});
  store.Ask(120'000, {{6}});
  EXPECT_EQ(store.Leaving(), (std::vector<EntryId>{3, 2, 1, 5, 4, 6}));
  EXPECT_EQ(store.reuse().size(), 6u);
}

TEST(Reuse, APartialLastBlockLeavesFirstOnceItIsLearnedThatItNeverReturns) {
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

TEST(Reuse, ASessionWithAPaceOfSecondsIsKeptPastOneThatNeverCameBack) {
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

TEST(Reuse, AnOutlookIsBelievedAsFarAsItCameTrue) {
  for (const bool truthful : {true, false}) {
    Store store;
    EntryId next = 0;
    std::uint64_t now_ms = 0;
    for (int session = 0; session < 400; ++session) {
      const bool returns = session % 2 == 0;
      const Outlook said = returns == truthful ? Outlook::kExtended : Outlook::kEnded;
      store.Ask(now_ms += 1'000, {{next, next + 1}, false, said});
      if (returns) store.Ask(now_ms += 40'000, {{next, next + 1, next + 2}, false, Outlook::kUnknown});
      next += 3;
    }
    store.Ask(now_ms += 1'000, {{next}, false, truthful ? Outlook::kExtended : Outlook::kEnded});
    store.Ask(now_ms, {{next + 1}, false, truthful ? Outlook::kEnded : Outlook::kExtended});
    const std::vector<EntryId> leaving = store.Leaving();
    EXPECT_GT(PlaceOf(leaving, next), PlaceOf(leaving, next + 1)) << truthful;
  }
}

TEST(Reuse, TheSameRequestsGiveTheSameOrder) {
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

TEST(Reuse, TimesPast32BitsAndRunsPastTheMemoryAreOrdinary) {
  Store store;
  std::uint64_t now_ms = (std::uint64_t{1} << 32) - 60'000;
  for (EntryId i = 0; i < 40'000; ++i) store.Ask(now_ms += 100, {{i % 5'000 * 2, i % 5'000 * 2 + 1}});
  EXPECT_EQ(store.reuse().size(), 10'000u);
  EXPECT_EQ(store.Leaving().size(), 10'000u);
}

}  // namespace
}  // namespace cistern::policy
