// SPDX-License-Identifier: Apache-2.0
// What becomes of records in the lower tier whose room is given up, whose device goes, and whose bytes rot.
#include <cstring>

#include "test_flash_store.h"

namespace cistern {
namespace {

class LowerRecordsTest : public FlashStoreTest {
 protected:
  // Room for `resident` blocks in memory, and for `flash_bytes` on each of `devices` devices.
  static store::TestStoreOptions With(std::uint64_t resident, std::uint64_t flash_bytes,
                                      std::size_t devices = 1, std::uint64_t region_bytes = 256u << 10) {
    store::TestStoreOptions options =
        FlashStoreTest::With(resident, devices * flash_bytes, devices, region_bytes);
    options.store.max_lower_blocks = 16'384;
    return options;
  }
  void PutSingly(std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t n = first; n <= last; ++n) {
      bodies_.clear();
      ASSERT_EQ(Put(n, std::nullopt), store::State::kPublished) << n;
      t->Settle();
    }
  }
};

TEST_F(LowerRecordsTest, WhatLeftWithItsRegionIsAMissOfEviction) {
  Make(With(4, 2 * kMiB));
  PutSingly(0, 700);
  ASSERT_EQ(Match(0, 0), 0u);
  EXPECT_EQ(Counters().miss_evicted.value(), 1u);
  EXPECT_EQ(Counters().miss_unknown.value(), 0u);
}

TEST_F(LowerRecordsTest, WhatADeviceTookAlongIsABadMiss) {
  Make(With(4, 2 * kMiB, 2));
  PutSingly(0, 63);
  for (std::uint64_t n = 100; n < 140; ++n) {
    ASSERT_EQ(Put(n, n == 100 ? std::nullopt : std::optional(n - 1)), store::State::kPublished);
    t->Settle();
  }
  PutSingly(200, 203);  // so that nothing of the chain is in memory
  ASSERT_TRUE(FlashOf(*t).TakeOut("flash0").ok());
  t->Settle();
  std::uint64_t gone = 0;
  for (std::uint64_t n = 0; n < 64; ++n) gone += 1 - Match(n, n);
  ASSERT_GT(gone, 0u);
  EXPECT_EQ(Counters().miss_bad.value(), gone);
  ASSERT_LT(Match(100, 139), 40u);
  EXPECT_GT(Counters().miss_bad.value(), gone) << "so is one that others descend from";
  EXPECT_EQ(Counters().miss_unknown.value() + Counters().miss_evicted.value(), 0u);
}

TEST_F(LowerRecordsTest, WhatMemoryHasOfADeviceThatWentIsWrittenToTheOthers) {
  constexpr std::uint64_t kChain = 6'000;  // more than the cleaner looks at
  store::TestStoreOptions options = With(12'000, 64 * kMiB, 2);
  options.store.lower.admit = Admission::kAll;
  Make(options);
  PutChain(0, kChain - 1);
  bodies_.clear();
  t->Settle();
  ASSERT_EQ(Counters().written_down.value(), kChain);
  const std::uint64_t live = FlashOf(*t).live_bytes();
  ASSERT_TRUE(FlashOf(*t).TakeOut("flash0").ok());
  ASSERT_LT(FlashOf(*t).live_bytes(), live);
  t->Settle();
  EXPECT_GT(Counters().written_down.value(), kChain);
  EXPECT_EQ(FlashOf(*t).live_bytes(), live) << "all of them are there again";
}

TEST_F(LowerRecordsTest, ADeviceThatWentTakesNothingThatMemoryHas) {
  constexpr std::uint64_t kMemory = 64, kChain = 62, kPuts = 10;
  Make(With(kMemory, 32 * kMiB));
  for (std::uint64_t n = 1'000; n < 4'000; ++n) {
    bodies_.clear();
    ASSERT_EQ(Put(n, std::nullopt), store::State::kPublished) << n;
    if (n % 32 == 0) t->Settle();
  }
  for (std::uint64_t n = 0; n < kChain; ++n) {
    ASSERT_EQ(Put(n, n == 0 ? std::nullopt : std::optional(n - 1)), store::State::kPublished);
    t->Settle();
  }
  for (std::uint64_t n = 0; n < kChain; ++n) ASSERT_TRUE(Here(n));
  ASSERT_TRUE(FlashOf(*t).TakeOut("flash0").ok());
  for (std::uint64_t n = 10'000; n < 10'000 + kPuts; ++n)
    ASSERT_EQ(Put(n, std::nullopt), store::State::kPublished) << n;
  t->Settle();
  EXPECT_GE(Match(0, kChain - 1), kMemory - kPuts) << "what left for the puts left leaf by leaf";
}

TEST_F(LowerRecordsTest, P5NothingLeavesForABlockThatSmallerMemoryHasNoChunkFor) {
  constexpr std::size_t kLarge = 4u << 20;  // of two headers
  store::TestStoreOptions options = With(0, 161 * kMiB, 1, 40 * kMiB);
  options.headers = 4;
  Make(options);
  ASSERT_EQ(Put(0, std::nullopt, kLarge), store::State::kPublished);
  t->Settle();
  ASSERT_EQ(Counters().written_down.value(), 1u);
  Reboot();
  ASSERT_FALSE(Here(0));
  ASSERT_EQ(Match(0, 0), 1u);
  while (t->slots->headers() > 1) t->slots->CloseHeader();
  PutChain(1, 8);
  t->Settle();
  EXPECT_EQ(Match(0, 0), 0u) << "what cannot come is promised";
  EXPECT_EQ(Acquire({0}, Me()).views[0].code, Code::kBusy);
  for (std::uint64_t n = 1; n <= 8; ++n) EXPECT_TRUE(Here(n)) << n;
  EXPECT_EQ(Counters().evicted.value() + Counters().demoted.value(), 0u);
  while (t->slots->headers() < 4) t->slots->OpenHeader();
  EXPECT_EQ(Match(0, 0), 1u);
  ReadLeased(0, kLarge);
}

TEST_F(LowerRecordsTest, TheScrubberReadsOnFlashWhatMemoryHasToo) {
  store::TestStoreOptions options = With(64, 4 * kMiB);
  options.store.scrub_bytes_per_s = 1 * kMiB;
  Make(options);
  PutChain(0, 15);
  t->Settle();
  const std::vector<std::byte> wanted = store::Body(5, 4096);
  const std::string path = "flash0/flash";
  for (std::uint64_t offset = 0; offset + 4096 <= t->disk.Bytes(path).size(); offset += 4096) {
    if (std::memcmp(t->disk.Bytes(path).data() + offset, wanted.data(), 4096) == 0)
      t->disk.Flip(path, offset, std::byte{1});
  }
  const std::uint64_t rounds = Counters().scrub_rounds.value();
  for (int i = 0; i < 100 && Counters().scrub_rounds.value() < rounds + 2; ++i) {
    t->clock.AdvanceUs(100'000);
    t->Settle();
  }
  Reboot();
  ASSERT_EQ(Match(0, 15), 16u);
  for (std::uint64_t n = 0; n < 16; ++n) ReadLeased(n, 4096);
}

TEST_F(LowerRecordsTest, AMatchAloneIsNoUseThatKeepsARecordAtReclaim) {
  store::TestStoreOptions options = With(4, 2 * kMiB);
  options.store.read_ahead_bytes = 4096;
  Make(options);
  PutSingly(0, 0);
  for (std::uint64_t n = 100; n < 700; ++n) {
    PutSingly(n, n);
    if (n % 8 == 0) {
      Match(0, 0);
      t->Settle();
    }
  }
  EXPECT_GT(Counters().read_ahead.value(), 0u);
  EXPECT_GT(FlashOf(*t).counters().reclaimed.value(), 0u);
  EXPECT_EQ(Counters().moved_below.value(), 0u);
}

TEST_F(LowerRecordsTest, WhatWasReadAheadStaysForItsPromptThoughItIsScrubbed) {
  store::TestStoreOptions options = With(8, 4 * kMiB);
  options.store.read_ahead_bytes = 4096;
  options.store.lower.promote = Promotion::kWorth;
  Make(options);
  PutSingly(0, 31);
  ASSERT_FALSE(Here(0));
  ASSERT_EQ(Match(0, 0), 1u);
  t->Settle();
  ASSERT_TRUE(Here(0));
  options.store.scrub_bytes_per_s = 1 * kMiB;
  t->store->SetOptions(options.store);
  const std::uint64_t rounds = Counters().scrub_rounds.value();
  for (int i = 0; i < 100 && Counters().scrub_rounds.value() < rounds + 2; ++i) {
    t->clock.AdvanceUs(100'000);
    t->Settle();
  }
  PutSingly(100, 100);
  EXPECT_TRUE(Here(0));
}

}  // namespace
}  // namespace cistern
