// SPDX-License-Identifier: Apache-2.0
// What of a journal's two files is believed: the head of each, the end of what was written anew, records that
// nobody wrote; and that what was made durable is written anew with the rest.
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "base/codec.h"
#include "catalog/journal.h"
#include "catalog/test_journal.h"
#include "record/crc_field.h"

namespace cistern::catalog {
namespace {

constexpr std::size_t kHeadBytes = 40;

// The end of the batch at `at`.
std::size_t EndOfBatch(std::span<const std::byte> bytes, std::size_t at) {
  return at + 8 + LoadAt<std::uint32_t>(bytes.data(), at + 4);
}

// A batch of these bytes, which are no records, under a CRC that holds.
std::vector<std::byte> BatchOf(std::span<const std::byte> records) {
  std::vector<std::byte> batch(8);
  batch.insert(batch.end(), records.begin(), records.end());
  StoreAt(batch.data(), 4, static_cast<std::uint32_t>(records.size()));
  record::StoreCrcAt(batch, 0, 4);
  return batch;
}

// These bytes of a journal with such a batch behind them.
std::vector<std::byte> WithBatch(std::vector<std::byte> bytes, std::span<const std::byte> records) {
  const std::vector<std::byte> batch = BatchOf(records);
  bytes.insert(bytes.end(), batch.begin(), batch.end());
  return bytes;
}

// Incarnations are made of the id, and the state chooses the file.
TEST_F(JournalTest, R10ABitOfAHeadMakesNoOtherJournalOfIt) {
  Open();
  ASSERT_TRUE(Start({Entry(0, 5)}, 100, {Stone(40)}).ok());
  const std::uint64_t id = journal->id();
  const std::vector<std::byte> whole = Bytes(kJournal);
  for (const char* which : {kJournal, kCopy}) {
    for (std::size_t at = 16; at < 36; ++at) {
      SCOPED_TRACE(Text(which, " byte ", at));
      std::vector<std::byte> bytes = whole;
      bytes[at] ^= std::byte{1};
      Write(which, bytes);
      Boot();
      const auto contents = Open();
      EXPECT_EQ(journal->id(), id);
      EXPECT_EQ(contents.mark.state, 1u);
      EXPECT_EQ(contents.tombstones, std::vector{Stone(40)});
      ASSERT_EQ(contents.notes.size(), 1u);
      EXPECT_NE(contents.notes[0].find("its head is damaged"), std::string::npos) << contents.notes[0];
      Write(which, whole);
    }
  }
}

// Whoever restores one file beside another node's: the first counts, and alone.
TEST_F(JournalTest, R10TheCopyOfAnotherJournalAddsNothing) {
  Open();
  ASSERT_TRUE(Start({Entry(0, 5)}, 100, {Stone(40)}).ok());
  const std::uint64_t id = journal->id();
  const std::vector<std::byte> own = Bytes(kJournal);
  ASSERT_TRUE(Run(journal->AddTombstone(Stone(41))).ok());
  const std::vector<std::byte> longer = Bytes(kJournal);
  for (const std::uint64_t anew : {1, 2}) {
    SCOPED_TRACE(Text("the other one was written anew ", anew, " times"));
    Write(kJournal, {});
    Write(kCopy, {});
    for (std::uint64_t n = 0; n < anew; ++n) {
      Boot();
      Open();
      ASSERT_TRUE(Start({Entry(0, 6)}, 900, {Stone(50)}).ok());
    }
    // Where the first one's batches end, those of the other one go on.
    ASSERT_EQ(Bytes(kCopy).size(), own.size());
    ASSERT_TRUE(Run(journal->AddTombstone(Stone(51))).ok());
    ASSERT_NE(journal->id(), id);
    for (const auto& first : {own, longer}) {
      Write(kJournal, first);
      Boot();
      const auto contents = Open();
      EXPECT_EQ(journal->id(), id);
      EXPECT_FALSE(contents.damaged);
      EXPECT_EQ(contents.sequences_below, 100u);
      ASSERT_EQ(contents.namespaces.size(), 1u);
      EXPECT_EQ(contents.namespaces[0].incarnation, 5u);
      EXPECT_EQ(contents.tombstones.size(), first == own ? 1u : 2u);
      ASSERT_EQ(contents.notes.size(), 1u);
      EXPECT_NE(contents.notes[0].find("is another journal than"), std::string::npos) << contents.notes[0];
    }
  }
}

// Tombstones may have stood there: nothing from before is believed.
TEST_F(JournalTest, R10BothCutBeforeTheEndOfWhatWasWrittenAnewIsDamage) {
  std::vector<Tombstone> tombstones;
  for (std::uint64_t n = 1; n <= 1000; ++n) tombstones.push_back(Stone(n));
  Open();
  ASSERT_TRUE(Start({Entry(0, 5)}, 100, tombstones).ok());
  const std::vector<std::byte> whole = Bytes(kJournal);
  std::size_t batches = 0;
  for (std::size_t at = kHeadBytes; at <= whole.size(); at = EndOfBatch(whole, at)) {
    SCOPED_TRACE(Text("cut behind ", batches, " batches"));
    const std::span<const std::byte> cut = std::span(whole).first(at);
    BootWithBoth(cut);
    const auto contents = Open();
    EXPECT_EQ(contents.damaged, at < whole.size());
    if (at == whole.size()) break;
    ++batches;
  }
  EXPECT_GT(batches, 2u);
}

TEST_F(JournalTest, ABatchThatChecksAndHoldsNoRecordsIsDamage) {
  Open();
  ASSERT_TRUE(Start({Entry(0, 5)}, 100, {Stone(40)}).ok());
  const std::vector<std::byte> whole = Bytes(kJournal);
  std::vector<std::vector<std::byte>> forged = {std::vector<std::byte>(1), std::vector<std::byte>(4),
                                                std::vector<std::byte>(13)};
  StoreAt(forged[2].data(), 0, std::uint32_t{9});  // of the eight that are there
  for (std::vector<std::byte>& records : forged) {
    SCOPED_TRACE(Text(records.size(), " bytes"));
    BootWithBoth(WithBatch(whole, records));
    const auto contents = Open();
    EXPECT_TRUE(contents.damaged);
    EXPECT_EQ(contents.tombstones, std::vector{Stone(40)});
  }
}

std::vector<std::byte> RecordOf(std::uint8_t kind, std::span<const std::byte> payload) {
  std::vector<std::byte> record(5);
  StoreAt(record.data(), 0, static_cast<std::uint32_t>(payload.size()));
  record[4] = std::byte{kind};
  record.insert(record.end(), payload.begin(), payload.end());
  return record;
}

// The slot's earlier record may be of before a drop, or of before it was said to stay on its node.
TEST_F(JournalTest, R10AListThatCannotBeReadIsForgottenAndNotAsItWasBefore) {
  Open();
  ASSERT_TRUE(Start({Entry(0, 5), Entry(1, 6)}, 100, {Stone(40)}).ok());
  std::vector<std::byte> later = NamespaceTable::Encode(Entry(0, 9));
  later[0] = std::byte{200};
  BootWithBoth(WithBatch(Bytes(kJournal), RecordOf(2, later)));
  const auto contents = Open();
  EXPECT_FALSE(contents.damaged);
  ASSERT_EQ(contents.namespaces.size(), 1u);
  EXPECT_EQ(contents.namespaces[0].slot, 1u);
  EXPECT_EQ(contents.tombstones, std::vector{Stone(40)});
}

TEST_F(JournalTest, R10ATombstoneOrASlotThatCannotBeReadIsDamage) {
  for (const std::uint8_t kind : {2, 3}) {
    SCOPED_TRACE(Text("kind ", int{kind}));
    Open();
    ASSERT_TRUE(Start({Entry(0, 5)}, 100).ok());
    BootWithBoth(WithBatch(Bytes(kJournal), RecordOf(kind, std::vector<std::byte>(5))));
    EXPECT_TRUE(Open().damaged);
  }
}

// Nodes that go by the earlier record where they cannot read the later one are in use.
TEST_F(JournalTest, R10FilesHaveOneRecordOfAListOfWhichSomethingNewWasSaid) {
  NamespaceEntry copied = Entry(0, 5);
  copied.copies = 2;
  const auto lists = [&] {
    const std::vector<std::byte> bytes = Bytes(kJournal);
    const std::vector<std::byte> plain = NamespaceTable::Encode(Entry(0, 5));
    // Behind version and flags both encodings have slot and incarnation.
    const auto begin = std::span(plain).subspan(2, 12);
    std::size_t count = 0;
    for (auto at = bytes.begin();
         (at = std::search(at, bytes.end(), begin.begin(), begin.end())) != bytes.end(); ++at)
      ++count;
    return count;
  };
  for (const bool noted : {false, true}) {
    SCOPED_TRACE(noted);
    Open();
    ASSERT_TRUE(Start({Entry(0, 5)}, 100).ok());
    auto under_way = journal->PutTime(7);
    if (noted) {
      journal->NoteNamespace(copied);
      ASSERT_TRUE(Run(journal->Settle()).ok());
    } else {
      ASSERT_TRUE(Run(journal->PutNamespace(copied)).ok());
    }
    ASSERT_TRUE(Run(std::move(under_way)).ok());
    EXPECT_EQ(lists(), 1u);
    ASSERT_TRUE(Run(journal->PutNamespace(copied)).ok());
    EXPECT_EQ(lists(), 2u) << "an append, as that of any other list";
    Boot();
    const auto contents = Open();
    ASSERT_EQ(contents.namespaces.size(), 1u);
    EXPECT_EQ(contents.namespaces[0].copies, 2u);
  }
}

// A copy that cannot be read now may be what has the last drop: it is not gone on without.
TEST_F(JournalTest, R10ACopyThatCannotBeReadNowIsNotGoneOnWithout) {
  Open();
  ASSERT_TRUE(Start({Entry(0, 5)}, 100, {Stone(40)}).ok());
  for (const int broken : {0, 1}) {
    Boot();
    int reads = 0;
    disk.set_faults([&](const io::IoRequest& request, const std::string&) {
      const bool fails = request.kind == io::IoRequest::Kind::kRead && reads++ == broken;
      return fails ? io::Fault{io::FaultKind::kIoError, 0} : io::Fault{};
    });
    const auto contents = loop->BlockOn(journal->Open());
    ASSERT_FALSE(contents.has_value()) << broken;
    EXPECT_EQ(contents.error().code(), Code::kIoError);
    const char* which = broken == 0 ? kJournal : kCopy;
    EXPECT_NE(contents.error().message().find(Text("read ", which, ' ')), std::string::npos)
        << contents.error().message();
    disk.set_faults({});
    Boot();
    EXPECT_EQ(Open().tombstones, std::vector{Stone(40)});
  }
}

// Else a start would give out numbers that records and tombstones have already.
TEST_F(JournalTest, R10WhatWasReservedIsStillReservedInAFileThatIsWrittenAnew) {
  Open();
  ASSERT_TRUE(Start({Entry(0, 5)}, 100).ok());
  ASSERT_TRUE(Run(journal->ReserveSequences(5000)).ok());
  ASSERT_TRUE(Run(journal->PutTime(77)).ok());
  ASSERT_TRUE(Run(journal->PutDevices({7, 8})).ok());
  journal->NoteNamespace(Entry(1, 6));
  int left = 1;
  disk.set_faults([&](const io::IoRequest&, const std::string&) {
    return left-- > 0 ? io::Fault{io::FaultKind::kIoError, 0} : io::Fault{};
  });
  EXPECT_FALSE(Run(journal->AddTombstone(Stone(40))).ok());
  ASSERT_TRUE(Run(journal->AddTombstone(Stone(41))).ok());
  EXPECT_EQ(journal->mark().state, 2u);
  PowerFails();
  const auto contents = Open();
  EXPECT_EQ(contents.sequences_below, 5000u);
  EXPECT_EQ(contents.time_s, 77u);
  EXPECT_EQ(contents.devices, (std::vector<std::uint64_t>{7, 8}));
  EXPECT_EQ(contents.namespaces.size(), 2u);
}

// Whichever of its writes and syncs fails.
TEST_F(JournalTest, R10AStartThatSaysItIsWrittenIsDurable) {
  bool failed = true;
  for (int broken = 0; failed; ++broken) {
    SCOPED_TRACE(Text("operation ", broken, " fails"));
    BootWithBoth({});
    Open();
    ASSERT_TRUE(Start({Entry(0, 5)}, 100, {Stone(40)}).ok());
    int asked = 0;
    failed = false;
    disk.set_faults([&](const io::IoRequest&, const std::string&) {
      const bool fails = asked++ == broken;
      failed = failed || fails;
      return fails ? io::Fault{io::FaultKind::kIoError, 0} : io::Fault{};
    });
    const Status status = Start({Entry(0, 5)}, 100, {Stone(40), Stone(41)});
    disk.set_faults({});
    PowerFails();
    const auto contents = Open();
    EXPECT_FALSE(contents.damaged);
    ASSERT_GE(contents.tombstones.size(), status.ok() ? 2u : 1u);
    EXPECT_EQ(contents.tombstones[0], Stone(40));
  }
}

// A copy of a device, or of memory, from before it ended is told by it, however often the journal is written
// anew.
TEST_F(JournalTest, R10TheHighestTombstoneThatEndedIsKnownForGood) {
  Open();
  ASSERT_TRUE(Start({}, 100, {Stone(40), Stone(41)}).ok());
  EXPECT_EQ(journal->ended(), 0u);
  journal->EndTombstone(40);
  EXPECT_EQ(journal->ended(), 40u);
  ASSERT_TRUE(Run(journal->ReserveSequences(200)).ok());
  PowerFails();
  auto contents = Open();
  EXPECT_EQ(contents.ended, 40u);
  EXPECT_EQ(contents.tombstones, std::vector{Stone(41)});
  ASSERT_TRUE(Start({}, 200, {Stone(41)}).ok());
  EXPECT_EQ(journal->ended(), 40u) << "one that is kept has not ended";
  PowerFails();
  EXPECT_EQ(Open().ended, 40u);
  ASSERT_TRUE(Start({}, 200).ok());
  EXPECT_EQ(journal->ended(), 41u) << "one that is not kept has";
  PowerFails();
  EXPECT_EQ(Open().ended, 41u);
  ASSERT_TRUE(Start({}, 200).ok());
  PowerFails();
  contents = Open();
  EXPECT_EQ(contents.ended, 41u);
  EXPECT_TRUE(contents.tombstones.empty());
}

// An older copy of a device, restored then, would be believed for what it was for.
TEST_F(JournalTest, R10ATombstoneThatEndsWhileItIsWrittenAnewIsThereOrHasEnded) {
  constexpr std::uint64_t kMost = 600;
  std::vector<Tombstone> tombstones;
  for (std::uint64_t n = 1; n <= kMost; ++n) tombstones.push_back(Stone(n));
  bool ended = true;
  for (int at = 0; ended; ++at) {
    SCOPED_TRACE(Text("operation ", at));
    BootWithBoth({});
    Open();
    int asked = 0;
    ended = false;
    disk.set_faults([&](const io::IoRequest&, const std::string&) {
      if (asked++ == at) {
        journal->EndTombstone(kMost);
        ended = true;
      }
      return io::Fault{};
    });
    ASSERT_TRUE(Start({}, 100, tombstones).ok());
    disk.set_faults({});
    Boot();
    const auto contents = Open();
    const bool there = !contents.tombstones.empty() && contents.tombstones.back() == Stone(kMost);
    EXPECT_TRUE(there || contents.ended == kMost);
  }
}

// Memory is told of the mark before anyone is told that something is durable, and of an end before it is
// written.
TEST_F(JournalTest, R10WhoeverAsksIsToldOfEachMarkAndEnd) {
  tier::JournalMark told;
  std::uint64_t ended = 0;
  const auto listen = [&] {
    journal->OnChange([&] {
      told = journal->mark();
      ended = journal->ended();
    });
  };
  Open();
  listen();
  ASSERT_TRUE(Start({}, 100, {Stone(40), Stone(41), Stone(42)}).ok());
  EXPECT_EQ(told, (tier::JournalMark{1, journal->file_bytes()}));
  ASSERT_TRUE(Run(journal->PutTime(7)).ok());
  EXPECT_EQ(told, (tier::JournalMark{1, journal->file_bytes()}));
  journal->EndTombstone(40);
  EXPECT_EQ(ended, 40u);
  ASSERT_TRUE(Run(journal->PutTime(8)).ok());
  Boot();
  EXPECT_EQ(Open().mark, told);
  listen();
  auto starting = journal->Start({}, 100, {Stone(42)});
  EXPECT_EQ(ended, 41u) << "before it is written anew without it";
  ASSERT_TRUE(Run(std::move(starting)).ok());
  EXPECT_EQ(told, (tier::JournalMark{2, journal->file_bytes()}));
}

TEST_F(JournalTest, R10ANotedNamespaceIsDurableWithTheNextAppend) {
  Open();
  ASSERT_TRUE(Start({Entry(0, 5)}, 100).ok());
  journal->NoteNamespace(Entry(0, 50));
  ASSERT_TRUE(Run(journal->AddTombstone(Stone(40))).ok());
  EXPECT_EQ(journal->mark().state, 1u);
  PowerFails();
  const auto contents = Open();
  ASSERT_EQ(contents.namespaces.size(), 1u);
  EXPECT_EQ(contents.namespaces[0].incarnation, 50u);
}

// Labels say something of the list before them; where that list is forgotten they make none.
TEST_F(JournalTest, R10LabelsOfAListThatCannotBeReadAreForgottenWithIt) {
  Open();
  NamespaceEntry entry = Entry(0, 9);
  entry.labels = {{"model", "llama"}};
  ASSERT_TRUE(Start({Entry(0, 5), Entry(1, 6)}, 100).ok());
  std::vector<std::byte> later = NamespaceTable::Encode(entry);
  later[0] = std::byte{200};
  std::vector<std::byte> records = RecordOf(2, later);
  const std::vector<std::byte> labels = RecordOf(11, NamespaceTable::EncodeLabels(entry));
  records.insert(records.end(), labels.begin(), labels.end());
  const std::vector<std::byte> broken = RecordOf(11, std::vector<std::byte>(1));
  records.insert(records.end(), broken.begin(), broken.end());
  BootWithBoth(WithBatch(Bytes(kJournal), records));
  const auto contents = Open();
  EXPECT_FALSE(contents.damaged);
  ASSERT_EQ(contents.namespaces.size(), 1u);
  EXPECT_EQ(contents.namespaces[0].slot, 1u);
  EXPECT_TRUE(contents.namespaces[0].labels.empty());
}

}  // namespace
}  // namespace cistern::catalog
