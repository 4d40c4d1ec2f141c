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

TEST_F(WriteWorthTest, WhatWasNotWorthItsWriteIsWrittenOnceThereIsRoomWithoutAnotherPut) {
  tier_->set_costs({.turn_ms = 25'000});
  Serve(2);
  t->Settle();
  const std::uint64_t written = Written();
  ASSERT_EQ(Put(2 * kDocuments, std::nullopt, kBytes), store::State::kPublished);
  t->Settle();
  ASSERT_EQ(Written(), written);
  tier_->set_costs({});
  now_ms_ += 2'000;
  t->Settle();
  EXPECT_GT(Written(), written);
}

TEST_F(WriteWorthTest, WhereTheBudgetPaysForHalfTheChatsAreWritten) {
  tier_->set_costs({.budget_bytes_a_ms = 2'000 * kBytes / 1'000'000.0});  // two blocks a second, of eight
  Serve(2);
  const std::uint64_t not_worth = NotWorth();
  Serve(200);
  EXPECT_GE(NotWorth() - not_worth, 780u);
  EXPECT_LT(NotWorth() - not_worth, 1'600u);
}

// What was not worth its write is written before what extends it, and not only once it is used again or cold.
TEST_F(WriteWorthTest, WhatIsWrittenIsReachedThroughWhatIsWritten) {
  tier_->set_costs({.turn_ms = 25'000});
  Serve(2);
  t->Settle();
  const std::uint64_t parent = 2 * kDocuments, child = parent + 2, other = parent + 3;
  std::uint64_t written = Written();
  for (const std::uint64_t n : {parent, parent + 1})
    ASSERT_EQ(Put(n, n == parent ? std::nullopt : std::optional(parent), kBytes), store::State::kPublished);
  t->Settle();
  ASSERT_EQ(Written(), written) << "nothing is worth its write";
  tier_->set_costs({});
  now_ms_ += 2'000;
  ASSERT_EQ(Put(other, std::nullopt, kBytes), store::State::kPublished);
  ASSERT_EQ(Put(child, parent + 1, kBytes), store::State::kPublished);
  while (Written() < written + 2) t->Run(Sleep(t->loop->executor(), t->clock.Now().PlusUs(10)));
  t->Run(Sleep(t->loop->executor(),
               t->clock.Now().PlusUs(10'000)));  // without a tick, which writes what is cold
  t->LosePower();
  ASSERT_TRUE(t->recovered.ok()) << t->recovered.ToString();
  Attach(store::OneGroup());
  EXPECT_EQ(Match(parent, child), 3u);
  EXPECT_EQ(Occupied().blocks, media_->records());
}

// A block whose copy below is given up while it is in memory, and which is not worth another one, could never
// leave memory before what extends it below.
TEST_F(WriteWorthTest, WhatIsExtendedBelowIsWrittenWhateverItIsWorth) {
  const std::uint64_t parent = 0, child = 2 * kDocuments;  // the parent lies in the room that was full first
  auto push_out = [&, next = child]() mutable {
    for (int i = 0; i < 600; ++i) {
      ASSERT_EQ(Put(++next, std::nullopt, kBytes), store::State::kPublished);
      bodies_.clear();
      if (i % 50 == 0) t->Settle();
    }
  };
  ASSERT_EQ(Put(child, parent, kBytes), store::State::kPublished);
  t->Settle();
  push_out();
  ASSERT_FALSE(Here(child));
  tier_->set_costs({.turn_ms = 25'000});
  Serve(2);
  const std::uint64_t not_worth = NotWorth();
  Serve(1);
  ASSERT_GE(NotWorth() - not_worth, 4u) << "nothing is worth its write";
  const store::AcquireGrant held = Acquire({parent}, Me());
  ASSERT_TRUE(Here(parent));
  tier_->Reclaim(true);
  t->Settle();
  ASSERT_FALSE(Here(child));
  PassUs(2'000'000);  // past its lease
  push_out();
  EXPECT_FALSE(Here(parent));
  Read(parent);
  Read(child);
}

}  // namespace
}  // namespace cistern
