// SPDX-License-Identifier: Apache-2.0
// What only the simulated body does: replay, faults and crashes.
#include "io/simulated_loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/format.h"
#include "base/task_group.h"

namespace cistern::io {
namespace {

constexpr std::uint64_t kSector = 512;

struct World {
  explicit World(std::uint64_t seed_in) : seed(seed_in), disk(seed_in) { Start(); }
  void Start() { loop = std::move(*SimulatedLoop::Make(clock, disk, seed)); }
  File Open(const char* path) { return std::move(*loop->Open(path, OpenMode::kCreate)); }

  std::uint64_t seed;
  SimulatedClock clock;
  SimulatedDisk disk;
  std::unique_ptr<SimulatedLoop> loop;
};

std::vector<std::byte> Filled(std::size_t size, char with) {
  return std::vector<std::byte>(size, static_cast<std::byte>(with));
}

Task<> WriteNoted(File& file, std::uint64_t at, std::string& trace) {
  std::vector<std::byte> bytes = Filled(kSector, 'x');
  Status status = co_await file.WriteAll(bytes, at * kSector);
  trace += Text(at, status.ok() ? "+ " : "- ");
}

std::string TraceOf(std::uint64_t seed) {
  World world(seed);
  Random random(seed);
  world.disk.set_faults([&](const IoRequest&, const std::string&) {
    if (random.Chance(0.2)) return Fault{FaultKind::kIoError};
    if (random.Chance(0.2)) return Fault{FaultKind::kShort, 100};
    if (random.Chance(0.2)) return Fault{FaultKind::kDelay, 1000};
    return Fault{};
  });
  std::string trace;
  File file = world.Open("/disk/file");
  TaskGroup group(world.loop->executor());
  for (std::uint64_t i = 0; i < 50; ++i) group.Spawn(WriteNoted(file, i, trace));
  world.loop->BlockOn(group.Close());
  trace += Text(world.clock.Now().ns);
  for (FaultKind kind : {FaultKind::kIoError, FaultKind::kShort, FaultKind::kDelay}) {
    EXPECT_GT(world.disk.injected(kind), 0u);
  }
  return trace;
}

TEST(SimulatedLoop, ASeedReplaysExactlyAndAnotherDoesNot) {
  EXPECT_EQ(TraceOf(7), TraceOf(7));
  EXPECT_NE(TraceOf(7), TraceOf(8));
}

TEST(SimulatedLoop, TimeMovesOnlyWhenNothingElseIsLeft) {
  World world(1);
  Instant start = world.clock.Now();
  std::string order;
  auto sleep = [](Loop& loop, std::int64_t us, std::string& out, char name) -> Task<> {
    co_await SleepUntil(loop.clock().Now().PlusUs(us));
    out += name;
  };
  TaskGroup group(world.loop->executor());
  group.Spawn(sleep(*world.loop, 3'600'000'000, order, 'b'));
  group.Spawn(sleep(*world.loop, 10, order, 'a'));
  world.loop->RunUntilIdle();
  EXPECT_EQ(order, "ab");
  EXPECT_EQ(world.clock.Now().UsSince(start), 3'600'000'000);
}

TEST(SimulatedLoop, OneStepInEightIsTimedWhateverTheRhythmOfCalls) {
  constexpr int kRounds = 4000;
  World world(1);
  Executor& executor = world.loop->executor();
  // Calls of four steps each, of which the third takes long.
  for (int round = 0; round < kRounds; ++round) {
    for (const std::int64_t us : {1, 1, 90, 1}) executor.Post([&, us] { world.clock.AdvanceUs(us); });
  }
  while (world.loop->PollOnce()) {
  }
  const Histogram& steps = world.loop->step_ns();
  EXPECT_NEAR(static_cast<double>(steps.count()), kRounds * 4 / 8.0, kRounds * 4 / 80.0);
  EXPECT_NEAR(steps.mean(), 93'000 / 4.0, 93'000 / 40.0) << "each of the four as often";
  EXPECT_EQ(steps.max(), 90'000u);
  const std::uint64_t count = steps.count();
  for (int look = 0; look < 100; ++look) EXPECT_FALSE(world.loop->PollOnce());
  EXPECT_EQ(steps.count(), count) << "a look that finds nothing is none";
}

TEST(SimulatedLoop, AFaultReachesTheCallerAsTheDeviceWouldSayIt) {
  World world(1);
  File file = world.Open("/disk/file");
  world.disk.set_faults([](const IoRequest& request, const std::string& path) {
    EXPECT_EQ(path, "/disk/file");
    return request.kind == IoRequest::Kind::kSync ? Fault{FaultKind::kIoError} : Fault{FaultKind::kShort, 3};
  });
  std::vector<std::byte> bytes = Filled(10, 'a');
  EXPECT_EQ(*world.loop->BlockOn(file.Write(bytes, 0)), 3u);
  EXPECT_EQ(*world.loop->BlockOn(file.Read(bytes, 0)), 3u);
  EXPECT_EQ(world.loop->BlockOn(file.Sync()).ToString(),
            "io_error: sync /disk/file: Input/output error (EIO)");
}

// Promise 7 stands on this: a crash keeps all that was synced, and of the rest anything by sector.
TEST(SimulatedLoop, ACrashKeepsWhatWasSyncedAndTearsTheRestBySector) {
  bool lost = false, kept = false, torn = false;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    World world(seed);
    Random when(seed);
    {
      File file = world.Open("/disk/file");
      ASSERT_TRUE(world.loop->BlockOn(file.WriteAll(Filled(4 * kSector, 'a'), 0)).ok());
      ASSERT_TRUE(world.loop->BlockOn(file.Sync()).ok());
      ASSERT_TRUE(world.loop->BlockOn(world.loop->SyncDirectory("/disk")).ok());
      std::vector<std::byte> newer = Filled(4 * kSector, 'b');
      Task<Status> writing = file.WriteAll(newer, 0);
      if (when.Chance(0.5)) world.loop->RunUntilIdle();  // else it is in flight
      world.loop->Crash();
    }
    world.Start();
    std::span<const std::byte> bytes = world.disk.Bytes("/disk/file");
    ASSERT_EQ(bytes.size(), 4 * kSector);
    int sectors = 0;
    for (std::uint64_t i = 0; i < 4; ++i) {
      auto sector = bytes.subspan(i * kSector, kSector);
      ASSERT_TRUE(std::ranges::all_of(sector, [&](std::byte b) { return b == sector[0]; }));
      ASSERT_TRUE(sector[0] == std::byte{'a'} || sector[0] == std::byte{'b'});
      sectors += sector[0] == std::byte{'b'};
    }
    lost |= sectors == 0;
    kept |= sectors == 4;
    torn |= sectors > 0 && sectors < 4;
  }
  EXPECT_TRUE(lost && kept && torn);
}

TEST(SimulatedLoop, NamesAreDurableOnceTheirDirectoryIsSynced) {
  bool undone = false, kept = false;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    World world(seed);
    {
      File old = world.Open("/disk/log");
      ASSERT_TRUE(world.loop->BlockOn(old.WriteAll(Filled(10, 'o'), 0)).ok());
      ASSERT_TRUE(world.loop->BlockOn(old.Sync()).ok());
      ASSERT_TRUE(world.disk.Durable("/disk/log").empty());
      ASSERT_TRUE(world.loop->BlockOn(world.loop->SyncDirectory("/disk")).ok());
      ASSERT_EQ(world.disk.Durable("/disk/log").size(), 10u);
      File fresh = world.Open("/disk/log.new");
      ASSERT_TRUE(world.loop->BlockOn(fresh.WriteAll(Filled(10, 'n'), 0)).ok());
      ASSERT_TRUE(world.loop->BlockOn(fresh.Sync()).ok());
      ASSERT_TRUE(world.loop->Rename("/disk/log.new", "/disk/log").ok());
      world.loop->Crash();
    }
    std::span<const std::byte> bytes = world.disk.Bytes("/disk/log");
    ASSERT_EQ(bytes.size(), 10u);  // one or the other, whole, whenever the crash came
    undone |= bytes[0] == std::byte{'o'};
    kept |= bytes[0] == std::byte{'n'};
  }
  EXPECT_TRUE(undone && kept);
}

TEST(SimulatedLoop, WhatASyncFailedOnIsInDoubtUntilItIsWrittenAgain) {
  bool lost = false;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    World world(seed);
    {
      File file = world.Open("/disk/file");
      ASSERT_TRUE(world.loop->Preallocate(file, 2 * kSector).ok());
      ASSERT_TRUE(world.loop->BlockOn(world.loop->SyncDirectory("/disk")).ok());
      ASSERT_TRUE(world.loop->BlockOn(file.WriteAll(Filled(2 * kSector, 'a'), 0)).ok());
      world.disk.set_faults([](const IoRequest&, const std::string&) { return Fault{FaultKind::kIoError}; });
      ASSERT_FALSE(world.loop->BlockOn(file.Sync()).ok());
      world.disk.set_faults({});
      ASSERT_TRUE(world.loop->BlockOn(file.WriteAll(Filled(kSector, 'b'), 0)).ok());
      ASSERT_TRUE(world.loop->BlockOn(file.Sync()).ok());
      world.loop->Crash();
    }
    std::span<const std::byte> bytes = world.disk.Bytes("/disk/file");
    ASSERT_EQ(bytes[0], std::byte{'b'});
    lost |= bytes[kSector] != std::byte{'a'};
  }
  EXPECT_TRUE(lost);
}

TEST(SimulatedLoop, TasksOfACrashedLoopAreDroppedWhereTheyWait) {
  World world(1);
  std::string trace;
  {
    File file = world.Open("/disk/file");
    TaskGroup group(world.loop->executor());
    for (std::uint64_t i = 0; i < 10; ++i) group.Spawn(WriteNoted(file, i, trace));
    world.loop->Crash();
    group.Drop();
  }
  world.Start();
  EXPECT_EQ(trace, "");
}

TEST(SimulatedLoop, RotShowsAndLasts) {
  World world(1);
  File file = world.Open("/disk/file");
  ASSERT_TRUE(world.loop->BlockOn(file.WriteAll(Filled(10, 'a'), 0)).ok());
  ASSERT_TRUE(world.loop->BlockOn(file.Sync()).ok());
  ASSERT_TRUE(world.loop->BlockOn(world.loop->SyncDirectory("/disk")).ok());
  world.disk.Flip("/disk/file", 3, std::byte{1});
  std::vector<std::byte> read(10);
  ASSERT_TRUE(world.loop->BlockOn(file.ReadAll(read, 0)).ok());
  EXPECT_EQ(read[3], std::byte{'a' ^ 1});
  world.loop->Crash();
  EXPECT_EQ(world.disk.Bytes("/disk/file")[3], std::byte{'a' ^ 1});
}

TEST(SimulatedLoopDeathTest, ATaskWithAnOperationInFlightIsNotDropped) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // io_uring's workers may still be there
  EXPECT_DEATH(
      {
        World world(1);
        File file = world.Open("/disk/file");
        std::string trace;
        Task<> task = WriteNoted(file, 0, trace);
      },
      "in_flight_");
}

}  // namespace
}  // namespace cistern::io
