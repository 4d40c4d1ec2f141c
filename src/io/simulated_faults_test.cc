// SPDX-License-Identifier: Apache-2.0
// The faulty device, and what a killed process leaves in flight.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <optional>

#include "io/simulated_loop.h"

namespace cistern::io {
namespace {

constexpr const char* kPath = "/disk/file";
constexpr std::size_t kSector = 512;

std::vector<std::byte> Filled(std::size_t size, char with) {
  return std::vector<std::byte>(size, static_cast<std::byte>(with));
}

struct World {
  explicit World(std::uint64_t seed_in = 1) : seed(seed_in), disk(seed_in) { Start(); }
  void Start() { loop = std::move(*SimulatedLoop::Make(clock, disk, seed)); }
  File Open(OpenMode mode = OpenMode::kCreate) { return std::move(*loop->Open(kPath, mode)); }
  // The next operation of that kind suffers it.
  void Inject(IoRequest::Kind kind, Fault fault) {
    disk.set_faults([kind, fault, done = false](const IoRequest& request, const std::string&) mutable {
      if (request.kind != kind || std::exchange(done, true)) return Fault{};
      return fault;
    });
  }
  char At(std::size_t offset) const { return static_cast<char>(disk.Bytes(kPath)[offset]); }

  std::uint64_t seed;
  SimulatedClock clock;
  SimulatedDisk disk;
  std::unique_ptr<SimulatedLoop> loop;
};

TEST(SimulatedFaults, ALostFlushSaysYesAndTheNextHonestOneIsTrue) {
  World world;
  File file = world.Open();
  ASSERT_TRUE(world.loop->BlockOn(world.loop->SyncDirectory("/disk")).ok());
  std::vector<std::byte> bytes = Filled(kSector, 'a');
  ASSERT_TRUE(world.loop->BlockOn(file.WriteAll(bytes, 0)).ok());
  world.Inject(IoRequest::Kind::kSync, {FaultKind::kLostFlush});
  EXPECT_TRUE(world.loop->BlockOn(file.Sync()).ok());
  EXPECT_EQ(world.disk.injected(FaultKind::kLostFlush), 1u);
  EXPECT_TRUE(world.disk.Durable(kPath).empty());
  EXPECT_TRUE(world.loop->BlockOn(file.Sync()).ok());
  EXPECT_EQ(world.disk.Durable(kPath).size(), kSector);
}

TEST(SimulatedFaults, WhatHangsEndsWhenItIsUnhungAndNotBefore) {
  World world;
  File file = world.Open();
  std::vector<std::byte> bytes = Filled(kSector, 'a');
  world.Inject(IoRequest::Kind::kWrite, {FaultKind::kHang});
  Task<Status> first = file.WriteAll(bytes, 0);
  Task<Status> second = file.WriteAll(bytes, kSector);
  world.loop->RunUntilIdle();
  EXPECT_FALSE(first.done());
  ASSERT_TRUE(second.done());
  world.disk.Unhang("/disk/other");
  world.loop->RunUntilIdle();
  EXPECT_FALSE(first.done());
  world.disk.Unhang(kPath);
  world.loop->RunUntilIdle();
  ASSERT_TRUE(first.done());
  EXPECT_TRUE(first.Take().ok());
  EXPECT_EQ(world.At(0), 'a');
  EXPECT_EQ(world.disk.injected(FaultKind::kHang), 1u);
}

TEST(SimulatedFaults, ACrashTakesWhatHangs) {
  World world;
  File file = world.Open();
  std::vector<std::byte> bytes = Filled(kSector, 'a');
  world.Inject(IoRequest::Kind::kWrite, {FaultKind::kHang});
  std::optional<Task<Status>> hung = file.WriteAll(bytes, 0);
  world.loop->RunUntilIdle();
  world.loop->Crash();
  hung.reset();
  file = File();
  world.Start();
}

TEST(SimulatedFaults, AFlipIsOneBitOfOneRead) {
  World world;
  File file = world.Open();
  std::vector<std::byte> bytes = Filled(2 * kSector, 'a');
  ASSERT_TRUE(world.loop->BlockOn(file.WriteAll(bytes, 0)).ok());
  for (std::uint64_t bit : {std::uint64_t{5}, std::uint64_t{8 * kSector + 1}, ~std::uint64_t{0}}) {
    world.Inject(IoRequest::Kind::kRead, {FaultKind::kFlip, bit});
    std::vector<std::byte> read(2 * kSector);
    ASSERT_TRUE(world.loop->BlockOn(file.ReadAll(read, 0)).ok());
    int wrong = 0;
    for (std::byte b : read) wrong += std::popcount(std::to_integer<unsigned>(b ^ std::byte{'a'}));
    EXPECT_EQ(wrong, 1);
    EXPECT_NE(read[bit % (16 * kSector) / 8], std::byte{'a'});
    ASSERT_TRUE(world.loop->BlockOn(file.ReadAll(read, 0)).ok());
    EXPECT_EQ(read, bytes);
  }
  EXPECT_EQ(world.disk.injected(FaultKind::kFlip), 3u);
}

TEST(SimulatedFaults, NoSpaceIsSaidAndChangesNothing) {
  World world;
  File file = world.Open();
  std::vector<std::byte> bytes = Filled(kSector, 'a');
  world.Inject(IoRequest::Kind::kWrite, {FaultKind::kNoSpace});
  Status status = world.loop->BlockOn(file.WriteAll(bytes, 0));
  EXPECT_EQ(status.code(), Code::kIoError);
  EXPECT_NE(status.message().find("ENOSPC"), std::string::npos) << status.message();
  EXPECT_EQ(*file.Size(), 0u);
  EXPECT_EQ(world.disk.injected(FaultKind::kNoSpace), 1u);
}

TEST(SimulatedFaults, AFaultThatAnOperationCannotSufferIsNotCounted) {
  World world;
  File file = world.Open();
  std::vector<std::byte> bytes = Filled(kSector, 'a');
  world.Inject(IoRequest::Kind::kWrite, {FaultKind::kFlip});
  ASSERT_TRUE(world.loop->BlockOn(file.WriteAll(bytes, 0)).ok());
  world.Inject(IoRequest::Kind::kRead, {FaultKind::kNoSpace});
  ASSERT_TRUE(world.loop->BlockOn(file.ReadAll(bytes, 0)).ok());
  EXPECT_EQ(world.disk.injected(FaultKind::kFlip) + world.disk.injected(FaultKind::kNoSpace), 0u);
}

TEST(SimulatedFaults, AWriteOfPiecesGoesOnInTheMiddleOfAPiece) {
  World world;
  File file = world.Open();
  std::vector<std::byte> from(100);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i);
  world.disk.set_faults([](const IoRequest&, const std::string&) { return Fault{FaultKind::kShort, 7}; });
  std::array<std::span<const std::byte>, 3> out{std::span(from).first(10), std::span(from).subspan(10, 1),
                                                std::span(from).subspan(11)};
  ASSERT_TRUE(world.loop->BlockOn(file.WriteAllV(out, 3)).ok());
  EXPECT_TRUE(std::ranges::equal(world.disk.Bytes(kPath).subspan(3), from));
  std::vector<std::byte> to(100);
  ASSERT_TRUE(world.loop->BlockOn(file.ReadAll(to, 3)).ok());
  EXPECT_EQ(to, from);
}

// Each write in flight or unsynced at a power failure is decided by itself, so a later one may be there
// without an earlier one.
TEST(SimulatedFaults, ACrashReordersWrites) {
  bool reordered = false;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    World world(seed);
    File file = world.Open();
    ASSERT_TRUE(world.loop->Preallocate(file, 2 * kSector).ok());
    ASSERT_TRUE(world.loop->BlockOn(world.loop->SyncDirectory("/disk")).ok());
    std::vector<std::byte> bytes = Filled(kSector, 'a');
    ASSERT_TRUE(world.loop->BlockOn(file.WriteAll(bytes, 0)).ok());
    ASSERT_TRUE(world.loop->BlockOn(file.WriteAll(bytes, kSector)).ok());
    world.loop->Crash();
    reordered |= world.At(0) != 'a' && world.At(kSector) == 'a';
  }
  EXPECT_TRUE(reordered);
}

TEST(SimulatedKill, WhatWasWrittenStaysAndWhatWasInFlightLandsLater) {
  World world;
  std::vector<std::byte> shared = Filled(kSector, 's');
  std::vector<std::byte> read_into = Filled(kSector, 'r');
  auto outlives = [&](const void* data, std::size_t) {
    return data == shared.data() || data == read_into.data();
  };
  LateIo late;
  {
    std::vector<std::byte> mine = Filled(kSector, 'm');
    std::vector<std::byte> forgotten(kSector);
    File file = world.Open();
    ASSERT_TRUE(world.loop->BlockOn(file.WriteAll(Filled(4 * kSector, '0'), 0)).ok());
    std::array<std::span<const std::byte>, 2> pieces{std::span(mine), std::span(shared)};
    Task<Status> write = file.WriteAllV(pieces, 0);
    Task<Status> read = file.ReadAll(read_into, 2 * kSector);
    Task<Status> lost = file.ReadAll(forgotten, 2 * kSector);
    late = world.loop->Kill(outlives);
    std::ranges::fill(mine, std::byte{'x'});  // the process's memory goes
  }
  EXPECT_EQ(late.size(), 2u);
  EXPECT_EQ(world.At(0), '0');
  world.Start();
  std::ranges::fill(shared, std::byte{'t'});  // who lives on writes over it too early
  late.LandAll();
  EXPECT_TRUE(late.empty());
  EXPECT_EQ(world.At(0), 'm');
  EXPECT_EQ(world.At(kSector), 't');
  EXPECT_EQ(world.At(2 * kSector), '0');
  EXPECT_EQ(read_into, Filled(kSector, '0'));
}

TEST(SimulatedKill, TheLockIsFreeOnceTheLastOperationLanded) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    World world(seed);
    LateIo late;
    std::vector<std::byte> bytes = Filled(kSector, 'a');
    {
      File file = world.Open();
      ASSERT_TRUE(world.loop->Lock(file).ok());
      std::vector<Task<Status>> writes;
      for (std::uint64_t i = 0; i < 8; ++i) writes.push_back(file.WriteAll(bytes, i * kSector));
      late = world.loop->Kill([](const void*, std::size_t) { return false; });
    }
    world.Start();
    File next = world.Open();
    Random random(seed);
    while (!late.empty()) {
      EXPECT_EQ(world.loop->Lock(next).code(), Code::kBusy);
      const std::size_t before = late.size();
      late.LandSome(random);
      EXPECT_LT(late.size(), before);
    }
    EXPECT_TRUE(world.loop->Lock(next).ok());
    EXPECT_EQ(world.disk.Bytes(kPath).size(), 8 * kSector);
  }
}

TEST(SimulatedKill, ALockWithNothingInFlightIsFreeAtOnceAndAfterACrashToo) {
  World world;
  for (bool crash : {false, true}) {
    File file = world.Open();
    ASSERT_TRUE(world.loop->BlockOn(world.loop->SyncDirectory("/disk")).ok());
    ASSERT_TRUE(world.loop->Lock(file).ok());
    if (crash) {
      world.loop->Crash();
    } else {
      EXPECT_TRUE(world.loop->Kill([](const void*, std::size_t) { return false; }).empty());
    }
    file = File();
    world.Start();
    File next = world.Open();
    EXPECT_TRUE(world.loop->Lock(next).ok());
  }
}

TEST(SimulatedKill, ASyncThatLandsLateMakesDurableWhatWasWrittenBeforeIt) {
  World world;
  LateIo late;
  {
    File file = world.Open();
    ASSERT_TRUE(world.loop->BlockOn(world.loop->SyncDirectory("/disk")).ok());
    ASSERT_TRUE(world.loop->BlockOn(file.WriteAll(Filled(kSector, 'a'), 0)).ok());
    Task<Status> sync = file.Sync();
    late = world.loop->Kill([](const void*, std::size_t) { return false; });
  }
  EXPECT_TRUE(world.disk.Durable(kPath).empty());
  late.LandAll();
  EXPECT_EQ(world.disk.Durable(kPath).size(), kSector);
}

TEST(SimulatedKill, WhatTheKernelHadNotBegunNeverHappens) {
  World world;
  LateIo late;
  constexpr std::size_t kWrites = 64;
  const std::vector<std::byte> bytes = Filled(kSector, 'a');
  {
    File file = world.Open();
    std::vector<Task<Status>> writes;
    for (std::size_t i = 0; i < kWrites; ++i) writes.push_back(file.WriteAll(bytes, i * kSector));
    late = world.loop->Kill([](const void*, std::size_t) { return false; });
  }
  ASSERT_EQ(late.size(), kWrites);
  Random random(1);
  late.CancelSome(random);
  const std::size_t begun = late.size();
  EXPECT_GT(begun, 0u);
  EXPECT_LT(begun, kWrites);
  late.LandAll();
  std::size_t there = 0;
  const std::span<const std::byte> disk = world.disk.Bytes(kPath);
  for (std::size_t at = 0; at < disk.size(); at += kSector) there += disk[at] == bytes[0] ? 1 : 0;
  EXPECT_EQ(there, begun);
}

TEST(SimulatedKill, WhatHungMayStillLand) {
  World world;
  LateIo late;
  std::vector<std::byte> bytes = Filled(kSector, 'a');
  {
    File file = world.Open();
    world.Inject(IoRequest::Kind::kWrite, {FaultKind::kHang});
    Task<Status> hung = file.WriteAll(bytes, 0);
    world.loop->RunUntilIdle();
    late = world.loop->Kill([](const void*, std::size_t) { return true; });
  }
  ASSERT_EQ(late.size(), 1u);
  late.LandAll();
  EXPECT_EQ(world.At(0), 'a');
}

}  // namespace
}  // namespace cistern::io
