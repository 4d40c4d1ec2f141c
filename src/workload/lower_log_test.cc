// SPDX-License-Identifier: Apache-2.0
#include "workload/lower_log.h"

#include <gtest/gtest.h>

#include <numeric>

namespace cistern::workload {
namespace {

TEST(LowerLog, GivesUpItsOldestRegionOnceItIsFull) {
  LowerLog log(64 * 20, 0);
  for (policy::EntryId id = 0; id < 64 * 20; ++id) {
    log.SetNow(1'000 * id);
    EXPECT_EQ(log.Append(id, false), id / 20);
    EXPECT_FALSE(log.GiveUp());
  }
  EXPECT_EQ(log.terms().turn_ms, 0);
  log.Append(64 * 20, false);
  const auto given = log.GiveUp();
  ASSERT_TRUE(given);
  EXPECT_EQ(given->region, 0u);
  std::vector<policy::EntryId> first(20);
  std::iota(first.begin(), first.end(), 0);
  EXPECT_EQ(given->ids, first);
  EXPECT_FALSE(log.GiveUp());
  // The oldest lies there since 20.000 s, by now 1279.000 s.
  EXPECT_EQ(log.terms().turn_ms, 1'259'001);
}

TEST(LowerLog, WithoutEndGivesUpNothing) {
  LowerLog log(0, 0);
  for (policy::EntryId id = 0; id < 10'000; ++id) log.Append(id, false);
  EXPECT_FALSE(log.GiveUp());
  EXPECT_EQ(log.written(), 10'000u);
}

TEST(LowerLog, BudgetIsSavedUpForAnHourAndMovesSpendIt) {
  LowerLog log(0, 3'600);
  for (policy::EntryId id = 0; id < 3'600; ++id) {
    ASSERT_TRUE(log.Pays()) << id;
    log.Append(id, id % 2 == 0);
  }
  EXPECT_FALSE(log.Pays());
  EXPECT_EQ(log.terms().saved, 0);
  log.SetNow(1'000);
  EXPECT_TRUE(log.Pays());
  log.Append(0, true);
  EXPECT_FALSE(log.Pays());
  log.SetNow(10 * 3'600'000);
  EXPECT_EQ(log.terms().saved, 1);
  EXPECT_EQ(log.terms().budget_bytes_a_ms, 0.001);
  EXPECT_EQ(log.written(), 1'800u);
  EXPECT_EQ(log.moved(), 1'801u);
}

}  // namespace
}  // namespace cistern::workload
