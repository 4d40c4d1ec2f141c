// SPDX-License-Identifier: Apache-2.0
// What each namespace has, counted by a walk beside other work.
#include "store/survey.h"

#include "base/limits.h"
#include "store/block_store_fixture.h"

namespace cistern::store {
namespace {

class SurveyTest : public BlockStoreTest {
 protected:
  Survey::Uses Take() { return t->Run(t->store->survey().Take()); }
};

TEST_F(SurveyTest, CountsBlocksAndBytesOfEachNamespace) {
  Make();
  PutChain(1, 3, 5000);
  const Attached first = ns;
  Attach(OneGroup("other"));
  PutChain(10, 11, 7000);
  const Survey::Uses uses = Take();
  ASSERT_EQ(uses->size(), 2u);
  EXPECT_EQ((*uses)[0].entry.slot, first.slot);
  EXPECT_EQ((*uses)[0].blocks, 3u);
  EXPECT_EQ((*uses)[0].memory[0].records, 3u);
  EXPECT_EQ((*uses)[0].memory[0].bytes, 15'000u);
  EXPECT_EQ((*uses)[0].lower[0].records, 0u);
  EXPECT_EQ((*uses)[1].memory[0].bytes, 14'000u);
  EXPECT_EQ((*uses)[1].entry.names, std::vector<std::string>{"other"});
  EXPECT_NE((*uses)[0].fingerprint, (*uses)[1].fingerprint);
}

TEST_F(SurveyTest, CountsEachGroupByItself) {
  Make({}, FullAndWindow());
  PutChain(1, 2);
  PartWrite window = Part(2, 1, 3000);
  window.group = 1;
  ASSERT_EQ(WriteOne(std::move(window)).state, State::kPublished);
  const NamespaceUse use = Take()->front();
  EXPECT_EQ(use.blocks, 2u);
  EXPECT_EQ(use.memory[0].records, 2u);
  EXPECT_EQ(use.memory[1].records, 1u);
  EXPECT_EQ(use.memory[1].bytes, 3000u);
}

TEST_F(SurveyTest, UsesAndTheTimeSinceTheLastAreThoseOfTheNamespace) {
  Make();
  PutChain(1, 2);
  EXPECT_EQ(Take()->front().uses, 0u);
  EXPECT_EQ(Take()->front().unused_us, -1);
  Attach(OneGroup("other"));
  PutChain(10, 10);
  t->Tick();
  const BlockKey key = Key(10);
  EXPECT_EQ(t->Run(t->store->Touch(ns.slot, std::span(&key, 1))), 1u);
  Acquire({10}, Me());
  t->clock.AdvanceUs(7'000'000);
  const Survey::Uses uses = Take();
  EXPECT_EQ((*uses)[0].uses, 0u);
  EXPECT_EQ((*uses)[1].uses, 1u);  // a lease alone is no use, as for eviction
  EXPECT_EQ((*uses)[1].uses, t->store->CountedAt(ns.slot).uses);
  EXPECT_EQ((*uses)[1].unused_us, 7'000'000);
}

TEST_F(SurveyTest, OwnersAreThoseThatHaveASession) {
  Make();
  ASSERT_TRUE(t->Run(t->store->Attach(OneGroup(), Me(2, 2))).has_value());
  ASSERT_TRUE(t->Run(t->store->Attach(OneGroup(), Me(3, 3))).has_value());
  const std::uint32_t owners = Take()->front().owners;
  t->store->namespaces().OwnerEnded(Me(2).owner);
  EXPECT_EQ(Take()->front().owners, owners - 1);
}

TEST_F(SurveyTest, WhatWasDroppedCountsNoMore) {
  Make();
  PutChain(1, 4);
  ASSERT_EQ(*Drop(3), 2u);
  EXPECT_EQ(Take()->front().blocks, 2u);
  ASSERT_TRUE(t->Run(t->store->DropNamespace(ns.slot)).has_value());
  const NamespaceUse use = Take()->front();
  EXPECT_EQ(use.blocks, 0u);
  EXPECT_EQ(use.memory[0].bytes, 0u);
}

TEST_F(SurveyTest, P5TheWalkOverManyBlocksIsInSteps) {
  Make();
  for (std::uint64_t n = 0; n < 3000; ++n) ASSERT_EQ(Put(n, std::nullopt, 100), State::kPublished);
  t->store->TakeLongestStep();
  const std::uint64_t before = t->loop->executor().steps();
  EXPECT_EQ(Take()->front().blocks, 3000u);
  EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
  EXPECT_GE(t->loop->executor().steps() - before, 3000 / kStepTouches);
}

TEST_F(SurveyTest, WhoAsksWhileOneWalksGetsThatResult) {
  Make();
  PutChain(1, 600, 100);
  Task<Survey::Uses> one = t->store->survey().Take();
  Task<Survey::Uses> other = t->store->survey().Take();
  const Survey::Uses first = t->Run(std::move(one));
  EXPECT_EQ(t->Run(std::move(other)), first);
  EXPECT_EQ(t->store->survey().last(), first);
  EXPECT_NE(Take(), first);
}

}  // namespace
}  // namespace cistern::store
