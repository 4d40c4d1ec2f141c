// SPDX-License-Identifier: Apache-2.0
// Memory that grows and shrinks under a store.
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <set>
#include <vector>

#include "arena/protocol.h"
#include "base/task_group.h"
#include "residency/resizer.h"
#include "store/block_store_fixture.h"

namespace cistern::store {
namespace {

constexpr std::size_t kBytes = 1'000'000;
constexpr std::uint32_t kHeaders = 4;

// The memory of a test's arena: what is given back reads as zeros, as a hole in a file does.
class TestBacking final : public memory::ArenaBacking {
 public:
  explicit TestBacking(arena::ArenaSpace arena) : arena_(arena) {}

  Status Reserve(std::uint32_t header) override {
    ++reserved;
    return header < most ? Status() : Status(Code::kBusy, "the host has no more");
  }
  void Improve(std::uint32_t header) override { improved.push_back(header); }
  void Release(const memory::HeaderRange& range) override {
    ++released;
    const arena::Geometry& geometry = arena_.geometry();
    for (std::uint32_t header = range.first; header < range.first + range.count; ++header) {
      std::memset(arena_.slot(geometry.place(header * arena::kHeaderSpanBytes)), 0, arena::kHeaderSpanBytes);
      std::memset(static_cast<void*>(arena_.header(header)->directory), 0,
                  sizeof(arena::ChunkHeader::directory));
    }
  }

  std::uint32_t most = kHeaders;
  int reserved = 0, released = 0;
  std::vector<std::uint32_t> improved;

 private:
  arena::ArenaSpace arena_;
};

class ResizeTest : public BlockStoreTest {
 protected:
  void SetUp() override { Start({.headers = kHeaders}); }

  void Start(const TestStoreOptions& options) {
    Make(options);
    backing.emplace(t->arena);
    Begin();
  }
  // A TestStore has no tasks of its own; the loop runs this one whenever it runs.
  void Begin() {
    running.emplace(t->loop->executor());
    running->Spawn(t->store->resizer().Run(*backing, *t->movers));
  }
  void End() {
    t->store->resizer().Stop();
    t->Run(running->Close());
    running.reset();
  }
  void TearDown() override {
    if (running) End();
  }
  std::uint32_t Headers() { return t->slots->headers(); }
  std::uint32_t Served() { return t->store->resizer().served(); }
  // Time goes by until memory has the size that is wanted, or for some seconds.
  void Wait() {
    const std::uint32_t wanted = t->store->resizer().wanted();
    for (int i = 0; i < 1000 && (Headers() != wanted || Served() != wanted); ++i) Step();
    const int released = backing->released;
    for (int i = 0; i < 300 && backing->released == released && wanted < kHeaders; ++i) Step();
  }
  static constexpr std::int64_t kStepUs = 10'000;
  void Step() {
    Executor& executor = t->loop->executor();
    t->Advance(kStepUs);
    executor.FireTimers();
    while (executor.has_ready()) executor.RunReady(64);
  }
  void Resize(std::uint32_t headers) {
    t->store->resizer().Want(headers);
    Wait();
    EXPECT_EQ(Headers(), headers);
    EXPECT_EQ(Served(), headers);
  }
  // One piece of work, of the core's or a mover's; time goes by where there is none.
  void Turn() {
    Executor& executor = t->loop->executor();
    if (!t->movers->waiting.empty()) {
      t->movers->MoveOne(0);
      while (executor.has_ready()) executor.RunReady(1);  // what moved is run before a crash may come
    } else if (executor.has_ready()) {
      executor.RunReady(1);
    } else {
      t->clock.AdvanceUs(10'000);
      executor.FireTimers();
    }
  }
  void Kill() {
    t->loop->Crash();
    t->NoteCrash();
    t->movers->Abandon();
    running->Drop();
    running.reset();
    Restart();
    Begin();
  }
  // Single blocks, as many as memory holds.
  std::uint64_t Fill() {
    const std::uint64_t blocks =
        memory::Slots::Capacity({4096, Headers()}, record::RecordBytes(kBytes, 4096));
    for (std::uint64_t n = 0; n < blocks; ++n) EXPECT_EQ(Put(n, std::nullopt, kBytes), State::kPublished);
    return blocks;
  }
  // Pending until somebody publishes it.
  PartWrite Held(std::uint64_t n) {
    PartWrite part = Part(n, std::nullopt, kBytes);
    part.held = true;
    return part;
  }
  // It waits until movers that were paused have brought more memory.
  PartOutcome EndWithMoreMemory(Task<std::vector<PartOutcome>> write) {
    for (int i = 0; i < 3; ++i) Step();
    EXPECT_FALSE(write.done());
    t->movers->paused = false;
    while (!t->movers->waiting.empty()) t->movers->MoveOne(0);
    while (!write.done()) Step();
    return write.Take()[0];
  }
  std::vector<std::uint64_t> There(std::uint64_t blocks) {
    std::vector<std::uint64_t> there;
    for (std::uint64_t n = 0; n < blocks; ++n) {
      if (!Here(n)) continue;
      EXPECT_TRUE(Exact(n, kBytes)) << n;
      there.push_back(n);
    }
    return there;
  }

  // Of a block that is held no longer.
  ViewGrant View(std::uint64_t n) {
    const AcquireGrant grant = Acquire({n}, Me());
    EXPECT_EQ(grant.views[0].code, Code::kOk) << n;
    EXPECT_TRUE(t->store->Release(Me(), grant.lease).ok());
    t->Tick();
    return grant.views[0];
  }

  std::optional<TestBacking> backing;
  std::optional<TaskGroup> running;
};

TEST_F(ResizeTest, HalvedMemoryKeepsTheWarmestBlocksThatFitAndEvictsNoMore) {
  const std::uint64_t blocks = Fill();
  const std::uint64_t fit = memory::Slots::Capacity({4096, 2}, record::RecordBytes(kBytes, 4096));
  Resize(2);
  const std::vector<std::uint64_t> there = There(blocks);
  ASSERT_EQ(there.size(), fit);
  EXPECT_EQ(there.front(), blocks - fit) << "the coldest left";
  EXPECT_EQ(t->store->counters().evicted.value(), blocks - fit);
  EXPECT_EQ(backing->released, 1);
  // And what remains is in order.
  EXPECT_EQ(Put(blocks, std::nullopt, kBytes), State::kPublished);
  EXPECT_FALSE(Here(blocks - fit));
  EXPECT_TRUE(Here(blocks - fit + 1));
}

TEST_F(ResizeTest, WhatIsThereStaysWhenMemoryThatWasNotFullShrinks) {
  PutChain(0, 59, kBytes);  // two of the four
  Resize(2);
  EXPECT_EQ(There(60).size(), 60u);
  EXPECT_EQ(Match(0, 59), 60u);
}

TEST_F(ResizeTest, GrownMemoryTakesMoreAndLosesNothing) {
  Resize(2);
  const std::uint64_t blocks = Fill();
  Resize(4);
  for (int i = 0; i < 5; ++i) Step();
  EXPECT_EQ(backing->improved, (std::vector<std::uint32_t>{2, 3})) << "what came, once it served";
  EXPECT_EQ(There(blocks).size(), blocks);
  const std::uint64_t fit = memory::Slots::Capacity({4096, 4}, record::RecordBytes(kBytes, 4096));
  for (std::uint64_t n = blocks; n < fit; ++n) ASSERT_EQ(Put(n, std::nullopt, kBytes), State::kPublished);
  EXPECT_EQ(There(fit).size(), fit);
  EXPECT_EQ(t->store->counters().evicted.value(), 0u);
}

TEST_F(ResizeTest, P4ALeasedBlockStaysWhereItIsUntilItsLeaseEnds) {
  const std::uint64_t blocks = Fill();
  std::vector<std::uint64_t> all(blocks);
  for (std::uint64_t n = 0; n < blocks; ++n) all[n] = n;
  const AcquireGrant grant = Acquire({all.back(), all.front()}, Me());
  ASSERT_NE(grant.lease, 0u);
  t->store->resizer().Want(1);
  for (int i = 0; i < 50; ++i) {
    Step();
    for (const ViewGrant& view : grant.views)
      ASSERT_EQ(t->Generation(view.place), view.generation) << "moved, or gone, under a lease";
  }
  EXPECT_EQ(backing->released, 0) << "memory that a lease keeps";
  ASSERT_TRUE(t->store->Release(Me(), grant.lease).ok());
  Wait();
  EXPECT_EQ(Headers(), 1u);
  EXPECT_EQ(Served(), 1u);
  EXPECT_EQ(backing->released, 1);
  EXPECT_TRUE(Exact(all.back(), kBytes));
}

TEST_F(ResizeTest, ALargerSizeThatIsAskedForMeanwhileEndsTheShrinking) {
  const std::uint64_t blocks = Fill();
  const AcquireGrant grant = Acquire({blocks - 1}, Me());
  t->store->resizer().Want(1);
  Step();
  const std::size_t left = There(blocks).size();
  Resize(4);
  EXPECT_EQ(There(blocks).size(), left);
  EXPECT_EQ(backing->reserved, 0) << "what was not given back yet is there";
  EXPECT_TRUE(Exact(blocks - 1, kBytes));
}

TEST_F(ResizeTest, MemoryThatTheHostHasNoMoreOfIsWhatThereIsUntilTheHostHas) {
  Resize(1);
  backing->most = 3;
  t->store->resizer().Want(4);
  for (int i = 0; i < 100; ++i) Step();
  EXPECT_EQ(Headers(), 3u);
  EXPECT_TRUE(t->store->resizer().out_of_memory());
  EXPECT_EQ(t->store->resizer().wanted(), 4u);
  EXPECT_EQ(Fill(), memory::Slots::Capacity({4096, 3}, record::RecordBytes(kBytes, 4096)));
  backing->most = 4;
  const std::int64_t steps = residency::Resizer::kLookUs / kStepUs;
  for (int i = 0; i <= steps; ++i) Step();
  EXPECT_EQ(Headers(), 4u);
  EXPECT_FALSE(t->store->resizer().out_of_memory());
}

// A node that begins takes its memory while it serves: what an engine saves meanwhile is more than half of
// what is there.
TEST_F(ResizeTest, PendingPutsMayHaveHalfOfTheMemoryThatIsOnItsWay) {
  Resize(1);
  const std::uint64_t fit = memory::Slots::Capacity({4096, 1}, record::RecordBytes(kBytes, 4096));
  t->movers->paused = true;
  t->store->resizer().Want(4);
  Step();
  ASSERT_EQ(t->movers->waiting.size(), 1u) << "the next header's memory is taken";
  for (std::uint64_t n = 0; n < fit; ++n) {
    auto write = t->store->Write(Me(), ns.slot, {Held(n)}, Soon());
    while (!write.done()) {
      while (t->movers->waiting.size() > 1) t->movers->MoveOne(1);
      Step();
    }
    const PartOutcome outcome = write.Take()[0];
    ASSERT_EQ(outcome.state, State::kPending) << n << ": " << outcome.status.ToString();
  }
  // The next one waits for what comes.
  auto write = t->store->Write(Me(), ns.slot, {Held(fit)}, Soon());
  EXPECT_EQ(EndWithMoreMemory(std::move(write)).state, State::kPending);
}

TEST_F(ResizeTest, PendingPutsMayHaveHalfOfWhatThereIsWhereTheHostHasNoMore) {
  Resize(1);
  backing->most = 1;
  t->store->resizer().Want(4);
  for (int i = 0; i < 5; ++i) Step();
  ASSERT_TRUE(t->store->resizer().out_of_memory());
  const std::uint64_t fit = memory::Slots::Capacity({4096, 1}, record::RecordBytes(kBytes, 4096));
  std::uint64_t pending = 0;
  while (pending < fit && WriteOne(Held(pending)).state == State::kPending) ++pending;
  EXPECT_GT(pending, 0u);
  EXPECT_LE(pending, fit / 2);
}

// Of a chunk of two headers.
class LargeBlock : public ResizeTest {
 protected:
  static constexpr std::size_t kLarge = 4u << 20;
  void SetUp() override {
    ResizeTest::SetUp();
    Resize(1);
    blocks = Fill();
  }
  Task<std::vector<PartOutcome>> WriteLarge(Instant deadline) {
    return t->store->Write(Me(), ns.slot, {Part(blocks, std::nullopt, kLarge)}, deadline);
  }
  void ExpectNothingLeft() {
    EXPECT_EQ(There(blocks).size(), blocks);
    EXPECT_EQ(t->store->counters().evicted.value(), 0u);
  }
  std::uint64_t blocks = 0;
};

TEST_F(LargeBlock, WaitsForTheMemoryThatGrowsAndNothingLeavesForIt) {
  EXPECT_EQ(WriteOne(Part(blocks, std::nullopt, kLarge)).status.code(), Code::kInvalid)
      << "memory is not on its way to have room for it";
  t->movers->paused = true;
  t->store->resizer().Want(4);
  auto late = WriteLarge(Soon());
  while (!late.done()) Step();
  EXPECT_EQ(late.Take()[0].status.code(), Code::kTooLate);
  ExpectNothingLeft();
  EXPECT_EQ(EndWithMoreMemory(WriteLarge(Soon())).state, State::kPublished);
  EXPECT_TRUE(Exact(blocks, kLarge));
  ExpectNothingLeft();
}

TEST_F(LargeBlock, IsBusyAtOnceWhereTheHostHasNoMoreAndNothingLeavesForIt) {
  backing->most = 1;
  t->store->resizer().Want(4);
  for (int i = 0; i < 5; ++i) Step();
  EXPECT_EQ(WriteOne(Part(blocks, std::nullopt, kLarge)).status.code(), Code::kBusy);
  ExpectNothingLeft();
}

TEST_F(ResizeTest, P5AReservationThatStandsKeepsNoPutOut) {
  Resize(1);
  const std::uint64_t blocks = Fill();
  t->movers->paused = true;
  t->store->resizer().Want(4);
  Step();
  ASSERT_EQ(t->movers->waiting.size(), 1u) << "the reservation";
  auto put = t->store->Write(Me(), ns.slot, {Part(blocks, std::nullopt, kBytes)}, Soon());
  while (!put.done()) {
    Step();
    while (t->movers->waiting.size() > 1) t->movers->MoveOne(1);
  }
  t->movers->paused = false;
  t->movers->MoveOne(0);
  EXPECT_EQ(put.Take()[0].state, State::kPublished);
  EXPECT_GT(t->store->counters().evicted.value(), 0u);
}

// Of an arena that is divided among two memory nodes, of which the second loses half of its memory.
TEST_F(ResizeTest, WhatMovesToAnotherNodeLeavesForBlocksOfThatNode) {
  End();
  Start({.headers = 8, .nodes = 2});
  const std::uint64_t node = memory::Slots::Capacity({4096, 4}, record::RecordBytes(kBytes, 4096));
  const auto put = [&](std::uint64_t n, std::uint8_t from) {
    catalog::Caller caller = Me();
    caller.memory_node = from;
    ASSERT_EQ(Write({Part(n, std::nullopt, kBytes)}, caller)[0].state, State::kPublished) << n;
  };
  for (std::uint64_t n = 0; n < node; ++n) put(n, 1);
  Resize(6);
  EXPECT_EQ(There(node).size(), node);
  EXPECT_EQ(t->slots->used_bytes(0), t->slots->used_bytes(1)) << "half of it moved to the first";
  for (std::uint64_t n = node; n < node + node / 2; ++n) put(n, 0);
  put(2 * node, 0);
  // Its coldest is one that moved there, and not the first that was put there.
  EXPECT_TRUE(Here(node));
  EXPECT_EQ(There(node).size(), node - 1);
}

TEST_F(ResizeTest, ABlockThatSomebodyWritesHasToFitTheSmallerMemory) {
  Attach(TwoParts());
  EXPECT_TRUE(t->Run(t->store->namespaces().CheckHeaders(1)).ok());
  NamespaceSpec large = OneGroup("large");
  large.groups[0].part_bytes = {2u << 20};
  auto attached = t->Run(t->store->Attach(large, Me(3)));
  ASSERT_TRUE(attached.has_value()) << attached.error().ToString();
  const Status refused = t->Run(t->store->namespaces().CheckHeaders(1));
  EXPECT_EQ(refused.code(), Code::kInvalid);
  EXPECT_NE(refused.message().find("large"), std::string::npos) << refused.message();
  EXPECT_TRUE(t->Run(t->store->namespaces().CheckHeaders(2)).ok());
  t->store->namespaces().OwnerEnded(Me(3).owner);
  EXPECT_TRUE(t->Run(t->store->namespaces().CheckHeaders(1)).ok()) << "nobody writes them any more";
}

TEST_F(ResizeTest, P5ABlockThatSmallerMemoryHasNoSlotForLeavesAndTakesAlongWhatDescendsFromIt) {
  constexpr std::size_t kLarge = 4u << 20;
  ASSERT_EQ(Put(100, std::nullopt, kLarge), State::kPublished);
  for (const std::uint64_t child : {101, 102}) ASSERT_EQ(Put(child, 100, kBytes), State::kPublished);
  for (std::uint64_t n = 0; n < 8; ++n) ASSERT_EQ(Put(n, std::nullopt, kBytes), State::kPublished);
  Resize(1);
  EXPECT_FALSE(Here(100) || Here(101) || Here(102));
  EXPECT_EQ(There(8).size(), 8u);
  EXPECT_EQ(t->store->counters().evicted.value(), 3u);
}

// Of three headers full of single blocks; the slots of the third are then others' that are pending.
class FilledSlot : public ResizeTest {
 protected:
  void SetUp() override {
    ResizeTest::SetUp();
    each = memory::Slots::Capacity({4096, 1}, record::RecordBytes(kBytes, 4096));
    for (std::uint64_t n = 0; n < 3 * each; ++n) ASSERT_EQ(Put(n, {}, kBytes), State::kPublished);
    third = View(2 * each).place;
    ASSERT_GE(third, Boundary());
  }
  arena::Place Boundary() const { return t->geometry.place(2 * arena::kHeaderSpanBytes); }
  void DropFrom(std::uint64_t first) {
    for (std::uint64_t n = first; n < first + each; ++n) ASSERT_TRUE(Drop(n).has_value());
  }
  // The third header goes: of a header's worth of blocks in the first two none moves or leaves.
  void ExpectNothingGoesWithIt(std::uint64_t first) {
    for (std::uint64_t n = 1'000; n < 1'000 + each; ++n) ASSERT_EQ(WriteOne(Held(n)).state, State::kPending);
    ASSERT_TRUE(t->slots->used(third));
    std::vector<ViewGrant> views;
    for (std::uint64_t n = first; n < first + each; ++n) {
      views.push_back(View(n));
      ASSERT_LT(views.back().place, Boundary());
    }
    t->store->resizer().Want(2);
    for (int i = 0; i < 50; ++i) Step();
    for (const ViewGrant& view : views) EXPECT_EQ(t->Generation(view.place), view.generation);
    EXPECT_EQ(t->store->counters().evicted.value(), 0u);
  }

  std::uint64_t each = 0;  // blocks of a header
  arena::Place third = 0;
};

TEST_F(FilledSlot, P5IsNotTakenForTheRecordThatMovedOutOfIt) {
  DropFrom(0);
  Resize(2);
  Resize(kHeaders);
  ExpectNothingGoesWithIt(2 * each);
}

// Its number is another record's by then.
TEST_F(FilledSlot, P5IsNotTakenForTheRecordThatLeftIt) {
  DropFrom(0);
  DropFrom(2 * each);
  for (std::uint64_t n = 3 * each; n < 4 * each; ++n) ASSERT_EQ(Put(n, {}, kBytes), State::kPublished);
  ExpectNothingGoesWithIt(3 * each);
}

TEST_F(FilledSlot, P5WhatMovedOnceMovesAgain) {
  DropFrom(each);
  Resize(2);
  DropFrom(0);
  Resize(1);
  for (std::uint64_t n = 2 * each; n < 3 * each; ++n) EXPECT_TRUE(Exact(n, kBytes)) << n;
  EXPECT_EQ(t->store->counters().evicted.value(), 0u);
}

// In buckets of the index that have free places before theirs.
TEST_F(ResizeTest, R9WhatMovedLeavesTheIndexWithItsOwnEntryAlone) {
  constexpr std::uint64_t kSmall = 4096, kAll = 14'000;
  std::vector<BlockKey> some, rest;
  for (std::uint64_t n = 0; n < kAll; ++n) {
    ASSERT_EQ(Put(n, {}, kSmall), State::kPublished);
    (n % 8 < 7 ? some : rest).push_back(Key(n));
  }
  ASSERT_EQ(t->store->counters().evicted.value(), 0u);
  ASSERT_TRUE(t->Run(t->store->Drop(ns.slot, some)).has_value());
  t->Tick();
  ASSERT_GE(View(kAll - 1).place, t->geometry.place(arena::kHeaderSpanBytes)) << "it moves";
  Resize(1);
  const auto entries = [&] {
    std::uint64_t count = 0;
    for (std::uint64_t i = 0; i < t->index.entry_count(); ++i)
      count += t->index.entry(i)->fingerprint[0] != 0;
    return count;
  };
  EXPECT_EQ(entries(), rest.size());
  std::vector<BlockKey> half(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(rest.size() / 2));
  ASSERT_TRUE(t->Run(t->store->Drop(ns.slot, half)).has_value());
  t->Tick();
  EXPECT_EQ(entries(), rest.size() - half.size());
  for (std::uint64_t n = 7; n < kAll; n += 8) EXPECT_EQ(Here(n), n / 8 >= half.size()) << n;
}

// Of a node that is killed at any time while memory shrinks, then grows.
TEST_F(ResizeTest, P7AKillAtAnyTimeLeavesOneSizeAndEveryBlockOfIt) {
  std::uint64_t blocks = Fill();
  std::set<std::uint32_t> sizes;
  for (int turns = 0; turns < 120; turns += 5) {
    SCOPED_TRACE(turns);
    t->store->resizer().Want(t->slots->headers() > 1 ? 1 : kHeaders);
    t->movers->paused = true;
    for (int i = 0; i < turns; ++i) Turn();
    const std::vector<std::uint64_t> before = There(blocks);
    Kill();
    sizes.insert(Served());
    EXPECT_EQ(Headers(), Served());
    ASSERT_EQ(There(blocks), before);
    for (int i = 0; i < 8; ++i, ++blocks) ASSERT_EQ(Put(blocks, std::nullopt, kBytes), State::kPublished);
  }
  EXPECT_GT(sizes.size(), 1u);
}

}  // namespace
}  // namespace cistern::store
