// SPDX-License-Identifier: Apache-2.0
#include "policy/quota.h"

#include <gtest/gtest.h>

#include "policy/order.h"

namespace cistern::policy {
namespace {

constexpr std::uint64_t kGiB = 1u << 30;

TEST(Quota, IsReadAsItIsWrittenAndWhatIsWrongIsNamed) {
  const Result<Quota> quota = ParseQuota("model=llama-*:memory=10GiB,reserve=2GiB");
  ASSERT_TRUE(quota.has_value()) << quota.error().ToString();
  EXPECT_EQ(*quota, (Quota{"model=llama-*", 10 * kGiB, 2 * kGiB}));
  for (const char* text : {"model=llama-*:memory=10GiB,reserve=2GiB", "a:b:reserve=1GiB", "x:memory=1GiB",
                           "x:flash=3GiB", "x:reserve=1MiB,flash=3GiB,flash_reserve=1GiB", "x:reserve=0B"})
    EXPECT_EQ(ToString(ParseQuota(text).value_or(Quota())), text);
  for (const char* text :
       {"", "model=a", ":memory=1GiB", "a:", "a:flash", "a:disk=1GiB", "a:memory=", "a:memory=x",
        "a:memory=1GiB,reserve=2GiB", "a:flash=1GiB,flash_reserve=2GiB", "a:memory=1GiB,memory=2GiB"}) {
    const Result<Quota> wrong = ParseQuota(text);
    ASSERT_FALSE(wrong.has_value()) << text;
    EXPECT_EQ(wrong.error().code(), Code::kInvalid);
    EXPECT_NE(wrong.error().message().find("quota"), std::string::npos) << wrong.error().message();
  }
}

TEST(Quota, AStarStandsForAnyCharacters) {
  EXPECT_TRUE(MatchesPattern("llama-*", "llama-70b"));
  EXPECT_TRUE(MatchesPattern("llama-*", "llama-"));
  EXPECT_TRUE(MatchesPattern("*-70b*-q*", "llama-70b-fp8-q4"));
  EXPECT_TRUE(MatchesPattern("*", ""));
  EXPECT_TRUE(MatchesPattern("abc", "abc"));
  EXPECT_FALSE(MatchesPattern("abc", "abcd"));
  EXPECT_FALSE(MatchesPattern("*b", "abc"));
  EXPECT_FALSE(MatchesPattern("", "a"));
}

TEST(Quota, TheFirstThatMatchesANameOrAFieldCounts) {
  const QuotaTable table({{.pattern = "model=llama-*"}, {.pattern = "blue"}, {.pattern = "*"}});
  const std::vector<std::string> none, blue = {"blue"};
  const std::vector<std::pair<std::string, std::string>> llama = {{"dtype", "bf16"}, {"model", "llama-8b"}},
                                                         other = {{"model", "qwen"}};
  EXPECT_EQ(table.GroupOf(blue, llama), 1);
  EXPECT_EQ(table.GroupOf(blue, other), 2);
  EXPECT_EQ(table.GroupOf(none, llama), 1);
  EXPECT_EQ(table.GroupOf(none, other), 0) << "* alone is of names";
}

TEST(Quota, WhoHasNoMoreThanItsReserveGivesNothingAndWhoIsOverGivesAlone) {
  const QuotaTable table(
      {{.pattern = "a", .memory_bytes = 100, .reserve_bytes = 40}, {.pattern = "b", .reserve_bytes = 50}});
  QuotaTable::Used used{};
  used[0] = 1000;
  used[1] = 40;
  used[2] = 51;
  EXPECT_EQ(table.MayLeaveFor(0, 10, used), 0b101) << "a has its reserve";
  EXPECT_EQ(table.MayLeaveFor(1, 10, used), 0b111) << "its own may leave for it";
  used[1] = 95;
  EXPECT_EQ(table.MayLeaveFor(1, 10, used), 0b010) << "it would pass its quota";
  EXPECT_EQ(table.MayLeaveFor(1, 0, used), 0b111);
  EXPECT_EQ(table.MayLeaveFor(2, 10, used), 0b111);
  EXPECT_EQ(QuotaTable().MayLeaveFor(0, 10, used), kAllGroups);
  EXPECT_FALSE(table.Over(2, used, 1u << 30));
  EXPECT_TRUE(table.Over(1, used, 6));
}

TEST(Quota, OfFlashWhatWouldPassItIsNotWrittenAndASixteenthIsToBeFree) {
  const QuotaTable table({{.pattern = "a", .flash_bytes = 160, .flash_reserve_bytes = 40}, {.pattern = "b"}});
  QuotaTable::Used below{};
  below[0] = below[2] = 1u << 30;
  below[1] = 150;
  EXPECT_FALSE(table.OverBelow(1, below, 10));
  EXPECT_TRUE(table.OverBelow(1, below, 11));
  EXPECT_FALSE(table.FullBelow(1, below));
  EXPECT_FALSE(table.ReservedBelow(1, below));
  below[1] = 151;
  EXPECT_TRUE(table.FullBelow(1, below));
  below[1] = 40;
  EXPECT_TRUE(table.ReservedBelow(1, below));
  for (const QuotaGroup other : {QuotaGroup{0}, QuotaGroup{2}, QuotaGroup{3}}) {
    EXPECT_FALSE(table.OverBelow(other, below, 1u << 30));
    EXPECT_FALSE(table.FullBelow(other, below));
    EXPECT_FALSE(table.ReservedBelow(other, below));
  }
  EXPECT_TRUE(table.of_flash());
  EXPECT_EQ(table.flash_reserved_bytes(), 40u);
  EXPECT_FALSE(QuotaTable({{.pattern = "a", .memory_bytes = 1}}).of_flash());
}

TEST(Quota, ReservesShareWhatATierCanKeepByTheirSizes) {
  const QuotaTable table({{.pattern = "a", .flash_reserve_bytes = 30},
                          {.pattern = "b", .flash_reserve_bytes = 10},
                          {.pattern = "c", .flash_bytes = 10}});
  EXPECT_EQ(table.ReservableBelow(1, 1000), 750u);
  EXPECT_EQ(table.ReservableBelow(2, 1000), 250u);
  EXPECT_EQ(table.ReservableBelow(3, 1000), 0u);
  EXPECT_EQ(table.ReservableBelow(0, 1000), 0u);
}

TEST(Quota, TheOrderOfAGroupIsThatOfAllWithoutTheOthers) {
  for (const EvictionPolicy policy : {EvictionPolicy::kLru, EvictionPolicy::kReuse}) {
    Order order(policy, 100);
    for (EntryId id = 0; id < 30; ++id)
      order.Insert(id, static_cast<SizeClass>(id % 2), {}, static_cast<QuotaGroup>(id % 3));
    EXPECT_EQ(order.Coldest(), 0u);
    EXPECT_EQ(order.ColdestIn(QuotaGroups{0b110}), 1u);
    EXPECT_EQ(order.Coldest(SizeClass{0}, QuotaGroups{0b110}), 2u);
    EXPECT_EQ(order.Oldest(SizeClass{1}, QuotaGroups{0b001}), 3u);
    EXPECT_FALSE(order.ColdestIn(QuotaGroups{0b1000}));
    for (EntryId id = 0; id < 30; ++id) order.Regroup(id, 3);
    EXPECT_FALSE(order.ColdestIn(QuotaGroups{0b0111}));
    for (EntryId id = 0; id < 30; ++id) {
      EXPECT_EQ(order.ColdestIn(QuotaGroups{0b1000}), id) << "as recent as they were";
      EXPECT_EQ(order.group(id), 3);
      order.Remove(id);
    }
  }
}

TEST(Quota, AllOfWhatItMayHaveMayBeReserved) {
  EXPECT_TRUE(ParseQuota("a:memory=1GiB,reserve=1GiB").has_value());
  EXPECT_TRUE(ParseQuota("a:flash=1GiB,flash_reserve=1GiB").has_value());
  EXPECT_EQ(QuotaTable({{.pattern = "a"}}).ReservableBelow(1, 1000), 0u) << "nobody has a reserve";
}

TEST(Quota, NothingOfATextStandsForTwoPartsOfAPattern) {
  EXPECT_FALSE(MatchesPattern("xab*bz", "xabz"));
  EXPECT_TRUE(MatchesPattern("xab*bz", "xabbz"));
  EXPECT_TRUE(MatchesPattern("a*bc", "abcbc"));
}

// A quota of one model is not another one's, though that one says the same name of something else.
TEST(Quota, AValueIsOfTheFieldOrLabelThatThePatternNames) {
  using Values = std::vector<std::pair<std::string, std::string>>;
  const QuotaTable table({{.pattern = "model=llama-*"}, {.pattern = "blue"}});
  const Values tokenizer = {{"tokenizer", "llama-8b"}}, model = {{"model", "llama-8b"}},
               blue = {{"blue", "blue"}};
  EXPECT_EQ(table.GroupOf({}, tokenizer), 0);
  EXPECT_EQ(table.GroupOf({}, tokenizer, tokenizer), 0);
  EXPECT_EQ(table.GroupOf({}, {}, model), 1) << "a label";
  EXPECT_EQ(table.GroupOf({}, tokenizer, model), 1);
  EXPECT_EQ(table.GroupOf({}, blue, blue), 0) << "a pattern without = is of names";
}

}  // namespace
}  // namespace cistern::policy
