// SPDX-License-Identifier: Apache-2.0
// What is written to flash, and what stays there when it is full.
#include "test_flash_store.h"

namespace cistern {
namespace {

TEST_F(FlashStoreTest, ANamespaceSaysWhatGoesToFlashAndItHoldsAfterARestart) {
  Make(With(64));
  PutChainSlowly(0, 7);
  const NamespaceSpec says_nothing = store::OneGroup("another");
  NamespaceSpec used_twice = says_nothing;
  used_twice.flash_write = WriteRule{WritePolicy::kSelective, 2};
  Attach(used_twice);
  PutChainSlowly(0, 7);
  Restart();  // nobody has attached again when what memory holds is looked at
  t->Settle();
  Reboot();
  EXPECT_EQ(Match(0, 7), 8u) << "the node writes through";
  Attach(says_nothing);
  EXPECT_EQ(Match(0, 7), 0u) << "and this namespace only what was used twice";
  PutChainSlowly(0, 7);
  used_twice.flash_write = WriteRule{WritePolicy::kThrough};
  Attach(used_twice);
  Restart();
  t->Settle();
  Reboot(0, says_nothing);
  EXPECT_EQ(Match(0, 7), 8u) << "the last word holds";
}

TEST_F(FlashStoreTest, WhatIsAskedForOnceTakesNoRoomFromWhatIsUsed) {
  store::TestStoreOptions options = With(8);
  options.store.lower.promote = Promotion::kSecondHit;
  Make(options);
  PutChainSlowly(0, 31);
  const auto in_memory = [this](std::uint64_t first, std::uint64_t last) {
    int here = 0;
    for (std::uint64_t n = first; n <= last; ++n) here += Here(n) ? 1 : 0;
    return here;
  };
  ASSERT_EQ(in_memory(24, 31), 8);
  const auto scan = [this] {
    for (std::uint64_t n = 0; n < 16; ++n) {
      EXPECT_TRUE(Gets(n)) << n;
      const BlockKey key = store::Key(n);
      t->Run(t->store->Touch(ns.slot, std::span(&key, 1)));
      t->Settle();
    }
  };
  scan();
  EXPECT_EQ(in_memory(24, 31), 7) << "one slot is enough for all that pass";
  EXPECT_GE(Count(Counters().passing), 16u);
  scan();
  EXPECT_EQ(in_memory(24, 31), 0) << "asked for again it stays";
  EXPECT_EQ(in_memory(8, 15), 8);
}

TEST_F(FlashStoreTest, R9ReclaimKeepsWhatIsUsedAndWhatOthersDescendFrom) {
  Make(With(4, 2 * kMiB));
  PutChainSlowly(0, 7);
  for (std::uint64_t n = 100; n < 700; ++n) {
    ASSERT_EQ(Put(n, std::nullopt), store::State::kPublished) << n;
    t->Settle();
    if (n % 8 == 0) {
      ASSERT_TRUE(Gets(7)) << n;
      t->Settle();
    }
  }
  EXPECT_GT(Count(FlashOf(*t).counters().reclaimed), 5u);
  EXPECT_GT(Count(Counters().moved_below), 0u);
  EXPECT_EQ(Match(0, 7), 8u);
  for (std::uint64_t n = 0; n < 8; ++n) EXPECT_TRUE(Gets(n)) << n;
  // What a match promises can be had.
  for (std::uint64_t n = 100; n < 700; ++n) {
    if (Match(n, n) == 1) {
      EXPECT_TRUE(Gets(n)) << n;
    }
  }
}

// A step cannot tell of a block so far down whether it is among what is being collected.
TEST_F(FlashStoreTest, R9ReclaimKeepsADeepChainWhileOthersAreCollected) {
  constexpr std::uint64_t kChain = 260, kMortal = 10'000, kMortals = 600;
  Make(With(8, 16 * kMiB));
  for (std::uint64_t n = 0; n < kChain; ++n) {
    ASSERT_EQ(Put(n, n == 0 ? std::nullopt : std::optional(n - 1)), store::State::kPublished);
    ASSERT_EQ(Put(1000 + n, std::nullopt), store::State::kPublished);
    t->Settle();
  }
  store::PartWrite mortal = Part(kMortal, std::nullopt);
  mortal.ttl_s = 3600;
  ASSERT_TRUE(WriteOne(mortal).status.ok());
  for (std::uint64_t n = kMortal + 1; n <= kMortal + kMortals; ++n) {
    ASSERT_EQ(Put(n, kMortal), store::State::kPublished);
    t->Settle();
  }
  while (Count(Counters().moved_below) < catalog::kStandingLooks + 8) {
    FlashOf(*t).Reclaim(true);
    t->Settle();
  }
  ASSERT_EQ(Match(0, kChain - 1), kChain);
  ASSERT_TRUE(Gets(kMortal));
  SlowDevice(5'000);
  FlashOf(*t).Reclaim(true);
  t->Run(Sleep(t->loop->executor(), 30'000));
  t->clock.AdvanceUs(3'600'000'000);
  ASSERT_TRUE(t->Run(t->TickOnce(t->loop->executor()))) << "some is left to be collected";
  t->loop->RunUntilIdle();
  t->disk.set_faults({});
  t->Settle();
  EXPECT_FALSE(Get(kMortal + 1).has_value());
  EXPECT_EQ(Match(0, kChain - 1), kChain);
  for (std::uint64_t n = 0; n < kChain; ++n) EXPECT_TRUE(Gets(n)) << n;
}

// What is written again takes the room of what memory has as well: without a bound that would never end.
TEST_F(FlashStoreTest, WhereFlashIsSmallerThanMemoryItsWritesEndOnceNobodyPuts) {
  constexpr std::uint64_t kChains = 30, kBlocks = 64;
  Make(With(0, 4 * kMiB));
  for (std::uint64_t n = 0; n < kChains * kBlocks; ++n) {
    ASSERT_EQ(Put(n, n % kBlocks == 0 ? std::nullopt : std::optional(n - 1)), store::State::kPublished) << n;
    t->Settle();
  }
  ASSERT_GT(Count(FlashOf(*t).counters().reclaimed), 0u);
  for (int i = 0; i < 200; ++i) TickOnceLater();
  const std::uint64_t written = Count(Counters().written_down);
  for (int i = 0; i < 200; ++i) TickOnceLater();
  EXPECT_EQ(Count(Counters().written_down), written);
  EXPECT_LE(written, 2 * kChains * kBlocks) << "each byte that is put pays for one that is written again";
  for (std::uint64_t n = 0; n < kChains * kBlocks; ++n) ASSERT_TRUE(Here(n)) << n;
}

TEST_F(FlashStoreTest, WhereTheForestFillsFlashGivesUpWhatIsOldest) {
  constexpr std::uint64_t kBlocks = 16'000;  // a quarter more than the forest has
  store::TestStoreOptions options = With(0, 256 * kMiB, 1, kMiB);
  options.store.max_lower_blocks = 64;
  Make(options);
  for (std::uint64_t n = 0; n < kBlocks; ++n) {
    bodies_.clear();
    ASSERT_EQ(Put(n, std::nullopt), store::State::kPublished) << n;
    if (n % 100 == 99) t->Settle();
  }
  EXPECT_LT(Occupied().blocks, kBlocks);
  EXPECT_TRUE(Gets(kBlocks - 1));
}

}  // namespace
}  // namespace cistern
