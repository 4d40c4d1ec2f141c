// SPDX-License-Identifier: Apache-2.0
// Admission by worth: what is written to the lower tier once it gives up room, by what was learned of
// returns.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "prompted_store.h"

namespace cistern {
namespace {

// Chats of which each turn comes half a minute after the one before and adds a block, four turns in all; and
// documents of twenty blocks, which nobody asks for again.
class WriteWorthTest : public PromptedStore {
 protected:
  void SetUp() override {
    media_.emplace();
    Begin(400, Promotion::kWorth);
    writes_all_ = false;
    Serve(600);
  }
  void Serve(std::uint64_t seconds) {
    for (const std::uint64_t end = second_ + seconds; second_ < end; ++second_) {
      for (std::uint64_t turn = 0; turn < 4 && 30 * turn <= second_; ++turn)
        AskAll(10 * (second_ - 30 * turn), turn + 1);
      if (second_ % 5 == 0) AskAll(kDocuments + 100 * second_, 20);
    }
  }
  void AskAll(std::uint64_t first, std::size_t blocks) {
    std::vector<std::uint64_t> chain;
    for (std::size_t i = 0; i < blocks; ++i) chain.push_back(first + i);
    ASSERT_NO_FATAL_FAILURE(Ask(second_ * 1'000, chain, false, {}));
  }
  std::uint64_t NotWorth() const { return t->store->counters().down_not_worth.value(); }
  std::uint64_t Written() const { return t->store->counters().written_down.value(); }

  static constexpr std::uint64_t kDocuments = 10'000'000;
  std::uint64_t second_ = 0;
};

TEST_F(WriteWorthTest, WhileThereIsRoomAllIsWritten) {
  t->Settle();
  EXPECT_EQ(NotWorth(), 0u);
  EXPECT_EQ(Written(), stored_);
}

TEST_F(WriteWorthTest, OnceRoomIsGivenUpOnlyWhatReturnsInTimeIsWritten) {
  tier_->set_costs({.turn_ms = 40'000});
  Serve(2);
  const std::uint64_t not_worth = NotWorth();
  Serve(200);  // 800 blocks of chats, of which a quarter are of last turns, and 800 of documents
  EXPECT_GE(NotWorth() - not_worth, 780u);
  EXPECT_LE(NotWorth() - not_worth, 800u + 200u);
}

TEST_F(WriteWorthTest, WhereTheBudgetPaysForHalfTheChatsAreWritten) {
  tier_->set_costs({.budget_bytes_a_ms = 2'000 * kBytes / 1'000'000.0});  // two blocks a second, of eight
  Serve(2);
  const std::uint64_t not_worth = NotWorth();
  Serve(200);
  EXPECT_GE(NotWorth() - not_worth, 780u);
  EXPECT_LT(NotWorth() - not_worth, 1'600u);
}

// Chats go on from documents that were not worth their write: these are written before what extends them.
TEST_F(WriteWorthTest, WhatIsWrittenIsReachedThroughWhatIsWritten) {
  tier_->set_costs({.turn_ms = 40'000});
  Serve(2);
  for (std::uint64_t chat = 0; chat < 5; ++chat) {
    Serve(5);
    const std::uint64_t document = kDocuments + 100 * ((second_ - 1) / 5 * 5);
    for (std::uint64_t turn = 1; turn < 4; ++turn) {
      Serve(30);
      AskAll(document, 20 + turn);
    }
  }
  EXPECT_GT(NotWorth(), 100u);
  t->Settle();
  t->LosePower();
  ASSERT_TRUE(t->recovered.ok()) << t->recovered.ToString();
  EXPECT_EQ(Occupied().blocks, media_->records());
  EXPECT_GT(media_->records(), 500u);
  EXPECT_EQ(t->store->counters().recovery_refused.value(), 0u);
}

}  // namespace
}  // namespace cistern
