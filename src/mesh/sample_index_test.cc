// SPDX-License-Identifier: Apache-2.0
#include "mesh/sample_index.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "base/random.h"

namespace cistern::mesh {
namespace {

BlockKey KeyNumber(std::uint64_t n) {
  std::array<std::byte, 16> bytes{};
  std::memcpy(bytes.data(), &n, sizeof(n));
  return *BlockKey::FromBytes(bytes);
}

std::vector<BlockKey> ChainOf(std::uint64_t from, std::size_t blocks) {
  std::vector<BlockKey> chain;
  for (std::size_t i = 0; i < blocks; ++i) chain.push_back(KeyNumber(from + i));
  return chain;
}

// All samples of the chain's first blocks.
void AddChain(SampleIndex& index, MemberNumber member, std::uint64_t seed, const std::vector<BlockKey>& chain,
              std::size_t blocks, std::uint32_t block_tokens) {
  const SampleGrid grid(block_tokens);
  for (std::size_t depth = 0; depth < blocks; ++depth) {
    if (grid.Sampled(depth)) index.Add(member, {SampleHash(seed, chain[depth].Hash()), grid.NumberOf(depth)});
  }
}

void SweepAll(SampleIndex& index) {
  while (index.Sweep(7)) continue;
}

MemberSet All() { return MemberSet().set(); }

TEST(SampleIndexTest, DeepestHolderBehindWhatIsHereIsFound) {
  SampleIndex index({1u << 20, 64});
  const auto chain = ChainOf(1, 100);
  AddChain(index, 3, 9, chain, 20, 16);
  AddChain(index, 4, 9, chain, 70, 16);
  AddChain(index, 5, 9, chain, 70, 16);
  auto found = index.Find(9, chain, 0, 16, All());
  EXPECT_EQ(found.blocks, 64u);
  EXPECT_EQ(found.holders, MemberSet().set(4).set(5));
  found = index.Find(9, chain, 30, 16, MemberSet().set(3).set(4));
  EXPECT_EQ(found.blocks, 64u);
  EXPECT_EQ(found.holders, MemberSet().set(4));
  // Of what is here, and of another namespace, nobody has more.
  EXPECT_EQ(index.Find(9, chain, 64, 16, All()).blocks, 0u);
  EXPECT_EQ(index.Find(8, chain, 0, 16, All()).blocks, 0u);
  EXPECT_EQ(index.Find(9, chain, 30, 16, MemberSet().set(3)).blocks, 0u);
  EXPECT_EQ(index.Find(9, ChainOf(1, 12), 0, 16, All()).blocks, 1u);
}

// The shorter the blocks, the fewer are samples: a block of 1 token is what a program says that says nothing.
TEST(SampleIndexTest, HolderThatSamplesLessIsFoundAsDeepAsItSamples) {
  SampleIndex index({1u << 20, 64});
  const auto chain = ChainOf(1, 1'000);
  AddChain(index, 1, 9, chain, 100, 64);
  AddChain(index, 2, 9, chain, 700, 1);
  for (const std::uint32_t block_tokens : {16u, 48u, 64u, 100u, 256u, 1'000u}) {
    auto found = index.Find(9, chain, 0, block_tokens, All());
    EXPECT_EQ(found.blocks, 688u) << block_tokens;
    EXPECT_EQ(found.holders, MemberSet().set(2)) << block_tokens;
    EXPECT_GE(found.reach, 700u) << block_tokens;
    found = index.Find(9, chain, 500, block_tokens, All());
    EXPECT_EQ(found.blocks, 688u) << block_tokens << " behind what is here";
    found = index.Find(9, chain, 0, block_tokens, MemberSet().set(1));
    EXPECT_GE(found.reach, 100u) << block_tokens;
  }
  // Of a chain that is shorter than what lies between two samples, the first block alone is one.
  EXPECT_GE(index.Find(9, ChainOf(1, 15), 0, 64, MemberSet().set(2)).reach, 15u);
  EXPECT_EQ(index.Find(9, chain, 96, 64, MemberSet().set(1)).reach, 104u) << "as far as it samples";
}

TEST(SampleIndexTest, WhatWasRemovedOrForgottenIsNotFound) {
  SampleIndex index({1u << 20, 64});
  const auto chain = ChainOf(1, 64);
  AddChain(index, 3, 9, chain, 64, 16);
  AddChain(index, 4, 9, chain, 64, 16);
  index.Remove(3, SampleHash(9, chain[63].Hash()));
  EXPECT_EQ(index.Find(9, chain, 0, 16, All()).holders, MemberSet().set(4));
  EXPECT_EQ(index.Find(9, chain, 0, 16, MemberSet().set(3)).blocks, 48u);
  index.Forget(4);
  EXPECT_EQ(index.Find(9, chain, 0, 16, All()).blocks, 48u);
  EXPECT_TRUE(index.forgetting(4));
  SweepAll(index);
  EXPECT_FALSE(index.forgetting(4));
  EXPECT_EQ(index.entries(), 4u);
  EXPECT_EQ(index.EntriesOf(4), 0u);
}

TEST(SampleIndexTest, RandomChangesAreThoseOfASet) {
  SampleIndex index({4u << 20, 16});
  Random random(5);
  std::set<std::pair<std::uint64_t, MemberNumber>> model;
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t hash = SplitMix(random.Below(500));
    const auto member = static_cast<MemberNumber>(random.Below(5));
    if (random.Chance(0.6)) {
      index.Add(member, {hash, static_cast<std::uint32_t>(1 + random.Below(9))});
      model.insert({hash, member});
    } else {
      index.Remove(member, hash);
      model.erase({hash, member});
    }
  }
  EXPECT_EQ(index.entries(), model.size());
  for (std::uint64_t n = 0; n < 500; ++n) {
    MemberSet expected;
    for (MemberNumber member = 0; member < 5; ++member)
      expected[member] = model.contains({SplitMix(n), member});
    EXPECT_EQ(index.Holders(SplitMix(n)), expected) << n;
  }
}

TEST(SampleIndexTest, BudgetIsKeptByEverySecondSampleForAllMembersAlike) {
  SampleIndex index({100'000, 16});
  const auto chain = ChainOf(1, 5'000);
  for (const MemberNumber member : {1, 2, 3, 4}) {
    AddChain(index, member, 9, chain, 5'000, 256);
    SweepAll(index);
    EXPECT_LE(index.bytes(), 100'000u);
  }
  EXPECT_EQ(index.thinning(), 4u);
  for (const MemberNumber member : {1, 2, 3, 4}) EXPECT_EQ(index.EntriesOf(member), 1'251u);
  const auto found = index.Find(9, chain, 0, 256, All());
  EXPECT_EQ(found.blocks, 5'000u);
  EXPECT_EQ(found.holders.count(), 4u);
}

TEST(SampleIndexTest, FirstBlocksPastAQuarterOfTheBudgetAreSampledByHash) {
  SampleIndex index({100'000, 16});
  for (std::uint64_t n = 0; n < 20'000; ++n) {
    index.Add(1, {SplitMix(n), 0});
    if (n % 100 == 0) SweepAll(index);
  }
  AddChain(index, 2, 9, ChainOf(1, 1'000), 1'000, 256);
  SweepAll(index);
  EXPECT_LE(index.bytes(), 100'000u);
  EXPECT_EQ(index.thinning(), 1u);
  EXPECT_EQ(index.Find(9, ChainOf(1, 1'000), 0, 256, All()).blocks, 1'000u);
  EXPECT_GT(index.EntriesOf(1), 1'000u);
}

// Of a member that counts otherwise, or lies.
TEST(SampleIndexTest, SamplesThatNoThinningTakesEndNobodyAndTakeNoMoreThanTheBudget) {
  SampleIndex index({100'000, 16});
  for (std::uint64_t n = 0; n < 200'000; ++n) {
    index.Add(1, {SplitMix(n), Sample::kNumbers / 2});
    if (n % 100 == 0) SweepAll(index);
  }
  EXPECT_LE(index.bytes(), 100'000u);
  for (std::uint64_t n = 0; n < 200'000; ++n) {
    index.Add(1, {n << 32, 0});
    if (n % 100 == 0) SweepAll(index);
  }
  SweepAll(index);
  EXPECT_LE(index.bytes(), 100'000u);
}

TEST(SampleIndexTest, EntryTakesAboutTwelveBytes) {
  SampleIndex index({256u << 20, 4'096});
  const std::uint64_t empty = index.bytes();
  for (std::uint64_t n = 0; n < 300'000; ++n) index.Add(static_cast<MemberNumber>(n % 7), {SplitMix(n), 1});
  EXPECT_LT(static_cast<double>(index.bytes() - empty) / 300'000, 12.8);
}

}  // namespace
}  // namespace cistern::mesh
