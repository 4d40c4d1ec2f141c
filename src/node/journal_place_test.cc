// SPDX-License-Identifier: Apache-2.0
#include "node/journal_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>

#include "base/clock.h"
#include "catalog/journal.h"

namespace cistern::node {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class JournalPlaceTest : public ::testing::TestWithParam<io::LoopKind> {
 protected:
  void SetUp() override {
    std::string path = ::testing::TempDir() + "cistern-journal-XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    root_ = path;
    fs::create_directory(root_ / "memory");
    fs::create_directory(root_ / "flash");
    io::LoopOptions options;
    options.kind = GetParam();
    Result<std::unique_ptr<io::Loop>> loop = io::MakeLoop(clock_, options);
    if (!loop) GTEST_SKIP() << loop.error().message();
    loop_ = std::move(*loop);
  }
  void TearDown() override { fs::remove_all(root_); }

  // A life of a node with the journal there: it drops one key.
  void Live(const char* directory, std::uint64_t new_id, std::uint64_t sequence) {
    catalog::Journal journal(*loop_, root_ / directory, new_id);
    auto contents = loop_->BlockOn(journal.Open());
    ASSERT_TRUE(contents.has_value());
    ASSERT_TRUE(loop_->BlockOn(journal.Start({}, 1000, contents->tombstones)).ok());
    catalog::Tombstone tombstone{.sequence = sequence, .incarnation = 1};
    tombstone.key = *BlockKey::FromHex("00112233445566778899aabbccddeeff");
    ASSERT_TRUE(loop_->BlockOn(journal.AddTombstone(tombstone)).ok());
  }
  // The tombstones that a journal there has.
  std::vector<std::uint64_t> Dropped(const std::string& directory) {
    catalog::Journal journal(*loop_, directory, 99);
    auto contents = loop_->BlockOn(journal.Open());
    std::vector<std::uint64_t> sequences;
    if (contents) {
      for (const catalog::Tombstone& tombstone : contents->tombstones)
        sequences.push_back(tombstone.sequence);
    }
    return sequences;
  }
  JournalPlace Find(bool flash = true) {
    Result<JournalPlace> place = loop_->BlockOn(
        FindJournal(*loop_, root_ / "memory", flash ? std::string(root_ / "flash") : std::string()));
    EXPECT_TRUE(place.has_value());
    return place ? *place : JournalPlace();
  }
  bool Has(const char* directory) const {
    std::error_code none;
    return fs::file_size(root_ / directory / "journal", none) > 0 && !none;
  }

  SystemClock clock_;
  fs::path root_;
  std::unique_ptr<io::Loop> loop_;
};

TEST_P(JournalPlaceTest, WithoutFlashItStaysWithMemory) {
  Live("memory", 7, 10);
  const JournalPlace place = Find(false);
  EXPECT_EQ(place.directory, root_ / "memory");
  EXPECT_EQ(place.obsolete, "");
  EXPECT_EQ(place.note, "");
}

TEST_P(JournalPlaceTest, ANodeThatBeginsToHaveFlashTakesItsDropsAlong) {
  Live("memory", 7, 10);
  const JournalPlace place = Find();
  EXPECT_EQ(place.directory, root_ / "flash");
  EXPECT_THAT(Dropped(place.directory), ::testing::ElementsAre(10));
  EXPECT_THAT(place.note, HasSubstr("taken along"));
  EXPECT_FALSE(place.missed_drops);
  EXPECT_TRUE(Has("memory")) << "until flash is open";
  ASSERT_TRUE(LeaveObsoleteJournal(place).ok());
  EXPECT_FALSE(Has("memory"));
  EXPECT_EQ(Find().note, "");
}

// Flash could not be opened, the node went on without it and dropped another key: that drop must count.
TEST_P(JournalPlaceTest, ACopyThatWasNeverUsedDoesNotUndoWhatWasDroppedSince) {
  Live("memory", 7, 10);
  Find();
  Live("memory", 8, 11);
  EXPECT_THAT(Dropped(Find().directory), ::testing::ElementsAre(10, 11));
}

// After the removal a crash leaves the copy alone, and after that the copy goes on.
TEST_P(JournalPlaceTest, TheOneThatWentOnIsNotReplaced) {
  Live("memory", 7, 10);
  ASSERT_TRUE(LeaveObsoleteJournal(Find()).ok());
  Live("flash", 8, 12);
  EXPECT_THAT(Dropped(Find().directory), ::testing::ElementsAre(10, 12));
}

TEST_P(JournalPlaceTest, AnotherJournalWithMemoryDoesNotReplaceThatOfFlash) {
  Live("flash", 7, 10);
  Live("memory", 8, 11);
  const JournalPlace place = Find();
  EXPECT_EQ(place.directory, root_ / "flash");
  EXPECT_THAT(place.note, HasSubstr("not believed"));
  EXPECT_TRUE(place.missed_drops);
  EXPECT_THAT(Dropped(place.directory), ::testing::ElementsAre(10));
  ASSERT_TRUE(LeaveObsoleteJournal(place).ok());
  EXPECT_FALSE(Has("memory")) << "never two in use";
}

TEST_P(JournalPlaceTest, ANewOneIsSaidToBeNew) {
  EXPECT_TRUE(Find(false).fresh);
  EXPECT_TRUE(Find(true).fresh);
  Live("flash", 7, 10);
  EXPECT_FALSE(Find(true).fresh);
  EXPECT_TRUE(Find(false).fresh) << "memory alone does not know of it";
}

INSTANTIATE_TEST_SUITE_P(Loops, JournalPlaceTest,
                         ::testing::Values(io::LoopKind::kUring, io::LoopKind::kEpoll), [](const auto& loop) {
                           return loop.param == io::LoopKind::kUring ? "io_uring" : "epoll";
                         });

}  // namespace
}  // namespace cistern::node
