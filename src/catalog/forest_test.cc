// SPDX-License-Identifier: Apache-2.0
#include "catalog/forest.h"

#include <gtest/gtest.h>

#include <cstring>

namespace cistern::catalog {
namespace {

constexpr tier::Location kThere{.high = 3, .low = 40};

class ForestTest : public testing::Test {
 protected:
  static BlockKey Key(std::uint64_t n) {
    BlockKey key;
    key.length = 16;
    std::memcpy(key.bytes.data(), &n, sizeof n);
    return key;
  }
  BlockId Add(std::uint64_t n, BlockId parent) { return forest.Add(tree, KeyHashOf(tree, Key(n)), parent); }
  BlockId Find(std::uint64_t n) const { return forest.Find(tree, Key(n)); }
  RecordId OnFlash(BlockId block, std::uint16_t group = 2) {
    const RecordId id = forest.AddRecord(block, group);
    Record& r = forest.record(id);
    r.location = kThere;
    r.body_bytes = 65536;
    r.expiry = 99;
    r.parts = 7;
    r.born = 12;
    r.after_drop = 4;
    return id;
  }

  Forest forest{100, arena::Geometry{.alignment = 4096, .header_count = 1}};
  const TreeId tree = forest.AddTree(0, 1);
  const BlockId root = forest.tree(tree)->root;
};

TEST_F(ForestTest, ListenerHearsWhatComesAndGoesAndNothingOfMovesBetweenTiers) {
  class Heard final : public BlockListener {
   public:
    void Came(BlockId block, std::uint16_t group) override { came.push_back({block, group}); }
    void Went(BlockId block, std::uint16_t group) override { went.push_back({block, group}); }
    std::vector<std::pair<BlockId, std::uint16_t>> came, went;
  } heard;
  forest.ListenTo(&heard);
  const BlockId block = Add(1, root);
  const RecordId record = OnFlash(block);
  ASSERT_TRUE(forest.Fold(record));
  const RecordId unfolded = forest.Unfold(block);
  using Names = std::vector<std::pair<BlockId, std::uint16_t>>;
  EXPECT_EQ(heard.came, (Names{{block, 2}}));
  EXPECT_TRUE(heard.went.empty());
  forest.AddRecord(block, 3);
  forest.RemoveRecord(unfolded);
  EXPECT_EQ(heard.came, (Names{{block, 2}, {block, 3}}));
  EXPECT_EQ(heard.went, (Names{{block, 2}}));
  const BlockId other = Add(2, root);
  ASSERT_TRUE(forest.Fold(OnFlash(other)));
  forest.ForgetFolded(other);
  EXPECT_EQ(heard.went, (Names{{block, 2}, {other, 2}}));
  forest.ListenTo(nullptr);
  forest.RemoveRecord(forest.FindRecord(block, 3));
  EXPECT_EQ(heard.went.size(), 2u);
}

TEST_F(ForestTest, KeysOwnHashIsToldFromTheBlocks) {
  const BlockId block = Add(7, root);
  EXPECT_EQ(HashOfKey(tree, forest.block(block).key_hash()), Key(7).Hash());
  EXPECT_NE(KeyHashOf(tree, Key(7)), KeyHashOf(tree + 1, Key(7)));
}

TEST_F(ForestTest, AFoldedRecordKeepsWhatIsAskedOfIt) {
  const BlockId block = Add(1, root);
  const RecordId record = OnFlash(block);
  const std::uint64_t serial = forest.record(record).serial;
  forest.record(record).flags = Record::kTouched | Record::kBehind;
  ASSERT_TRUE(forest.Fold(record));
  EXPECT_EQ(forest.records(), 0u);
  EXPECT_FALSE(forest.block(block).placeholder());
  EXPECT_FALSE(forest.Empty(block));
  EXPECT_EQ(Find(1), block);
  EXPECT_EQ(forest.FindRecord(block, 2), kNoId);
  EXPECT_FALSE(forest.See(block, 1));
  const auto seen = forest.See(block, 2);
  ASSERT_TRUE(seen);
  EXPECT_FALSE(seen->in_memory);
  EXPECT_EQ(seen->location, kThere);
  EXPECT_EQ(seen->body_bytes, 65536u);
  EXPECT_EQ(seen->expiry, 99u);
  EXPECT_EQ(seen->group, 2u);
  EXPECT_EQ(seen->record, kNoId);

  EXPECT_EQ(forest.Take(block, 1), kNoId);
  EXPECT_TRUE(forest.block(block).folded());
  const RecordId again = forest.Take(block, 2);
  ASSERT_NE(again, kNoId);
  EXPECT_FALSE(forest.block(block).folded());
  const Record& r = forest.record(again);
  EXPECT_EQ(forest.FindRecord(block, 2), again);
  EXPECT_GT(r.serial, serial) << "who held the one before does not hold this one";
  EXPECT_EQ(r.location, kThere);
  EXPECT_EQ(r.body_bytes, 65536u);
  EXPECT_EQ(r.expiry, 99u);
  EXPECT_EQ(r.part_count(), 8u);
  EXPECT_EQ(r.flags, Record::kTouched | Record::kBehind);
  EXPECT_EQ(r.after_drop, Record::kDropUnknown);
  EXPECT_EQ(r.entry, kNoId);
  EXPECT_FALSE(r.in_memory());
}

TEST_F(ForestTest, OnlyWhatLiesOnFlashAloneIsFolded) {
  const BlockId block = Add(1, root);
  const RecordId record = OnFlash(block);
  forest.record(record).place = 0;
  EXPECT_FALSE(forest.Fold(record)) << "in memory";
  forest.record(record).place = kNowhere;
  forest.record(record).references = 1;
  EXPECT_FALSE(forest.Fold(record)) << "held";
  forest.record(record).references = 0;
  forest.record(record).entry = 8;
  EXPECT_FALSE(forest.Fold(record)) << "in the index";
  forest.record(record).entry = kNoId;
  forest.record(record).location = {};
  EXPECT_FALSE(forest.Fold(record)) << "nowhere";
  forest.record(record).location = kThere;
  const RecordId other = OnFlash(block, 1);
  EXPECT_FALSE(forest.Fold(record)) << "not alone";
  EXPECT_FALSE(forest.Fold(other)) << "not alone";
  forest.RemoveRecord(other);
  EXPECT_TRUE(forest.Fold(record));
}

TEST_F(ForestTest, ANewGroupUnfoldsABlock) {
  const BlockId block = Add(1, root);
  ASSERT_TRUE(forest.Fold(OnFlash(block)));
  forest.AddRecord(block, 0);
  EXPECT_EQ(forest.records(), 2u);
  EXPECT_TRUE(forest.See(block, 2) && forest.See(block, 0));
  EXPECT_EQ(forest.See(block, 2)->location, kThere);
}

TEST_F(ForestTest, AForgottenFoldedBlockIsAPlaceholderForItsDescendants) {
  const BlockId parent = Add(1, root);
  const BlockId child = Add(2, parent);
  ASSERT_TRUE(forest.Fold(OnFlash(parent)));
  ASSERT_TRUE(forest.Fold(OnFlash(child)));
  EXPECT_EQ(forest.ForgetFolded(parent).location, kThere);
  EXPECT_TRUE(forest.block(parent).placeholder());
  EXPECT_FALSE(forest.See(parent, 2));
  EXPECT_FALSE(forest.Empty(parent));
  forest.ForgetFolded(child);
  EXPECT_EQ(forest.Free(child), parent);
  EXPECT_EQ(Find(2), kNoId);
  EXPECT_EQ(forest.Free(parent), root);
}

// Two keys of one key_hash, which no two keys here have: the second one's key_hash is said to be the first's.
TEST_F(ForestTest, R5RecordsInMemoryTellKeysOfOneHashApart) {
  const KeyHash key_hash = KeyHashOf(tree, Key(1));
  const BlockId first = forest.Add(tree, key_hash, root);
  const RecordId record = forest.AddRecord(first, 0);
  forest.record(record).key = Key(1);
  forest.record(record).place = 0;
  EXPECT_EQ(forest.Find(tree, Key(1), key_hash), first);
  EXPECT_EQ(forest.Find(tree, Key(2), key_hash), kNoId);
  const BlockId second = forest.Add(tree, key_hash, root);
  const RecordId other = forest.AddRecord(second, 0);
  forest.record(other).key = Key(2);
  forest.record(other).place = 1;
  EXPECT_EQ(forest.Find(tree, Key(1), key_hash), first);
  EXPECT_EQ(forest.Find(tree, Key(2), key_hash), second);
  EXPECT_EQ(forest.Find(tree, Key(3), key_hash), kNoId);
  forest.TakeAway(first);
  EXPECT_EQ(forest.Find(tree, Key(1), key_hash), kNoId);
  EXPECT_EQ(forest.Find(tree, Key(2), key_hash), second);
}

TEST_F(ForestTest, AKeyHasAnotherHashInEachTree) {
  const TreeId other = forest.AddTree(1, 2);
  const KeyHash key_hash = KeyHashOf(tree, Key(1));
  const BlockId mine = forest.Add(tree, key_hash, root);
  EXPECT_EQ(forest.FindKeyHash(other, key_hash), kNoId);
  const BlockId theirs = forest.Add(other, key_hash, forest.tree(other)->root);
  EXPECT_EQ(forest.FindKeyHash(tree, key_hash), mine);
  EXPECT_EQ(forest.FindKeyHash(other, key_hash), theirs);
}

}  // namespace
}  // namespace cistern::catalog
