// SPDX-License-Identifier: Apache-2.0
#include "memory/recovery.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "arena/protocol.h"
#include "arena/reader.h"
#include "arena/test_arena.h"

namespace cistern::memory {
namespace {

// Everything that a restart finds, in slices of `batch`.
struct Restart {
  Restart(arena::Words& words, const arena::ArenaSpace& arena, std::size_t batch = 7) : slots(words, arena) {
    Recovery recovery(words, slots);
    std::vector<RecoveredBlock> some(batch);
    while (!recovery.done()) {
      std::size_t count = recovery.Next(some);
      blocks.insert(blocks.end(), some.begin(), some.begin() + static_cast<std::ptrdiff_t>(count));
    }
    slots.EndAdoption();
    counts = recovery.counts();
  }
  Slots slots;
  std::vector<RecoveredBlock> blocks;
  Recovery::Counts counts;
};

class RecoveryTest : public testing::Test {
 protected:
  arena::RealWords words_;
  arena::TestArena<arena::RealWords> node_{
      words_, SlotSize::For(record::RecordBytes(6000, 4096), 4096).bytes, {4096, 6}};
};

TEST_F(RecoveryTest, P7WhatWasPublishedIsFoundAgain) {
  for (std::uint32_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(node_.Put(arena::TestKey(i), i == 0 ? BlockKey() : arena::TestKey(i - 1),
                          arena::BodyOf(6000, i), 3 * i, 2, 1000 + i));
  }
  Restart restart(words_, node_.arena);
  ASSERT_EQ(restart.blocks.size(), 100u);
  EXPECT_EQ(restart.counts.believed, 100u);
  EXPECT_EQ(restart.counts.refused, 0u);
  EXPECT_EQ(restart.counts.last_sequence, 100u);
  EXPECT_EQ(restart.slots.counts().used_slots, 100u);
  for (std::uint32_t i = 0; i < 100; ++i) {
    const RecoveredBlock& block = restart.blocks[i];
    EXPECT_EQ(block.place, node_.place(3 * i));
    EXPECT_EQ(block.key, arena::TestKey(i));
    EXPECT_EQ(block.parent, i == 0 ? BlockKey() : arena::TestKey(i - 1));
    EXPECT_EQ(block.group, 2);
    EXPECT_EQ(block.parts, 1);
    EXPECT_EQ(block.incarnation, arena::kTestIncarnation);
    EXPECT_EQ(block.body_bytes, 6000u);
    EXPECT_EQ(block.expiry, 1000 + i);
    EXPECT_EQ(block.born, 7u);
    EXPECT_EQ(block.sequence, i + 1);
    EXPECT_EQ(block.generation, words_.Load(node_.arena.generation(block.place)));
    EXPECT_TRUE(restart.slots.used(block.place));
  }
}

TEST_F(RecoveryTest, R11HalfAPublishIsAFreeSlot) {
  std::uint64_t generation = arena::BeginFill(words_, node_.arena, node_.place(1));
  Restart filling(words_, node_.arena);
  EXPECT_TRUE(filling.blocks.empty());
  EXPECT_EQ(filling.slots.counts().used_slots, 0u);
  EXPECT_EQ(filling.slots.counts().free_headers, 6u) << "a chunk without a block is taken apart";
  EXPECT_EQ(words_.Load(node_.arena.generation(node_.place(1))) % 2, 1u);
  EXPECT_EQ(generation % 2, 0u);
}

TEST_F(RecoveryTest, APartialCopyInASlotThatHadNoRecordBeforeIsNotTakenForDamage) {
  const arena::Place place = node_.place(1);
  const std::uint64_t generation = arena::BeginFill(words_, node_.arena, place);
  const std::vector<std::byte> body = arena::BodyOf(6000, 1);
  const std::uint32_t part_bytes[] = {6000}, crcs[] = {record::Crc32c(body.data(), body.size())};
  arena::PublishPassing(
      words_, node_.arena, place, generation,
      {.seal = {.key = arena::TestKey(1), .part_bytes = part_bytes, .segment_crcs = crcs}, .sequence = 1});
  Restart restart(words_, node_.arena);
  EXPECT_TRUE(restart.blocks.empty());
  EXPECT_EQ(restart.counts.refused, 1u);
  EXPECT_EQ(restart.counts.damaged, 0u);
}

TEST_F(RecoveryTest, R11ADamagedEntryIsNotBelieved) {
  for (std::uint32_t i = 0; i < 64; ++i)
    ASSERT_TRUE(node_.Put(arena::TestKey(i), {}, arena::BodyOf(6000, i), i));
  // Each bit of the entry matters.
  std::mt19937 random(1);
  for (std::uint32_t i = 0; i < 32; ++i) {
    auto* bytes = reinterpret_cast<std::byte*>(node_.arena.directory(node_.place(i)));
    bytes[i * 4 + random() % 4] ^= std::byte{1} << random() % 8;
  }
  Restart restart(words_, node_.arena);
  EXPECT_EQ(restart.blocks.size(), 32u);
  EXPECT_EQ(restart.counts.refused, 32u);
  for (std::uint32_t i = 0; i < 64; ++i) {
    EXPECT_EQ(words_.Load(node_.arena.generation(node_.place(i))) % 2, i < 32 ? 1u : 0u) << i;
  }
}

TEST_F(RecoveryTest, R11AnEntryCountsOnlyWhereItLiesAndForItsGeneration) {
  ASSERT_TRUE(node_.Put(arena::TestKey(1), {}, arena::BodyOf(6000, 1), 1));
  ASSERT_TRUE(node_.Put(arena::TestKey(2), {}, arena::BodyOf(6000, 2), 2));
  *node_.arena.directory(node_.place(2)) = *node_.arena.directory(node_.place(1));
  ASSERT_TRUE(node_.Put(arena::TestKey(3), {}, arena::BodyOf(6000, 3), 3));
  words_.Store(node_.arena.generation(node_.place(3)), 4);
  Restart restart(words_, node_.arena);
  ASSERT_EQ(restart.blocks.size(), 1u);
  EXPECT_EQ(restart.blocks[0].key, arena::TestKey(1));
}

// A CRC proves that nothing changed by accident, not that the lengths are such as a block has.
TEST_F(RecoveryTest, R11AnEntryWithLengthsThatNoBlockHasIsNotBelieved) {
  using Entry = arena::DirectoryEntry;
  const std::vector<void (*)(Entry&)> impossible = {
      [](Entry& entry) { entry.key_bytes = 0; },
      [](Entry& entry) { entry.key_bytes = BlockKey::kMaxBytes + 1; },
      [](Entry& entry) { entry.parent_bytes = BlockKey::kMaxBytes + 1; },
      [](Entry& entry) { entry.parts = 0; },
      [](Entry& entry) { entry.parts = record::kMaxParts + 1; },
      [](Entry& entry) { entry.body_bytes = 0; },
      [](Entry& entry) { entry.body_bytes = 1u << 20; },
  };
  const auto change = [&](std::uint32_t slot, auto how) {
    ASSERT_TRUE(node_.Put(arena::TestKey(slot), {}, arena::BodyOf(6000, slot), slot));
    Entry& entry = *node_.arena.directory(node_.place(slot));
    how(entry);
    entry.crc = arena::DirectoryCrc(entry, node_.place(slot));
  };
  for (std::uint32_t i = 0; i < impossible.size(); ++i) change(i, impossible[i]);
  const auto last = static_cast<std::uint32_t>(impossible.size());
  change(last, [](Entry& entry) {
    entry.key_bytes = BlockKey::kMinBytes;
    entry.parts = record::kMaxParts;
    entry.conversation = 77;
    entry.born = 1'000;
  });
  Restart restart(words_, node_.arena);
  EXPECT_EQ(restart.counts.refused, impossible.size());
  EXPECT_EQ(restart.counts.damaged, 0u);
  EXPECT_EQ(restart.counts.last_born, 1'000u);
  for (std::uint32_t i = 0; i < last; ++i) {
    EXPECT_EQ(words_.Load(node_.arena.generation(node_.place(i))) % 2, 1u) << i;
  }
  ASSERT_EQ(restart.blocks.size(), 1u);
  EXPECT_EQ(restart.blocks[0].key.length, BlockKey::kMinBytes);
  EXPECT_EQ(restart.blocks[0].parts, record::kMaxParts);
  EXPECT_EQ(restart.blocks[0].conversation, 77u);
}

// Readers find a chunk by the header that its place is in.
TEST_F(RecoveryTest, R1AChunkOneOfWhoseHeadersNamesAnotherIsLostForGood) {
  constexpr std::uint32_t kBody = 6'000'000;
  arena::Uncarve(words_, node_.arena, 0, 1);
  Slots slots(words_, node_.arena);
  const Result<arena::Place> place = slots.Allocate(record::RecordBytes(kBody, 4096));
  ASSERT_TRUE(place);
  const std::uint32_t parts[] = {kBody};
  const std::vector<std::uint32_t> crcs(record::SegmentsOfPart(kBody));
  arena::NewRecord record;
  record.seal = {.incarnation = 1, .key = arena::TestKey(1), .part_bytes = parts, .segment_crcs = crcs};
  arena::Publish(words_, node_.arena, *place, arena::BeginFill(words_, node_.arena, *place), record);
  std::uint32_t first = 0;
  while (words_.Load(&node_.arena.header(first)->chunk_headers) < 2) ASSERT_LT(++first, 5u);
  {
    const Restart whole(words_, node_.arena);
    ASSERT_EQ(whole.blocks.size(), 1u);
  }
  words_.Store(&node_.arena.header(first + 1)->part_of, std::uint64_t{first + 1});
  for (const std::uint64_t damaged : {1, 0}) {
    const Restart restart(words_, node_.arena);
    EXPECT_TRUE(restart.blocks.empty());
    EXPECT_EQ(restart.counts.damaged_chunks, damaged);
  }
}

TEST_F(RecoveryTest, R10AFlippedBitDoesNotReviveWhatWasRetired) {
  ASSERT_TRUE(node_.Put(arena::TestKey(1), {}, arena::BodyOf(6000, 1), 1));
  ASSERT_TRUE(node_.Put(arena::TestKey(2), arena::TestKey(1), arena::BodyOf(6000, 2), 2));
  std::uint64_t* generation = node_.arena.generation(node_.place(1));
  const std::uint64_t was = *generation;
  node_.Remove(arena::TestKey(1), 1);
  ASSERT_EQ(*generation, was ^ 1) << "one bit is all that tells them apart";
  *generation = was;
  Restart restart(words_, node_.arena);
  ASSERT_EQ(restart.blocks.size(), 1u);
  EXPECT_EQ(restart.blocks[0].key, arena::TestKey(2));
  EXPECT_EQ(restart.counts.refused, 1u);
  EXPECT_EQ(*generation, was ^ 1);
}

TEST_F(RecoveryTest, R1ADamagedHeaderLosesItsBlocksForGood) {
  ASSERT_TRUE(node_.Put(arena::TestKey(1), {}, arena::BodyOf(6000, 1), 1));
  ASSERT_TRUE(node_.Put(arena::TestKey(2), {}, arena::BodyOf(6000, 2), 8));
  std::uint64_t slot_bytes = node_.slot_bytes;
  words_.Store(&node_.arena.header(0)->slot_bytes, 2 * slot_bytes);
  Restart restart(words_, node_.arena);
  EXPECT_TRUE(restart.blocks.empty());
  EXPECT_EQ(restart.counts.damaged_chunks, 1u);
  // Carved the same way again, nothing of what lay there is readable or recovered.
  arena::Carve(words_, node_.arena, 0, 1, slot_bytes);
  Restart again(words_, node_.arena);
  EXPECT_TRUE(again.blocks.empty());
  EXPECT_EQ(again.counts.refused, 0u);
  arena::Reader<arena::RealWords> reader(words_, node_.arena, node_.index);
  arena::OpenRecord record;
  EXPECT_EQ(reader.Open(reader.Begin(0, 0), {arena::TestKey(1)}, nullptr, record), arena::ReadOutcome::kMiss);
}

TEST_F(RecoveryTest, ChunksOfAllSizesComeBack) {
  std::map<arena::Place, std::uint64_t> placed;
  arena::Uncarve(words_, node_.arena, 0, 1);
  {
    Slots slots(words_, node_.arena);
    for (std::uint64_t body : {6'000, 100'000, 1'000'000, 6'000'000}) {
      for (int i = 0; i < 3; ++i) {
        Result<arena::Place> place = slots.Allocate(record::RecordBytes(body, 4096));
        ASSERT_TRUE(place);
        std::uint32_t parts[] = {static_cast<std::uint32_t>(body)};
        std::vector<std::uint32_t> crcs(record::SegmentsOfPart(body));
        arena::NewRecord record;
        record.seal = {
            .incarnation = 1, .key = arena::TestKey(*place), .part_bytes = parts, .segment_crcs = crcs};
        arena::Publish(words_, node_.arena, *place, arena::BeginFill(words_, node_.arena, *place), record);
        placed[*place] = body;
      }
    }
  }
  for (std::size_t batch : {1, 1000}) {
    Restart restart(words_, node_.arena, batch);
    EXPECT_EQ(restart.blocks.size(), placed.size());
    for (const RecoveredBlock& block : restart.blocks) {
      EXPECT_EQ(block.body_bytes, placed.at(block.place));
      EXPECT_EQ(restart.slots.SlotBytes(block.place),
                SlotSize::For(record::RecordBytes(block.body_bytes, 4096), 4096).bytes);
    }
    EXPECT_EQ(restart.slots.counts().chunks, 4u);
  }
}

TEST_F(RecoveryTest, ACallIsBounded) {
  for (std::uint32_t i = 0; i < 500; ++i)
    ASSERT_TRUE(node_.Put(arena::TestKey(i), {}, arena::BodyOf(6000, i % 3), i));
  Slots slots(words_, node_.arena);
  Recovery recovery(words_, slots);
  RecoveredBlock some[4];
  std::size_t found = 0, calls = 0;
  for (; !recovery.done(); ++calls) found += recovery.Next(some);
  EXPECT_EQ(found, 500u);
  EXPECT_GE(calls, (arena::kHeaderSpanBytes / node_.slot_bytes - 500) / 64) << "64 slots a call";
}

// Whoever asks hands in the same blocks again, with the last call's in them.
TEST_F(RecoveryTest, R11ABlockIsWhatItsOwnEntrySays) {
  ASSERT_TRUE(node_.Put(arena::TestKey(1), arena::TestKey(9), arena::BodyOf(6000, 1), 0));
  ASSERT_TRUE(node_.Put(arena::TestKey(2), BlockKey(), arena::BodyOf(6000, 2), 1));
  Restart restart(words_, node_.arena, 1);
  ASSERT_EQ(restart.blocks.size(), 2u);
  EXPECT_EQ(restart.blocks[0].parent, arena::TestKey(9));
  EXPECT_TRUE(restart.blocks[1].parent.none()) << "a root";
}

}  // namespace
}  // namespace cistern::memory
