// SPDX-License-Identifier: Apache-2.0
#include "store/source_puts.h"

#include "arena/layout.h"
#include "store/source_store_fixture.h"

namespace cistern::store {
namespace {

class SourcePutsTest : public SourceStoreTest {
 protected:
  // At once, in a step of its own.
  Task<std::optional<Result<SourcePut>>> BeginInAStep(Executor&, std::uint64_t n, std::size_t bytes) {
    co_await Yield();
    co_return t->store->source_puts().BeginAtOnce(ns.slot, {.key = Key(n), .body_bytes = bytes}, Soon());
  }
  Task<std::optional<Status>> FinishInAStep(Executor&, SourcePut& put, SourceFacts& facts, Admits& admits) {
    co_await Yield();
    co_return t->store->source_puts().FinishAtOnce(put, facts, admits);
  }
  // Nothing of it may go.
  void FillAllButOne(std::size_t bytes) {
    const std::uint64_t last = 98 + memory::Slots::Capacity(t->geometry, bytes + 4096);
    PutChain(100, last, bytes);
    ASSERT_NE(Acquire({last}, Me()).lease, 0u);
  }
  Status Take(std::uint64_t n, std::optional<std::uint64_t> parent, Admits admits = Admits()) {
    auto put = Begin(n, parent);
    if (!put) return put.error();
    SourceFacts facts = Land(*put, n);
    return Finish(std::move(*put), std::move(facts), admits);
  }
};

TEST_F(SourcePutsTest, WhatIsAdmittedIsReadAndFoundBehindItsParent) {
  Make();
  EXPECT_TRUE(Take(1, std::nullopt).ok());
  EXPECT_TRUE(Take(2, 1, Admits(Admission::Answer::kTake, 5)).ok());
  EXPECT_TRUE(Exact(1) && Exact(2));
  EXPECT_EQ(Match(1, 2), 2u);
  EXPECT_EQ(Occupied().pending, 0u);
  // The first wins, and what is here is not asked for.
  const auto again = Begin(2, 1);
  ASSERT_TRUE(again.has_value());
  EXPECT_FALSE(again->wanted());
}

TEST_F(SourcePutsTest, WhatIsOfANamespaceThatHasGoneIsNoneOfTheNextInItsSlot) {
  Make();
  SourceBlock block{.key = Key(1), .body_bytes = 4096, .incarnation = ns.incarnation};
  ASSERT_TRUE(t->Run(t->store->source_puts().Begin(ns.slot, block, Soon()))->wanted());
  ASSERT_TRUE(t->Run(t->store->DropNamespace(ns.slot)).has_value());
  const auto put = t->Run(t->store->source_puts().Begin(ns.slot, block, Soon()));
  ASSERT_FALSE(put.has_value());
  EXPECT_EQ(put.error().code(), Code::kMiss);
  EXPECT_EQ(Occupied().pending, 0u);
}

TEST_F(SourcePutsTest, WhatIsRefusedLeavesNothing) {
  Make();
  EXPECT_EQ(Take(1, std::nullopt, Admits(Admission::Answer::kRefuse)).code(), Code::kMiss);
  EXPECT_FALSE(Here(1));
  EXPECT_EQ(Occupied().pending, 0u);
}

TEST_F(SourcePutsTest, WithoutItsParentItEndsAndIsNotPublishedWhenTheParentComes) {
  Make();
  EXPECT_EQ(Take(2, 1).code(), Code::kMiss);
  EXPECT_EQ(Occupied().pending, 0u);
  EXPECT_EQ(Put(1, std::nullopt), State::kPublished);
  EXPECT_FALSE(Here(2));
}

TEST_F(SourcePutsTest, BehindALongPromptItIsPublishedWhileOthersAreCollected) {
  constexpr std::uint64_t kDeep = 600, kOther = 10'000;
  Make({.headers = 4});
  PutChain(1, kDeep);
  PutChain(kOther, kOther + 2000);
  const BlockKey other = Key(kOther);
  auto dropping = t->store->Drop(ns.slot, std::span(&other, 1));
  EXPECT_TRUE(Take(kDeep + 1, kDeep).ok());
  EXPECT_FALSE(dropping.done()) << "nothing was collected any more";
  EXPECT_TRUE(Here(kDeep + 1));
  EXPECT_EQ(Take(kDeep + 3, kDeep + 2).code(), Code::kMiss);
  EXPECT_TRUE(t->Run(std::move(dropping)).has_value());
  EXPECT_EQ(Occupied().pending, 0u);
}

TEST_F(SourcePutsTest, DropEndsWhatIsStillLanding) {
  Make();
  PutChain(1, 2);
  auto put = Begin(3, 2);
  ASSERT_TRUE(put.has_value());
  ASSERT_TRUE(Drop(2).has_value());
  EXPECT_EQ(Put(2, 1), State::kPublished);
  SourceFacts facts = Land(*put, 3);  // its slot is still its own
  EXPECT_EQ(Finish(std::move(*put), std::move(facts)).code(), Code::kMiss);
  EXPECT_FALSE(Here(3));
}

TEST_F(SourcePutsTest, DeadlineAndAGivenUpPutFreeTheSlot) {
  Make();
  auto late = Begin(1, std::nullopt);
  ASSERT_TRUE(late.has_value());
  t->Advance(2'000'000);
  SourceFacts facts = Land(*late, 1);
  EXPECT_EQ(Finish(std::move(*late), std::move(facts)).code(), Code::kTooLate);
  {
    const auto given_up = Begin(1, std::nullopt);
  }
  EXPECT_EQ(Occupied().pending, 0u);
  EXPECT_TRUE(Take(1, std::nullopt).ok());
}

TEST_F(SourcePutsTest, FactsOfAnotherBodyAreRefused) {
  Make();
  auto put = Begin(1, std::nullopt);
  ASSERT_TRUE(put.has_value());
  SourceFacts facts = Land(*put, 1);
  facts.part_bytes = {4095};
  EXPECT_EQ(Finish(std::move(*put), std::move(facts)).code(), Code::kInvalid);
  EXPECT_EQ(Begin(1, std::nullopt, 0).error().code(), Code::kInvalid);
  EXPECT_FALSE(Here(1));
}

TEST_F(SourcePutsTest, WhatNeedNotWaitBeginsAndEndsInAStep) {
  Make();
  auto put = t->Run(BeginInAStep(t->loop->executor(), 1, 4096));
  ASSERT_TRUE(put && *put && (*put)->wanted());
  SourceFacts facts = Land(**put, 1);
  Admits admits;
  EXPECT_TRUE(
      t->Run(FinishInAStep(t->loop->executor(), **put, facts, admits)).value_or(Status(Code::kBusy)).ok());
  EXPECT_FALSE((*put)->wanted());
  EXPECT_TRUE(Exact(1));
  EXPECT_EQ(Occupied().pending, 0u);
  const auto again = t->Run(BeginInAStep(t->loop->executor(), 1, 4096));
  ASSERT_TRUE(again && *again);
  EXPECT_FALSE((*again)->wanted());
}

TEST_F(SourcePutsTest, WhatALookLeavesOpenGoesOnInAnotherStep) {
  Make();
  auto put = Begin(1, std::nullopt);
  ASSERT_TRUE(put.has_value());
  SourceFacts facts = Land(*put, 1);
  Admits admits(Admission::Answer::kTake, 3);
  EXPECT_FALSE(t->Run(FinishInAStep(t->loop->executor(), *put, facts, admits)).has_value());
  EXPECT_FALSE(Here(1));
  EXPECT_TRUE(t->Run(t->store->source_puts().Finish(std::move(*put), std::move(facts), admits)).ok());
  EXPECT_EQ(admits.looks, 4);
  EXPECT_TRUE(Exact(1));
}

TEST_F(SourcePutsTest, WithoutAFreeSlotNothingBeginsAtOnce) {
  Make();
  constexpr std::size_t kBytes = 64u << 10;
  for (std::uint64_t n = 1;; ++n) {
    auto put = t->Run(BeginInAStep(t->loop->executor(), n, kBytes));
    if (!put) break;
    ASSERT_TRUE(put->has_value());
    SourceFacts facts = Land(**put, n);
    Admits admits;
    const auto status = t->Run(FinishInAStep(t->loop->executor(), **put, facts, admits));
    ASSERT_TRUE(status && status->ok());
  }
  EXPECT_EQ(Occupied().pending, 0u);
  // Begin displaces another one.
  EXPECT_TRUE(Begin(100000, std::nullopt, kBytes).has_value());
}

// The slot may go once it has its record: a save waits for that, as for any slot that is being filled.
TEST_F(SourcePutsTest, P5AWriteWaitsForTheSlotIntoWhichABodyLands) {
  Make({.headers = 1});
  constexpr std::size_t kBytes = 1u << 20;
  auto landing = Begin(1, std::nullopt, kBytes);
  ASSERT_TRUE(landing.has_value());
  FillAllButOne(kBytes);
  landing->BeginLanding();
  auto writing = t->store->Write(Me(), ns.slot, {Part(2, {}, kBytes)}, Soon());
  EXPECT_FALSE(writing.done());
  SourceFacts facts = Land(*landing, 1);
  facts.segment_crcs.clear();
  for (std::size_t at = 0; at < kBytes; at += record::kSegmentBytes)
    facts.segment_crcs.push_back(record::Crc32c(landing->body().data() + at, record::kSegmentBytes));
  EXPECT_TRUE(Finish(std::move(*landing), std::move(facts)).ok());
  const PartOutcome written = t->Run(std::move(writing))[0];
  EXPECT_EQ(written.state, State::kPublished) << written.status.ToString();
  EXPECT_FALSE(Here(1));
}

TEST_F(SourcePutsTest, WhatDoesNotWaitForRoomIsBusyThoughSomeMayGoLater) {
  Make({.headers = 1});
  constexpr std::size_t kBytes = 1u << 20;
  auto landing = Begin(1, std::nullopt, kBytes);
  ASSERT_TRUE(landing.has_value());
  landing->BeginLanding();
  FillAllButOne(kBytes);
  const Instant before = t->clock.Now();
  const auto put = t->Run(
      t->store->source_puts().Begin(ns.slot, {.key = Key(2), .body_bytes = kBytes, .waits = false}, Soon()));
  ASSERT_FALSE(put.has_value());
  EXPECT_EQ(put.error().code(), Code::kBusy);
  EXPECT_EQ(t->clock.Now(), before);
}

TEST_F(SourcePutsTest, TimeToLiveCountsFromWhenItWasAskedFor) {
  Make();
  const std::uint64_t asked_at_s = t->store->source_puts().NowS();
  auto put = Begin(1, std::nullopt);
  ASSERT_TRUE(put.has_value());
  SourceFacts facts = Land(*put, 1);
  facts.ttl_s = 3;
  facts.asked_at_s = asked_at_s;
  t->clock.AdvanceUs(2'000'000);
  EXPECT_TRUE(Finish(std::move(*put), std::move(facts)).ok());
  EXPECT_TRUE(Here(1));
  t->Advance(1'000'000);
  EXPECT_FALSE(Here(1));
  auto over = Begin(1, std::nullopt);
  ASSERT_TRUE(over.has_value());
  facts = Land(*over, 1);
  facts.ttl_s = 3;
  facts.asked_at_s = asked_at_s;
  EXPECT_EQ(Finish(std::move(*over), std::move(facts)).code(), Code::kMiss);
}

TEST_F(SourcePutsTest, BlockThatIsHereByThenIsOfAllWhoUsedItAtItsSource) {
  Make();
  auto put = Begin(1, std::nullopt);
  ASSERT_TRUE(put.has_value());
  SourceFacts facts = Land(*put, 1);
  PartWrite first = Part(1, std::nullopt);
  first.conversation = 7;
  ASSERT_EQ(WriteOne(std::move(first)).state, State::kPublished);
  Admits admits;
  admits.notes = {5, 6};
  EXPECT_TRUE(Finish(std::move(*put), std::move(facts), admits).ok());
  auto notes = t->store->source_puts().NotesOf(ns.slot, Key(1));
  ASSERT_TRUE(notes.has_value());
  std::ranges::sort(*notes);
  EXPECT_EQ(*notes, (std::vector<std::uint64_t>{5, 6, 7}));
}

TEST_F(SourcePutsTest, WhatReplacesAnExpiredBlockDoesNotStandOnWhatLeftWithIt) {
  Make({}, WindowOnly());
  auto put = Begin(2, 1);
  ASSERT_TRUE(put.has_value());
  SourceFacts facts = Land(*put, 2);
  PartWrite before = Part(2, 1);
  before.ttl_s = 1;
  ASSERT_EQ(WriteOne(std::move(before)).state, State::kPublished);
  // Its parent has no record, and is nothing without it.
  t->clock.AdvanceUs(900'000);
  t->clock.AdvanceUs(900'000);
  EXPECT_TRUE(Finish(std::move(*put), std::move(facts)).ok());
  EXPECT_TRUE(Exact(2));
  EXPECT_EQ(Put(1, std::nullopt), State::kPublished);
  t->Tick();
  EXPECT_EQ(Match(1, 2), 2u);
  ASSERT_TRUE(Drop(1).has_value());
  t->Tick();
  EXPECT_FALSE(Here(2));
}

// Other nodes give to a namespace that nobody here uses, also while it makes room for another one.
TEST_F(SourcePutsTest, WhatComesToANamespaceThatMakesRoomGoesWithIt) {
  constexpr std::uint64_t kBlocks = 3000;
  const auto numbered = [](std::uint32_t number) {
    NamespaceSpec spec = OneGroup();
    spec.name.clear();
    spec.fields = {{"number", std::to_string(number)}};
    return spec;
  };
  Make();
  ns = *t->Run(t->store->Attach(numbered(0), Me(2, 2)));
  PutChain(1, kBlocks);
  t->store->namespaces().OwnerEnded(Me(2).owner);
  std::uint8_t owner = 3;
  for (std::uint32_t number = 1; Occupied().namespaces < arena::kMaxNamespaces; ++number) {
    if (!t->Run(t->store->Attach(numbered(number), Me(owner, owner)))) ++owner;
  }
  Task<Result<Attached>> attaching = t->store->Attach(numbered(5000), Me(200, 200));
  while (t->store->CheckNamespace(ns.slot, ns.incarnation).ok()) t->loop->Turn();
  Admits admits;
  const auto take = [&](Executor&) -> Task<bool> {
    co_await Yield();
    auto put = t->store->source_puts().BeginAtOnce(ns.slot, {.key = Key(1), .body_bytes = 4096}, Soon());
    if (!put || !*put) co_return false;
    SourceFacts facts = Land(**put, 1);
    const std::optional<Status> taken = t->store->source_puts().FinishAtOnce(**put, facts, admits);
    co_return taken && taken->ok();
  };
  ASSERT_TRUE(t->Run(take(t->loop->executor())));
  ASSERT_FALSE(attaching.done());
  const Result<Attached> attached = t->Run(std::move(attaching));
  ASSERT_TRUE(attached.has_value()) << attached.error().ToString();
  EXPECT_EQ(attached->slot, ns.slot);
  EXPECT_EQ(Occupied().records, 0u);
  EXPECT_EQ(Occupied().namespaces, arena::kMaxNamespaces);
}

}  // namespace
}  // namespace cistern::store
