// SPDX-License-Identifier: Apache-2.0
// Quotas: a namespace's burst takes its own room, and not what others reserve.
#include <gtest/gtest.h>

#include <vector>

#include "store/block_store_fixture.h"

namespace cistern::store {
namespace {

constexpr std::size_t kBytes = 500'000;

NamespaceSpec Model(const std::string& model) {
  NamespaceSpec spec = OneGroup(model);
  spec.fields.push_back({"model", model});
  return spec;
}

class QuotaTest : public BlockStoreTest {
 protected:
  void Start(std::vector<policy::Quota> quotas) {
    TestStoreOptions options{.headers = 2};
    options.store.quotas = policy::QuotaTable(std::move(quotas));
    Make(options, Model("quiet"));
    quiet = ns;
    Attach(Model("burst"));
    burst = ns;
    capacity = memory::Slots::Capacity({4096, 2}, record::RecordBytes(kBytes, 4096));
  }
  // Blocks of a namespace, each a chain of its own.
  void PutInto(const Attached& where, std::uint64_t first, std::uint64_t end) {
    ns = where;
    for (std::uint64_t n = first; n < end; ++n)
      ASSERT_EQ(Put(n, std::nullopt, kBytes), State::kPublished) << n;
  }
  std::uint64_t There(const Attached& where, std::uint64_t first, std::uint64_t end) {
    ns = where;
    std::uint64_t there = 0;
    for (std::uint64_t n = first; n < end; ++n) there += Here(n);
    return there;
  }
  void SetQuotas(std::vector<policy::Quota> quotas) {
    catalog::StoreOptions options;
    options.quotas = policy::QuotaTable(std::move(quotas));
    t->store->SetOptions(options);
    t->Settle();
  }

  Attached quiet, burst;
  std::uint64_t capacity = 0;
};

TEST_F(QuotaTest, WithoutQuotasABurstTakesAllThatIsColder) {
  Start({});
  PutInto(quiet, 0, 20);
  PutInto(burst, 1000, 1000 + capacity);
  EXPECT_EQ(There(quiet, 0, 20), 0u);
}

TEST_F(QuotaTest, ABurstStaysWithinItsQuotaAndEvictsItsOwn) {
  Start({{.pattern = "model=burst", .memory_bytes = 10 * kBytes}});
  PutInto(quiet, 0, 20);
  for (std::uint64_t n = 1000; n < 1000 + capacity; ++n) {
    PutInto(burst, n, n + 1);
    ASSERT_LE(t->store->used()[1], 10 * kBytes);
  }
  EXPECT_EQ(There(quiet, 0, 20), 20u);
  EXPECT_EQ(There(burst, 1000, 1000 + capacity), 9u) << "and the tenth would not fit with its trailer";
  EXPECT_TRUE(Here(1000 + capacity - 1)) << "the latest";
}

TEST_F(QuotaTest, AReserveStaysWhenOthersNeedRoomAndWhatIsAboveItLeaves) {
  Start({{.pattern = "model=quiet", .reserve_bytes = 10 * kBytes}});
  PutInto(quiet, 0, 20);
  PutInto(burst, 1000, 1000 + capacity);
  EXPECT_EQ(There(quiet, 0, 20), 10u);
  EXPECT_TRUE(Here(19)) << "the coldest went";
  // For its own it gives all.
  PutInto(quiet, 100, 100 + capacity);
  EXPECT_EQ(There(quiet, 0, 20), 0u);
}

TEST_F(QuotaTest, AQuotaBelowWhatIsThereTrimsTheColdestAndAnotherSetsThemFree) {
  Start({});
  PutInto(quiet, 0, 20);
  PutInto(burst, 1000, 1030);
  SetQuotas(
      {{.pattern = "model=none", .memory_bytes = 1}, {.pattern = "model=burst", .memory_bytes = 5 * kBytes}});
  EXPECT_EQ(t->store->used()[2], 5 * kBytes);
  EXPECT_EQ(There(quiet, 0, 20), 20u);
  EXPECT_EQ(There(burst, 1000, 1025), 0u);
  EXPECT_EQ(There(burst, 1025, 1030), 5u) << "the warmest stay";
  EXPECT_EQ(t->store->counters().evicted_over_quota.value(), 25u);
  // By other numbers: what counted for the second counts for the first.
  SetQuotas({{.pattern = "burst", .memory_bytes = 7 * kBytes}});
  EXPECT_EQ(t->store->used()[1], 5 * kBytes);
  SetQuotas({});
  PutInto(burst, 2000, 2030);
  EXPECT_EQ(There(burst, 2000, 2030), 30u);
}

TEST_F(QuotaTest, WhatIsThereCountsForTheQuotaOfANameThatItGetsLater) {
  Start({{.pattern = "late", .memory_bytes = 6 * kBytes}});
  PutInto(burst, 1000, 1010);
  EXPECT_EQ(t->store->used()[1], 0u);
  NamespaceSpec late = Model("burst");
  late.name = "late";
  Attach(late);
  EXPECT_EQ(ns.slot, burst.slot);
  EXPECT_EQ(t->store->used()[1], 10 * kBytes);
  t->Settle();
  EXPECT_EQ(t->store->used()[1], 6 * kBytes);
  EXPECT_EQ(There(burst, 1004, 1010), 6u);
}

TEST_F(QuotaTest, ALabelCountsAsAFieldDoesAndSharesNoBlock) {
  Start({{.pattern = "served=ll*", .memory_bytes = 6 * kBytes}});
  PutInto(burst, 1000, 1004);
  PutInto(quiet, 2000, 2004);
  EXPECT_EQ(t->store->used()[1], 0u);
  for (const char* const model : {"burst", "quiet"}) {
    NamespaceSpec labelled = Model(model);
    labelled.labels = {{"served", "llama"}};
    Attach(labelled);
    EXPECT_EQ(ns.slot, model == std::string("burst") ? burst.slot : quiet.slot) << "a label is no identity";
  }
  t->Settle();
  EXPECT_EQ(t->store->used()[1], 6 * kBytes) << "what two have together is what one quota has";
  EXPECT_EQ(There(burst, 1000, 1004) + There(quiet, 2000, 2004), 6u);
  EXPECT_EQ(There(burst, 2000, 2004), 0u);
  EXPECT_EQ(There(quiet, 1000, 1004), 0u);
  NamespaceSpec renamed = Model("quiet");
  renamed.labels = {{"served", "other"}};
  Attach(renamed);
  EXPECT_EQ(t->store->used()[1], There(burst, 1000, 1004) * kBytes) << "the last word counts";
}

TEST_F(QuotaTest, AChainIsTrimmedFromItsLeaves) {
  Start({});
  ns = burst;
  PutChain(0, 19, kBytes);
  SetQuotas({{.pattern = "model=b*", .memory_bytes = 8 * kBytes}});
  EXPECT_EQ(Match(0, 19), 8u);
}

TEST_F(QuotaTest, QuotasHoldForWhatARestartFinds) {
  Start({{.pattern = "model=burst", .memory_bytes = 10 * kBytes}});
  PutInto(burst, 1000, 1008);
  Restart(Model("burst"));
  burst = ns;
  EXPECT_EQ(t->store->used()[1], 8 * kBytes);
  PutInto(burst, 2000, 2020);
  EXPECT_LE(t->store->used()[1], 10 * kBytes);
  EXPECT_TRUE(Here(2019));
}

TEST_F(QuotaTest, ABlockThatIsLargerThanTheQuotaIsRefused) {
  Start({{.pattern = "model=burst", .memory_bytes = kBytes / 2}});
  ns = burst;
  EXPECT_EQ(WriteOne(Part(1, std::nullopt, kBytes)).status.code(), Code::kBusy);
}

}  // namespace
}  // namespace cistern::store
