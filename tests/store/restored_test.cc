// SPDX-License-Identifier: Apache-2.0
// Copies of an earlier day that somebody restored (R10): the journal, flash or memory, under the others as
// they are now. What was dropped since stays away, and the log says what is not believed. Only where all of
// it is of one day does that day come back.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "flash_store.h"
#include "residency/journal_marks.h"
#include "store/block_store_fixture.h"

namespace cistern {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;
constexpr std::uint64_t kBlocks = 16, kDropped = 5;
constexpr const char* kFlash = "flash0/flash";

class RestoredTest : public store::BlockStoreTest {
 protected:
  using Files = std::map<std::string, std::vector<std::byte>>;

  static store::TestStoreOptions WithFlash(std::uint64_t flash_bytes = 4 * kMiB) {
    store::TestStoreOptions options;
    options.store.max_blocks = 4;
    options.store.max_lower_blocks = 4096;
    options.store.read_ahead_bytes = 0;
    flash::FlashOptions flash;
    flash.region_bytes = 256u << 10;
    flash.devices.push_back({"flash0", flash_bytes});
    options.tier = OnFlash(flash);
    return options;
  }
  void Begin(store::TestStoreOptions options = WithFlash()) {
    Make(std::move(options));
    for (std::uint64_t n = 0; n < kBlocks; ++n) {
      ASSERT_EQ(Put(n, n == 0 ? std::nullopt : std::optional(n - 1)), store::State::kPublished) << n;
      t->Settle();
    }
  }
  void StartAgain() {
    said_.clear();
    t->log = Logger::ToSink(LogLevel::kInfo,
                            [this](LogLevel, std::string_view line) { said_ += Text(line, "\n"); });
    t->Start();
    ASSERT_TRUE(t->recovered.ok()) << t->recovered.ToString();
    Attach(store::OneGroup());
  }
  void Reboot() {
    t->Stop();
    t->ForgetMemory();
  }

  Files Copy(std::vector<std::string> paths) const {
    Files files;
    for (const std::string& path : paths) {
      const auto bytes = t->disk.Bytes(path);
      files[path] = {bytes.begin(), bytes.end()};
      EXPECT_FALSE(files[path].empty()) << path;
    }
    return files;
  }
  Files CopyJournal() const { return Copy({"node/journal", "node/journal.copy"}); }
  Files CopyJournalAndFlash() const { return Copy({"node/journal", "node/journal.copy", kFlash}); }
  // A store whose files are copied while it does not run, and from which blocks are dropped then.
  void BeginCopyAndDrop(const std::function<Files()>& copy, Files* older) {
    ASSERT_NO_FATAL_FAILURE(Begin());
    t->Stop();
    *older = copy();
    StartAgain();
    ASSERT_TRUE(Drop(kDropped).has_value());
    t->Settle();
  }
  // While no store runs.
  void Restore(const Files& files) {
    auto loop = std::move(*io::SimulatedLoop::Make(t->clock, t->disk, 1'000 + ++restored_));
    for (const auto& [path, bytes] : files) {
      (void)loop->Remove(path);
      auto file = loop->Open(path, io::OpenMode::kCreate);
      ASSERT_TRUE(file.has_value());
      ASSERT_TRUE(loop->BlockOn(file->WriteAll(bytes, 0)).ok());
      ASSERT_TRUE(loop->BlockOn(file->Sync()).ok());
      const std::string directory = path.substr(0, path.rfind('/'));
      ASSERT_TRUE(loop->BlockOn(loop->SyncDirectory(directory)).ok());
    }
  }
  std::span<std::byte> Memory() {
    return {reinterpret_cast<std::byte*>(t->arena.header()), t->geometry.file_bytes()};
  }
  std::vector<std::byte> CopyMemory() { return {Memory().begin(), Memory().end()}; }
  void RestoreMemory(const std::vector<std::byte>& copy) {
    std::memcpy(Memory().data(), copy.data(), copy.size());
  }

  bool There(std::uint64_t n) {
    const store::AcquireGrant grant = Acquire({n}, Me());
    if (grant.lease != 0) (void)t->store->Release(Me(), grant.lease);
    return grant.views[0].code == Code::kOk;
  }
  void ExpectDroppedStaysAway() {
    for (std::uint64_t n = kDropped; n < kBlocks; ++n) EXPECT_FALSE(There(n)) << n;
  }
  // The store ends, and what it logged since it started is there.
  const std::string& Said() {
    t->Stop();
    t->log = Logger::ToSink(LogLevel::kOff, [](LogLevel, std::string_view) {});
    return said_;
  }
  void ExpectSaid(std::string_view what) { EXPECT_NE(Said().find(what), std::string::npos) << said_; }
  // It says so and goes on as a node does: what is put now outlives the next start, which says nothing.
  void ExpectSaidAndGoesOn(std::string_view what) {
    ASSERT_EQ(Put(1000, std::nullopt), store::State::kPublished);
    t->Settle();
    ExpectSaid(what);
    StartAgain();
    EXPECT_TRUE(There(1000));
    ExpectDroppedStaysAway();
    EXPECT_EQ(Said().find("older"), std::string::npos) << said_;
  }
  // Puts until no medium has anything that a tombstone is for, and the journal says so with its next append.
  void EndTombstones() {
    for (std::uint64_t n = 10'000; n < 11'000 && Occupied().tombstones > 0; ++n) {
      ASSERT_EQ(Put(n, std::nullopt), store::State::kPublished);
      t->Settle();
    }
    ASSERT_EQ(Occupied().tombstones, 0u);
    ASSERT_TRUE(t->Run(t->store->Attach(store::OneGroup("other"))).has_value());
  }

 private:
  std::string said_;
  std::uint64_t restored_ = 0;
};

TEST_F(RestoredTest, R10AnOlderJournalUnderFlashOfTodayBringsNothingBack) {
  Files older;
  ASSERT_NO_FATAL_FAILURE(BeginCopyAndDrop([this] { return CopyJournal(); }, &older));
  Reboot();
  Restore(older);
  StartAgain();
  ExpectDroppedStaysAway();
  ExpectSaidAndGoesOn("journal: flash was used with a later state");
}

TEST_F(RestoredTest, R10AJournalOfASecondAgoUnderFlashOfTodayBringsNothingBack) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  const Files older = CopyJournal();
  ASSERT_TRUE(Drop(kDropped).has_value());
  t->Advance(residency::JournalMarks::kTellUs + 1);
  t->Settle();
  Reboot();
  Restore(older);
  StartAgain();
  ExpectDroppedStaysAway();
  ExpectSaidAndGoesOn("older copy");
}

TEST_F(RestoredTest, R10AnyOlderJournalUnderMemoryOfTodayBringsNothingBack) {
  ASSERT_NO_FATAL_FAILURE(Begin({}));
  const Files older = CopyJournal();
  ASSERT_TRUE(Drop(kDropped).has_value());
  ASSERT_TRUE(There(0));
  t->Stop();
  Restore(older);
  StartAgain();
  ExpectDroppedStaysAway();
  EXPECT_FALSE(There(0)) << "nothing of before is believed";
  EXPECT_GE(t->store->counters().recovery_refused.value(), 1u);
  ExpectSaidAndGoesOn("journal: memory was used with a later state");
}

// The two files have the same end, which looks like one that nobody was told of.
TEST_F(RestoredTest, R10AJournalWhoseLastBatchIsCutFromBothFilesBringsNothingBack) {
  for (const bool flash : {false, true}) {
    ASSERT_NO_FATAL_FAILURE(Begin(flash ? WithFlash() : store::TestStoreOptions{}));
    ASSERT_TRUE(Drop(kDropped).has_value());
    if (flash) t->Advance(residency::JournalMarks::kTellUs + 1);
    Files files = CopyJournal();
    for (auto& [path, bytes] : files) bytes.pop_back();
    t->Stop();
    if (flash) t->ForgetMemory();
    Restore(files);
    StartAgain();
    ExpectDroppedStaysAway();
    ExpectSaidAndGoesOn("has lost its end");
  }
}

TEST_F(RestoredTest, R10AnOlderFlashFileUnderTheJournalOfTodayBringsNothingBack) {
  ASSERT_NO_FATAL_FAILURE(Begin(WithFlash(2 * kMiB)));
  t->Stop();
  const Files older = Copy({kFlash});
  StartAgain();
  ASSERT_TRUE(Drop(kDropped).has_value());
  ASSERT_NO_FATAL_FAILURE(EndTombstones());
  Reboot();
  Restore(older);
  StartAgain();
  ExpectDroppedStaysAway();
  ExpectSaid("flash device flash0: holds");
}

// Between two starts, in which no superblock changes.
TEST_F(RestoredTest, R10AFlashFileOfTheSameLifeBringsNothingBack) {
  ASSERT_NO_FATAL_FAILURE(Begin(WithFlash(2 * kMiB)));
  const Files older = Copy({kFlash});
  ASSERT_TRUE(Drop(kDropped).has_value());
  ASSERT_NO_FATAL_FAILURE(EndTombstones());
  Reboot();
  Restore(older);
  StartAgain();
  ExpectDroppedStaysAway();
  ExpectSaid("flash device flash0: holds");
}

TEST_F(RestoredTest, R10OlderMemoryUnderTheJournalOfTodayBringsNothingBack) {
  for (const bool flash : {false, true}) {
    store::TestStoreOptions options = WithFlash(2 * kMiB);
    options.store.max_blocks = 64;
    ASSERT_NO_FATAL_FAILURE(Begin(flash ? options : store::TestStoreOptions{}));
    const std::vector<std::byte> older = CopyMemory();
    ASSERT_TRUE(Drop(kDropped).has_value());
    ASSERT_NO_FATAL_FAILURE(EndTombstones());
    t->Stop();
    RestoreMemory(older);
    StartAgain();
    ExpectDroppedStaysAway();
    ExpectSaidAndGoesOn("memory: is an older copy");
  }
}

TEST_F(RestoredTest, R10AnOlderJournalWithItsFlashUnderMemoryOfTodayBringsNothingBack) {
  Files older;
  ASSERT_NO_FATAL_FAILURE(BeginCopyAndDrop([this] { return CopyJournalAndFlash(); }, &older));
  t->Stop();
  Restore(older);
  StartAgain();
  ExpectDroppedStaysAway();
  ExpectSaidAndGoesOn("journal: memory was used with a later state");
}

TEST_F(RestoredTest, AFlippedBitOfTheMarkInMemoryCostsNothing) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  arena::ArenaHeader& header = *t->arena.header();
  for (std::uint64_t* word : {&header.journal_state, &header.journal_bytes, &header.journal_check}) {
    for (const int bit : {0, 10, 20, 40}) {
      t->Stop();
      *word ^= std::uint64_t{1} << bit;
      StartAgain();
      for (std::uint64_t n = 0; n < kBlocks; ++n) ASSERT_TRUE(There(n)) << n << ", bit " << bit;
    }
  }
}

// What docs/formats/journal.md says that nobody can notice.
TEST_F(RestoredTest, AWholeBackupBringsItsDayBack) {
  Files older;
  ASSERT_NO_FATAL_FAILURE(BeginCopyAndDrop([this] { return CopyJournalAndFlash(); }, &older));
  Reboot();
  Restore(older);
  StartAgain();
  for (std::uint64_t n = 0; n < kBlocks; ++n) EXPECT_TRUE(There(n)) << n;
}

// A start that notices it is cut off after any of its operations: the next one notices it too, or there is
// nothing left to come back.
TEST_F(RestoredTest, R10AStartThatIsCutOffForgetsNothingOfWhatItNoticed) {
  Files older;
  ASSERT_NO_FATAL_FAILURE(BeginCopyAndDrop([this] { return CopyJournal(); }, &older));
  const std::vector<std::byte> memory = CopyMemory();
  t->Stop();
  const Files flash = Copy({kFlash});
  bool any = true;
  for (std::uint64_t operations = 0; std::exchange(any, false); ++operations) {
    for (const bool reboot : {false, true}) {
      Restore(older);
      Restore(flash);
      reboot ? t->ForgetMemory() : RestoreMemory(memory);
      std::uint64_t left = operations;
      t->disk.set_faults([&](const io::IoRequest& request, const std::string&) -> io::Fault {
        if (request.kind == io::IoRequest::Kind::kRead || left-- > 0) return {};
        left = 0;
        any = true;
        return {io::FaultKind::kIoError};
      });
      t->Start();
      if (t->recovered.ok()) t->Settle();
      t->Stop();
      t->disk.set_faults({});
      StartAgain();
      ExpectDroppedStaysAway();
      t->Stop();
    }
  }
}

}  // namespace
}  // namespace cistern
