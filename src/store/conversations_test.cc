// SPDX-License-Identifier: Apache-2.0
#include "catalog/conversations.h"

#include <gtest/gtest.h>

#include "store/block_store_fixture.h"

namespace cistern::store {
namespace {

constexpr std::uint64_t kAnn = 11, kBob = 22;

class ConversationsTest : public BlockStoreTest {
 protected:
  // Blocks first to last, each below the one before, the first below `parent`.
  void Say(std::uint64_t conversation, std::uint64_t first, std::uint64_t last,
           std::optional<std::uint64_t> parent = std::nullopt) {
    for (std::uint64_t n = first; n <= last; ++n) {
      PartWrite part = Part(n, n == first ? parent : std::optional(n - 1));
      part.conversation = conversation;
      ASSERT_TRUE(WriteOne(std::move(part)).status.ok());
    }
  }
  void Hit(std::uint64_t conversation, std::uint64_t n) {
    const BlockKey key = Key(n);
    t->Run(t->store->Touch(ns.slot, std::span(&key, 1), conversation));
  }
  std::uint64_t End(std::uint64_t conversation) {
    Result<std::uint64_t> ended = t->Run(t->store->EndConversation(ns.slot, conversation));
    EXPECT_TRUE(ended.has_value());
    return *ended;
  }
};

TEST_F(ConversationsTest, R10EndingOneDropsWhatItAloneWroteAndItStaysGone) {
  Make();
  PutChain(1, 3);
  Say(kAnn, 4, 8, 3);
  Say(kBob, 14, 16, 3);
  EXPECT_EQ(Occupied().conversations, 2u);
  EXPECT_EQ(End(kAnn), 5u);
  EXPECT_EQ(Match(1, 8), 3u);
  EXPECT_TRUE(Exact(14) && Exact(16));
  EXPECT_EQ(End(kAnn), 0u);
  EXPECT_EQ(Occupied().conversations, 1u);
  EXPECT_EQ(Occupied().tombstones, 0u);
  Restart();
  EXPECT_EQ(Match(1, 8), 3u);
  EXPECT_TRUE(Exact(16));
}

TEST_F(ConversationsTest, WhatAnotherConversationHitStaysWithItsAncestors) {
  Make();
  Say(kAnn, 1, 10);
  Hit(kBob, 6);
  Hit(0, 9);  // nobody's use keeps nothing
  Hit(kAnn, 10);
  EXPECT_EQ(End(kAnn), 4u);
  EXPECT_EQ(Match(1, 10), 6u);
  EXPECT_EQ(End(kBob), 6u) << "it goes with the last one that used it";
  EXPECT_EQ(Match(1, 10), 0u);
}

TEST_F(ConversationsTest, R10UpToEightUseABlockAndItGoesWithTheLastOfThem) {
  constexpr std::uint64_t kMost = catalog::Conversations::kMostUsers;
  Make();
  Say(kAnn, 1, 6);
  for (std::uint64_t other = 101; other < 100 + kMost; ++other) Hit(other, 4);
  EXPECT_EQ(End(103), 0u);
  EXPECT_EQ(End(kAnn), 2u) << "5 and 6 were its own";
  for (std::uint64_t other = 101; other + 1 < 100 + kMost; ++other) EXPECT_EQ(End(other), 0u) << other;
  EXPECT_EQ(Match(1, 6), 4u);
  EXPECT_EQ(End(100 + kMost - 1), 4u);
  EXPECT_EQ(Match(1, 6), 0u);
  EXPECT_EQ(Occupied().conversations, 0u);
}

TEST_F(ConversationsTest, WhatMoreThanEightUseNoEndTakesNorWhatItHangsBelow) {
  constexpr std::uint64_t kMore = catalog::Conversations::kMostUsers + 1;
  Make();
  Say(kAnn, 1, 6);
  for (std::uint64_t other = 101; other < 100 + kMore; ++other) Hit(other, 4);
  EXPECT_EQ(End(kAnn), 2u);
  for (std::uint64_t other = 101; other < 100 + kMore; ++other) EXPECT_EQ(End(other), 0u) << other;
  EXPECT_EQ(Match(1, 6), 4u);
}

TEST_F(ConversationsTest, WhoEndedAndComesBackIsNotedAgain) {
  Make();
  Say(kAnn, 1, 4);
  Hit(kBob, 4);
  EXPECT_EQ(End(kAnn), 0u);
  Hit(kAnn, 2);
  EXPECT_EQ(End(kBob), 2u);
  EXPECT_EQ(Match(1, 4), 2u);
  EXPECT_EQ(End(kAnn), 2u);
}

// A block that came again above descendants of several is of them, too.
TEST_F(ConversationsTest, ABlockThatCameAgainIsOfAllWhoUseWhatHangsBelowIt) {
  Make({.store = {.max_blocks = 4}}, WindowOnly());
  Say(0, 1, 1);
  Say(kAnn, 2, 2, 1);
  Say(0, 3, 6, 2);
  Say(kAnn, 7, 9, 6);
  ASSERT_FALSE(Here(2));
  Hit(kBob, 7);
  Say(33, 2, 2, 1);
  EXPECT_EQ(End(33), 0u);
  EXPECT_TRUE(Here(2));
  EXPECT_GE(End(kAnn), 2u);
  EXPECT_TRUE(Here(2)) << "Bob has used the seventh";
  EXPECT_GE(End(kBob), 1u);
  EXPECT_FALSE(Here(2));
}

TEST_F(ConversationsTest, WhatAnotherConversationWroteAgainOrBuiltOnStays) {
  Make();
  Say(kAnn, 1, 4);
  Say(kBob, 1, 2);
  EXPECT_EQ(End(kAnn), 2u);
  EXPECT_EQ(Match(1, 4), 2u);
  Say(kAnn, 21, 24);
  Say(kBob, 31, 32, 23);
  EXPECT_EQ(End(kAnn), 1u);
  EXPECT_EQ(Match(21, 24), 3u);
  EXPECT_EQ(End(kBob), 7u) << "with the two of the first chain, and three that Ann wrote";
  EXPECT_FALSE(Here(31));
  EXPECT_EQ(Match(21, 24), 0u);
}

TEST_F(ConversationsTest, WhatWasNobodysIsNobodys) {
  Make();
  PutChain(1, 3);
  Say(kAnn, 1, 3);
  EXPECT_EQ(End(kAnn), 0u);
  EXPECT_EQ(Match(1, 3), 3u);
}

TEST_F(ConversationsTest, ABlockThatCameAgainIsOfWhoBroughtIt) {
  Make();
  Say(kAnn, 1, 6);
  ASSERT_TRUE(Drop(1).has_value());
  PutChain(1, 2);
  Say(kBob, 3, 4, 2);
  EXPECT_EQ(End(kAnn), 0u);
  EXPECT_EQ(Match(1, 4), 4u);
  EXPECT_EQ(End(kBob), 2u);
  EXPECT_EQ(Match(1, 4), 2u);
}

// Behind its window a block leaves memory before what descends from it.
TEST_F(ConversationsTest, ABlockThatCameAgainAboveItsDescendantsIsOfWhoBroughtIt) {
  Make({.store = {.max_blocks = 4}}, WindowOnly());
  Say(0, 1, 1);
  Say(kAnn, 2, 2, 1);
  Say(0, 3, 9, 2);
  ASSERT_FALSE(Here(2));
  ASSERT_TRUE(Here(9));
  Say(kBob, 2, 2, 1);
  EXPECT_GE(End(kBob), 1u) << "Ann has not used this one";
  EXPECT_FALSE(Here(2));
}

TEST_F(ConversationsTest, ABlockThatCameAgainAboveAnothersStays) {
  Make({.store = {.max_blocks = 4}}, WindowOnly());
  Say(0, 1, 1);
  Say(kAnn, 2, 2, 1);
  Say(0, 3, 6, 2);
  Say(kAnn, 7, 9, 6);
  ASSERT_FALSE(Here(2));
  Say(kBob, 2, 2, 1);
  EXPECT_EQ(End(kBob), 0u);
  EXPECT_TRUE(Here(2) && Here(9));
}

TEST_F(ConversationsTest, WhatAnotherConversationUsesStaysWithAncestorsBeyondNobodys) {
  for (const bool built : {false, true}) {
    Make();
    Say(kAnn, 1, 2);
    Say(0, 3, 4, 2);
    Say(kAnn, 5, 6, 4);
    built ? Say(kBob, 7, 7, 6) : Hit(kBob, 6);
    EXPECT_EQ(End(kAnn), 0u);
    EXPECT_EQ(Match(1, 6), 6u);
  }
}

TEST_F(ConversationsTest, WhoUsesNobodysBlockUsesWhatItHangsBelow) {
  for (const bool built : {false, true}) {
    Make();
    Say(kAnn, 1, 2);
    Say(0, 3, 4, 2);
    Hit(kAnn, 4);
    built ? Say(kBob, 5, 5, 4) : Hit(kBob, 4);
    EXPECT_EQ(End(kAnn), 0u);
    EXPECT_EQ(Match(1, 4), 4u);
  }
  Make();
  Say(kAnn, 1, 2);
  Say(0, 3, 4, 2);
  Hit(kAnn, 4);
  EXPECT_EQ(End(kAnn), 4u) << "Ann alone has used it";
}

// Deeper than a step's looks reach, while others are collected.
TEST_F(ConversationsTest, AUseDeepInAChainIsNotedWhileOthersAreCollected) {
  constexpr std::uint64_t kDeep = 600, kOther = 10'000;
  Make({.headers = 4});
  Say(kAnn, 1, kDeep);
  PutChain(kOther, kOther + 2000);
  const BlockKey other = Key(kOther), last = Key(kDeep);
  Task<Result<std::uint64_t>> dropping = t->store->Drop(ns.slot, std::span(&other, 1));
  Task<std::uint32_t> touching = t->store->Touch(ns.slot, std::span(&last, 1), kBob);
  ASSERT_FALSE(dropping.done());
  EXPECT_EQ(t->Run(std::move(touching)), 1u);
  EXPECT_FALSE(dropping.done()) << "nothing was collected any more";
  EXPECT_TRUE(t->Run(std::move(dropping)).has_value());
  EXPECT_EQ(End(kAnn), 0u);
  EXPECT_TRUE(Here(kDeep));
}

TEST_F(ConversationsTest, WhatNobodyElseUsedIsLookedAtOnce) {
  constexpr std::uint64_t kDeep = 1000;
  Make({.headers = 4});
  Say(0, 1, kDeep);
  Say(kBob, 2001, 2001);
  std::vector<BlockKey> chain;
  for (std::uint64_t n = 1; n <= kDeep; ++n) chain.push_back(Key(n));
  const auto work_of_touch = [&] {
    const std::uint64_t before = t->loop->executor().work();
    t->Run(t->store->Touch(ns.slot, chain, kAnn));
    return t->loop->executor().work() - before;
  };
  work_of_touch();
  const std::uint64_t once = work_of_touch();
  EXPECT_LE(once, 20 * kDeep);
  std::ranges::reverse(chain);
  EXPECT_LE(work_of_touch(), once + kDeep);
}

TEST_F(ConversationsTest, AConversationIsKnownAfterARestart) {
  Make();
  Say(kAnn, 1, 6);
  Say(kBob, 11, 12, 2);
  Say(kAnn, 13, 14, 12);
  Restart();
  EXPECT_EQ(Occupied().conversations, 2u);
  EXPECT_EQ(End(kAnn), 6u) << "3 to 6, 13 and 14; 1 and 2 bear what Bob wrote";
  EXPECT_EQ(Match(1, 6), 2u);
  EXPECT_TRUE(Exact(12));
  EXPECT_FALSE(Here(13));
}

TEST_F(ConversationsTest, R10WhatItsWriterLeftToOthersIsTheirsAfterRestarts) {
  Make();
  Say(kAnn, 1, 2);
  Say(kBob, 11, 12, 2);
  EXPECT_EQ(End(kAnn), 0u) << "1 and 2 bear what Bob wrote";
  EXPECT_EQ(t->journal->conversation_ends(), 1u);
  for (int restart = 0; restart < 2; ++restart) {
    Restart();
    EXPECT_EQ(Occupied().conversations, 1u);
    EXPECT_EQ(Match(1, 2), 2u);
  }
  EXPECT_EQ(End(kBob), 4u);
  Restart();
  EXPECT_EQ(t->journal->conversation_ends(), 0u) << "nothing is left of it";
}

TEST_F(ConversationsTest, WhoEndedAndComesBackHasWhatItWroteSinceAfterARestart) {
  Make();
  Say(kAnn, 1, 2);
  Say(kBob, 11, 12, 2);
  EXPECT_EQ(End(kAnn), 0u);
  Say(kAnn, 21, 22, 12);
  Restart();
  EXPECT_EQ(End(kBob), 0u) << "all of it bears what Ann wrote since";
  Restart();
  EXPECT_EQ(End(kAnn), 6u);
}

TEST_F(ConversationsTest, PastTheBoundARestartForgetsTheConversationsThatWroteFirst) {
  TestStoreOptions options;
  options.store.max_noted_blocks = 4;
  Make(options);
  PutChain(1, 4);
  Say(kAnn, 11, 14);
  Drop(1);
  Say(kBob, 21, 24);  // in the slots of those
  Restart();
  EXPECT_EQ(End(kAnn), 0u);
  EXPECT_EQ(End(kBob), 4u);
}

TEST_F(ConversationsTest, PastTheBoundARestartKeepsEndsOfWhatItLeavesOut) {
  TestStoreOptions options;
  options.store.max_noted_blocks = 4;
  Make(options);
  Say(kAnn, 1, 2);
  Say(kBob, 11, 12, 2);
  EXPECT_EQ(End(kAnn), 0u);
  Say(33, 21, 24);
  Restart();
  EXPECT_EQ(t->journal->conversation_ends(), 1u);
}

TEST_F(ConversationsTest, AnEndThatTheJournalDidNotTakeIsInItWithTheNextRecord) {
  Make();
  Say(kAnn, 1, 2);
  Say(kBob, 11, 12, 2);
  t->disk.set_faults(
      [](const io::IoRequest&, const std::string&) { return io::Fault{.kind = io::FaultKind::kIoError}; });
  EXPECT_FALSE(t->Run(t->store->EndConversation(ns.slot, kAnn)).has_value());
  t->disk.set_faults(nullptr);
  ASSERT_TRUE(t->Run(t->store->Attach(OneGroup("another"))).has_value());
  Restart();
  EXPECT_EQ(End(kBob), 4u);
}

TEST_F(ConversationsTest, AHeldPutIsItsConversationsWhenItIsPublished) {
  Make();
  PartWrite part = Part(1, std::nullopt);
  part.conversation = kAnn;
  part.held = true;
  const PutId put = part.put_id;
  ASSERT_EQ(WriteOne(std::move(part)).state, State::kPending);
  EXPECT_EQ(Occupied().conversations, 0u);
  ASSERT_TRUE(t->Run(t->store->Publish(Me(), ns.slot, std::span(&put, 1))).has_value());
  EXPECT_EQ(End(kAnn), 1u);
}

TEST_F(ConversationsTest, AnEndThatIsRefusedForgetsNothing) {
  Make({.store = {.max_tombstones = 1}});
  Say(kAnn, 1, 10);
  Say(kAnn, 21, 21);
  EXPECT_EQ(t->Run(t->store->EndConversation(ns.slot, kAnn)).error().code(), Code::kBusy) << "two drops";
  Hit(kBob, 6);
  const BlockKey other = Key(21);
  ASSERT_TRUE(t->Run(t->store->Drop(ns.slot, std::span(&other, 1))).has_value());
  Say(0, 21, 21);
  EXPECT_EQ(End(kAnn), 4u);
  EXPECT_EQ(Match(1, 10), 6u) << "Bob has hit the sixth";
}

TEST_F(ConversationsTest, AnEndThatIsRefusedForgetsNothingOfWhatOthersUse) {
  Make({.store = {.max_tombstones = 1}});
  Say(kAnn, 1, 3);
  Say(kAnn, 11, 11);
  Hit(kBob, 2);
  EXPECT_EQ(t->Run(t->store->EndConversation(ns.slot, kAnn)).error().code(), Code::kBusy) << "two drops";
  EXPECT_EQ(End(kBob), 0u) << "Ann's still";
  const BlockKey other = Key(11);
  ASSERT_TRUE(t->Run(t->store->Drop(ns.slot, std::span(&other, 1))).has_value());
  Say(0, 11, 11);
  EXPECT_EQ(End(kAnn), 3u);
}

// Of many that hang below nothing of its own: some of them have gone by then, and the rest is its own as
// before.
TEST_F(ConversationsTest, AnEndThatIsRefusedHalfWayForgetsNothingOfTheRest) {
  constexpr std::uint64_t kTops = 600;
  Make({.headers = 4});
  for (std::uint64_t n = 0; n < kTops; ++n) Say(kAnn, 1'000 + 2 * n, 1'001 + 2 * n);
  Say(kAnn, 1, 2);
  Hit(kBob, 1);
  int writes = 0;
  t->disk.set_faults([&](const io::IoRequest& request, const std::string&) {
    // Of the first drops, in both copies, and no more.
    const bool fails = request.kind == io::IoRequest::Kind::kWrite && ++writes > 4;
    return fails ? io::Fault{io::FaultKind::kIoError, 0} : io::Fault{};
  });
  const auto refused = t->Run(t->store->EndConversation(ns.slot, kAnn));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), Code::kIoError);
  t->disk.set_faults({});
  const std::uint64_t left = Occupied().blocks;
  EXPECT_LT(left, 2 * kTops + 2);
  EXPECT_GT(left, 2u);
  EXPECT_EQ(End(kAnn), left - 1);
  EXPECT_TRUE(Here(1)) << "another one uses it";
  EXPECT_EQ(Occupied().records, 1u);
  EXPECT_EQ(End(kBob), 1u);
  EXPECT_EQ(Occupied().conversations, 0u);
}

// The first has taken all notes and dropped nothing yet.
TEST_F(ConversationsTest, R10AnEndDuringAnotherOfTheSameIsAcknowledgedBehindIt) {
  Make({.headers = 4});
  Say(kAnn, 1, 1500);
  Say(kBob, 2001, 2001);
  Task<Result<std::uint64_t>> first = t->store->EndConversation(ns.slot, kAnn);
  while (Occupied().conversations > 1) t->loop->executor().RunReady(1);
  ASSERT_FALSE(first.done());
  ASSERT_TRUE(Here(1500));
  EXPECT_EQ(End(kAnn), 0u);
  EXPECT_FALSE(Here(1) || Here(1500));
  EXPECT_EQ(*t->Run(std::move(first)), 1500u);
  EXPECT_TRUE(Here(2001));
}

TEST_F(ConversationsTest, AnEndDuringAnotherThatIsRefusedTakesWhatThatLeaves) {
  constexpr std::uint64_t kTops = 600;
  Make({.headers = 4});
  for (std::uint64_t n = 0; n < kTops; ++n) Say(kAnn, 1'000 + n, 1'000 + n);
  int writes = 0;
  t->disk.set_faults([&](const io::IoRequest& request, const std::string&) {
    // Of the first drops, in both copies, and of those behind them alone.
    const bool fails = request.kind == io::IoRequest::Kind::kWrite && ++writes > 4 && writes <= 6;
    return fails ? io::Fault{io::FaultKind::kIoError, 0} : io::Fault{};
  });
  Task<Result<std::uint64_t>> first = t->store->EndConversation(ns.slot, kAnn);
  while (Occupied().conversations > 0) t->loop->executor().RunReady(1);
  Task<Result<std::uint64_t>> second = t->store->EndConversation(ns.slot, kAnn);
  const Result<std::uint64_t> refused = t->Run(std::move(first));
  ASSERT_FALSE(refused.has_value());
  const std::uint64_t left = Occupied().blocks;
  EXPECT_GT(left, 0u);
  EXPECT_EQ(*t->Run(std::move(second)), left);
  EXPECT_EQ(Occupied().blocks, 0u);
}

// Its first drops are in the journal behind a drop of the namespace, after which others put blocks of the
// keys that it would drop next.
TEST_F(ConversationsTest, AnEndTakesNothingOfWhatCameAfterItsNamespaceWasDropped) {
  constexpr std::uint64_t kTops = 600;
  Make({.headers = 4});
  for (std::uint64_t n = 0; n < kTops; ++n) Say(kAnn, 1'000 + n, 1'000 + n);
  t->disk.set_faults(
      [](const io::IoRequest&, const std::string&) { return io::Fault{io::FaultKind::kDelay, 1'000}; });
  auto dropping = t->store->DropNamespace(ns.slot);
  Task<Result<std::uint64_t>> ending = t->store->EndConversation(ns.slot, kAnn);
  ASSERT_FALSE(dropping.done());
  ASSERT_TRUE(t->Run(std::move(dropping)).has_value());
  for (std::uint64_t n = 0; n < kTops; ++n) ASSERT_EQ(Put(1'000 + n, {}), State::kPublished);
  ASSERT_FALSE(ending.done());
  (void)t->Run(std::move(ending));
  for (std::uint64_t n = 0; n < kTops; ++n) EXPECT_TRUE(Here(1'000 + n)) << n;
}

TEST_F(ConversationsTest, P5ALongConversationEndsInSteps) {
  Make({.headers = 4});
  Say(kAnn, 1, 1500);
  Say(kBob, 2001, 2001, 700);
  t->store->TakeLongestStep();
  EXPECT_EQ(End(kAnn), 800u);
  EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
  EXPECT_EQ(Match(1, 1500), 700u);
}

TEST(ConversationNotes, P5PastTheBoundTheQuietestIsForgotten) {
  catalog::Conversations notes(10);
  for (std::uint64_t n = 0; n < 6; ++n) notes.Wrote(0, Key(n), BlockKey(), kAnn);
  for (std::uint64_t n = 10; n < 16; ++n) notes.Wrote(0, Key(n), BlockKey(), kBob);
  EXPECT_EQ(notes.notes(), 10u);
  EXPECT_EQ(notes.forgotten(), 2u);
  EXPECT_EQ(notes.Of(0, Key(0)), 0u);
  EXPECT_EQ(notes.Of(0, Key(2)), kAnn);
  for (std::uint64_t n = 20; n < 30; ++n) notes.Wrote(0, Key(n), BlockKey(), kBob);
  EXPECT_EQ(notes.talks(), 1u);
  for (std::uint64_t n = 30; n < 50; ++n) notes.Wrote(0, Key(n), BlockKey(), n);
  EXPECT_EQ(notes.talks(), 10u);
  EXPECT_FALSE(notes.TakeLast(0, kBob).has_value());
  EXPECT_EQ(notes.TakeLast(0, 49)->key, Key(49));
  EXPECT_EQ(notes.notes(), 9u);
}

TEST(ConversationNotes, P5UsesOfNotesAreBounded) {
  catalog::Conversations notes(10);
  for (std::uint64_t n = 0; n < 10; ++n) notes.Wrote(0, Key(n), BlockKey(), kAnn);
  for (std::uint64_t n = 0; n < 10; ++n) notes.Uses(0, Key(n), kBob);
  EXPECT_EQ(notes.forgotten(), 0u);
  // Two a note: the quietest gives up its oldest.
  notes.Uses(0, Key(9), 33);
  EXPECT_EQ(notes.forgotten(), 1u);
  EXPECT_EQ(*notes.UsersOf(0, Key(0)), std::vector<std::uint64_t>{kBob});
  EXPECT_EQ(*notes.UsersOf(0, Key(9)), (std::vector<std::uint64_t>{kAnn, kBob, 33}));
  for (std::uint64_t n = 0; n < 10; ++n) {
    for (std::uint64_t other = 40; other < 60; ++other) notes.Uses(0, Key(n), other);
  }
  EXPECT_LE(notes.notes(), 10u);
  for (std::uint64_t n = 0; n < 10; ++n) {
    const auto users = notes.UsersOf(0, Key(n)).value_or(std::vector<std::uint64_t>());
    EXPECT_LE(users.size(), catalog::Conversations::kMostUsers);
  }
}

TEST(ConversationNotes, TreesAndConversationsDoNotMix) {
  catalog::Conversations notes(100);
  notes.Wrote(1, Key(1), BlockKey(), kAnn);
  notes.Wrote(2, Key(1), BlockKey(), kBob);
  EXPECT_EQ(notes.Of(1, Key(1)), kAnn);
  EXPECT_EQ(notes.Of(2, Key(1)), kBob);
  EXPECT_FALSE(notes.TakeLast(2, kAnn).has_value());
}

}  // namespace
}  // namespace cistern::store
