// SPDX-License-Identifier: Apache-2.0
#include "mesh/drop_list.h"

#include <gtest/gtest.h>

#include "base/codec.h"
#include "base/random.h"

namespace cistern::mesh {
namespace {

BlockKey Key(std::uint64_t number) {
  std::array<std::byte, 16> bytes{};
  StoreAt(bytes.data(), 0, number);
  return *BlockKey::FromBytes(bytes);
}

CellDrop OfKeys(const SharedNamespace& name, std::vector<BlockKey> keys) {
  return {.what = CellDrop::What::kKeys, .name = name, .keys = std::move(keys)};
}

Verdict VerdictOf(const DropList& list, const SharedNamespace& name, std::span<const BlockKey> chain,
                  std::int64_t a) {
  ChainCheck check(list, name, chain, a);
  EXPECT_TRUE(check.Step(chain.size() + 1));
  return check.verdict();
}

CellDrop EndOf(std::uint64_t conversation) {
  return {.what = CellDrop::What::kConversation,
          .name = SharedNamespace{.tenant = "default"},
          .conversation = conversation};
}

class DropListTest : public ::testing::Test {
 protected:
  Verdict Check(const std::vector<BlockKey>& chain, std::int64_t a) const {
    return VerdictOf(list_, name_, chain, a);
  }
  Verdict Notes(std::vector<std::uint64_t>* notes, std::int64_t a) const {
    return list_.CheckNotes(name_, notes, a);
  }
  const SharedNamespace name_{.tenant = "default"};
  DropList list_{1, 4};
};

TEST_F(DropListTest, DropCoversItsKeysAndWhatDescendsFromThemForWhoHasNotAppliedIt) {
  list_.Add(7, OfKeys(name_, {Key(1), Key(2)}));
  EXPECT_EQ(Check({Key(1)}, 6), Verdict::kCovered);
  EXPECT_EQ(Check({Key(9), Key(2), Key(3)}, 0), Verdict::kCovered);
  EXPECT_EQ(Check({Key(1)}, 7), Verdict::kTake);
  EXPECT_EQ(Check({Key(1)}, 8), Verdict::kTake);
  EXPECT_EQ(Check({Key(3)}, 6), Verdict::kTake);
}

TEST_F(DropListTest, DropOfANamespaceCoversItAloneAndOfItsTenantAlone) {
  list_.Add(7, {.name = name_});
  EXPECT_EQ(list_.last(), 7);
  EXPECT_EQ(Check({Key(1)}, 6), Verdict::kCovered);
  SharedNamespace other = name_;
  other.tenant = "another";
  const std::vector<BlockKey> chain = {Key(1)};
  EXPECT_EQ(VerdictOf(list_, other, chain, 6), Verdict::kTake);
  other = name_;
  other.list_hash[31] = std::byte{1};
  EXPECT_EQ(VerdictOf(list_, other, chain, 6), Verdict::kTake);
}

TEST_F(DropListTest, LaterDropOfAKeyCounts) {
  list_.Add(7, OfKeys(name_, {Key(1)}));
  list_.Add(9, OfKeys(name_, {Key(1)}));
  EXPECT_EQ(Check({Key(1)}, 8), Verdict::kCovered);
}

TEST_F(DropListTest, WhoAnswersFromBehindTheListIsRefused) {
  for (int i = 1; i <= 5; ++i) list_.Add(i, OfKeys(name_, {Key(static_cast<std::uint64_t>(i))}));
  EXPECT_EQ(list_.size(), 4u);
  EXPECT_EQ(list_.begin(), 1);
  EXPECT_EQ(Check({Key(77)}, 0), Verdict::kBehind);
  EXPECT_EQ(Check({Key(77)}, 1), Verdict::kTake);
  list_.Restart(5);
  EXPECT_EQ(Check({Key(77)}, 4), Verdict::kBehind);
  EXPECT_EQ(Check({Key(5)}, 5), Verdict::kTake);
}

TEST_F(DropListTest, KeyThatIsDroppedAgainStaysListed) {
  list_.Add(1, OfKeys(name_, {Key(1)}));
  list_.Add(2, OfKeys(name_, {Key(1)}));
  for (std::uint64_t i = 10; i < 13; ++i) list_.Add(3, OfKeys(name_, {Key(i)}));
  EXPECT_EQ(list_.begin(), 1);
  EXPECT_EQ(Check({Key(1)}, 1), Verdict::kCovered);
}

TEST_F(DropListTest, EndsTakeNotesAndTheLastOneTheRecord) {
  list_.Add(5, {.what = CellDrop::What::kConversation, .name = name_, .conversation = 71});
  std::vector<std::uint64_t> notes = {70, 71};
  EXPECT_EQ(Notes(&notes, 4), Verdict::kTake);
  EXPECT_EQ(notes, std::vector<std::uint64_t>{70});
  notes = {71};
  EXPECT_EQ(Notes(&notes, 5), Verdict::kTake);
  EXPECT_EQ(Notes(&notes, 4), Verdict::kCovered);
  notes = {};
  EXPECT_EQ(Notes(&notes, 0), Verdict::kTake);  // shared
  EXPECT_EQ(Check({Key(1)}, 0), Verdict::kTake);
  list_.RestartEnds(6);
  notes = {70};
  EXPECT_EQ(Notes(&notes, 5), Verdict::kBehind);
  EXPECT_EQ(Check({Key(1)}, 0), Verdict::kTake);
}

TEST_F(DropListTest, LongChainIsCheckedInSlicesAndTheLastOneSeesWhatCameMeanwhile) {
  std::vector<BlockKey> chain;
  for (std::uint64_t i = 0; i < 1'000; ++i) chain.push_back(Key(i));
  DropList list(1);
  list.Add(1, OfKeys(name_, {Key(5'000)}));
  for (const std::uint64_t dropped_meanwhile : {0, 999, 4'999}) {
    list.Add(list.last() + 1, OfKeys(name_, {Key(6'000)}));
    ChainCheck check(list, name_, chain, list.last() - 1);
    int slices = 0;
    while (!check.Step(300)) {
      if (++slices == 2) list.Add(list.last() + 1, OfKeys(name_, {Key(dropped_meanwhile)}));
    }
    EXPECT_GE(slices, 3);
    EXPECT_EQ(check.verdict(), dropped_meanwhile < 1'000 ? Verdict::kCovered : Verdict::kTake);
  }
  list.Add(list.last() + 1, OfKeys(name_, {Key(6'000)}));
  ChainCheck check(list, name_, chain, list.last() - 1);
  EXPECT_FALSE(check.Step(300));
  list.Restart(list.last() + 1);
  EXPECT_TRUE(check.Step(300));
  EXPECT_EQ(check.verdict(), Verdict::kBehind);
}

// Each that was listed meanwhile is compared with the whole chain.
TEST_F(DropListTest, P5NoSliceLooksAtMoreThanItMayHoweverMuchIsDroppedMeanwhile) {
  constexpr std::size_t kSlice = 40, kDrops = 500;
  std::vector<BlockKey> chain;
  for (std::uint64_t i = 0; i < 640; ++i) chain.push_back(Key(i));
  const std::size_t a_look = 1 + (chain.size() + 1) / 64;
  DropList list(1);
  list.Add(1, OfKeys(name_, {Key(5'000)}));
  ChainCheck check(list, name_, chain, 0);
  ASSERT_FALSE(check.Step(chain.size() - 1));
  for (std::uint64_t i = 0; i < kDrops; ++i) list.Add(2, OfKeys(name_, {Key(10'000 + i)}));
  const auto finish = [&] {
    for (bool done = false; !done;) {
      const std::size_t before = check.looked();
      done = check.Step(kSlice);
      EXPECT_LT(check.looked(), before + kSlice + a_look);
    }
  };
  finish();
  EXPECT_EQ(check.verdict(), Verdict::kTake);
  EXPECT_EQ(check.looked(), chain.size() + kDrops * a_look);
  list.Add(3, OfKeys(name_, {Key(7)}));
  for (std::uint64_t i = 0; i < kDrops; ++i) list.Add(3, OfKeys(name_, {Key(10'000 + i)}));
  finish();
  EXPECT_EQ(check.verdict(), Verdict::kCovered);
  EXPECT_EQ(check.looked(), chain.size() + (kDrops + 1) * a_look) << "one is enough";
}

TEST_F(DropListTest, NoKeyIsLookedAtWhereNothingWasDroppedSince) {
  std::vector<BlockKey> chain;
  for (std::uint64_t i = 0; i < 10'000; ++i) chain.push_back(Key(i));
  list_.Add(3, OfKeys(name_, {Key(5)}));
  ChainCheck none(list_, name_, chain, 3);
  EXPECT_TRUE(none.Step(1));
  EXPECT_EQ(none.verdict(), Verdict::kTake);
  EXPECT_EQ(none.looked(), 0u);
  ChainCheck some(list_, name_, chain, 2);
  EXPECT_FALSE(some.Step(1));
  EXPECT_TRUE(some.Step(10));
  EXPECT_EQ(some.verdict(), Verdict::kCovered);
  EXPECT_EQ(some.looked(), 6u);
}

TEST_F(DropListTest, EachKeyOfAChainThatGrowsIsLookedAtOnce) {
  std::vector<BlockKey> chain;
  for (std::uint64_t i = 0; i < 2'000; ++i) chain.push_back(Key(i));
  list_.Add(1, OfKeys(name_, {Key(5'000)}));
  ChainCheck check(list_, name_, std::span(chain).first(1), 0);
  for (std::size_t blocks = 1; blocks <= chain.size(); ++blocks) {
    check.Extend(std::span(chain).first(blocks));
    while (!check.Step(10)) {
    }
    ASSERT_EQ(check.verdict(), Verdict::kTake) << blocks;
  }
  EXPECT_LE(check.looked(), chain.size() + 10);
  // What is listed by then covers what was looked at before.
  list_.Add(2, OfKeys(name_, {Key(7)}));
  while (!check.Step(10)) {
  }
  EXPECT_EQ(check.verdict(), Verdict::kCovered);
}

TEST_F(DropListTest, SlicesSayWhatOneStepDoes) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    Random random(seed);
    DropList list(seed, 64);
    std::vector<BlockKey> chain;
    for (int i = 0; i < 20; ++i) chain.push_back(Key(random.Below(100)));
    std::int64_t revision = 0;
    const auto drop = [&] {
      revision += static_cast<std::int64_t>(random.Below(3));
      list.Add(revision,
               random.Chance(0.05) ? CellDrop{.name = name_} : OfKeys(name_, {Key(random.Below(300))}));
    };
    for (int i = 0; i < 50; ++i) drop();
    const auto a = static_cast<std::int64_t>(random.Below(80));
    std::size_t blocks = 1 + random.Below(chain.size());
    ChainCheck check(list, name_, std::span(chain).first(blocks), a);
    for (;; check.Extend(std::span(chain).first(++blocks))) {
      while (!check.Step(1 + random.Below(4))) {
        if (random.Chance(0.3)) drop();
      }
      if (blocks == chain.size()) break;
    }
    const Verdict at_once = VerdictOf(list, name_, chain, a);
    EXPECT_EQ(check.verdict() == Verdict::kTake, at_once == Verdict::kTake) << "seed " << seed;
  }
}

TEST_F(DropListTest, AnotherHistorysListBeginsAtALowerRevisionAndKnowsNothingOfBefore) {
  list_.Add(100, OfKeys(name_, {Key(1)}));
  list_.Add(100, EndOf(71));
  list_.Restart(20);
  EXPECT_EQ(list_.size(), 0u);
  std::vector<std::uint64_t> notes = {71};
  EXPECT_EQ(Notes(&notes, 19), Verdict::kBehind);
  list_.Add(21, OfKeys(name_, {Key(2)}));
  list_.Add(21, EndOf(72));
  EXPECT_EQ(list_.last(), 21);
  EXPECT_EQ(Check({Key(1)}, 20), Verdict::kTake);
  EXPECT_EQ(Notes(&notes, 20), Verdict::kTake);
  EXPECT_EQ(Check({Key(2)}, 20), Verdict::kCovered);
}

// Whatever was dropped in the one history has no place in the list of the other.
TEST_F(DropListTest, CheckThatBeganInAnotherHistoryLooksAtThisOnesDrops) {
  const std::vector<BlockKey> chain = {Key(1), Key(2), Key(3)};
  DropList list(1);
  list.Add(100, OfKeys(name_, {Key(50)}));
  ChainCheck check(list, name_, chain, 99);
  EXPECT_FALSE(check.Step(1));
  for (std::uint64_t i = 0; i < 10'000; ++i) list.Add(101, OfKeys(name_, {Key(100 + i)}));
  list.Restart(20);
  list.Add(200, OfKeys(name_, {Key(1)}));
  EXPECT_TRUE(check.Step(10));
  EXPECT_EQ(check.verdict(), Verdict::kCovered);
}

TEST_F(DropListTest, WhatWasListedFirstLeavesFirstWhetherItIsADropOrAnEnd) {
  list_.Add(1, EndOf(71));
  for (std::int64_t i = 2; i <= 5; ++i) list_.Add(i, OfKeys(name_, {Key(static_cast<std::uint64_t>(i))}));
  EXPECT_EQ(list_.size(), 4u);
  EXPECT_EQ(list_.ends_begin(), 1);
  EXPECT_EQ(list_.begin(), 0) << "no drop has left the list";
  list_.Add(6, EndOf(72));
  EXPECT_EQ(list_.begin(), 2);
  EXPECT_EQ(list_.ends_begin(), 1);
  DropList of_ends(1, 4);
  for (std::int64_t i = 1; i <= 5; ++i) of_ends.Add(i, EndOf(static_cast<std::uint64_t>(i)));
  EXPECT_EQ(of_ends.size(), 4u);
  EXPECT_EQ(of_ends.ends_begin(), 1);
  EXPECT_EQ(of_ends.begin(), 0);
}

TEST_F(DropListTest, LastDropIsOfTheKeysOrOfTheNamespaceAndOfWhatIsListedStill) {
  const std::vector<BlockKey> one = {Key(1)}, two = {Key(1), Key(2)}, other = {Key(3)};
  list_.Add(1, OfKeys(name_, {Key(1)}));
  list_.Add(1, OfKeys(name_, {Key(1)}));
  EXPECT_EQ(list_.LastOf(name_, {}), 0);
  list_.Add(2, {.name = name_});
  list_.Add(3, OfKeys(name_, {Key(2)}));
  EXPECT_EQ(list_.LastOf(name_, {}), 2);
  EXPECT_EQ(list_.LastOf(name_, one), 1);
  EXPECT_EQ(list_.LastOf(name_, two), 3);
  EXPECT_EQ(list_.LastOf(name_, other), 0);
  for (std::uint64_t i = 10; i < 12; ++i) list_.Add(4, OfKeys(name_, {Key(i)}));
  EXPECT_EQ(list_.begin(), 1);
  EXPECT_EQ(list_.LastOf(name_, one), 0) << "both of its drops have left the list";
}

}  // namespace
}  // namespace cistern::mesh
