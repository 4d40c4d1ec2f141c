// SPDX-License-Identifier: Apache-2.0
#include "store/tree.h"

#include <gtest/gtest.h>

#include <cstring>

namespace cistern {
namespace {

constexpr FlashPlace kThere{.region = 3, .unit = 40};

class TreeTest : public testing::Test {
 protected:
  static BlockKey Key(std::uint64_t n) {
    BlockKey key;
    key.length = 16;
    std::memcpy(key.bytes.data(), &n, sizeof n);
    return key;
  }
  BlockId Add(std::uint64_t n, BlockId parent) { return tree.Add(realm, TagOf(realm, Key(n)), parent); }
  BlockId Find(std::uint64_t n) const { return tree.Find(realm, Key(n)); }
  RecordId OnFlash(BlockId block, std::uint16_t group = 2) {
    const RecordId id = tree.AddRecord(block, group);
    Record& r = tree.record(id);
    r.flash = kThere;
    r.body_bytes = 65536;
    r.expiry = 99;
    r.parts = 7;
    r.born = 12;
    r.after_drop = 4;
    return id;
  }

  Tree tree{100, Geometry{.alignment = 4096, .head_count = 1}};
  const RealmId realm = tree.AddRealm(0, 1);
  const BlockId root = tree.realm(realm)->root;
};

TEST_F(TreeTest, AFoldedRecordKeepsWhatIsAskedOfIt) {
  const BlockId block = Add(1, root);
  const RecordId record = OnFlash(block);
  const std::uint64_t serial = tree.record(record).serial;
  tree.record(record).flags = Record::kTouched | Record::kBehind;
  ASSERT_TRUE(tree.Fold(record));
  EXPECT_EQ(tree.records(), 0u);
  EXPECT_FALSE(tree.block(block).ghost());
  EXPECT_FALSE(tree.Empty(block));
  EXPECT_EQ(Find(1), block);
  EXPECT_EQ(tree.FindRecord(block, 2), kNoId);
  EXPECT_FALSE(tree.See(block, 1));
  const auto seen = tree.See(block, 2);
  ASSERT_TRUE(seen);
  EXPECT_FALSE(seen->in_memory);
  EXPECT_EQ(seen->flash, kThere);
  EXPECT_EQ(seen->body_bytes, 65536u);
  EXPECT_EQ(seen->expiry, 99u);
  EXPECT_EQ(seen->group, 2u);
  EXPECT_EQ(seen->record, kNoId);

  EXPECT_EQ(tree.Take(block, 1), kNoId);
  EXPECT_TRUE(tree.block(block).folded());
  const RecordId again = tree.Take(block, 2);
  ASSERT_NE(again, kNoId);
  EXPECT_FALSE(tree.block(block).folded());
  const Record& r = tree.record(again);
  EXPECT_EQ(tree.FindRecord(block, 2), again);
  EXPECT_GT(r.serial, serial) << "who held the one before does not hold this one";
  EXPECT_EQ(r.flash, kThere);
  EXPECT_EQ(r.body_bytes, 65536u);
  EXPECT_EQ(r.expiry, 99u);
  EXPECT_EQ(r.part_count(), 8u);
  EXPECT_EQ(r.flags, Record::kTouched | Record::kBehind);
  EXPECT_EQ(r.after_drop, Record::kDropUnknown);
  EXPECT_EQ(r.entry, kNoId);
  EXPECT_FALSE(r.in_memory());
}

TEST_F(TreeTest, OnlyWhatLiesOnFlashAloneIsFolded) {
  const BlockId block = Add(1, root);
  const RecordId record = OnFlash(block);
  tree.record(record).place = 0;
  EXPECT_FALSE(tree.Fold(record)) << "in memory";
  tree.record(record).place = kNowhere;
  tree.record(record).holds = 1;
  EXPECT_FALSE(tree.Fold(record)) << "held";
  tree.record(record).holds = 0;
  tree.record(record).entry = 8;
  EXPECT_FALSE(tree.Fold(record)) << "in the index";
  tree.record(record).entry = kNoId;
  tree.record(record).flash = {};
  EXPECT_FALSE(tree.Fold(record)) << "nowhere";
  tree.record(record).flash = kThere;
  const RecordId other = OnFlash(block, 1);
  EXPECT_FALSE(tree.Fold(record)) << "not alone";
  EXPECT_FALSE(tree.Fold(other)) << "not alone";
  tree.RemoveRecord(other);
  EXPECT_TRUE(tree.Fold(record));
}

TEST_F(TreeTest, ANewGroupUnfoldsABlock) {
  const BlockId block = Add(1, root);
  ASSERT_TRUE(tree.Fold(OnFlash(block)));
  tree.AddRecord(block, 0);
  EXPECT_EQ(tree.records(), 2u);
  EXPECT_TRUE(tree.See(block, 2) && tree.See(block, 0));
  EXPECT_EQ(tree.See(block, 2)->flash, kThere);
}

TEST_F(TreeTest, AForgottenFoldedBlockIsAGhostWithWhatIsBelowIt) {
  const BlockId parent = Add(1, root);
  const BlockId child = Add(2, parent);
  ASSERT_TRUE(tree.Fold(OnFlash(parent)));
  ASSERT_TRUE(tree.Fold(OnFlash(child)));
  EXPECT_EQ(tree.ForgetFolded(parent).flash, kThere);
  EXPECT_TRUE(tree.block(parent).ghost());
  EXPECT_FALSE(tree.See(parent, 2));
  EXPECT_FALSE(tree.Empty(parent));
  tree.ForgetFolded(child);
  EXPECT_EQ(tree.Free(child), parent);
  EXPECT_EQ(Find(2), kNoId);
  EXPECT_EQ(tree.Free(parent), root);
}

// Two keys of one tag, which no two keys here have: the second one's tag is said to be the first's.
TEST_F(TreeTest, R5RecordsInMemoryTellKeysOfOneTagApart) {
  const Tag tag = TagOf(realm, Key(1));
  const BlockId first = tree.Add(realm, tag, root);
  const RecordId record = tree.AddRecord(first, 0);
  tree.record(record).key = Key(1);
  tree.record(record).place = 0;
  EXPECT_EQ(tree.Find(realm, Key(1), tag), first);
  EXPECT_EQ(tree.Find(realm, Key(2), tag), kNoId);
  const BlockId second = tree.Add(realm, tag, root);
  const RecordId other = tree.AddRecord(second, 0);
  tree.record(other).key = Key(2);
  tree.record(other).place = 1;
  EXPECT_EQ(tree.Find(realm, Key(1), tag), first);
  EXPECT_EQ(tree.Find(realm, Key(2), tag), second);
  EXPECT_EQ(tree.Find(realm, Key(3), tag), kNoId);
  tree.TakeAway(first);
  EXPECT_EQ(tree.Find(realm, Key(1), tag), kNoId);
  EXPECT_EQ(tree.Find(realm, Key(2), tag), second);
}

TEST_F(TreeTest, ATagIsItsRealms) {
  const RealmId other = tree.AddRealm(1, 2);
  const Tag tag = TagOf(realm, Key(1));
  const BlockId mine = tree.Add(realm, tag, root);
  EXPECT_EQ(tree.FindTag(other, tag), kNoId);
  const BlockId theirs = tree.Add(other, tag, tree.realm(other)->root);
  EXPECT_EQ(tree.FindTag(realm, tag), mine);
  EXPECT_EQ(tree.FindTag(other, tag), theirs);
}

}  // namespace
}  // namespace cistern
