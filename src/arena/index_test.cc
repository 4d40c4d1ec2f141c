// SPDX-License-Identifier: Apache-2.0
#include "arena/index.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <vector>

#include "arena/test_arena.h"

namespace cistern::arena {
namespace {

struct TestIndex {
  explicit TestIndex(std::uint64_t buckets)
      : memory(new(std::align_val_t(4096)) std::byte[kIndexBucketsOffset + buckets * 1024]()),
        index(memory.get(), buckets),
        writer(words, index) {}
  struct Delete {
    void operator()(std::byte* bytes) const { ::operator delete[](bytes, std::align_val_t(4096)); }
  };
  RealWords words;
  std::unique_ptr<std::byte[], Delete> memory;
  IndexSpace index;
  IndexWriter<RealWords> writer;
};

Fingerprint Random(std::mt19937_64& random) {
  BlockKey key = TestKey(random());
  return FingerprintOf(1, 0, key);
}

TEST(IndexTest, R3InsertedIsFoundAndClearedIsNot) {
  TestIndex test(64);
  std::mt19937_64 random(1);
  struct Entry {
    Fingerprint fingerprint;
    Found found;
    std::uint64_t number;
  };
  std::vector<Entry> entries;
  for (int i = 0; i < 30'000; ++i) {
    if (entries.size() < 1024 && random() % 8 < 5) {
      Entry entry{Random(random), {}, 0};
      entry.found = {static_cast<Place>(random()), static_cast<std::uint32_t>(random()),
                     static_cast<std::uint32_t>(random()),
                     static_cast<std::uint32_t>(random()) & kGenerationLowMask};
      std::optional<std::uint64_t> number = test.writer.Insert(entry.fingerprint, entry.found);
      ASSERT_TRUE(number) << "never full at half load";
      entry.number = *number;
      entries.push_back(entry);
    } else if (!entries.empty()) {
      std::size_t at = random() % entries.size();
      if (random() % 4 == 0) {
        entries[at].found.expiry++;
        EXPECT_TRUE(test.writer.Repair(entries[at].number, entries[at].fingerprint, entries[at].found));
      } else {
        test.writer.Clear(entries[at].number);
        EXPECT_FALSE(FindEntry(test.words, test.index, entries[at].fingerprint));
        entries[at] = entries.back();
        entries.pop_back();
      }
    }
    if (i % 100 != 0) continue;
    for (const Entry& entry : entries) {
      EXPECT_EQ(FindEntry(test.words, test.index, entry.fingerprint), entry.found);
    }
  }
  test.writer.ClearRange(0, test.index.entry_count());
  for (const Entry& entry : entries) EXPECT_FALSE(FindEntry(test.words, test.index, entry.fingerprint));
}

TEST(IndexTest, R3BothBucketsFullIsSaidWithWhoIsThere) {
  TestIndex test(2);
  std::mt19937_64 random(2);
  std::map<Place, std::uint64_t> numbers;
  for (Place place = 0; place < 64; ++place) {
    std::optional<std::uint64_t> number = test.writer.Insert(Random(random), {place});
    ASSERT_TRUE(number) << place;
    numbers[place] = *number;
  }
  Fingerprint late = Random(random);
  EXPECT_FALSE(test.writer.Insert(late, {64}));
  std::array<Place, 64> places;
  ASSERT_EQ(test.writer.OccupantsOf(late, places), 64u);
  test.writer.Clear(numbers.at(places[17]));
  EXPECT_EQ(test.writer.Insert(late, {64}), numbers.at(places[17]));
}

TEST(IndexTest, EntriesStandNearHomeAtTheDesignsLoad) {
  TestIndex test(1024);
  std::mt19937_64 random(3);
  std::uint64_t same_line = 0, count = test.index.entry_count() / 2;
  for (std::uint64_t i = 0; i < count; ++i) {
    Fingerprint fingerprint = Random(random);
    std::optional<std::uint64_t> number = test.writer.Insert(fingerprint, {});
    ASSERT_TRUE(number);
    same_line +=
        (*number & ~std::uint64_t{1}) == test.index.bucket(fingerprint, 0) + test.index.home(fingerprint);
  }
  EXPECT_GT(same_line * 100, count * 70)
      << "of " << count << ", " << same_line << " share their home's cache line";
}

TEST(IndexTest, FingerprintsTellNamespaceGroupKeyAndLength) {
  BlockKey key = TestKey(1), longer = key;
  longer.length = 17;
  Fingerprint fingerprint = FingerprintOf(1, 0, key);
  EXPECT_EQ(fingerprint, FingerprintOf(1, 0, key));
  EXPECT_NE(fingerprint, FingerprintOf(2, 0, key));
  EXPECT_NE(fingerprint, FingerprintOf(1, 1, key));
  EXPECT_NE(fingerprint, FingerprintOf(1, 0, longer));
  EXPECT_NE(fingerprint, FingerprintOf(1, 0, TestKey(2)));
  BlockKey keys[] = {key, longer};
  Fingerprint out[2];
  FingerprintsOf(1, 0, keys, out);
  EXPECT_EQ(out[0], fingerprint);
  EXPECT_EQ(out[1], FingerprintOf(1, 0, longer));
}

TEST(IndexTest, ARunEndsAtTheFirstMissAndAtTheFirstExpired) {
  TestIndex test(64);
  std::vector<BlockKey> keys;
  for (std::uint64_t i = 0; i < 100; ++i) keys.push_back(TestKey(i));
  std::vector<std::uint64_t> numbers;
  for (Place i = 0; i < 100; ++i) {
    numbers.push_back(*test.writer.Insert(FingerprintOf(1, 0, keys[i]), {i, 5, i == 70 ? 1000u : 0u}));
  }
  std::vector<Found> found(60);
  auto run = [&](std::uint64_t now) { return LongestRun(test.words, test.index, 1, 0, keys, now, found); };
  EXPECT_EQ(run(999), 100u);
  for (Place i = 0; i < 60; ++i) EXPECT_EQ(found[i].place, i);
  EXPECT_EQ(run(1000), 70u);
  for (std::size_t miss : {47, 32, 31, 16, 15, 1, 0}) {
    test.writer.Clear(numbers[miss]);
    EXPECT_EQ(run(999), miss);
  }
  EXPECT_EQ(LongestRun(test.words, test.index, 1, 0, {}, 0, found), 0u);
}

}  // namespace
}  // namespace cistern::arena
