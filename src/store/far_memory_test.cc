// SPDX-License-Identifier: Apache-2.0
// Blocks of an arena of which half is far: on a memory node without processors.
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "base/format.h"
#include "base/step_budget.h"
#include "store/block_store_fixture.h"

namespace cistern::store {
namespace {

constexpr std::size_t kBytes = 1'000'000;
constexpr memory::NodeIndex kNear = 0, kFar = 1;

class FarMemoryTest : public BlockStoreTest {
 protected:
  void SetUp() override {
    Make({.headers = 8, .nodes = 2, .far_nodes = 1});
    ASSERT_EQ(t->slots->bytes(kNear), t->slots->bytes(kFar));
  }

  // Blocks without parents, from one number up to another.
  void PutAll(std::uint64_t from, std::uint64_t to) {
    for (std::uint64_t n = from; n < to; ++n) ASSERT_EQ(Put(n, std::nullopt, kBytes), State::kPublished) << n;
  }
  // Without a use or a lease; none: it is not in memory.
  std::optional<arena::Place> PlaceOf(std::uint64_t n) {
    arena::Reader<arena::RealWords> reader(t->words, t->arena, t->index);
    const auto found = reader.Find(reader.Begin(ns.slot, t->clock.Wall().seconds), 0, Key(n));
    return found ? std::optional(found->place) : std::nullopt;
  }
  // kAnyNode: it is not in memory.
  memory::NodeIndex NodeOf(std::uint64_t n) {
    const std::optional<arena::Place> place = PlaceOf(n);
    return place ? t->slots->NodeOf(*place) : memory::kAnyNode;
  }
  void Touch(std::uint64_t n) {
    const BlockKey key = Key(n);
    EXPECT_EQ(t->Run(t->store->Touch(ns.slot, std::span(&key, 1))), 1u);
  }
  void Settle() {
    t->Settle();
    t->Settle();
  }
  // Ticks as far as movers, which wait to be told, let it.
  void TickPaused() {
    t->movers->paused = true;
    t->Tick();
    t->loop->RunUntilIdle();
  }
  void LetMove() {
    t->movers->paused = false;
    while (!t->movers->waiting.empty()) t->movers->MoveOne(0);
    Settle();
  }
  void KillAndAttach() {
    t->loop->Crash();
    t->NoteCrash();
    t->movers->Abandon();
    t->Restart();
    ASSERT_TRUE(t->recovered.ok()) << t->recovered.ToString();
    Attach(OneGroup());
  }
  // How many fit on a node.
  std::uint64_t Fit() const { return memory::Slots::Capacity({4096, 4}, record::RecordBytes(kBytes, 4096)); }
  const catalog::StoreCounters& Counted() const { return t->store->counters(); }
};

TEST_F(FarMemoryTest, WhatIsPutLiesNearAndTheColdestMovesFarInsteadOfLeaving) {
  const std::uint64_t fit = Fit();
  for (std::uint64_t n = 0; n < 2 * fit; ++n) {
    ASSERT_EQ(Put(n, std::nullopt, kBytes), State::kPublished);
    ASSERT_EQ(NodeOf(n), kNear) << n;
    ASSERT_EQ(Counted().moved_far.value(), n < fit ? 0 : n + 1 - fit);
  }
  EXPECT_EQ(Counted().evicted.value(), 0u);
  for (std::uint64_t n = 0; n < 2 * fit; ++n) {
    EXPECT_EQ(NodeOf(n), n < fit ? kFar : kNear) << n;
    EXPECT_TRUE(Exact(n, kBytes)) << n;
  }
}

TEST_F(FarMemoryTest, WhereBothAreFullTheColdestOfAllLeaves) {
  const std::uint64_t fit = Fit();
  PutAll(0, 3 * fit);
  EXPECT_EQ(Counted().evicted.value(), fit);
  for (std::uint64_t n = 0; n < 3 * fit; ++n) {
    EXPECT_EQ(NodeOf(n), n < fit ? memory::kAnyNode : n < 2 * fit ? kFar : kNear) << n;
    EXPECT_EQ(Exact(n, kBytes), n >= fit) << n;
  }
}

TEST_F(FarMemoryTest, AParentMovesFarBeforeItsChildThoughItMayNotLeave) {
  const std::uint64_t fit = Fit();
  PutChain(0, fit - 1, kBytes);
  PutAll(fit, 2 * fit);
  for (std::uint64_t n = 0; n < fit; ++n) EXPECT_EQ(NodeOf(n), kFar) << n;
  EXPECT_EQ(Match(0, fit - 1), fit);
  PutAll(2 * fit, 2 * fit + 3);
  EXPECT_EQ(Match(0, fit - 1), fit - 3) << "the leaf leaves first";
}

TEST_F(FarMemoryTest, WhatIsUsedFarMovesNearAndWhatIsColdestThereTakesItsPlace) {
  const std::uint64_t fit = Fit();
  PutAll(0, 2 * fit - 1);  // one far slot is free
  Touch(3);
  Settle();
  EXPECT_EQ(NodeOf(3), kNear);
  EXPECT_EQ(NodeOf(fit - 1), kFar) << "the coldest near one";
  EXPECT_EQ(NodeOf(fit), kNear);
  EXPECT_EQ(Counted().moved_near.value(), 1u);
  EXPECT_EQ(Counted().evicted.value(), 0u);
  for (std::uint64_t n = 0; n < 2 * fit - 1; ++n) EXPECT_TRUE(Exact(n, kBytes)) << n;
  // What readers tell, too.
  const auto place = *PlaceOf(5);
  t->store->TouchPlace(place, static_cast<std::uint32_t>(t->Generation(place)) & arena::kGenerationLowMask);
  Settle();
  EXPECT_EQ(NodeOf(5), kNear);
}

TEST_F(FarMemoryTest, P4ALeasedBlockStaysWhereItIsAndMovesWhenItsLeaseEnds) {
  const std::uint64_t fit = Fit();
  PutAll(0, 2 * fit - 1);
  const AcquireGrant grant = Acquire({3}, Me());
  ASSERT_NE(grant.lease, 0u);
  Touch(3);
  Settle();
  EXPECT_EQ(NodeOf(3), kFar);
  EXPECT_EQ(t->Generation(grant.views[0].place), grant.views[0].generation);
  ASSERT_TRUE(t->store->Release(Me(), grant.lease).ok());
  Settle();
  EXPECT_EQ(NodeOf(3), kNear);
  EXPECT_TRUE(Exact(3, kBytes));
  // Nor does one that is leased near move far.
  const AcquireGrant near = Acquire({3}, Me());
  PutAll(3 * fit, 5 * fit);
  EXPECT_EQ(t->Generation(near.views[0].place), near.views[0].generation);
  EXPECT_TRUE(Exact(3, kBytes));
}

TEST_F(FarMemoryTest, P1AReaderFindsTheRecordInItsOldSlotOrTheNewOneWhileItMoves) {
  const std::uint64_t fit = Fit();
  PutAll(0, 2 * fit - 1);
  const arena::Place before = *PlaceOf(3);
  Touch(3);
  TickPaused();
  ASSERT_FALSE(t->movers->waiting.empty());
  while (!t->movers->waiting.empty()) {
    EXPECT_TRUE(Exact(3, kBytes));
    EXPECT_TRUE(Exact(fit - 1, kBytes));
    t->movers->MoveOne(0);
    EXPECT_TRUE(Exact(3, kBytes));
    t->loop->RunUntilIdle();
  }
  t->movers->paused = false;
  EXPECT_EQ(NodeOf(3), kNear);
  EXPECT_TRUE(Exact(3, kBytes));
  EXPECT_EQ(t->Generation(before) % 2, 1u) << "nobody reads the old slot";
}

TEST_F(FarMemoryTest, R10WhatIsDroppedWhileItMovesStaysGone) {
  const std::uint64_t fit = Fit();
  PutAll(0, 2 * fit - 1);
  Touch(3);
  TickPaused();
  ASSERT_FALSE(t->movers->waiting.empty());
  ASSERT_TRUE(Drop(3));
  ASSERT_TRUE(Drop(fit - 1));
  EXPECT_FALSE(Here(3));
  LetMove();
  EXPECT_FALSE(Here(3));
  EXPECT_FALSE(Here(fit - 1));
  EXPECT_EQ(t->slots->counts().used_slots, 2 * fit - 3);
  Restart();
  EXPECT_FALSE(Here(3));
  EXPECT_FALSE(Here(fit - 1));
}

TEST_F(FarMemoryTest, P7ARestartAndAKillAtAnyTimeFindEachBlockOnItsNode) {
  const std::uint64_t fit = Fit();
  PutAll(0, 2 * fit - 1);
  const auto expect_all = [&] {
    for (std::uint64_t n = 0; n < 2 * fit - 1; ++n) EXPECT_TRUE(Exact(n, kBytes)) << n;
    EXPECT_EQ(t->slots->counts().used_slots, 2 * fit - 1);
  };
  Restart();
  expect_all();
  EXPECT_EQ(NodeOf(0), kFar);
  EXPECT_EQ(NodeOf(fit), kNear);
  std::uint64_t kills = 0;
  for (std::size_t moves = 0;; ++moves, ++kills) {
    for (std::uint64_t n = 0; n < 8; ++n) Touch(n);
    TickPaused();
    for (std::size_t i = 0; i < moves && !t->movers->waiting.empty(); ++i) {
      t->movers->MoveOne(0);
      t->loop->RunUntilIdle();  // what moved is run before a crash may come
    }
    const bool over = t->movers->waiting.empty();
    KillAndAttach();
    expect_all();
    if (over) break;
  }
  EXPECT_GT(kills, 3u) << "they fell into moves";
}

// Sizes that press on each other, in both memories, with uses between: in four chunks each, many are emptied.
TEST_F(FarMemoryTest, R16SizesThatPressInMoveInSteps) {
  Random random(5);
  const std::size_t sizes[] = {20'000, 65'536, 300'000, 1'000'000, 2'000'000};
  std::vector<std::size_t> bytes_of;
  const auto any = [&](std::uint64_t below) { return random.Next() % below; };
  t->store->TakeLongestStep();
  for (std::uint64_t n = 0; n < 3'000; ++n) {
    bytes_of.push_back(sizes[(n / 500 + any(2)) % std::size(sizes)]);
    ASSERT_EQ(Put(n, std::nullopt, bytes_of.back()), State::kPublished) << n;
    ASSERT_EQ(NodeOf(n), kNear) << n;
    for (int i = 0; i < 3; ++i) {
      const std::uint64_t used = any(n + 1);
      if (Here(used)) Touch(used);
    }
    if (n % 16 == 0) t->Tick();
  }
  EXPECT_LE(t->store->TakeLongestStep(), kStepTouches);
  EXPECT_GT(Counted().moved_near.value(), 100u);
  EXPECT_GT(Counted().moved_far.value(), 1'000u);
  Settle();
  std::uint64_t near = 0, far = 0;
  for (std::uint64_t n = 0; n < bytes_of.size(); ++n) {
    const memory::NodeIndex node = NodeOf(n);
    near += node == kNear;
    far += node == kFar;
    EXPECT_EQ(Exact(n, bytes_of[n]), node != memory::kAnyNode) << n;
  }
  EXPECT_GT(near, 100u);
  EXPECT_GT(far, 0u);
  EXPECT_EQ(near + far, Occupied().records);
}

// Sizes, nodes and quotas in more combinations than the order has shelves for.
TEST_F(FarMemoryTest, WhatMovesWhereTheOrderHasNoShelfLeftStaysInNoQuota) {
  constexpr std::uint64_t kGroups = 15, kUnits = 100;
  std::vector<policy::Quota> quotas;
  for (std::uint64_t g = 0; g < kGroups; ++g)
    quotas.push_back({.pattern = Text("m", g), .memory_bytes = 1u << 30});
  TestStoreOptions options{.headers = 8, .nodes = 2, .far_nodes = 1};
  options.store.quotas = policy::QuotaTable(std::move(quotas));
  Make(options, OneGroup("m0"));
  std::vector<Attached> spaces;
  for (std::uint64_t g = 0; g < kGroups; ++g) {
    Attach(OneGroup(Text("m", g)));
    spaces.push_back(ns);
  }
  std::uint64_t n = 1'000;
  const auto put_and_drop = [&](std::size_t bytes) {
    for (const Attached& space : spaces) {
      ns = space;
      ASSERT_EQ(Put(++n, std::nullopt, bytes), State::kPublished);
      ASSERT_TRUE(Drop(n).has_value());
    }
  };
  put_and_drop(kBytes);
  for (std::uint64_t units = 1; units <= kUnits; ++units) put_and_drop(units * 4096);
  ns = spaces[3];
  PutAll(0, Fit() + 8);
  ASSERT_EQ(Counted().moved_far.value(), 8u);
  ASSERT_GT(t->store->used()[4], 0u);
  for (const Attached& space : spaces) ASSERT_TRUE(t->Run(t->store->DropNamespace(space.slot)).has_value());
  Settle();
  for (const std::uint64_t bytes : t->store->used()) EXPECT_EQ(bytes, 0u);
}

}  // namespace
}  // namespace cistern::store
