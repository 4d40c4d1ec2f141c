// SPDX-License-Identifier: Apache-2.0
#include "server/owners.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace cistern::server {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kBudget = 100, kStart = 10;

// Each token is one byte many times: 0, 0, 1, 1, 2, ...
struct Twice {
  unsigned drawn = 0;
  void operator()(std::span<std::byte> bytes) {
    std::ranges::fill(bytes, static_cast<std::byte>(drawn++ / 2));
  }
};

OwnerToken TokenOf(unsigned name) {
  OwnerToken token;
  token.fill(static_cast<std::byte>(name));
  return token;
}

TEST(Owners, ANewTokenIsNobodysAndNotTheOneThatStandsForNone) {
  Owners owners(Twice{}, kBudget, kStart);
  for (unsigned name = 1; name < 4; ++name) {
    const OwnerToken token = owners.NewToken();
    EXPECT_EQ(token, TokenOf(name));
    owners.AddSession(token);
  }
}

TEST(Owners, OneIsGoneWithTheLastOfItsSessions) {
  Owners owners(Twice{}, kBudget, kStart);
  EXPECT_FALSE(owners.Gone(OwnerToken{}));
  EXPECT_TRUE(owners.Gone(TokenOf(7)));
  owners.AddSession(TokenOf(7));
  owners.AddSession(TokenOf(7));
  owners.RemoveSession(TokenOf(7));
  EXPECT_FALSE(owners.Gone(TokenOf(7)));
  owners.RemoveSession(TokenOf(7));
  EXPECT_TRUE(owners.Gone(TokenOf(7)));
}

// Four times what is left then, and what it starts with in any case.
TEST(Owners, P5OneMayTakeItsShareAndARefusalNamesTheMostOfIt) {
  Owners owners(Twice{}, kBudget, kStart);
  const OwnerToken first = TokenOf(1), second = TokenOf(2);
  EXPECT_TRUE(owners.CheckShare(first, 80, 0).ok());
  const Status refused = owners.CheckShare(first, 81, 0);
  EXPECT_EQ(refused.code(), Code::kBusy);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("staging: 81 bytes asked for, 100 of 100 are left, "
                                                        "and this owner, which has 0, may take 80 of them"));
  owners.AddStaging(first, 80);
  EXPECT_THAT(std::string(owners.CheckShare(first, 1, 80).message()),
              HasSubstr("20 of 100 are left, and this owner, which has 80, may take 0 of them"));
  EXPECT_TRUE(owners.CheckShare(second, 16, 80).ok());
  EXPECT_FALSE(owners.CheckShare(second, 17, 80).ok());
}

// To be tried again in vain.
TEST(Owners, WhatNoOwnerMayEverHaveIsInvalid) {
  const Owners owners(Twice{}, kBudget, kStart);
  EXPECT_TRUE(owners.CheckEver(70).ok());
  const Status never = owners.CheckEver(71);
  EXPECT_EQ(never.code(), Code::kInvalid);
  EXPECT_THAT(std::string(never.message()),
              HasSubstr("71 bytes asked for at once, and one owner may have 70"));
}

TEST(Owners, WhatOneStartsWithIsItsOwnHoweverLittleIsLeft) {
  Owners owners(Twice{}, kBudget, kStart);
  owners.AddStaging(TokenOf(1), 4);
  EXPECT_TRUE(owners.CheckShare(TokenOf(1), 6, 94).ok());
  EXPECT_THAT(std::string(owners.CheckShare(TokenOf(1), 7, 94).message()),
              HasSubstr("6 of 100 are left, and this owner, which has 4, may take 6 of them"));
}

TEST(Owners, P5AClaimCountsUntilItEnds) {
  Owners owners(Twice{}, kBudget, kStart);
  const OwnerToken owner = TokenOf(1);
  {
    const StagingClaim claim(owners, owner, 60), another(owners, owner, 5);
    EXPECT_EQ(owners.staging_of(owner), 65u);
    EXPECT_FALSE(owners.CheckShare(owner, 20, 60).ok());
    owners.AddStaging(owner, 64);  // what was made for it
  }
  EXPECT_EQ(owners.staging_of(owner), 64u);
  owners.RemoveStaging(owner, 64);
  EXPECT_EQ(owners.staging_of(owner), 0u);
}

// Nothing is made of a question for no bytes, and several of them may be under way.
TEST(Owners, ClaimsOfNothingEndInAnyOrder) {
  Owners owners(Twice{}, kBudget, kStart);
  const StagingClaim claim(owners, TokenOf(1), 0), another(owners, TokenOf(1), 0);
}

}  // namespace
}  // namespace cistern::server
