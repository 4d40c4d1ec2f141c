// SPDX-License-Identifier: Apache-2.0
#include "policy/hand_over.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace cistern::policy {
namespace {

constexpr std::uint64_t kBranches = 40'000;

std::uint64_t First(std::uint64_t branch, std::span<const Taker> takers) {
  return TakersOf(branch, takers).front();
}

TEST(HandOverTest, BranchesSpreadByWeight) {
  const std::vector<Taker> takers = {{11, 1}, {12, 2}, {13, 5}};
  std::map<std::uint64_t, double> got;
  for (std::uint64_t branch = 0; branch < kBranches; ++branch) got[First(branch, takers)] += 1;
  EXPECT_NEAR(got[11] / kBranches, 1.0 / 8, 0.01);
  EXPECT_NEAR(got[12] / kBranches, 2.0 / 8, 0.01);
  EXPECT_NEAR(got[13] / kBranches, 5.0 / 8, 0.01);
}

TEST(HandOverTest, OnlyTheBranchesOfAMemberThatLeavesChooseAnew) {
  const std::vector<Taker> all = {{11, 3}, {12, 3}, {13, 3}, {14, 3}};
  const std::vector<Taker> left = {{11, 3}, {12, 3}, {14, 3}};
  std::map<std::uint64_t, double> came;
  for (std::uint64_t branch = 0; branch < kBranches; ++branch) {
    const std::uint64_t before = First(branch, all), after = First(branch, left);
    if (before != 13) {
      ASSERT_EQ(after, before) << branch;
    } else {
      came[after] += 1;
      // It goes where it would have gone next.
      ASSERT_EQ(after, TakersOf(branch, all)[1]);
    }
  }
  for (const std::uint64_t id : {11, 12, 14}) EXPECT_NEAR(came[id] / (kBranches / 4.0), 1.0 / 3, 0.02);
}

TEST(HandOverTest, OrderIsTheBranchsOwnWhateverOrderTheTakersAreIn) {
  std::vector<Taker> takers = {{1, 9}, {2, 9}, {3, 9}, {4, 9}, {5, 9}};
  for (std::uint64_t branch = 0; branch < 100; ++branch) {
    const auto order = TakersOf(branch, takers);
    std::ranges::reverse(takers);
    EXPECT_EQ(TakersOf(branch, takers), order);
  }
}

TEST(HandOverTest, WhoHasNoWeightIsOfferedNothing) {
  EXPECT_TRUE(TakersOf(7, std::vector<Taker>{{1, 0}}).empty());
  EXPECT_EQ(TakersOf(7, std::vector<Taker>{{1, 0}, {2, 1}}), std::vector<std::uint64_t>{2});
}

TEST(HandOverTest, CopiesAreOfTheFirstPatternThatFits) {
  std::vector<Copies> all;
  for (const char* text : {"model=llama*:3", "chat:2", "1"}) {
    const Result<Copies> one = ParseCopies(text);
    ASSERT_TRUE(one.has_value()) << text;
    EXPECT_EQ(CopiesText(*one), text);
    all.push_back(*one);
  }
  const std::vector<std::string> none, chat = {"chat"};
  const std::vector<std::pair<std::string, std::string>> llama = {{"dtype", "bf16"}, {"model", "llama-70b"}};
  const std::vector<std::pair<std::string, std::string>> other = {{"model", "other"}};
  EXPECT_EQ(CopiesOf(all, none, llama), 3u);
  EXPECT_EQ(CopiesOf(all, chat, llama), 3u);
  EXPECT_EQ(CopiesOf(all, chat, other), 2u);
  EXPECT_EQ(CopiesOf(all, none, other), 1u);
  EXPECT_EQ(CopiesOf({}, chat, llama), 1u);
}

TEST(HandOverTest, CopiesThatAreNoneAreRefused) {
  for (const char* text : {"", "0", "9", "x", ":2", "chat:", "chat:0", "chat:9", "2x", "-1"})
    EXPECT_FALSE(ParseCopies(text).has_value()) << text;
}

TEST(HandOverTest, BranchesBeginAtRootsAndBelowManyChildren) {
  EXPECT_TRUE(BeginsBranch(false, 1));
  EXPECT_FALSE(BeginsBranch(true, kManyChildren - 1));
  EXPECT_TRUE(BeginsBranch(true, kManyChildren));
}

TEST(HandOverTest, CopiesGoUpToTheirBoundAndThoseOfEveryNamespaceHaveNoPattern) {
  const Result<Copies> most = ParseCopies(std::to_string(Copies::kMost));
  ASSERT_TRUE(most.has_value());
  EXPECT_EQ(CopiesOf(std::vector{*most}, {}, {}), Copies::kMost);
  EXPECT_FALSE(ParseCopies("99999999999").has_value());
}

}  // namespace
}  // namespace cistern::policy
