// SPDX-License-Identifier: Apache-2.0
// Chains of which a part is not worth its write to the lower tier: what lies there is reached through what
// lies there, and nothing stays in memory for want of a write.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "prompted_store.h"
#include "store/drain.h"

namespace cistern {
namespace {

// Blocks from here on are chains of their own.
constexpr std::uint64_t kOthers = 1'000'000, kSessions = 2'000'000;

class WriteChainsTest : public PromptedStore {
 protected:
  void SetUp() override {
    below_.rooms = 16;
    below_.room_bytes = 64u << 10;
    Begin(40);
  }
  void Begin(std::uint64_t blocks) {
    t.reset();
    media_.emplace();
    taught_ = false;
    PromptedStore::Begin(blocks, Promotion::kAll);
  }

  // Where all that returns does so half a minute after its last use, and records lie below for nearly as
  // long, none is worth its write: each would push out another one shortly before its use.
  void LetNothingPay() {
    if (!std::exchange(taught_, true)) Teach();
    SetPrice({.turn_ms = 29'000});
    const std::uint64_t written = Written();
    PutOther();
    Pass(1'000);
    ASSERT_EQ(Written(), written);
  }
  void Teach() {
    writes_all_ = false;
    const store::Attached own = ns;
    Attach(store::OneGroup());
    for (std::uint64_t second = 0; second < 330; ++second) {
      for (const std::uint64_t ago : {30, 0}) {
        if (ago <= second && second - ago < 300)
          Ask(now_ms_ + (ago == 0 ? 1'000 : 0), {kSessions + second - ago}, false, {});
      }
      if (second >= 300) now_ms_ += 1'000;
    }
    ns = own;
    t->Settle();
  }
  void LetAllPay() { SetPrice({}); }
  void SetPrice(const tier::Tier::WriteCosts& costs) {
    tier_->set_costs(costs);
    now_ms_ += 2'000;
    PutOther();
    Pass(1'000);
  }
  // Without a tick, which writes what is cold.
  void Pass(std::int64_t us) { t->Run(Sleep(t->loop->executor(), t->clock.Now().PlusUs(us))); }
  std::uint64_t Written() const { return t->store->counters().written_down.value(); }
  void PutOne(std::uint64_t n, std::optional<std::uint64_t> parent) {
    ASSERT_EQ(Put(n, parent, kBytes), store::State::kPublished) << n;
    bodies_.clear();
  }
  void PutOther() { PutOne(++others_, std::nullopt); }
  void PushOut(int blocks = 200) {
    for (int i = 0; i < blocks; ++i) {
      PutOther();
      t->Settle();
    }
  }
  bool AnyHere(std::uint64_t n, std::uint16_t groups) {
    for (std::uint16_t g = 0; g < groups; ++g) {
      if (Here(n, g)) return true;
    }
    return false;
  }
  void Use(std::uint64_t n, std::uint16_t group) {
    const catalog::BlockName name{store::Key(n), group};
    const auto grant = t->Run(t->store->Acquire(Me(), ns.slot, std::span(&name, 1), 1'000'000, Soon()));
    ASSERT_TRUE(grant.has_value());
    ASSERT_EQ(grant->views[0].code, Code::kOk);
    ASSERT_TRUE(t->store->Release(Me(), grant->lease).ok());
  }
  // Block 0 is in memory and not worth a write, and the tier gave up its copy; block 1, which extends it, was
  // used and lies below alone.
  void GiveUpTheParent(std::uint16_t groups = 1) {
    std::vector<store::PartWrite> parts;
    for (std::uint64_t n = 0; n < 2; ++n) {
      for (std::uint16_t g = 0; g < groups; ++g) {
        parts.push_back(Part(n, n == 0 ? std::nullopt : std::optional<std::uint64_t>(0), kBytes));
        parts.back().group = g;
      }
    }
    for (const store::PartOutcome& outcome : Write(std::move(parts), Me()))
      ASSERT_EQ(outcome.state, store::State::kPublished);
    t->Settle();
    PushOut();
    for (std::uint16_t g = 0; g < groups; ++g) Use(1, g);
    PushOut(60);
    ASSERT_FALSE(AnyHere(0, groups) || AnyHere(1, groups));
    LetNothingPay();
    const store::AcquireGrant held = Acquire({0}, Me());
    ASSERT_TRUE(Here(0));
    const std::uint64_t moved = tier_->counters().moved_records.value();
    tier_->Reclaim(true);
    Pass(100'000);
    ASSERT_GT(tier_->counters().moved_records.value(), moved);
    ASSERT_FALSE(AnyHere(1, groups));
    ASSERT_TRUE(t->store->Release(Me(), held.lease).ok());
  }
  // Of what a power cut leaves all is reached from its chain's first block.
  void ExpectAllReached() {
    t->LosePower();
    ASSERT_TRUE(t->recovered.ok()) << t->recovered.ToString();
    EXPECT_EQ(Occupied().blocks, media_->records());
  }

  std::uint64_t others_ = kOthers;
  bool taught_ = false;
};

TEST_F(WriteChainsTest, WhatIsExtendedBelowIsWrittenAnewOnceItsCopyIsGivenUp) {
  ASSERT_NO_FATAL_FAILURE(GiveUpTheParent());
  t->Settle();
  ExpectAllReached();
  Attach(store::OneGroup());
  EXPECT_EQ(Match(0, 1), 2u);
}

TEST_F(WriteChainsTest, WhatIsExtendedBelowByABlockOfTwoGroupsLeavesMemory) {
  Attach(store::FullAndWindow());
  ASSERT_NO_FATAL_FAILURE(GiveUpTheParent(2));
  PushOut();
  EXPECT_FALSE(AnyHere(0, 2));
}

TEST_F(WriteChainsTest, WhatEvictionComesToWhileTheBudgetIsSpentLeavesMemoryLater) {
  ASSERT_NO_FATAL_FAILURE(GiveUpTheParent());
  tier_->set_faults({.no_budget = 1});
  PushOut(100);
  ASSERT_TRUE(Here(0));
  tier_->set_faults({});
  PushOut(100);
  EXPECT_FALSE(Here(0));
  Read(0);
  Read(1);
}

TEST_F(WriteChainsTest, WhatWasRefusedBeforeEvictionComesToItLeavesMemoryLater) {
  ASSERT_NO_FATAL_FAILURE(GiveUpTheParent());
  int asked = 0;
  suffers_ = [&](tier::TierFault fault) { return fault == tier::TierFault::kNoBudget && asked++ > 0; };
  t->Tick();
  Pass(1'000);
  ASSERT_GE(asked, 2) << "the cleaner's look, and the refusal";
  for (int i = 0; i < 100; ++i) PutOther();
  ASSERT_TRUE(Here(0));
  suffers_ = {};
  PushOut(100);
  EXPECT_FALSE(Here(0));
}

TEST_F(WriteChainsTest, WhatTheBudgetRefusesToWriteAgainIsNotOwed) {
  for (std::uint64_t n = 0; n < 8; ++n) PutOne(n, n == 0 ? std::nullopt : std::optional(n - 1));
  t->Settle();
  std::vector<BlockKey> keys;
  for (std::uint64_t n = 8; n-- > 0;) keys.push_back(store::Key(n));
  for (int i = 0; i < 20; ++i) {
    t->Run(t->store->Touch(ns.slot, keys));
    PushOut(3);
  }
  SetPrice({.turn_ms = 3'600'000});
  const auto below = [this] { return media_->records(); };
  const std::uint64_t all = below();
  tier_->Reclaim(true);
  Pass(100'000);
  ASSERT_LT(below(), all);
  tier_->set_faults({.no_budget = 1});
  for (std::uint64_t n = 100; n < 120; ++n) {
    t->Run(t->store->Touch(ns.slot, keys));
    PutOne(n, 7);
    Pass(10'000);
  }
  // What is below them would have them written, whatever is owed.
  for (std::uint64_t n = 100; n < 120; ++n) ASSERT_TRUE(Drop(n).has_value());
  t->Settle();
  for (std::uint64_t n = 0; n < 8; ++n) ASSERT_TRUE(Here(n)) << n;
  const std::uint64_t refused = below();
  tier_->set_faults({});
  for (int i = 0; i < 3; ++i) {
    PutOther();
    t->Settle();
  }
  EXPECT_GE(below(), refused + 8 + 3);
}

TEST_F(WriteChainsTest, ChainIsWrittenFromItsFirstBlockOnHoweverLong) {
  Begin(400);
  LetNothingPay();
  for (std::uint64_t n = 0; n < 200; ++n) PutOne(n, n == 0 ? std::nullopt : std::optional(n - 1));
  LetAllPay();
  const std::uint64_t written = Written();
  PutOne(200, 199);
  Pass(100'000);
  EXPECT_EQ(Written() - written, 201u);
  EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
  ExpectAllReached();
}

TEST_F(WriteChainsTest, WhatIsWantedWhileThereIsNoRoomIsWrittenAfterItsParent) {
  LetNothingPay();
  PutOne(0, std::nullopt);
  LetAllPay();
  tier_->set_faults({.no_room = 1});
  PutOne(1, 0);
  Pass(1'000);
  tier_->set_faults({});
  PutOther();
  Pass(10'000);
  ExpectAllReached();
}

TEST_F(WriteChainsTest, WhatTheBudgetPaysForWithoutItsParentIsNotWritten) {
  LetNothingPay();
  PutOne(0, std::nullopt);
  LetAllPay();
  bool refused = false;
  suffers_ = [&](tier::TierFault fault) {
    return fault == tier::TierFault::kNoBudget && !std::exchange(refused, true);
  };
  PutOne(1, 0);
  Pass(10'000);
  ASSERT_TRUE(refused);
  suffers_ = {};
  ExpectAllReached();
}

// Found below it would be reached by nobody, and would keep that one in memory.
TEST_F(WriteChainsTest, WhatExtendsABlockThatIsTooLargeIsNotWritten) {
  ASSERT_EQ(Put(0, std::nullopt, below_.room_bytes / 4 + 1), store::State::kPublished);
  PutOne(1, 0);
  t->Settle();
  EXPECT_EQ(Written(), 0u);
  PushOut(100);
  EXPECT_FALSE(Here(0));
}

TEST_F(WriteChainsTest, WhatIsTooLargeIsCountedOnceAndWaitsForNoWrite) {
  ASSERT_EQ(Put(0, std::nullopt, below_.room_bytes / 4 + 1), store::State::kPublished);
  Pass(10'000'000);
  EXPECT_EQ(t->store->counters().down_too_large.value(), 1u);
  PushOut(100);
  EXPECT_FALSE(Here(0));
  EXPECT_EQ(t->store->counters().evicted_unwritten.value(), 0u);
}

// A record's number is used again as soon as it was dropped, and the write of the one before goes on.
TEST_F(WriteChainsTest, WhatHasTheNumberOfARecordThatIsBeingWrittenIsWrittenToo) {
  below_.least_us = below_.most_us = 20'000;
  Begin(40);
  PutOne(0, std::nullopt);
  Pass(5'000);
  ASSERT_EQ(Written(), 0u);
  ASSERT_TRUE(Drop(0).has_value());
  PutOne(1, std::nullopt);
  PutOne(2, 1);
  Pass(200'000);
  t->LosePower();
  EXPECT_EQ(Occupied().blocks, 2u);
}

TEST_F(WriteChainsTest, WhatIsBehindItsWindowIsNotWrittenForWhatExtendsIt) {
  Begin(800);  // room for all
  Attach(store::OneWindow(2));
  LetNothingPay();
  for (std::uint64_t n = 0; n < 20; ++n) PutOne(n, n == 0 ? std::nullopt : std::optional(n - 1));
  tier_->set_costs({});
  now_ms_ += 2'000;
  const std::uint64_t written = Written();
  PutOne(20, 19);
  Pass(10'000);
  EXPECT_GE(Written() - written, 1u);
  EXPECT_LE(Written() - written, 3u);
}

TEST_F(WriteChainsTest, UsesDuringAWriteAndAfterItWriteNothingMore) {
  below_.least_us = below_.most_us = 20'000;
  Begin(40);
  PutChain(0, 4, kBytes);  // of which all may be written at a time
  std::vector<BlockKey> keys;
  for (std::uint64_t n = 5; n-- > 0;) keys.push_back(store::Key(n));
  for (int i = 0; i < 20; ++i) {
    t->Run(t->store->Touch(ns.slot, keys));
    Pass(5'000);
    t->Tick();
  }
  EXPECT_EQ(Written(), 5u);
  EXPECT_EQ(tier_->counters().appended_records.value(), 5u);
}

TEST_F(WriteChainsTest, DrainWritesWhatIsNotWorthItsWrite) {
  LetNothingPay();
  const std::uint64_t written = Written();
  PutChain(0, 19, kBytes);
  Pass(10'000);
  ASSERT_EQ(Written(), written);
  const auto drain = [this](Executor& executor) -> Task<bool> {
    co_return co_await t->store->drain().Run(
        {.memory_goes = true, .deadline = executor.Now().PlusUs(10'000'000)});
  };
  EXPECT_TRUE(t->Run(drain(t->loop->executor())));
  EXPECT_TRUE(t->store->drain().complete());
  t->LosePower();
  Attach(store::OneGroup());
  EXPECT_EQ(Match(0, 19), 20u);
}

TEST_F(WriteChainsTest, NamespaceThatSaysAllIsWrittenWhateverItIsWorth) {
  LetNothingPay();
  NamespaceSpec spec = store::OneGroup("all");
  spec.flash_admit = Admission::kAll;
  Attach(spec);
  const std::uint64_t written = Written();
  PutChain(0, 9, kBytes);
  Pass(10'000);
  EXPECT_EQ(Written() - written, 10u);
}

}  // namespace
}  // namespace cistern
