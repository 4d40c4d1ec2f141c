// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "store/test_store.h"

namespace cistern {
namespace {

NamespaceSpec OneGroup() {
  return {.name = "recover",
          .fields = {{"model", "m"}},
          .groups = {{.name = "kv", .reach = Reach::kFull, .window_tokens = 0, .part_bytes = {}}}};
}

BlockKey Key(std::uint8_t n) {
  BlockKey key;
  key.length = 16;
  key.bytes.fill(0);
  key.bytes[0] = n;
  return key;
}

bool Put(TestStore& t, std::uint32_t slot, std::uint8_t n, std::span<const std::byte> body) {
  PartWrite part;
  part.key = Key(n);
  part.put_id = {1, n};
  part.from = body;
  auto outcomes = t.Run(t.store->Write({}, slot, {part}, t.clock.Now().PlusUs(1'000'000)));
  return outcomes[0].state == PartOutcome::State::kPublished;
}

// A head that was emptied is looked over unit by unit, more than one call of the recovery looks at, and what
// lies in the heads behind it comes back all the same.
TEST(RecoverTest, P7WhatLiesBehindAnEmptiedHeadComesBack) {
  TestStore t;
  const std::uint32_t slot = t.Run(t.store->Attach(OneGroup()))->slot;
  const std::vector<std::byte> small(4096, std::byte{1}), large(100'000, std::byte{2});
  ASSERT_TRUE(Put(t, slot, 1, small));
  ASSERT_TRUE(Put(t, slot, 2, large));
  const BlockKey first = Key(1);
  ASSERT_TRUE(t.Run(t.store->Drop(slot, std::span(&first, 1))).has_value());
  t.Kill();
  EXPECT_FALSE(t.Read(slot, Key(1)).has_value());
  EXPECT_EQ(t.Read(slot, Key(2)), large);
}

// A chunk of which nothing was kept is free for any size after a restart.
TEST(RecoverTest, R14AChunkWithoutARecordIsTakenApartAtARestart) {
  TestStore t;
  const std::uint32_t slot = t.Run(t.store->Attach(OneGroup()))->slot;
  const std::vector<std::byte> small(4096, std::byte{1});
  ASSERT_TRUE(Put(t, slot, 1, small));
  const std::uint64_t free_heads = t.slots->counts().free_heads;
  std::uint64_t* words = &t.arena.directory(0)->born;
  *words ^= 1;  // not believed any more
  t.Kill();
  EXPECT_FALSE(t.Read(slot, Key(1)).has_value());
  EXPECT_EQ(t.slots->counts().free_heads, free_heads + 1);
}

}  // namespace
}  // namespace cistern
