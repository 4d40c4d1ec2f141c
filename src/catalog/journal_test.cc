// SPDX-License-Identifier: Apache-2.0
#include "catalog/journal.h"

#include <gtest/gtest.h>

#include <functional>
#include <span>
#include <string_view>
#include <utility>

#include "base/format.h"
#include "base/test_hex.h"
#include "catalog/test_journal.h"

namespace cistern::catalog {
namespace {

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

// Of version 1: sequences below 100, id 101, devices 7 and 8, a tombstone and its end, a time.
constexpr std::string_view kVersion1 =
    "43494a4f55524e4c0100000000000000edf8c754720000000800000001640000000000000008000000056500"
    "0000000000001000000006070000000000000008000000000000000800000007000000000000000031000000"
    "0328000000000000000700000000000000140000002800000000000000000000000000000000000000000000"
    "00000000000055fe56070d000000080000000700f15365000000004ad452fa1a000000080000000428000000"
    "000000000800000001c800000000000000";

TEST_F(JournalTest, FileBytesStayThoseOfVersion2) {
  Open();
  ASSERT_TRUE(Start({}, 100, {Stone(40)}, {7, 8}).ok());
  ASSERT_TRUE(Run(journal->PutTime(1'700'000'000)).ok());
  journal->EndTombstone(40);
  ASSERT_TRUE(Run(journal->ReserveSequences(200)).ok());
  EXPECT_EQ(HexOf(Bytes(kJournal)),
            "43494a4f55524e4c02000000000000006500000000000000010000000000000049628fbc0000000010fdb489"
            "6a00000008000000016400000000000000100000000607000000000000000800000000000000080000000700"
            "0000000000000031000000032800000000000000070000000000000014000000280000000000000000000000"
            "0000000000000000000000000000000000000000000855fe56070d000000080000000700f15365000000004a"
            "d452fa1a000000080000000428000000000000000800000001c800000000000000");
  EXPECT_EQ(HexOf(Bytes(kCopy)), HexOf(Bytes(kJournal)));
}

TEST_F(JournalTest, AFileOfVersion1IsReadAndWrittenAnewAsTwo) {
  Write(kJournal, BytesOf(kVersion1));
  new_id = 500;
  Boot();
  const auto contents = Open();
  EXPECT_FALSE(contents.damaged);
  EXPECT_EQ(journal->id(), 101u);
  EXPECT_EQ(contents.sequences_below, 200u);
  EXPECT_EQ(contents.devices, (std::vector<std::uint64_t>{7, 8}));
  EXPECT_TRUE(contents.tombstones.empty());
  EXPECT_EQ(contents.time_s, 1'700'000'000u);
  EXPECT_TRUE(contents.notes.empty());
  ASSERT_TRUE(Start({}, 200).ok());
  Boot();
  Open();
  EXPECT_EQ(journal->id(), 101u);
  EXPECT_EQ(Bytes(kCopy), Bytes(kJournal));
}

// What a medium, a program or a person may do to one file: nothing that was acknowledged goes with it.
TEST_F(JournalTest, R10DamageOfOneCopyTakesNothingThatWasAcknowledged) {
  using Bytes = std::vector<std::byte>;
  std::uint64_t anew = 0, before = 0, end = 0;
  const std::vector<std::pair<const char*, std::function<void(Bytes&)>>> damages = {
      {"a bit of the last batch", [&](Bytes& b) { b[end - 3] ^= std::byte{4}; }},
      {"a bit of its length", [&](Bytes& b) { b[before + 5] ^= std::byte{4}; }},
      {"a byte cut off", [&](Bytes& b) { b.resize(b.size() - 1); }},
      {"the last batch cut off", [&](Bytes& b) { b.resize(before); }},
      {"cut to what was written anew", [&](Bytes& b) { b.resize(anew); }},
      {"cut to nearly nothing", [&](Bytes& b) { b.resize(20); }},
      {"emptied", [&](Bytes& b) { b.clear(); }},
      {"the last page zeros", [&](Bytes& b) { std::fill(b.begin() + 4096, b.end(), std::byte{0}); }},
      {"all zeros", [&](Bytes& b) { std::fill(b.begin(), b.end(), std::byte{0}); }},
      {"a bit of the head", [&](Bytes& b) { b[27] ^= std::byte{1}; }},
      {"a bit of the version", [&](Bytes& b) { b[8] ^= std::byte{1}; }},
      {"a bit of the first batch", [&](Bytes& b) { b[50] ^= std::byte{1}; }},
  };
  for (const char* which : {kJournal, kCopy}) {
    for (const auto& [what, damage] : damages) {
      SCOPED_TRACE(Text(which, ": ", what));
      BootWithBoth({});
      Open();
      ASSERT_TRUE(Start({Entry(0, 5)}, 100).ok());
      anew = journal->file_bytes();
      for (std::uint64_t n = 1; n <= 90; ++n) {
        before = journal->file_bytes();
        ASSERT_TRUE(Run(journal->AddTombstone(Stone(n))).ok());
      }
      end = journal->file_bytes();
      Bytes bytes = JournalTest::Bytes(which);
      damage(bytes);
      Write(which, bytes);
      Boot();
      const auto contents = Open();
      EXPECT_FALSE(contents.damaged);
      EXPECT_EQ(contents.tombstones.size(), 90u);
      EXPECT_EQ(contents.namespaces.size(), 1u);
      EXPECT_EQ(contents.notes.empty(), which == kCopy && bytes.size() > 40 && bytes[27] == std::byte{0} &&
                                            bytes[8] == std::byte{2} && bytes[0] != std::byte{0})
          << "what the first does not have is said";
    }
  }
}

TEST_F(JournalTest, R10AnOlderCopyOfOneFileTakesNothingThatWasAcknowledged) {
  for (const char* which : {kJournal, kCopy}) {
    SCOPED_TRACE(which);
    Open();
    ASSERT_TRUE(Start({Entry(0, 5)}, 100).ok());
    const auto old = Bytes(which);
    ASSERT_TRUE(Run(journal->AddTombstone(Stone(40))).ok());
    Boot();
    auto contents = Open();
    ASSERT_TRUE(Start(contents.namespaces, 100, contents.tombstones).ok());
    ASSERT_TRUE(Run(journal->AddTombstone(Stone(41))).ok());
    Write(which, old);
    Boot();
    contents = Open();
    EXPECT_EQ(contents.tombstones, (std::vector<Tombstone>{Stone(40), Stone(41)}));
    EXPECT_FALSE(contents.notes.empty());
    BootWithBoth({});
  }
}

// One file has its new name already and the other has not.
TEST_F(JournalTest, R10ADeathWhileItIsWrittenAnewLosesNothing) {
  for (std::uint64_t n = 0; n < 300; ++n) {
    auto contents = Open();
    ASSERT_FALSE(contents.damaged) << n;
    ASSERT_EQ(contents.tombstones.size(), n == 0 ? 0u : 1u) << n;
    {
      auto unfinished = journal->Start({}, 100, {Stone(40)});
      for (std::uint64_t turn = 0; turn < n % 40 && !unfinished.done(); ++turn) loop->PollOnce();
      if (n == 0) {
        ASSERT_TRUE(Run(std::move(unfinished)).ok());
      }
      loop->Crash();
    }
    Boot();
  }
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
  ASSERT_TRUE(loop->Remove(kJournal).ok());
  ASSERT_TRUE(loop->Remove(kCopy).ok());
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
  disk.Flip(kJournal, at, std::byte{4});
  disk.Flip(kCopy, at, std::byte{4});
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
    // One of a new slot, two that would change the old one, and one that names none, together.
    auto added = journal->PutNamespace(Entry(1, 6));
    auto changed = journal->PutNamespace(Entry(0, 50));
    auto again = journal->PutNamespace(Entry(0, 51));
    auto dropped = journal->AddTombstone(Stone(39));
    EXPECT_FALSE(Run(std::move(added)).ok());
    EXPECT_FALSE(Run(std::move(changed)).ok());
    EXPECT_FALSE(Run(std::move(again)).ok());
    EXPECT_FALSE(Run(std::move(dropped)).ok());
    disk.set_faults({});
    ASSERT_TRUE(Run(journal->AddTombstone(Stone(40))).ok());
    PowerFails();
    const auto contents = Open();
    EXPECT_FALSE(contents.damaged);
    ASSERT_EQ(contents.namespaces.size(), 1u);
    EXPECT_EQ(contents.namespaces[0].incarnation, 5u);
    ASSERT_TRUE(Start(contents.namespaces, 100).ok());
  }
}

TEST_F(JournalTest, LabelsOutliveAStartWithTheirNamespaceAndGoBackWithIt) {
  const auto labelled = [](std::uint64_t incarnation, const std::string& model) {
    NamespaceEntry entry = Entry(0, incarnation);
    if (!model.empty()) entry.labels = {{"model", model}};
    return entry;
  };
  Open();
  ASSERT_TRUE(Start({labelled(5, "llama"), Entry(1, 6)}, 100).ok());
  PowerFails();
  auto contents = Open();
  ASSERT_EQ(contents.namespaces.size(), 2u);
  EXPECT_EQ(contents.namespaces[0].labels, labelled(5, "llama").labels);
  EXPECT_TRUE(contents.namespaces[1].labels.empty());
  ASSERT_TRUE(Start(contents.namespaces, 100).ok());
  ASSERT_TRUE(Run(journal->PutNamespace(labelled(7, "qwen"))).ok());
  disk.set_faults([&](const io::IoRequest& request, const std::string&) {
    const bool sync = request.kind == io::IoRequest::Kind::kSync;
    return sync ? io::Fault{io::FaultKind::kIoError, 0} : io::Fault{};
  });
  EXPECT_FALSE(Run(journal->PutNamespace(labelled(8, "lost"))).ok());
  disk.set_faults({});
  ASSERT_TRUE(Run(journal->AddTombstone(Stone(40))).ok());
  PowerFails();
  contents = Open();
  EXPECT_EQ(contents.namespaces[0].labels, labelled(7, "qwen").labels);
  ASSERT_TRUE(Start(contents.namespaces, 100).ok());
  // Another list in the slot, which has none.
  ASSERT_TRUE(Run(journal->PutNamespace(labelled(9, ""))).ok());
  PowerFails();
  contents = Open();
  EXPECT_EQ(contents.namespaces[0].incarnation, 9u);
  EXPECT_TRUE(contents.namespaces[0].labels.empty());
}

TEST_F(JournalTest, WhatWasNotedIsDurableWithTheNextSettleAndItsStandingNeverWithoutIt) {
  const CellStanding standing{7, 8, 90, 80, 79, 5};
  Open();
  ASSERT_TRUE(Start({Entry(0, 5)}, 100).ok());
  EXPECT_EQ(journal->standing(), CellStanding());
  // The append fails, with all that was noted, and then it does not.
  int left = 1;
  disk.set_faults([&](const io::IoRequest&, const std::string&) {
    return left-- > 0 ? io::Fault{io::FaultKind::kIoError, 0} : io::Fault{};
  });
  journal->NoteTombstone(Stone(40));
  journal->NoteNamespace(Entry(0, 50));
  EXPECT_EQ(Run(journal->Settle()).code(), Code::kIoError);
  ASSERT_TRUE(Run(journal->Settle(&standing)).ok());
  PowerFails();
  auto contents = Open();
  EXPECT_EQ(contents.tombstones, std::vector{Stone(40)});
  EXPECT_EQ(contents.namespaces[0].incarnation, 50u);
  EXPECT_EQ(journal->standing(), standing);
  // A journal that is written anew has it too.
  ASSERT_TRUE(Start(contents.namespaces, 100).ok());
  PowerFails();
  Open();
  EXPECT_EQ(journal->standing(), standing);
}

TEST_F(JournalTest, SettleWaitsForAnAppendThatIsUnderWay) {
  Open();
  ASSERT_TRUE(Start({Entry(0, 5)}, 100).ok());
  journal->NoteTombstone(Stone(40));
  auto other = journal->PutTime(1000);  // takes the tombstone along
  ASSERT_TRUE(Run(journal->Settle()).ok());
  EXPECT_TRUE(Run(std::move(other)).ok());
  PowerFails();
  EXPECT_EQ(Open().tombstones.size(), 1u);
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

TEST_F(JournalTest, EndsOfConversationsOutliveAPowerFailureUpToTheirBound) {
  Open();
  ASSERT_TRUE(Start({}, 100).ok());
  ASSERT_TRUE(Run(journal->AddConversationEnd({40, 7, 71})).ok());
  journal->NoteConversationEnd({41, 7, 72});
  ASSERT_TRUE(Run(journal->Settle()).ok());
  PowerFails();
  const std::vector<ConversationEnd> both = {{40, 7, 71}, {41, 7, 72}};
  EXPECT_EQ(Open().conversation_ends, both);
  ASSERT_TRUE(Run(journal->Start({}, 100, {}, {}, both)).ok());
  PowerFails();
  EXPECT_EQ(Open().conversation_ends, both) << "written anew";
  ASSERT_TRUE(Start({}, 100).ok());
  for (std::uint64_t n = 1; n <= Journal::kMostConversationEnds + 2; ++n)
    journal->NoteConversationEnd({n, 7, n});
  EXPECT_EQ(journal->conversation_ends(), Journal::kMostConversationEnds);
  ASSERT_TRUE(Run(journal->Settle()).ok());
  PowerFails();
  const auto contents = Open();
  ASSERT_EQ(contents.conversation_ends.size(), Journal::kMostConversationEnds);
  EXPECT_EQ(contents.conversation_ends.front().sequence, 3u) << "the earliest are forgotten";
}

// Damage far in front of much that is whole.
TEST_F(JournalTest, R16DamageIsLookedForInSteps) {
  Open();
  ASSERT_TRUE(Start({}, 100).ok());
  const std::uint64_t at = journal->file_bytes() + 4;
  std::vector<Task<Status>> tasks;
  for (std::uint64_t n = 1; n <= 20'000; ++n) tasks.push_back(journal->AddTombstone(Stone(n)));
  for (auto& task : tasks) ASSERT_TRUE(Run(std::move(task)).ok());
  disk.Flip(kJournal, at + 2, std::byte{4});
  disk.Flip(kCopy, at + 2, std::byte{4});
  const std::uint64_t bytes = journal->file_bytes();
  Boot();
  const std::uint64_t before = loop->executor().steps();
  EXPECT_TRUE(Open().damaged);
  EXPECT_GT(loop->executor().steps() - before, bytes / (64u << 10));
}

// Each of its bytes begins what may be a batch of all that follows: to sum them all took the square of its
// length.
TEST_F(JournalTest, P5BytesThatAllLookLikeBatchesAreSearchedWithinABound) {
  for (const std::size_t size : {200u << 10, 2u << 20}) {
    Open();
    ASSERT_TRUE(Start({}, 100).ok());
    std::vector<std::byte> bytes = Bytes(kJournal);
    // As the four bytes of a length, wherever they are read: 0x10101.
    for (std::size_t i = 0; i < size; ++i)
      bytes.push_back(std::byte{i % 4 == 3 ? std::uint8_t{0} : std::uint8_t{1}});
    Write(kJournal, bytes);
    Boot();
    const std::uint64_t before = loop->executor().steps();
    EXPECT_TRUE(Open().damaged);
    EXPECT_LT(loop->executor().steps() - before, 1000u);
    BootWithBoth({});
  }
}

TEST_F(JournalTest, P5ItsFileIsBoundedByWhatItSays) {
  Open();
  ASSERT_TRUE(Start({Entry(0, 5)}, 100).ok());
  for (std::uint64_t n = 1; n <= 40'000; ++n) {
    if (n % 100 != 0) {
      ASSERT_TRUE(Run(journal->AddTombstone(Stone(n))).ok());
    }
    journal->EndTombstone(n);
    ASSERT_LT(journal->file_bytes(), (1u << 20) + (64u << 10));
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
  EXPECT_LE(syncs, 4) << "of each of the two files";
}

TEST_F(JournalTest, AnotherVersionIsRefusedByName) {
  Open();
  ASSERT_TRUE(Start({}, 100).ok());
  disk.Flip(kJournal, 8, std::byte{1});
  disk.Flip(kCopy, 8, std::byte{1});
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

// A disk that others filled up has what the spare takes and no more.
TEST_F(JournalTest, AFullDiskLeavesRoomToStartOnceMoreHoweverMuchTheJournalSays) {
  std::vector<Tombstone> tombstones;
  for (std::uint64_t n = 1; n <= 2000; ++n) tombstones.push_back(Stone(n));
  Open();
  ASSERT_TRUE(Start({}, 100).ok());
  ASSERT_TRUE(Start({}, 100, tombstones).ok());
  Boot();
  const std::size_t room = Bytes("node/journal.spare").size();
  disk.set_faults([&](const io::IoRequest& request, const std::string&) {
    if (request.kind != io::IoRequest::Kind::kWrite) return io::Fault{};
    const bool spare = loop->Open("node/journal.spare", io::OpenMode::kRead).has_value();
    const bool has_room = !spare && 2 * (request.offset + request.size) <= room;
    return has_room ? io::Fault{} : io::Fault{io::FaultKind::kNoSpace};
  });
  const auto found = Open();
  const Status started = Start(found.namespaces, found.sequences_below, found.tombstones);
  EXPECT_TRUE(started.ok()) << started.ToString();
}

// In a node that runs on: the spare that was given up is kept again, as soon as there is room.
TEST_F(JournalTest, AFullDiskLeavesRoomToWriteAnewEachTimeThatItIsFull) {
  Open();
  ASSERT_TRUE(Start({Entry(0, 5)}, 100).ok());
  const auto spare = [&] { return loop->Open("node/journal.spare", io::OpenMode::kRead).has_value(); };
  for (std::uint64_t n = 40; n < 43; ++n) {
    ASSERT_TRUE(spare()) << n;
    disk.set_faults([&](const io::IoRequest& request, const std::string&) {
      return request.kind == io::IoRequest::Kind::kWrite && spare() ? io::Fault{io::FaultKind::kNoSpace}
                                                                    : io::Fault{};
    });
    journal->NoteTombstone(Stone(n));
    EXPECT_FALSE(Run(journal->Settle()).ok()) << "an append has no spare";
    EXPECT_TRUE(Run(journal->Settle()).ok()) << n;
    disk.set_faults({});
  }
  PowerFails();
  EXPECT_EQ(Open().tombstones.size(), 3u);
}

TEST_F(JournalTest, TroubleLastsUntilAWriteGoesAndNamesTheWayOut) {
  Open();
  ASSERT_TRUE(Start({Entry(0, 5)}, 100).ok());
  EXPECT_TRUE(journal->trouble().ok());
  EXPECT_GE(journal->spare_bytes(), 1u << 16);
  disk.set_faults([](const io::IoRequest& request, const std::string&) {
    return request.kind == io::IoRequest::Kind::kWrite ? io::Fault{io::FaultKind::kNoSpace} : io::Fault{};
  });
  for (int refused = 0; refused < 2; ++refused) {
    const Status status = Run(journal->AddTombstone(Stone(40)));
    EXPECT_EQ(status.code(), Code::kIoError);
    EXPECT_NE(status.message().find("make room there"), std::string::npos) << status.message();
    EXPECT_EQ(journal->trouble().message(), status.message());
  }
  EXPECT_EQ(journal->failures(), 2u);
  EXPECT_EQ(journal->spare_bytes(), 0u) << "given up, and in vain";
  disk.set_faults({});
  ASSERT_TRUE(Run(journal->PutTime(1)).ok());
  EXPECT_TRUE(journal->trouble().ok());
  EXPECT_GE(journal->spare_bytes(), 1u << 16);
}

TEST_F(JournalTest, R10FilesThatWereRemovedAreWrittenAnew) {
  Open();
  ASSERT_TRUE(Start({Entry(0, 5)}, 100, {Stone(40)}).ok());
  EXPECT_FALSE(journal->removed());
  for (const std::vector<const char*>& removed :
       std::vector<std::vector<const char*>>{{kJournal}, {kCopy}, {kJournal, kCopy}}) {
    for (const char* path : removed) ASSERT_TRUE(loop->Remove(path).ok());
    EXPECT_TRUE(journal->removed());
    ASSERT_TRUE(Run(journal->AddTombstone(Stone(41 + removed.size()))).ok());
    EXPECT_FALSE(journal->removed());
  }
  PowerFails();
  const auto found = Open();
  EXPECT_EQ(found.namespaces.size(), 1u);
  EXPECT_EQ(found.tombstones, (std::vector{Stone(40), Stone(42), Stone(43)}));
}

TEST_F(JournalTest, ADirectoryThatIsNoLongerItsOwnIsLeftAsItIs) {
  Open();
  ASSERT_TRUE(Start({Entry(0, 5)}, 100).ok());
  const auto before = Bytes(kJournal);
  for (const Status& why : {Status(Code::kIoError, "another node's"), Status()}) {
    journal->GiveUp(why);
    EXPECT_EQ(Run(journal->AddTombstone(Stone(40))).ToString(), why.ToString());
    EXPECT_EQ(journal->trouble().ToString(), why.ToString());
  }
  EXPECT_EQ(Bytes(kJournal), before);
}

// What was noted goes with the append that it came in, whatever that append was made of.
TEST_F(JournalTest, R10WhatWasNotedIsDurableWithTheNextSettleThoughWritingAnewFailed) {
  Open();
  ASSERT_TRUE(Start({Entry(0, 5)}, 100).ok());
  while (journal->file_bytes() < 1u << 20) ASSERT_TRUE(Run(journal->PutTime(1)).ok());
  bool fails = false;
  disk.set_faults([&](const io::IoRequest& request, const std::string&) {
    const bool anew = request.kind == io::IoRequest::Kind::kWrite && request.offset == 0;
    fails = fails || anew;
    return anew ? io::Fault{io::FaultKind::kIoError, 0} : io::Fault{};
  });
  // It is due to be written anew in one of these, which fails with what was noted before it.
  std::uint64_t noted = 100;
  while (!fails) {
    journal->NoteTombstone(Stone(++noted));
    const Status settled = Run(journal->Settle());
    EXPECT_EQ(settled.ok(), !fails);
  }
  disk.set_faults({});
  ASSERT_TRUE(Run(journal->Settle()).ok());
  PowerFails();
  const auto contents = Open();
  ASSERT_FALSE(contents.tombstones.empty());
  EXPECT_EQ(contents.tombstones.back(), Stone(noted));
}

// Of both copies: a sync that fails on one of them leaves the other.
TEST_F(JournalTest, R10NothingIsDurableWhereNoCopySyncs) {
  Open();
  ASSERT_TRUE(Start({Entry(0, 5)}, 100, {Stone(40)}).ok());
  disk.set_faults([&](const io::IoRequest& request, const std::string& path) {
    const bool of_a_copy = request.kind == io::IoRequest::Kind::kSync && path.ends_with(".new");
    return of_a_copy ? io::Fault{io::FaultKind::kIoError, 0} : io::Fault{};
  });
  EXPECT_EQ(Start({Entry(0, 5)}, 100, {Stone(40), Stone(41)}).code(), Code::kIoError);
}

TEST_F(JournalTest, WhatIsNoJournalIsRefusedByName) {
  std::vector<std::byte> strange(100, std::byte{'x'});
  for (const std::size_t size : {1, 15, 16, 100}) {
    SCOPED_TRACE(size);
    BootWithBoth(std::span(strange).first(size));
    ExpectMismatch("node/journal: is no journal");
  }
}

TEST_F(JournalTest, AHeadThatIsCutOffIsRefusedByName) {
  Open();
  ASSERT_TRUE(Start({}, 100).ok());
  const std::vector<std::byte> whole = Bytes(kJournal);
  for (const std::size_t size : {16, 36, 39}) {
    SCOPED_TRACE(size);
    BootWithBoth(std::span(whole).first(size));
    ExpectMismatch("its head is damaged");
  }
}

// A crash cuts one append off, of at most this many bytes.
TEST_F(JournalTest, MoreBytesBehindTheEndThanOneAppendHasAreDamage) {
  const std::size_t most = 8 + 5 + (256u << 10);
  for (const std::size_t behind : {most, most + 1}) {
    Open();
    ASSERT_TRUE(Start({}, 100, {Stone(40)}).ok());
    std::vector<std::byte> bytes = Bytes(kJournal);
    bytes.resize(bytes.size() + behind);
    BootWithBoth(bytes);
    EXPECT_EQ(Open().damaged, behind > most) << behind;
    BootWithBoth({});
  }
}

// The second and the third come while the first is written, the fourth while those two are: it fails last.
TEST_F(JournalTest, ANamespaceGoesBackToWhatWasWrittenHoweverManyAppendsFail) {
  Open();
  ASSERT_TRUE(Start({Entry(0, 5)}, 100).ok());
  auto first = journal->PutNamespace(Entry(0, 50));
  auto second = journal->PutNamespace(Entry(0, 51));
  auto third = journal->PutNamespace(Entry(0, 52));
  ASSERT_TRUE(Run(std::move(first)).ok());
  std::optional<Task<Status>> fourth;
  disk.set_faults([&](const io::IoRequest&, const std::string&) {
    if (!fourth) fourth = journal->PutNamespace(Entry(0, 53));
    return io::Fault{io::FaultKind::kIoError, 0};
  });
  EXPECT_FALSE(Run(std::move(second)).ok());
  EXPECT_FALSE(Run(std::move(third)).ok());
  ASSERT_TRUE(fourth.has_value());
  EXPECT_FALSE(Run(*std::move(fourth)).ok());
  disk.set_faults({});
  ASSERT_TRUE(Run(journal->AddTombstone(Stone(40))).ok());
  PowerFails();
  const auto contents = Open();
  ASSERT_EQ(contents.namespaces.size(), 1u);
  EXPECT_EQ(contents.namespaces[0].incarnation, 50u);
}

// All of them together are more than an append may have.
TEST_F(JournalTest, EndsOfConversationsAreWrittenAnewInAsManyAppendsAsTheyTake) {
  std::vector<ConversationEnd> ends;
  for (std::uint64_t n = 1; n <= Journal::kMostConversationEnds; ++n) ends.push_back({n, 7, n});
  Open();
  ASSERT_TRUE(Run(journal->Start({}, 100, {}, {}, ends)).ok());
  PowerFails();
  const auto contents = Open();
  EXPECT_FALSE(contents.damaged);
  EXPECT_EQ(contents.conversation_ends, ends);
}

}  // namespace
}  // namespace cistern::catalog
