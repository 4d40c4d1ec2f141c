// SPDX-License-Identifier: Apache-2.0
// Bad devices are refused with a clear message and nothing is touched; a resize keeps what fits.
#include "flash/open.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/test_directory.h"
#include "flash/test_flash_tier.h"

namespace cistern::flash {
namespace {

constexpr const char* kFile = "/flash0/flash";

std::string ContentOf(const io::SimulatedDisk& disk, const std::string& path) {
  const auto bytes = disk.Bytes(path);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void PutFile(World& world, const std::string& path, std::size_t size, char with) {
  auto loop = std::move(*io::SimulatedLoop::Make(world.clock, world.disk, 99));
  io::File file = std::move(*loop->Open(path, io::OpenMode::kCreate));
  const std::vector<std::byte> bytes(size, static_cast<std::byte>(with));
  ASSERT_TRUE(loop->BlockOn(file.WriteAll(bytes, 0)).ok());
}

TEST(FlashOpen, ForeignDataIsRefusedUntouchedAndDiscardedWhenTold) {
  World world(1);
  PutFile(world, kFile, 300'000, 'x');
  const Status refused = world.Start();
  EXPECT_EQ(refused.code(), Code::kMismatch);
  EXPECT_NE(refused.message().find("--discard-foreign"), std::string_view::npos) << refused.ToString();
  EXPECT_NE(refused.message().find("/flash0"), std::string_view::npos);
  world.Ended();
  EXPECT_EQ(ContentOf(world.disk, kFile), std::string(300'000, 'x'));
  world.options.discard_foreign = true;
  const Status taken = world.Start();
  ASSERT_TRUE(taken.ok()) << taken.ToString();
  // What others wrote where headers of regions are is nothing that this store misses, now or later.
  EXPECT_FALSE(world->Logged("cannot be read"));
  EXPECT_TRUE(world->Append({1}, {5000}).has_value());
  world.Stop();
  ASSERT_TRUE(world.Start().ok());
  EXPECT_FALSE(world->Logged("cannot be read"));
  world.Stop();
}

TEST(FlashOpen, NothingIsTouchedWhereAnotherDeviceIsBad) {
  World world(2, TestOptions(3));
  PutFile(world, "/flash2/flash", 300'000, 'x');
  EXPECT_EQ(world.Start().code(), Code::kMismatch);
  world.Ended();
  EXPECT_FALSE(world.disk.Exists("/flash0/flash"));
  EXPECT_FALSE(world.disk.Exists("/flash1/flash"));
}

TEST(FlashOpen, AnInterruptedFormatIsFormatted) {
  World world(3);
  PutFile(world, kFile, 100'000, '\0');
  EXPECT_TRUE(world.Start().ok());
  EXPECT_TRUE(world->Append({1}, {5000}).has_value());
  world.Stop();
}

TEST(FlashOpen, AnotherVersionAndADamagedSuperblockAreRefusedByName) {
  World world(4);
  ASSERT_TRUE(world.Start().ok());
  world.Stop();
  world.disk.Flip(kFile, 30, std::byte{1});
  const Status damaged = world.Start();
  EXPECT_EQ(damaged.code(), Code::kMismatch);
  EXPECT_NE(damaged.message().find("damaged"), std::string_view::npos);
  world.Ended();
  world.disk.Flip(kFile, 8, std::byte{2});
  const Status version = world.Start();
  EXPECT_EQ(version.code(), Code::kMismatch);
  EXPECT_NE(version.message().find("version"), std::string_view::npos);
  world.Ended();
}

TEST(FlashOpen, ADeviceThatIsTooSmallIsRefusedWithItsLimit) {
  FlashOptions options = TestOptions();
  options.devices[0].size_bytes = 200'000;
  World world(5, options);
  const Status status = world.Start();
  EXPECT_EQ(
      status.ToString(),
      "invalid: flash device /flash0: size is 200000B and must be at least 320KiB (4 regions of 64KiB)");
  world.Ended();
  EXPECT_FALSE(world.disk.Exists(kFile));
}

TEST(FlashOpen, TwoNodesOnOneDeviceAreOneTooMany) {
  World world(6);
  ASSERT_TRUE(world.Start().ok());
  auto other = std::move(*io::SimulatedLoop::Make(world.clock, world.disk, 77));
  {
    TierOn second(*other, world.options, 8);
    const Status status = second.Open({});
    EXPECT_EQ(status.code(), Code::kBusy);
    EXPECT_NE(status.message().find("another node uses it"), std::string_view::npos) << status.ToString();
  }
  EXPECT_TRUE(world->Append({1}, {5000}).has_value());
  world.Stop();
}

// The second one saw that the file was not there, and waited for the lock of its other device since.
TEST(FlashOpen, WhatAnotherNodeMadeMeanwhileIsNotRemoved) {
  World world(18);
  PutFile(world, "/flash1/flash", 100'000, '\0');
  const auto make = [&](std::uint64_t seed) {
    return std::move(*io::SimulatedLoop::Make(world.clock, world.disk, seed));
  };
  auto holder = make(77), later = make(78);
  io::File held = std::move(*holder->Open("/flash1/flash", io::OpenMode::kDirect));
  ASSERT_TRUE(holder->Lock(held).ok());
  const auto log = Logger::ToSink(LogLevel::kInfo, [](LogLevel, std::string_view) {});
  auto opening = FlashTier::Open(FlashParts{*later, *log, [] { return std::uint64_t{9}; }}, TestOptions(2),
                                 {5, {}, {1, 40}});
  while (later->PollOnce()) continue;
  ASSERT_TRUE(world.Start().ok());
  const std::vector<Kept> kept = *world->Append({1}, {5'000});
  held = io::File();
  const auto second = later->BlockOn(std::move(opening));
  ASSERT_FALSE(second.has_value());
  EXPECT_NE(second.error().message().find("/flash0"), std::string_view::npos) << second.error().ToString();
  ASSERT_TRUE(world.disk.Exists(kFile));
  world.Stop();
  ASSERT_TRUE(world.Start().ok());
  EXPECT_EQ(world->found.size(), kept.size());
  world.Stop();
}

// The journal knows both by one id.
TEST(FlashOpen, ADeviceAndACopyOfItAreRefusedByName) {
  World world(19);
  ASSERT_TRUE(world.Start().ok());
  const Kept kept = world->Append({1}, {5'000})->front();
  world.Stop();
  const auto from = world.disk.Bytes(kFile);
  const std::vector<std::byte> bytes(from.begin(), from.end());
  {
    auto loop = std::move(*io::SimulatedLoop::Make(world.clock, world.disk, 99));
    io::File copy = std::move(*loop->Open("/flash1/flash", io::OpenMode::kCreateNew));
    ASSERT_TRUE(loop->BlockOn(copy.WriteAll(bytes, 0)).ok());
  }
  world.options = TestOptions(2);
  const Status refused = world.Start();
  EXPECT_EQ(refused.code(), Code::kMismatch);
  EXPECT_NE(refused.message().find("/flash0 and /flash1"), std::string_view::npos) << refused.ToString();
  world.Ended();
  world.options = TestOptions(1);
  ASSERT_TRUE(world.Start().ok());
  ASSERT_EQ(world->found.size(), 1u);
  EXPECT_EQ(world->found[0].sequence, kept.sequence);
  world.Stop();
}

// R8: what a killed node had in flight may land until its lock is free; a successor waits for that, and
// starts without the device where it waits in vain.
TEST(FlashOpen, ASuccessorDoesWithoutADeviceUntilTheLastRequestOfAKilledNodeHasEnded) {
  World world(7);
  ASSERT_TRUE(world.Start().ok());
  io::LateIo late;
  {
    std::vector<std::uint64_t> numbers(2, 1);
    std::vector<std::uint32_t> parts(1, 20'000);
    Task<Result<std::vector<Kept>>> append = world->AppendTask(numbers, parts);
    late = world.loop->Kill([](const void*, std::size_t) { return false; });
    ASSERT_FALSE(late.empty());
  }
  world.Ended();
  const std::string path = world.options.devices[0].path;
  ASSERT_TRUE(world.Start().ok());
  EXPECT_TRUE(world->found.empty());
  EXPECT_FALSE(world->InService(0));
  EXPECT_NE(world->tier->devices()[0].why.find("has not ended"), std::string::npos);
  EXPECT_FALSE(world->Append({3}, {5000}).has_value());
  EXPECT_EQ(world.loop->BlockOn(world->tier->BringBack(path)).code(), Code::kBusy);
  late.LandAll();
  const Status back = world.loop->BlockOn(world->tier->BringBack(path));
  EXPECT_TRUE(back.ok()) << back.ToString();
  EXPECT_TRUE(world->Append({3}, {5000}).has_value());
  world.Stop();
}

TEST(FlashOpen, ASuccessorThatDidWithoutADeviceBelievesNothingOfItLater) {
  World world(9, TestOptions(2));
  ASSERT_TRUE(world.Start().ok());
  std::vector<Kept> kept;
  for (std::uint64_t n = 0; n < 4; ++n) kept.push_back(world->Append({n}, {5000})->front());
  io::LateIo late = world.loop->Kill([](const void*, std::size_t) { return false; });
  world.Ended();
  const std::uint32_t regions = 8;
  {
    auto other = std::move(*io::SimulatedLoop::Make(world.clock, world.disk, 78));
    io::File file = std::move(*other->Open("/flash0/flash", io::OpenMode::kDirect));
    ASSERT_TRUE(other->Lock(file).ok());
    ASSERT_TRUE(world.Start().ok());
    EXPECT_FALSE(world->InService(0));
    EXPECT_TRUE(world->InService(1));
    for (const Kept& each : world->found) EXPECT_GE(each.region(), regions);
    world.Stop();
  }
  ASSERT_TRUE(world.Start().ok());
  EXPECT_TRUE(world->InService(0));
  std::size_t second = 0;
  for (const Kept& each : kept) second += each.region() >= regions;
  EXPECT_GT(second, 0u);
  EXPECT_LT(second, kept.size());
  EXPECT_EQ(world->found.size(), second);
  world.Stop();
}

TEST(FlashOpen, AResizeKeepsWhatFitsAndNeverBringsBackTheRest) {
  World world(8, TestOptions(1, 512, 8));
  ASSERT_TRUE(world.Start().ok());
  std::vector<Kept> kept;
  for (std::uint64_t n = 0; n < 14; ++n) kept.push_back(world->Append({n}, {20'000})->front());
  EXPECT_GE(kept.back().region(), 6u);
  world.Stop();
  const auto expect = [&](std::uint32_t regions, std::uint32_t held) {
    world.options = TestOptions(1, 512, regions);
    const Status status = world.Start();
    ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(world->tier->regions(), regions);
    std::size_t expected = 0;
    for (const Kept& each : kept) expected += each.region() < held;
    EXPECT_EQ(world->found.size(), expected);
    for (const Kept& each : world->found) EXPECT_TRUE(world->Fetch(each).ok());
    world.Stop();
  };
  expect(12, 8);
  expect(5, 5);
  expect(12, 5);  // regions 5 to 7 are still on the media
}

TEST(FlashOpen, AnotherUnitOrRegionSizeFormatsAnew) {
  for (int which = 0; which < 2; ++which) {
    World world(9);
    ASSERT_TRUE(world.Start().ok());
    ASSERT_TRUE(world->Append({1}, {5'000}).has_value());
    world.Stop();
    if (which == 0) world.options.unit = 1024;
    if (which == 1) world.options.region_bytes = 2 * kTestRegionBytes;
    world.loop = std::move(*io::SimulatedLoop::Make(world.clock, world.disk, 9));
    world.node = std::make_unique<TierOn>(*world.loop, world.options, 10);
    ASSERT_TRUE(world->Open(world.known, 5).ok());
    ASSERT_TRUE(world->Recover().ok());
    EXPECT_TRUE(world->found.empty());
    EXPECT_TRUE(world->Append({2}, {5'000}).has_value());
    world->Close();
    EXPECT_TRUE(world->Logged("formatted"));
    world.Ended();
  }
}

// Of another node, or of this one with another --journal-dir.
// One that is formatted in any case says nothing of how large regions are, whichever is named first.
TEST(FlashOpen, P7ADeviceThatIsNotKnownFormatsNoneThatIs) {
  for (const bool known_first : {false, true}) {
    SCOPED_TRACE(known_first);
    const FlashOptions both = TestOptions(2);
    World world(16, both);
    const auto of_one = [&](std::size_t device, std::uint64_t region_bytes) {
      world.options.devices = {both.devices[device]};
      world.options.region_bytes = region_bytes;
      ASSERT_TRUE(world.Start().ok());
      ASSERT_TRUE(world->Append({device}, {5'000}).has_value());
      world.Stop();
    };
    of_one(0, 2 * kTestRegionBytes);
    world.known.clear();
    of_one(1, kTestRegionBytes);
    world.options.devices = both.devices;
    world.options.region_bytes = 0;
    if (known_first) std::swap(world.options.devices[0], world.options.devices[1]);
    ASSERT_TRUE(world.Start().ok());
    EXPECT_EQ(world->tier->region_bytes(), kTestRegionBytes);
    ASSERT_EQ(world->found.size(), 1u);
    EXPECT_EQ(world->found[0].number, 1u);
    world.Stop();
  }
}

TEST(FlashOpen, ADeviceOfAnotherJournalIsRefusedUntouchedAndDiscardedWhenTold) {
  World world(10);
  ASSERT_TRUE(world.Start().ok());
  ASSERT_TRUE(world->Append({1}, {5'000}).has_value());
  world.Stop();
  const std::string before = ContentOf(world.disk, kFile);
  const auto open = [&](std::vector<std::uint64_t> known) {
    world.loop = std::move(*io::SimulatedLoop::Make(world.clock, world.disk, 9));
    world.node = std::make_unique<TierOn>(*world.loop, world.options, 10);
    return world->Open(std::move(known), 6);
  };
  for (const auto& known : {std::vector<std::uint64_t>(), world.known}) {
    const Status refused = open(known);
    EXPECT_EQ(refused.code(), Code::kMismatch);
    EXPECT_NE(refused.message().find("/flash0"), std::string_view::npos) << refused.ToString();
    EXPECT_NE(refused.message().find("--journal-dir"), std::string_view::npos);
    EXPECT_NE(refused.message().find("--discard-foreign"), std::string_view::npos);
    world.Ended();
    EXPECT_TRUE(ContentOf(world.disk, kFile) == before);
  }
  world.options.discard_foreign = true;
  ASSERT_TRUE(open({}).ok());
  ASSERT_TRUE(world->Recover().ok());
  EXPECT_TRUE(world->found.empty());
  EXPECT_TRUE(world->Append({2}, {5'000}).has_value());
  world->Close();
  world.Ended();
}

// What a start finds in the journal of a node that was killed may be in the page cache alone until the start
// writes the journal anew.
TEST(FlashOpen, R10ADeviceThatIsFormattedAtAStartNamesNoStateOfTheJournalThatPowerMayTake) {
  constexpr tier::JournalMark kDurable{1, 40}, kFound{1, 80};
  World world(17, TestOptions(2));
  ASSERT_TRUE(world.Start().ok());
  for (std::uint64_t n = 0; n < 4; ++n) ASSERT_TRUE(world->Append({n}, {5'000}).has_value());
  world.Stop();
  const auto open = [&](tier::JournalMark mark) {
    world.loop = std::move(*io::SimulatedLoop::Make(world.clock, world.disk, 100 + ++world.lives));
    world.node = std::make_unique<TierOn>(*world.loop, world.options, 100 + world.lives);
    return world->Open(world.known, 5, mark);
  };
  {
    auto other = std::move(*io::SimulatedLoop::Make(world.clock, world.disk, 99));
    ASSERT_TRUE(other->Remove("/flash1/flash").ok());
    ASSERT_TRUE(other->BlockOn(other->SyncDirectory("/flash1")).ok());
  }
  ASSERT_TRUE(open(kFound).ok());
  world.CutPower();
  world.Ended();
  ASSERT_TRUE(open(kDurable).ok());
  EXPECT_LE(world->tier->newest_mark(), kDurable);
  ASSERT_TRUE(world->Recover().ok());
  EXPECT_FALSE(world->found.empty()) << "the journal was taken for an older copy";
  // It is told once it is durable.
  ASSERT_TRUE(world.loop->BlockOn(world->tier->Mark(kFound)).ok());
  world->Close();
  world.Ended();
  ASSERT_TRUE(open(kFound).ok());
  EXPECT_EQ(world->tier->newest_mark(), kFound);
  world->Close();
  world.Ended();
}

// The first start formatted it, and its journal was never written.
TEST(FlashOpen, AnUnusedDeviceOfAnotherJournalIsFormatted) {
  World world(11);
  ASSERT_TRUE(world.Start().ok());
  world.Stop();
  world.loop = std::move(*io::SimulatedLoop::Make(world.clock, world.disk, 9));
  world.node = std::make_unique<TierOn>(*world.loop, world.options, 10);
  const Status status = world->Open({}, 6);
  ASSERT_TRUE(status.ok()) << status.ToString();
  ASSERT_TRUE(world->Recover().ok());
  EXPECT_TRUE(world->Append({2}, {5'000}).has_value());
  world->Close();
  world.Ended();
}

TEST(FlashOpen, AnAlignmentThatNoSettingTakesIsNotAdvised) {
  const auto check = [](std::uint32_t needs) {
    return CheckAlignment({.memory_align = 512, .offset_align = needs}, 512, "/mnt/flash");
  };
  EXPECT_TRUE(check(512).ok());
  EXPECT_NE(check(4096).message().find("set it to 4096"), std::string::npos) << check(4096).ToString();
  const Status large = check(131'072);
  EXPECT_EQ(large.code(), Code::kInvalid);
  EXPECT_EQ(large.message().find("set it to"), std::string::npos) << large.ToString();
  EXPECT_NE(large.message().find("aligned to 131072 bytes"), std::string::npos) << large.ToString();
}

TEST(FlashOpen, OptionsSayWhichFieldIsWrong) {
  FlashOptions options = TestOptions();
  EXPECT_TRUE(options.Validate().ok());
  options.unit = 1000;
  EXPECT_EQ(options.Validate().ToString(),
            "invalid: flash unit: is 1000 bytes and may be 512, 1024, 2048 or 4096");
  options = TestOptions();
  options.devices.push_back(options.devices[0]);
  EXPECT_EQ(options.Validate().ToString(), "invalid: flash device /flash0: is named twice");
  options.devices.clear();
  EXPECT_EQ(options.Validate().code(), Code::kInvalid);
  EXPECT_EQ(RegionBytesFor(4ull << 40), 1ull << 30);
  EXPECT_EQ(RegionBytesFor(16ull << 30), 256ull << 20);
  EXPECT_EQ(RegionBytesFor(100ull << 20), 16ull << 20);
}

// One of two drives died. The other's records are found; a block device whose size nobody said takes a
// restart.
TEST(FlashOpen, P7TierOpensWithoutADeviceThatIsAbsent) {
  for (const bool sized : {true, false}) {
    World world(31, TestOptions(2));
    ASSERT_TRUE(world.Start().ok());
    for (std::uint64_t n = 1; n <= 8; ++n) ASSERT_TRUE(world->Append({n}, {5'000}).has_value());
    world.Stop();
    const FlashDeviceOptions whole = world.options.devices[1];
    world.options.devices[1].absent = Status(Code::kMiss, "gone");
    if (!sized) world.options.devices[1].size_bytes = 0;
    world.options.region_bytes = 0;            // as they were formatted
    for (int start = 0; start < 2; ++start) {  // the journal forgets it at the first
      const Status status = world.Start();
      ASSERT_TRUE(status.ok()) << status.ToString();
      EXPECT_FALSE(world->InService(1));
      EXPECT_FALSE(world->found.empty());
      EXPECT_LT(world->found.size(), 8u);
      for (const Kept& kept : world->found) EXPECT_TRUE(world->Fetch(kept).ok());
      EXPECT_TRUE(world->Append({100u + static_cast<unsigned>(start)}, {5'000}).has_value());
      if (start == 0) world.Stop();
    }
    const Status back = world.loop->BlockOn(world->tier->BringBack("/flash1"));
    EXPECT_EQ(back.code(), sized ? Code::kOk : Code::kInvalid) << back.ToString();
    EXPECT_EQ(world->InService(1), sized);
    if (sized) {
      for (std::uint64_t n = 200; n < 208; ++n) ASSERT_TRUE(world->Append({n}, {5'000}).has_value());
    }
    EXPECT_TRUE(world->Logged("flash device /flash1: gone; the node starts without it"));
    world.Stop();
    world.options.devices[1] = whole;
    ASSERT_TRUE(world.Start().ok());
    EXPECT_TRUE(world->InService(1));
    world.Stop();
  }
}

// On a real file system: what the kernel says is passed on, and nothing is made.
TEST(FlashOpen, ADirectoryThatIsMissingOrReadOnlyOrAFileIsRefusedByName) {
  const TestDirectory directory(TestDirectory::On::kDisk);
  const std::string& name = directory.path();
  SystemClock clock;
  auto loop = std::move(*io::MakeLoop(clock));
  const auto open = [&](const std::string& path) {
    FlashOptions options = TestOptions(1, 4096);
    options.devices[0].path = path;
    TierOn node(*loop, options, 1);
    return node.Open();
  };
  const Status missing = open(name + "/none");
  EXPECT_EQ(missing.code(), Code::kIoError);
  EXPECT_NE(missing.message().find("No such file or directory"), std::string_view::npos)
      << missing.ToString();
  EXPECT_NE(missing.message().find(name + "/none"), std::string_view::npos);
  {
    io::File file = std::move(*loop->Open(name + "/plain", io::OpenMode::kCreate));
  }
  const Status plain = open(name + "/plain");
  EXPECT_EQ(plain.code(), Code::kInvalid);
  EXPECT_NE(plain.message().find("neither a directory nor a block device"), std::string_view::npos);
  // As where what it leads to is not mounted.
  std::filesystem::create_directory(name + "/linked");
  std::filesystem::create_symlink(name + "/away/flash", name + "/linked/flash");
  const Status linked = open(name + "/linked");
  EXPECT_EQ(linked.code(), Code::kIoError);
  EXPECT_NE(linked.message().find("File exists"), std::string_view::npos) << linked.ToString();
  EXPECT_TRUE(std::filesystem::is_symlink(name + "/linked/flash"));
  const Status proc = open("/proc");
  EXPECT_FALSE(proc.ok());
  EXPECT_NE(proc.message().find("flash device /proc"), std::string_view::npos) << proc.ToString();
}

}  // namespace
}  // namespace cistern::flash
