// SPDX-License-Identifier: Apache-2.0
// Batches that are trimmed and revisions that are compacted: who comes behind them reads all, and misses
// nothing.
#include "mesh/test_members.h"

namespace cistern::mesh {
namespace {

TEST_F(CellTest, WhatOneMemberTrimsTheOthersKeepNoNoteOf) {
  StartCell(2);
  const auto dropped = cell_.Drop(node(1), DropOfKeys(name_, {KeyOf(9)}));
  ASSERT_TRUE(dropped.has_value());
  ASSERT_TRUE(cell_.Drop(node(1), EndOf(name_, 7)).has_value());
  EXPECT_GT(member(1).state().kept_drops.bytes(), 0u);
  EXPECT_GT(member(1).state().kept_ends.bytes(), 0u);
  cell_.RunFor(CellLimits::kTrimAgeUs + kSecond);
  const std::int64_t seen = member(0).state().seen;
  ASSERT_TRUE(cell_.loop->BlockOn(member(0).Trim({seen, seen})).ok());
  cell_.RunFor(kSecond);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(member(i).state().kept_drops.bytes(), 0u) << i;
    EXPECT_EQ(member(i).state().kept_ends.bytes(), 0u) << i;
  }
}

TEST_F(CellTest, WhatATrimLeftBehindItsFloorIsDeletedByALaterOne) {
  cell_.etcd.SetLags({.answer_us = 10'000, .event_us = 1'000});
  StartCell(2);
  const auto dropped = cell_.Drop(node(1), DropOfKeys(name_, {KeyOf(9)}));
  ASSERT_TRUE(dropped.has_value());
  cell_.RunFor(CellLimits::kTrimAgeUs + kSecond);
  auto trim = member(0).Trim({dropped->revision, 0});
  ASSERT_TRUE(cell_.RunUntil(kSecond, [&] { return member(1).state().floor.drops == dropped->revision; }));
  cell_.etcd.Cut("a");
  EXPECT_FALSE(cell_.loop->BlockOn(std::move(trim)).ok());
  cell_.etcd.Heal("a");
  ASSERT_EQ(KeysOf(keys_.Drops()), 1u);
  cell_.RunFor(2 * Trimmer::kEveryUs);
  EXPECT_EQ(KeysOf(keys_.Drops()), 0u);
}

TEST_F(CellTest, EtcdIsCompactedBehindATrimWhateverThatWasCutOffFrom) {
  cell_.etcd.SetLags({.answer_us = 10'000, .event_us = 1'000});
  StartCell(2);
  const auto somebody = cell_.etcd.Client("somebody");
  for (std::int64_t us = 0; us < 40'000; us += 2'000) {
    const auto dropped = cell_.Drop(node(1), DropOfKeys(name_, {KeyOf(9)}));
    ASSERT_TRUE(dropped.has_value());
    cell_.RunFor(CellLimits::kTrimAgeUs + kSecond);
    const std::int64_t before = cell_.etcd.header().revision;
    auto trim = member(0).Trim({dropped->revision, 0});
    // The floor is raised, the drop deleted.
    ASSERT_TRUE(cell_.RunUntil(kSecond, [&] { return cell_.etcd.header().revision == before + 2; }));
    cell_.RunFor(us);
    cell_.etcd.Cut("a");
    (void)cell_.loop->BlockOn(std::move(trim));
    cell_.etcd.Heal("a");
    cell_.RunFor(2 * Trimmer::kEveryUs);
    const auto of_before = cell_.loop->BlockOn(somebody->Range(
        {.keys = etcd::KeyRange::Prefix("/"), .revision = before}, cell_.clock.Now().PlusUs(kSecond)));
    ASSERT_FALSE(of_before.has_value()) << us;
    EXPECT_EQ(of_before.error().code(), Code::kLapsed) << us;
  }
}

// As many as the cell writes in four minutes, as large as they are where many keys are dropped.
TEST_F(CellTest, MemberJoinsBehindManyLargeBatchesAndTheyAreTrimmed) {
  StartCell(1);
  std::vector<CellDrop> drops;
  std::size_t bytes = 0;
  for (std::uint64_t n = 0;; ++n) {
    drops.push_back(DropOfKeys(name_, {}));
    for (std::uint64_t key = 0; key < 500; ++key) drops.back().keys.push_back(KeyOf(1'000 * n + key));
    bytes += EncodedBytes(drops.back());
    if (bytes > DropLimits::kBatchBytes) break;
  }
  drops.pop_back();
  const std::string large = EncodeBatch(drops);
  ASSERT_GT(large.size(), DropLimits::kBatchBytes * 9 / 10);
  for (std::uint64_t n = 0; n < 600; ++n) Commit(keys_.Drops() + CellKeys::BatchName(7, n), large);
  cell_.Start(cell_.Add("b"));
  ASSERT_TRUE(cell_.RunUntil(20 * kSecond, [this] { return member(1).joined(); }));
  EXPECT_EQ(member(1).state().seen, cell_.etcd.header().revision);
  cell_.RunFor(CellLimits::kTrimAgeUs + kSecond);
  const std::int64_t seen = member(0).state().seen;
  const Status trimmed = cell_.loop->BlockOn(member(0).Trim({seen, seen}));
  EXPECT_TRUE(trimmed.ok()) << trimmed.ToString();
  EXPECT_EQ(KeysOf(keys_.Drops()), 0u);
}

TEST_F(CellTest, MemberBehindTheFloorDiscardsWhatItHas) {
  StartCell(3);
  Put(2, {KeyOf(1)});
  cell_.Kill(node(2));
  const auto dropped = cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(9)}), DropWait::kDurable);
  ASSERT_TRUE(dropped.has_value());
  cell_.RunFor(CellLimits::kTrimAgeUs + kSecond);
  ASSERT_TRUE(cell_.loop->BlockOn(member(0).Trim({dropped->revision, 0})).ok());
  cell_.Start(node(2));
  ASSERT_TRUE(cell_.RunUntil(20 * kSecond, [this] { return member(2).joined(); }));
  EXPECT_FALSE(Has(2, KeyOf(1)));
  EXPECT_GE(member(2).state().list.begin(), dropped->revision);
  const std::vector<BlockKey> chain = {KeyOf(2)};
  const auto takes = [&](std::size_t from) {
    return Judge(member(2), *member(from).Answering(), name_, chain) == Verdict::kTake;
  };
  EXPECT_TRUE(cell_.RunUntil(kSecond, [&] { return takes(0) && takes(1); }));
}

// Whatever it has asked by then.
TEST_F(CellTest, R10WhatIsTrimmedWhileAMemberJoinsIsNotMissed) {
  cell_.etcd.SetLags({.answer_us = 10'000, .event_us = 1'000, .lapse_us = 0});
  StartCell(3);
  for (std::uint64_t ms = 0; ms < 120; ms += 3) {
    const BlockKey key = KeyOf(100 + ms);
    Put(2, {key});
    cell_.Kill(node(2));
    const auto dropped = cell_.Drop(node(0), DropOfKeys(name_, {key}), DropWait::kDurable);
    ASSERT_TRUE(dropped.has_value());
    cell_.RunFor(CellLimits::kTrimAgeUs + kSecond);
    cell_.Start(node(2));
    cell_.RunFor(static_cast<std::int64_t>(ms) * 1'000);
    cell_.etcd.Cut("c");
    ASSERT_TRUE(cell_.loop->BlockOn(member(0).Trim({dropped->revision, 0})).ok());
    cell_.etcd.Heal("c");
    ASSERT_TRUE(cell_.RunUntil(20 * kSecond, [this] { return member(2).joined(); }));
    ASSERT_FALSE(Has(2, key)) << ms << " ms after its start";
    ASSERT_TRUE(Settled());
  }
}

TEST_F(CellTest, CompactedWatchReadsAllInOneTransaction) {
  StartCell(2);
  Put(1, {KeyOf(1)});
  cell_.etcd.Cut("b");
  ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(1)}), DropWait::kDurable).has_value());
  ASSERT_TRUE(cell_.Drop(node(0), DropOfKeys(name_, {KeyOf(2)}), DropWait::kDurable).has_value());
  cell_.etcd.Compact(cell_.etcd.header().revision);
  cell_.etcd.CancelWatches();
  cell_.etcd.Heal("b");
  ASSERT_TRUE(cell_.RunUntil(20 * kSecond, [this] { return !Has(1, KeyOf(1)); }));
  EXPECT_EQ(member(1).state().seen, cell_.etcd.header().revision);
}

// Of an etcd that others write to and compact, while the cell itself changes nothing.
TEST_F(CellTest, QuietCellInACompactedEtcdReadsAllOnce) {
  StartCell(2);
  for (int i = 0; i < 10; ++i) Commit("/another/key", "value");
  cell_.etcd.Compact(cell_.etcd.header().revision);
  cell_.etcd.CancelWatches();
  const std::uint64_t views = member(0).state().views;
  cell_.RunFor(20 * kSecond);
  EXPECT_LE(member(0).state().views, views + 4);
  EXPECT_TRUE(cell_.Drop(node(1), DropOfKeys(name_, {KeyOf(1)})).has_value());
}

TEST_F(CellTest, WhatIsReadAnewAfterACompactionIsAsOldAsItWas) {
  StartCell(1);
  ASSERT_TRUE(cell_.Drop(node(0), EndOf(name_, 7)).has_value());
  for (std::int64_t us = 0; us < CellLimits::kKeepEndsUs + 2 * Trimmer::kEveryUs; us += 600 * kSecond) {
    Commit("/another/key", "value");
    cell_.etcd.Compact(cell_.etcd.header().revision);
    cell_.etcd.CancelWatches();
    cell_.RunFor(600 * kSecond);
  }
  EXPECT_EQ(KeysOf(keys_.Ends()), 0u);
}

// Also where etcd takes no put for a while, so that nothing later than what came and went can be written.
TEST_F(CellTest, MemberThatCameAndWentBehindACompactionIsNoSignOfAnotherEtcd) {
  StartCell(2);
  Put(1, {KeyOf(1)});
  const std::uint64_t history = member(0).state().history;
  for (const bool full : {false, true}) {
    SCOPED_TRACE(full);
    cell_.etcd.Cut("a");
    const auto dropped = cell_.Drop(node(1), DropOfKeys(name_, {KeyOf(2)}), DropWait::kDurable);
    ASSERT_TRUE(dropped.has_value());
    TestNode& passing = cell_.Add(full ? "d" : "c");
    cell_.Start(passing);
    ASSERT_TRUE(cell_.RunUntil(2 * kSecond, [&] { return passing.member->joined(); }));
    cell_.loop->BlockOn(passing.member->Leave(cell_.clock.Now().PlusUs(kSecond)));
    cell_.Kill(passing);
    cell_.etcd.Compact(dropped->revision);
    cell_.etcd.CancelWatches();
    if (full) FillEtcd();
    cell_.etcd.Heal("a");
    cell_.RunFor(5 * kSecond);
    cell_.etcd.SetFull(false);
    cell_.RunFor(15 * kSecond);
    EXPECT_EQ(member(0).state().history, history);
    EXPECT_TRUE(Has(1, KeyOf(1)));
  }
}

}  // namespace
}  // namespace cistern::mesh
