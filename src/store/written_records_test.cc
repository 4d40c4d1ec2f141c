// SPDX-License-Identifier: Apache-2.0
#include "store/written_records.h"

#include <gtest/gtest.h>

namespace cistern::store {
namespace {

WrittenRecord Stamped(std::uint64_t sequence) {
  return {.tree = 0, .group = 0, .key = {}, .parent = {}, .born = 0, .conversation = 1, .sequence = sequence};
}

std::vector<std::uint64_t> TakeAll(WrittenRecords& written) {
  std::vector<std::uint64_t> sequences;
  while (!written.empty()) sequences.push_back(written.TakeEarliest().sequence);
  return sequences;
}

TEST(WrittenRecordsTest, EarliestIsTakenFirst) {
  WrittenRecords written(10);
  for (const std::uint64_t sequence : {7u, 3u, 9u, 3u, 1u}) written.Note(Stamped(sequence));
  EXPECT_FALSE(written.left_out());
  EXPECT_EQ(TakeAll(written), (std::vector<std::uint64_t>{1, 3, 3, 7, 9}));
}

TEST(WrittenRecordsTest, PastTheBoundTheEarliestAreLeftOutInWhateverOrderTheyAreFound) {
  for (const bool rising : {true, false}) {
    WrittenRecords written(4);
    for (std::uint64_t i = 1; i <= 100; ++i) {
      written.Note(Stamped(rising ? i : 101 - i));
      EXPECT_LE(written.records().size(), 4u);
      EXPECT_EQ(written.left_out(), i > 4);
    }
    EXPECT_EQ(TakeAll(written), (std::vector<std::uint64_t>{97, 98, 99, 100}));
  }
}

TEST(WrittenRecordsTest, BoundOfNoneKeepsNone) {
  WrittenRecords written(0);
  written.Note(Stamped(1));
  EXPECT_TRUE(written.left_out());
  EXPECT_TRUE(written.empty());
}

}  // namespace
}  // namespace cistern::store
