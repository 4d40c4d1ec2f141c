// SPDX-License-Identifier: Apache-2.0
#include "catalog/id_table.h"

#include <gtest/gtest.h>

#include <unordered_map>

#include "base/random.h"

namespace cistern::catalog {
namespace {

struct TagList {
  std::vector<std::uint64_t> key_hashes;
  std::uint64_t key_hash(std::uint32_t id) const { return key_hashes[id]; }
  void Prefetch(std::uint32_t id) const { __builtin_prefetch(&key_hashes[id]); }
};

std::uint32_t FindExactly(const IdTable& table, const TagList& list, std::uint64_t key_hash) {
  return table.Find(key_hash, [&](std::uint32_t id) { return list.key_hash(id) == key_hash; });
}

TEST(IdTableTest, FindsWhatIsInItAndNothingElse) {
  Random random(7);
  IdTable table(4000);
  TagList list;
  list.key_hashes.resize(6000);
  std::vector<bool> in(list.key_hashes.size());
  for (int step = 0; step < 200'000; ++step) {
    const auto id = static_cast<std::uint32_t>(random.Below(list.key_hashes.size()));
    if (in[id]) {
      EXPECT_EQ(FindExactly(table, list, list.key_hashes[id]), id);
      table.Remove(id, list.key_hashes[id], list);
      EXPECT_EQ(FindExactly(table, list, list.key_hashes[id]), kNoId);
    } else {
      list.key_hashes[id] = random.Next();
      EXPECT_EQ(FindExactly(table, list, list.key_hashes[id]), kNoId);
      table.Add(id, list.key_hashes[id], list);
    }
    in[id] = !in[id];
  }
  std::uint32_t size = 0;
  for (std::uint32_t id = 0; id < in.size(); ++id) {
    if (!in[id]) continue;
    ++size;
    EXPECT_EQ(FindExactly(table, list, list.key_hashes[id]), id);
  }
  EXPECT_EQ(table.size(), size);
}

// Few homes, so that what follows a hole is of its home, of one before it and of one behind it, and runs over
// the end of the subtable.
TEST(IdTableTest, ARemovedIdHidesNoneThatCameAfterIt) {
  Random random(11);
  for (int round = 0; round < 200; ++round) {
    IdTable table(1);
    TagList list;
    std::vector<std::uint32_t> in;
    for (std::uint32_t id = 0; id < 12; ++id) {
      list.key_hashes.push_back(random.Next() << 40 | (13 + random.Below(4)));
      table.Add(id, list.key_hashes[id], list);
      in.push_back(id);
    }
    while (!in.empty()) {
      const std::size_t at = random.Below(in.size());
      table.Remove(in[at], list.key_hashes[in[at]], list);
      in.erase(in.begin() + static_cast<std::ptrdiff_t>(at));
      for (const std::uint32_t id : in) ASSERT_EQ(FindExactly(table, list, list.key_hashes[id]), id);
    }
  }
}

TEST(IdTableTest, IdsOfOneHashAreToldApartByTheirOwner) {
  IdTable table(100);
  TagList list{.key_hashes = {5, 5, 5}};
  for (std::uint32_t id = 0; id < 3; ++id) table.Add(id, 5, list);
  for (std::uint32_t id = 0; id < 3; ++id) {
    EXPECT_EQ(table.Find(5, [&](std::uint32_t found) { return found == id; }), id);
  }
  table.Remove(1, 5, list);
  EXPECT_EQ(table.Find(5, [](std::uint32_t found) { return found == 1; }), kNoId);
  EXPECT_EQ(table.Find(5, [](std::uint32_t found) { return found == 2; }), 2u);
}

TEST(IdTableTest, P5EqualHashesThatAStrangerMadeCostRoomAndNothingElse) {
  IdTable table(1000);
  TagList list;
  list.key_hashes.assign(6'000, 77);
  for (std::uint32_t id = 0; id < list.key_hashes.size(); ++id) {
    list.key_hashes[id] |= std::uint64_t{id % 16} << 20;
    table.Add(id, list.key_hashes[id], list);
  }
  EXPECT_EQ(table.Find(77, [](std::uint32_t id) { return id == 16; }), 16u);
  for (std::uint32_t id = 0; id < 100; ++id) table.Remove(id, list.key_hashes[id], list);
  EXPECT_EQ(table.size(), 5'900u);
}

// All of one size of subtable leave it together, and nothing may stay behind: with the 52 bytes of its block
// an id takes less than 64 at any time.
TEST(IdTableTest, TakesTenBytesAnIdAtMostAndNoMoreWhileItGrows) {
  constexpr std::uint32_t kMost = 1'000'000;
  Random random(3);
  IdTable table(kMost);
  TagList list;
  list.key_hashes.resize(kMost);
  EXPECT_LT(table.bytes(), kMost / 10);
  double most = 0;
  for (std::uint32_t id = 0; id < kMost; ++id) {
    list.key_hashes[id] = random.Next();
    const std::uint64_t moved = table.moved();
    table.Add(id, list.key_hashes[id], list);
    ASSERT_LE(table.moved() - moved, 512u) << "a step of the core, at " << id;
    if (id > kMost / 10) most = std::max(most, static_cast<double>(table.bytes()) / id);
  }
  EXPECT_LT(most, 10.5);
  EXPECT_GT(most, 8);
  const double bytes = static_cast<double>(table.bytes()) / kMost;
  EXPECT_LT(bytes, 9);
  std::uint32_t wrong = 0;
  for (std::uint32_t id = 0; id < kMost; ++id) wrong += FindExactly(table, list, list.key_hashes[id]) != id;
  EXPECT_EQ(wrong, 0u);
  for (std::uint32_t id = 0; id < kMost; ++id) table.Remove(id, list.key_hashes[id], list);
  EXPECT_EQ(table.size(), 0u);
}

}  // namespace
}  // namespace cistern::catalog
