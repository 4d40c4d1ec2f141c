// SPDX-License-Identifier: Apache-2.0
// Quotas of flash: a namespace's burst keeps to its share there, and not what others reserve. The endurance
// budget, which is all namespaces' together.
#include <gtest/gtest.h>

#include <vector>

#include "flash/format.h"
#include "flash_store.h"
#include "store/block_store_fixture.h"

namespace cistern {
namespace {

constexpr std::size_t kBytes = 4096;
constexpr std::uint64_t kMiB = 1u << 20;

NamespaceSpec Model(const std::string& model) {
  NamespaceSpec spec = store::OneGroup(model);
  spec.fields.push_back({"model", model});
  return spec;
}

class FlashQuotaTest : public store::BlockStoreTest {
 protected:
  // Room for few blocks in memory, and flash in regions of 256 KiB.
  void Start(std::vector<policy::Quota> quotas, std::uint64_t resident = 32,
             std::uint64_t flash_bytes = 4 * kMiB, int devices = 1) {
    store::TestStoreOptions options;
    options.store.max_blocks = resident;
    options.store.max_lower_blocks = 8192;
    options.store.read_ahead_bytes = 0;
    options.store.lower.admit = admit;
    options.store.quotas = policy::QuotaTable(std::move(quotas));
    flash::FlashOptions flash;
    flash.region_bytes = 256u << 10;
    for (int i = 0; i < devices; ++i) flash.devices.push_back({"flash" + std::to_string(i), flash_bytes});
    options.tier = OnFlash(flash);
    Make(options, Model("quiet"));
    quiet = ns;
    Attach(Model("burst"));
    burst = ns;
  }
  // Blocks of a namespace, each a chain of its own, written down as far as they are to be.
  void PutInto(const store::Attached& where, std::uint64_t first, std::uint64_t end) {
    ns = where;
    for (std::uint64_t n = first; n < end; ++n) {
      ASSERT_EQ(Put(n, std::nullopt, kBytes), store::State::kPublished) << n;
      if (n % 16 == 15) t->Settle();
      CheckLimits();
    }
    t->Settle();
    CheckLimits();
    CheckCounts();
  }
  // A limit holds at any time, whatever is under way.
  void CheckLimits() {
    const auto& quotas = t->store->quotas().quotas();
    for (std::size_t i = 0; i < quotas.size() && !above_; ++i)
      ASSERT_LE(t->store->below()[i + 1], quotas[i].flash_bytes) << i;
  }
  // What is counted as it comes and goes is what a walk over all blocks finds.
  void CheckCounts() {
    std::uint64_t records = 0;
    const auto uses = t->Run(t->store->survey().Take());
    for (const store::NamespaceUse& use : *uses) {
      std::uint64_t bytes = 0;
      for (const store::TierUse& tier : use.lower) bytes += tier.bytes;
      EXPECT_EQ(t->store->CountedAt(use.entry.slot).lower_bytes, bytes) << use.entry.names.front();
      records += t->store->CountedAt(use.entry.slot).lower_record_bytes;
    }
    EXPECT_EQ(records, FlashOf(*t).live_bytes());
  }
  // Blocks that a read finds, in whatever tier, with their own bytes.
  std::uint64_t There(const store::Attached& where, std::uint64_t first, std::uint64_t end) {
    ns = where;
    std::uint64_t there = 0;
    for (std::uint64_t n = first; n < end; ++n) {
      const store::AcquireGrant grant = Acquire({n}, Me());
      if (grant.views[0].code != Code::kOk) continue;
      EXPECT_EQ(t->Read(ns.slot, store::Key(n)), store::Body(n, kBytes)) << n;
      EXPECT_TRUE(t->store->Release(Me(), grant.lease).ok());
      ++there;
    }
    return there;
  }
  void SetQuotas(std::vector<policy::Quota> quotas) {
    catalog::StoreOptions options = t->options.store;
    options.quotas = policy::QuotaTable(std::move(quotas));
    t->store->SetOptions(options);
    t->Settle();
  }
  // Until the hand has gone round often enough.
  void Sweep() {
    for (int i = 0; i < 100; ++i) {
      t->clock.AdvanceUs(50'000);
      t->Settle();
    }
  }
  const catalog::StoreCounters& Counters() { return t->store->counters(); }

  Admission admit = Admission::kWorth;
  store::Attached quiet, burst;
  bool above_ = false;  // a quota is new, or was smaller than what is there
};

TEST_F(FlashQuotaTest, WithoutQuotasABurstTakesFlash) {
  Start({});
  PutInto(quiet, 0, 64);
  PutInto(burst, 10'000, 14'000);
  EXPECT_LT(There(quiet, 0, 64), 8u);
}

TEST_F(FlashQuotaTest, WhatWouldPassALimitIsNotWrittenAndMemoryHasIt) {
  Start({{.pattern = "model=burst", .flash_bytes = 20 * kBytes}}, 200);
  PutInto(burst, 0, 100);
  EXPECT_LE(t->store->below()[1], 20 * kBytes);
  EXPECT_GE(t->store->below()[1], 18 * kBytes);
  EXPECT_GT(Counters().down_over_quota.value(), 0u);
  EXPECT_EQ(There(burst, 0, 100), 100u);
}

TEST_F(FlashQuotaTest, AFullQuotaGivesUpWhatNobodyUsedForWhatComesAndNothingOfOthers) {
  Start({{.pattern = "model=burst", .flash_bytes = 64 * kBytes}}, 32, 16 * kMiB);
  PutInto(quiet, 0, 100);
  for (std::uint64_t round = 0; round < 20; ++round) {
    PutInto(burst, 10'000 + round * 32, 10'032 + round * 32);
    Sweep();
  }
  EXPECT_GT(Counters().evicted_below_over_quota.value(), 300u);
  EXPECT_EQ(There(quiet, 0, 100), 100u);
  // Of the latest are there what memory kept until there was room, and not those that were first to fill it.
  EXPECT_GT(There(burst, 10'000 + 18 * 32, 10'000 + 20 * 32), 32u);
  EXPECT_LT(There(burst, 10'000, 10'064), 8u);
}

TEST_F(FlashQuotaTest, WhatWasUsedSinceTheHandCameByStays) {
  Start({{.pattern = "model=burst", .flash_bytes = 64 * kBytes}});
  PutInto(burst, 0, 16);
  PutInto(burst, 100, 140);
  for (std::uint64_t round = 0; round < 10; ++round) {
    EXPECT_EQ(There(burst, 0, 16), 16u) << round;
    PutInto(burst, 10'000 + round * 8, 10'008 + round * 8);
    Sweep();
  }
}

TEST_F(FlashQuotaTest, AChainGoesFromItsLeavesAndKeepsItsBeginning) {
  Start({{.pattern = "model=burst", .flash_bytes = 64 * kBytes}}, 8);
  ns = burst;
  for (std::uint64_t n = 0; n < 60; ++n) {
    ASSERT_EQ(Put(n, n == 0 ? std::nullopt : std::optional(n - 1), kBytes), store::State::kPublished);
    t->Settle();
  }
  above_ = true;
  SetQuotas({{.pattern = "model=burst", .flash_bytes = 32 * kBytes}});
  Sweep();
  EXPECT_EQ(Match(0, 59), 60u) << "what memory has needs what it descends from";
  PutInto(quiet, 1000, 1010);
  Sweep();
  ns = burst;
  const std::uint32_t matched = Match(0, 59);
  EXPECT_LE(t->store->below()[1], 32 * kBytes);
  EXPECT_GE(matched, 24u);
  EXPECT_LE(matched, 32u);
  CheckCounts();
}

TEST_F(FlashQuotaTest, AReserveStaysThroughAnyBurstOfOthers) {
  Start({{.pattern = "model=quiet", .flash_reserve_bytes = 128 * kBytes}});
  PutInto(quiet, 0, 128);
  ASSERT_EQ(t->store->below()[1], 128 * kBytes);
  PutInto(burst, 10'000, 14'000);
  EXPECT_GT(Counters().moved_below.value(), 128u);
  EXPECT_EQ(There(quiet, 0, 128), 128u);
}

TEST_F(FlashQuotaTest, AReserveOfHalfOfFlashStaysWhileAllElseIsUsedAndTurnsOver) {
  // A block takes twice its bytes there, with its trailer.
  Start({{.pattern = "model=quiet", .flash_reserve_bytes = kMiB}});
  PutInto(quiet, 0, 240);
  ASSERT_EQ(There(quiet, 0, 240), 240u);
  // Used blocks move too, so that regions are full of what wants to stay.
  for (std::uint64_t round = 0; round < 10; ++round) {
    PutInto(burst, 10'000 + round * 400, 10'400 + round * 400);
    There(burst, 10'000 + round * 400, 10'400 + round * 400);
  }
  EXPECT_EQ(There(quiet, 0, 240), 240u);
}

// Else each region that is given up moves whole, round and round, and nothing new finds a place.
TEST_F(FlashQuotaTest, AReserveWhoseRecordsWouldFillFlashStaysUpToHalfOfIt) {
  admit = Admission::kAll;
  Start({{.pattern = "model=quiet", .flash_reserve_bytes = 2 * kMiB}});
  PutInto(quiet, 0, 800);
  PutInto(burst, 10'000, 14'000);
  EXPECT_GE(There(burst, 13'950, 14'000), 32u);
  EXPECT_GE(There(quiet, 0, 800), 240u) << "of records of 8 KiB, half of flash";
  EXPECT_LT(Counters().moved_below.value(), 3 * Counters().written_down.value());
}

TEST_F(FlashQuotaTest, AReserveOfHalfOfFlashOfFewRegionsLeavesOthersRoom) {
  admit = Admission::kAll;
  for (const std::uint64_t regions : {4, 5, 6, 7, 8, 9, 10, 12, 20}) {
    const std::uint64_t bytes = flash::kSuperBytes + regions * (256u << 10);
    Start({{.pattern = "model=quiet", .flash_reserve_bytes = bytes / 2}}, 16, bytes);
    PutInto(quiet, 0, regions * 50);
    PutInto(burst, 10'000, 11'000);
    EXPECT_GE(There(quiet, 0, regions * 50), 20u) << regions;
    EXPECT_GE(There(burst, 10'970, 11'000), 16u) << regions;
    EXPECT_LT(Counters().moved_below.value(), 4 * Counters().written_down.value()) << regions;
  }
}

TEST_F(FlashQuotaTest, AReserveThatWasHalfOfFlashLeavesRoomOnWhatADeviceLeft) {
  admit = Admission::kAll;
  Start({{.pattern = "model=quiet", .flash_reserve_bytes = kMiB}}, 32, 2 * kMiB, 2);
  PutInto(quiet, 0, 240);
  ASSERT_TRUE(FlashOf(*t).TakeOut("flash1").ok());
  PutInto(quiet, 1'000, 1'400);
  PutInto(burst, 10'000, 12'000);
  EXPECT_GE(There(quiet, 0, 240) + There(quiet, 1'000, 1'400), 70u);
  EXPECT_GE(There(burst, 11'950, 12'000), 32u);
  EXPECT_LT(Counters().moved_below.value(), 3 * Counters().written_down.value());
}

TEST_F(FlashQuotaTest, WhatIsAboveItsReserveLeaves) {
  Start({{.pattern = "model=quiet", .flash_reserve_bytes = 64 * kBytes}});
  PutInto(quiet, 0, 300);
  PutInto(burst, 10'000, 14'000);
  EXPECT_GE(There(quiet, 0, 300), 64u);
  EXPECT_LT(There(quiet, 0, 300), 150u);
}

TEST_F(FlashQuotaTest, ALimitBelowWhatIsThereIsReachedAndAnotherSetsItFree) {
  Start({}, 16);
  PutInto(quiet, 0, 64);
  PutInto(burst, 10'000, 10'200);
  SetQuotas({{.pattern = "model=burst", .flash_bytes = 64 * kBytes}});
  Sweep();
  EXPECT_LE(t->store->below()[1], 64 * kBytes);
  EXPECT_GE(t->store->below()[1], 56 * kBytes) << "and no more than that";
  EXPECT_EQ(There(quiet, 0, 64), 64u);
  SetQuotas({});
  EXPECT_EQ(t->store->below()[1], 0u);
  PutInto(burst, 20'000, 20'100);
  EXPECT_EQ(There(burst, 20'000, 20'100), 100u);
}

TEST_F(FlashQuotaTest, QuotasHoldForWhatARestartFinds) {
  Start({{.pattern = "model=burst", .flash_bytes = 64 * kBytes},
         {.pattern = "model=quiet", .flash_reserve_bytes = kMiB}});
  PutInto(quiet, 0, 100);
  PutInto(burst, 10'000, 10'200);
  Sweep();
  const policy::QuotaTable::Used before = t->store->below();
  t->Stop();
  t->ForgetMemory();
  t->Start();
  ASSERT_TRUE(t->recovered.ok()) << t->recovered.ToString();
  Attach(Model("quiet"));
  quiet = ns;
  Attach(Model("burst"));
  burst = ns;
  CheckCounts();
  EXPECT_EQ(t->store->below()[2], before[2]);
  // What was given up, and lies in a region that was not, comes back with it and is given up again.
  Sweep();
  EXPECT_LE(t->store->below()[1], 64 * kBytes);
  PutInto(burst, 20'000, 23'000);
  EXPECT_EQ(There(quiet, 0, 100), 100u);
}

TEST_F(FlashQuotaTest, ADeviceThatGoesAndADropTakeTheirCountsAlong) {
  Start({{.pattern = "model=burst", .flash_bytes = 100 * kBytes}});
  PutInto(burst, 0, 50);
  ns = burst;
  ASSERT_TRUE(t->Run(t->store->DropNamespace(burst.slot)).has_value());
  t->Settle();
  EXPECT_EQ(t->store->below()[1], 0u);
  Attach(Model("burst"));
  burst = ns;
  PutInto(burst, 100, 150);
  ASSERT_TRUE(FlashOf(*t).TakeOut("flash0").ok());
  t->Settle();
  EXPECT_EQ(t->store->below()[1], 0u);
  CheckCounts();
}

// Several batches are gathered before the first of them is written.
TEST_F(FlashQuotaTest, WhatTheBudgetRefusesIsNoFailureOfADevice) {
  Start({}, 128);
  FlashOf(*t).SetBudget(24 * 100'000);
  std::vector<store::PartWrite> parts;
  for (std::uint64_t n = 0; n < 64; ++n) parts.push_back(Part(n, std::nullopt, kBytes));
  for (const store::PartOutcome& outcome : Write(std::move(parts), Me())) ASSERT_TRUE(outcome.status.ok());
  t->Settle();
  const catalog::StoreCounters& counters = t->store->counters();
  ASSERT_GT(FlashOf(*t).counters().refused_by_budget.value(), 0u);
  EXPECT_EQ(counters.down_failed.value(), 0u);
  EXPECT_GT(counters.down_over_budget.value(), 0u);
}

}  // namespace
}  // namespace cistern
