// SPDX-License-Identifier: Apache-2.0
// The protocol between threads of one process on relaxed words, so that the thread sanitizer can follow it:
// one writer that publishes, retires and re-carves all the time, and readers that must get exact bytes or a
// miss. What a block holds follows from its key.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "arena/reader.h"
#include "arena/relaxed_words.h"
#include "arena/test_arena.h"

namespace cistern::arena {
namespace {

constexpr std::uint64_t kKeys = 12, kBodyBytes = 3000, kSlots = 6;

// Every 16th byte is the key, the others count up from one that the put chose.
std::vector<std::byte> BodyOfPut(std::uint64_t key, std::uint64_t put) {
  std::vector<std::byte> body(kBodyBytes);
  for (std::size_t i = 0; i < body.size(); ++i) body[i] = static_cast<std::byte>(i % 16 == 0 ? key : put + i);
  return body;
}

bool IsOnePutOf(std::uint64_t key, const std::vector<std::byte>& got) {
  return got == BodyOfPut(key, static_cast<std::uint64_t>(got[1]) - 1);
}

TEST(ArenaThreadsTest, P1ReadersBesideAWriterGetExactBytesOrAMiss) {
  RelaxedWords words;
  const std::uint64_t sizes[] = {8192, 12288, 16384};
  TestArena<RelaxedWords> node(words, sizes[0]);
  std::vector<BlockKey> keys;
  for (std::uint64_t i = 0; i < kKeys; ++i) keys.push_back(TestKey(i));
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> hits{0}, wrong{0}, bad{0};

  std::vector<std::thread> readers;
  for (int t = 0; t < 2; ++t) {
    readers.emplace_back([&, t] {
      Reader<RelaxedWords> reader(words, node.arena, node.index);
      auto record = std::make_unique<OpenRecord>();
      std::vector<std::byte> got(kBodyBytes);
      for (std::uint64_t i = static_cast<std::uint64_t>(t); !stop.load(std::memory_order_relaxed); ++i) {
        std::span<std::byte> pieces[] = {got};
        RangeCopy ranges[] = {{{0, 0, kBodyBytes}, pieces}};
        ReadCall call = reader.Begin(0, 0);
        reader.Run(call, 0, keys);
        ReadOutcome outcome = reader.Read(call, {keys[i % kKeys]}, nullptr, ranges, *record);
        if (outcome == ReadOutcome::kBad) bad.fetch_add(1, std::memory_order_relaxed);
        if (outcome != ReadOutcome::kHit) continue;
        hits.fetch_add(1, std::memory_order_relaxed);
        if (!IsOnePutOf(i % kKeys, got)) wrong.fetch_add(1, std::memory_order_relaxed);
      }
    });
  }

  std::mt19937 random(1);
  struct Resident {
    bool there = false;
    std::uint64_t key = 0;
  } slots[kSlots];
  for (std::uint64_t put = 0; put < 3'000 || (hits.load(std::memory_order_relaxed) < 1'000 && put < 200'000);
       ++put) {
    std::uint32_t slot = random() % kSlots;
    if (slots[slot].there) {
      node.Remove(keys[slots[slot].key], slot);
      slots[slot].there = false;
    }
    if (put % 64 == 63) {
      for (std::uint32_t i = 0; i < kSlots; ++i) {
        if (slots[i].there) node.Remove(keys[slots[i].key], i);
        slots[i].there = false;
      }
      node.slot_bytes = sizes[random() % 3];
      Carve(words, node.arena, 0, 1, node.slot_bytes);
    }
    std::uint64_t key = random() % kKeys;
    bool resident = false;
    for (const Resident& other : slots) resident = resident || (other.there && other.key == key);
    if (resident) continue;
    EXPECT_TRUE(node.Put(keys[key], {}, BodyOfPut(key, put), slot));
    slots[slot] = {true, key};
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong.load(), 0u);
  EXPECT_EQ(bad.load(), 0u);
  EXPECT_GT(hits.load(), 0u);
}

}  // namespace
}  // namespace cistern::arena
