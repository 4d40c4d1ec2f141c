// SPDX-License-Identifier: Apache-2.0
#include "catalog/journal.h"

#include <gtest/gtest.h>

#include "base/format.h"
#include "base/test_hex.h"
#include "io/simulated_disk.h"
#include "io/simulated_loop.h"

namespace cistern::catalog {
namespace {

NamespaceEntry Entry(std::uint32_t slot, std::uint64_t incarnation) {
  NamespaceEntry entry;
  entry.slot = slot;
  entry.incarnation = incarnation;
  entry.names = {Text("n", slot)};
  entry.fields = {{"slot", Text(slot)}};
  entry.groups.push_back({.name = "full"});
  return entry;
}

Tombstone Stone(std::uint64_t sequence) {
  Tombstone tombstone{sequence, 7, {}};
  tombstone.key.length = 20;
  tombstone.key.bytes[3] = static_cast<std::uint8_t>(sequence);
  return tombstone;
}

class JournalTest : public testing::Test {
 protected:
  JournalTest() { Boot(); }
  ~JournalTest() override {
    journal.reset();
    loop.reset();
  }
  void Boot() {
    journal.reset();
    loop = std::move(*io::SimulatedLoop::Make(clock, disk, ++seed));
    journal.emplace(*loop, "node", ++new_id);
  }
  void PowerFails() {
    loop->Crash();
    Boot();
  }
  Journal::Contents Open() {
    auto contents = loop->BlockOn(journal->Open());
    EXPECT_TRUE(contents.has_value()) << contents.error().ToString();
    return contents ? *contents : Journal::Contents{};
  }
  Status Start(std::vector<NamespaceEntry> entries, std::uint64_t below,
               std::vector<Tombstone> tombstones = {}, std::vector<std::uint64_t> devices = {}) {
    return loop->BlockOn(
        journal->Start(std::move(entries), below, std::move(tombstones), std::move(devices)));
  }
  template <class T>
  T Run(Task<T> task) {
    return loop->BlockOn(std::move(task));
  }

  SimulatedClock clock;
  io::SimulatedDisk disk{3};
  std::uint64_t seed = 0;
  std::uint64_t new_id = 100;
  std::unique_ptr<io::SimulatedLoop> loop;
  std::optional<Journal> journal;
};

TEST_F(JournalTest, R10WhatWasAcknowledgedSurvivesAPowerFailure) {
  EXPECT_TRUE(Open().namespaces.empty());
  ASSERT_TRUE(Start({}, 100).ok());
  ASSERT_TRUE(Run(journal->PutNamespace(Entry(0, 5))).ok());
  ASSERT_TRUE(Run(journal->PutNamespace(Entry(1, 6))).ok());
  ASSERT_TRUE(Run(journal->AddTombstone(Stone(40))).ok());
  ASSERT_TRUE(Run(journal->AddTombstone(Stone(41))).ok());
  journal->EndTombstone(40);
  ASSERT_TRUE(Run(journal->PutNamespace(Entry(0, 50))).ok());
  PowerFails();
  const auto contents = Open();
  EXPECT_FALSE(contents.damaged);
  EXPECT_EQ(contents.sequences_below, 100u);
  ASSERT_EQ(contents.namespaces.size(), 2u);
  EXPECT_EQ(contents.namespaces[0].incarnation, 50u);
  EXPECT_EQ(contents.namespaces[1].names, std::vector<std::string>{"n1"});
  EXPECT_EQ(contents.tombstones, std::vector<Tombstone>{Stone(41)});
}

TEST_F(JournalTest, FileBytesStayThoseOfVersion1) {
  Open();
  ASSERT_TRUE(Start({}, 100, {Stone(40)}, {7, 8}).ok());
  ASSERT_TRUE(Run(journal->PutTime(1'700'000'000)).ok());
  journal->EndTombstone(40);
  ASSERT_TRUE(Run(journal->ReserveSequences(200)).ok());
  auto file = loop->Open("node/journal", io::OpenMode::kRead);
  ASSERT_TRUE(file.has_value());
  std::vector<std::byte> bytes(journal->file_bytes());
  ASSERT_TRUE(Run(file->ReadAll(bytes, 0)).ok());
  EXPECT_EQ(HexOf(bytes),
            "43494a4f55524e4c0100000000000000edf8c754720000000800000001640000000000000008000000056500"
            "0000000000001000000006070000000000000008000000000000000800000007000000000000000031000000"
            "0328000000000000000700000000000000140000002800000000000000000000000000000000000000000000"
            "00000000000055fe56070d000000080000000700f15365000000004ad452fa1a000000080000000428000000"
            "000000000800000001c800000000000000");
}

// Incarnations are made from it: those of another journal, in memory or on flash, are none of this one's.
TEST_F(JournalTest, R10AJournalStaysTheSameAndItsIncarnationsAreNoOtherOnes) {
  Open();
  ASSERT_TRUE(Start({}, 100).ok());
  const std::uint64_t id = journal->id(), incarnation = journal->IncarnationOf(7);
  PowerFails();
  Open();
  EXPECT_EQ(journal->id(), id);
  EXPECT_EQ(journal->IncarnationOf(7), incarnation);
  ASSERT_TRUE(Start({}, 100).ok());
  ASSERT_TRUE(loop->Remove("node/journal").ok());
  ASSERT_TRUE(Run(loop->SyncDirectory("node")).ok());
  PowerFails();
  Open();
  EXPECT_NE(journal->id(), id);
  EXPECT_NE(journal->IncarnationOf(7), incarnation);
}

TEST_F(JournalTest, R10TombstonesThatFlashNeedsAndItsDevicesOutliveAStart) {
  Open();
  ASSERT_TRUE(Start({}, 100, {Stone(40), Stone(41)}, {7, 8}).ok());
  journal->EndTombstone(41);
  PowerFails();
  auto contents = Open();
  EXPECT_EQ(contents.tombstones, (std::vector<Tombstone>{Stone(40), Stone(41)}));
  EXPECT_EQ(contents.devices, (std::vector<std::uint64_t>{7, 8}));
  ASSERT_TRUE(Start({}, 200, contents.tombstones, contents.devices).ok());
  ASSERT_TRUE(Run(journal->PutDevices({8})).ok());
  PowerFails();
  EXPECT_EQ(Open().devices, std::vector<std::uint64_t>{8});
}

TEST_F(JournalTest, ATornTailIsCutAndWhatWasBeforeItStays) {
  Open();
  ASSERT_TRUE(Start({Entry(0, 5)}, 100).ok());
  for (std::uint64_t n = 0; n < 200; ++n) {
    {
      auto unfinished = journal->AddTombstone(Stone(1000 + n));
      PowerFails();
    }
    const auto contents = Open();
    ASSERT_FALSE(contents.damaged);
    ASSERT_EQ(contents.namespaces.size(), 1u);
    ASSERT_LE(contents.tombstones.size(), 1u);
    ASSERT_TRUE(Start(contents.namespaces, 100).ok());
  }
}

// An append of more than a sector may lose its beginning and keep its end.
TEST_F(JournalTest, ATornAppendOfManyIsATornTailToo) {
  Open();
  ASSERT_TRUE(Start({Entry(0, 5)}, 100).ok());
  for (std::uint64_t n = 0; n < 100; ++n) {
    {
      auto first = journal->AddTombstone(Stone(999));
      std::vector<Task<Status>> together;
      for (std::uint64_t i = 0; i < 40; ++i) together.push_back(journal->AddTombstone(Stone(1000 + i)));
      ASSERT_TRUE(Run(std::move(first)).ok());
      for (int i = 0; i < 3; ++i) loop->PollOnce();
      loop->Crash();
    }
    Boot();
    const auto contents = Open();
    ASSERT_FALSE(contents.damaged) << n;
    ASSERT_GE(contents.tombstones.size(), 1u);
    ASSERT_TRUE(Start(contents.namespaces, 100).ok());
  }
}

TEST_F(JournalTest, DamageBeforeItsEndIsToldFromATornTail) {
  Open();
  ASSERT_TRUE(Start({Entry(0, 5)}, 100).ok());
  const std::uint64_t at = journal->file_bytes() + 20;
  ASSERT_TRUE(Run(journal->AddTombstone(Stone(40))).ok());
  ASSERT_TRUE(Run(journal->AddTombstone(Stone(41))).ok());
  disk.Flip("node/journal", at, std::byte{4});
  Boot();
  EXPECT_TRUE(Open().damaged);
}

TEST_F(JournalTest, AFailedAppendIsReportedAndTheNextWritesTheFileAnew) {
  Open();
  ASSERT_TRUE(Start({Entry(0, 5)}, 100).ok());
  int left = 1;
  disk.set_faults([&](const io::IoRequest&, const std::string&) {
    return left-- > 0 ? io::Fault{io::FaultKind::kIoError, 0} : io::Fault{};
  });
  EXPECT_EQ(Run(journal->AddTombstone(Stone(40))).code(), Code::kIoError);
  EXPECT_TRUE(Run(journal->AddTombstone(Stone(41))).ok());
  PowerFails();
  const auto contents = Open();
  EXPECT_EQ(contents.tombstones.size(), 2u);
  EXPECT_EQ(contents.namespaces.size(), 1u);
}

TEST_F(JournalTest, ANamespaceWhoseAppendFailedIsNotWrittenLater) {
  Open();
  ASSERT_TRUE(Start({Entry(0, 5)}, 100).ok());
  for (const bool at_sync : {false, true}) {
    disk.set_faults([&](const io::IoRequest& request, const std::string&) {
      const bool sync = request.kind == io::IoRequest::Kind::kSync;
      return sync == at_sync ? io::Fault{io::FaultKind::kIoError, 0} : io::Fault{};
    });
    // One of a new slot, and two that would change the old one, together.
    auto added = journal->PutNamespace(Entry(1, 6));
    auto changed = journal->PutNamespace(Entry(0, 50));
    auto again = journal->PutNamespace(Entry(0, 51));
    EXPECT_FALSE(Run(std::move(added)).ok());
    EXPECT_FALSE(Run(std::move(changed)).ok());
    EXPECT_FALSE(Run(std::move(again)).ok());
    disk.set_faults({});
    ASSERT_TRUE(Run(journal->AddTombstone(Stone(40))).ok());
    PowerFails();
    const auto contents = Open();
    ASSERT_EQ(contents.namespaces.size(), 1u);
    EXPECT_EQ(contents.namespaces[0].incarnation, 5u);
    ASSERT_TRUE(Start(contents.namespaces, 100).ok());
  }
}

TEST_F(JournalTest, R16MuchIsReadAndWrittenInSteps) {
  Open();
  std::vector<NamespaceEntry> entries;
  for (std::uint32_t slot = 0; slot < 40; ++slot) {
    entries.push_back(Entry(slot, 5 + slot));
    entries.back().fields[0].second = std::string(60'000, 'x') + Text(slot);
  }
  std::uint64_t longest = 0;
  disk.set_faults([&](const io::IoRequest& request, const std::string&) {
    longest = std::max<std::uint64_t>(longest, request.size);
    return io::Fault{};
  });
  ASSERT_TRUE(Start(entries, 100).ok());
  std::vector<Task<Status>> tasks;
  for (std::uint64_t n = 1; n <= 20'000; ++n) tasks.push_back(journal->AddTombstone(Stone(n)));
  for (auto& task : tasks) ASSERT_TRUE(Run(std::move(task)).ok());
  EXPECT_LE(longest, 64u << 10);
  const std::uint64_t bytes = journal->file_bytes();
  EXPECT_GT(bytes, 3u << 20);
  PowerFails();
  std::uint64_t before = loop->executor().steps();
  const auto contents = Open();
  EXPECT_GT(loop->executor().steps() - before, 2 * bytes / (64u << 10)) << "read, then looked through";
  EXPECT_EQ(contents.namespaces.size(), 40u);
  EXPECT_EQ(contents.tombstones.size(), 20'000u);
  before = loop->executor().steps();
  ASSERT_TRUE(Start(contents.namespaces, 100).ok());
  EXPECT_GT(loop->executor().steps() - before, 80u) << "made, then written";
}

// Damage far in front of much that is whole.
TEST_F(JournalTest, R16DamageIsLookedForInSteps) {
  Open();
  ASSERT_TRUE(Start({}, 100).ok());
  const std::uint64_t at = journal->file_bytes() + 4;
  std::vector<Task<Status>> tasks;
  for (std::uint64_t n = 1; n <= 20'000; ++n) tasks.push_back(journal->AddTombstone(Stone(n)));
  for (auto& task : tasks) ASSERT_TRUE(Run(std::move(task)).ok());
  disk.Flip("node/journal", at + 2, std::byte{4});
  const std::uint64_t bytes = journal->file_bytes();
  Boot();
  const std::uint64_t before = loop->executor().steps();
  EXPECT_TRUE(Open().damaged);
  EXPECT_GT(loop->executor().steps() - before, bytes / (64u << 10));
}

TEST_F(JournalTest, P5ItsFileIsBoundedByWhatItSays) {
  Open();
  ASSERT_TRUE(Start({Entry(0, 5)}, 100).ok());
  for (std::uint64_t n = 1; n <= 40'000; ++n) {
    if (n % 100 != 0) {
      ASSERT_TRUE(Run(journal->AddTombstone(Stone(n))).ok());
    }
    journal->EndTombstone(n);
    ASSERT_LT(journal->file_bytes(), 3u << 20);
  }
  EXPECT_EQ(journal->tombstones(), 0u);
}

TEST_F(JournalTest, AppendsThatComeTogetherShareOneSync) {
  Open();
  ASSERT_TRUE(Start({Entry(0, 5)}, 100).ok());
  int syncs = 0;
  disk.set_faults([&](const io::IoRequest& request, const std::string&) {
    syncs += request.kind == io::IoRequest::Kind::kSync;
    return io::Fault{};
  });
  std::vector<Task<Status>> tasks;
  for (std::uint64_t n = 1; n <= 100; ++n) tasks.push_back(journal->AddTombstone(Stone(n)));
  for (auto& task : tasks) EXPECT_TRUE(loop->BlockOn(std::move(task)).ok());
  EXPECT_LE(syncs, 2);
}

TEST_F(JournalTest, AnotherVersionIsRefusedByName) {
  Open();
  ASSERT_TRUE(Start({}, 100).ok());
  disk.Flip("node/journal", 8, std::byte{2});
  Boot();
  auto contents = loop->BlockOn(journal->Open());
  ASSERT_FALSE(contents.has_value());
  EXPECT_EQ(contents.error().code(), Code::kMismatch);
  EXPECT_NE(contents.error().message().find("version 3"), std::string::npos);
}

// Nothing else has room as long as the spare takes its own.
TEST_F(JournalTest, AFullDiskLeavesRoomToStartOnceMore) {
  (void)Open();
  ASSERT_TRUE(Start({Entry(0, 5)}, 100, {Stone(40)}).ok());
  const auto spare = [&] { return loop->Open("node/journal.spare", io::OpenMode::kRead).has_value(); };
  EXPECT_TRUE(spare());
  Boot();
  disk.set_faults([&](const io::IoRequest& request, const std::string&) {
    return request.kind == io::IoRequest::Kind::kWrite && spare() ? io::Fault{io::FaultKind::kNoSpace}
                                                                  : io::Fault{};
  });
  const auto found = Open();
  const Status started = Start(found.namespaces, found.sequences_below, found.tombstones);
  EXPECT_TRUE(started.ok()) << started.ToString();
  disk.set_faults({});
  PowerFails();
  const auto again = Open();
  EXPECT_EQ(again.namespaces.size(), 1u);
  EXPECT_EQ(again.tombstones, std::vector{Stone(40)});
}

}  // namespace
}  // namespace cistern::catalog
