// SPDX-License-Identifier: Apache-2.0
// What a start makes of a region whose header, batches, table or locator the device damaged, lost or cannot
// read: the others cost nothing, and what is not found is said.
#include <set>

#include "flash/region.h"
#include "flash/test_flash_tier.h"

namespace cistern::flash {
namespace {

constexpr const char* kFile = "/flash0/flash";
constexpr std::uint32_t kUnit = 512;

// As the device kept them, where a node has lived and none does.
std::vector<std::byte> BytesAt(const World& world, std::uint64_t at, std::size_t bytes = kUnit) {
  const auto there = world.disk.Bytes(kFile).subspan(at, bytes);
  return {there.begin(), there.end()};
}
void PutAt(World& world, std::uint64_t at, std::span<const std::byte> bytes) {
  const auto loop = std::move(*io::SimulatedLoop::Make(world.clock, world.disk, 99));
  io::File file = std::move(*loop->Open(kFile, io::OpenMode::kReadWrite));
  ASSERT_TRUE(loop->BlockOn(file.WriteAll(bytes, at)).ok());
}
std::uint64_t HeaderAt(std::uint32_t region) { return kSuperBytes + region * kTestRegionBytes; }
void KillNode(World& world) {
  world.loop->Kill([](const void*, std::size_t) { return false; }).LandAll();
  world.Ended();
}

// R11: what was copied from one region over another one is whole, and is not there.
TEST(FlashDamage, R11ARegionUnderTheHeaderOfAnotherOneIsGivenUp) {
  World world(6, TestOptions(1, kUnit, 6));
  ASSERT_TRUE(world.Start().ok());
  const std::vector<Kept> kept = world.FillRegion();
  world.Stop();
  const std::uint32_t other = 5;
  ASSERT_NE(kept.back().region(), other);
  PutAt(world, HeaderAt(other), BytesAt(world, HeaderAt(kept[0].region()), kTestRegionBytes));
  for (const bool again : {false, true}) {
    SCOPED_TRACE(again);
    ASSERT_TRUE(world.Start().ok());
    EXPECT_EQ(world->found.size(), kept.size());
    for (const Kept& each : world->found) {
      EXPECT_NE(each.region(), other);
      EXPECT_TRUE(world->Fetch(each).ok());
    }
    world->Close();
    EXPECT_NE(world->Logged("the header of region 5 cannot be read; the region is given up"), again);
    world.Ended();
  }
}

// Its reader has read headers of empty regions before.
TEST(FlashDamage, AHeaderThatIsUnreadableOrDamagedOrLostCostsItsRegionAlone) {
  for (const std::string_view how : {"unreadable", "damaged", "overwritten", "lost"}) {
    SCOPED_TRACE(how);
    World world(7, TestOptions(1, kUnit, 24));
    ASSERT_TRUE(world.Start().ok());
    constexpr std::uint32_t kLost = 18;
    std::vector<Kept> kept;
    for (std::uint64_t n = 1; kept.empty() || kept.back().region() <= kLost; ++n)
      kept.push_back(world->Append({n}, {20'000})->front());
    while (world->owner.live.begin()->second.region() < kLost) world->GiveUpOne();
    world.Stop();
    if (how == "unreadable") {
      world.disk.set_faults([&](const io::IoRequest& request, const std::string&) {
        const bool fails = request.kind == io::IoRequest::Kind::kRead && request.offset == HeaderAt(kLost);
        return fails ? io::Fault{io::FaultKind::kIoError} : io::Fault{};
      });
    } else if (how == "damaged") {
      world.disk.Flip(kFile, HeaderAt(kLost) + 16, std::byte{1});
    } else if (how == "overwritten") {
      PutAt(world, HeaderAt(kLost), std::vector<std::byte>(2 * kUnit, std::byte{0x5a}));
    } else {
      PutAt(world, HeaderAt(kLost), std::vector<std::byte>(kUnit));
    }
    for (const bool again : {false, true}) {
      SCOPED_TRACE(again);
      ASSERT_TRUE(world.Start().ok());
      ASSERT_EQ(world->found.size(), 1u) << "what was given up stays away";
      EXPECT_EQ(world->found[0].number, kept.back().number);
      EXPECT_TRUE(world->Fetch(world->found[0]).ok());
      world.disk.set_faults({});
      world->Close();
      EXPECT_NE(
          world->Logged(Text("the header of region ", kLost, " cannot be read; the region is given up")),
          again);
      world.Ended();
      EXPECT_EQ(DecodeRegionHeader(BytesAt(world, HeaderAt(kLost)))->epoch, 0u);
    }
  }
}

TEST(FlashDamage, AStartThatFindsAllWarnsOfNothing) {
  World world(10, TestOptions(1, kUnit, 40));
  for (int life = 0; life < 3; ++life) {
    SCOPED_TRACE(life);
    ASSERT_TRUE(world.Start().ok());
    EXPECT_EQ(world->found.empty(), life == 0);
    const std::vector<Kept> kept = world.FillRegion();
    world.loop->RunUntilIdle();
    EXPECT_EQ(world->Warnings(), "");
    if (life == 0) {
      world.Stop();
    } else {
      KillNode(world);
    }
  }
}

// A header that reads as zeros is no fault of a region that nothing was ever written to.
TEST(FlashDamage, AHeaderThatCannotBeReadIsGivenUpAlsoWhereNothingWasWritten) {
  World world(11, TestOptions(1, kUnit, 40));
  ASSERT_TRUE(world.Start().ok());
  world.Stop();
  world.disk.set_faults([&](const io::IoRequest& request, const std::string&) {
    const bool fails = request.kind == io::IoRequest::Kind::kRead && request.offset == HeaderAt(30);
    return fails ? io::Fault{io::FaultKind::kIoError} : io::Fault{};
  });
  ASSERT_TRUE(world.Start().ok());
  EXPECT_EQ(world->tier->free_regions(), 40u);
  world->Close();
  EXPECT_TRUE(world->Logged("the header of region 30 cannot be read; the region is given up"));
  world.Ended();
}

TEST(FlashDamage, ARegionThatWasReadyAndGotNothingIsFree) {
  for (const bool killed : {true, false}) {
    SCOPED_TRACE(killed);
    World world(12);
    ASSERT_TRUE(world.Start().ok());
    const Kept kept = world->Append({1}, {5'000})->front();
    ASSERT_EQ(kept.region(), 0u);
    world.loop->RunUntilIdle();
    if (killed) {
      KillNode(world);
    } else {
      world.Stop();
    }
    EXPECT_EQ(DecodeRegionHeader(BytesAt(world, HeaderAt(1)))->epoch != 0, killed);
    ASSERT_TRUE(world.Start().ok());
    EXPECT_EQ(world->tier->free_regions(), world->tier->regions() - 1);
    EXPECT_EQ(world->found.size(), 1u);
    world->Close();
    EXPECT_EQ(world->Logged("region 0 was open; 1 records are found in it"), killed);
    EXPECT_FALSE(world->Logged("region 1 was open"));
    world.Ended();
    EXPECT_EQ(DecodeRegionHeader(BytesAt(world, HeaderAt(1)))->epoch, 0u);
  }
}

// R11: it would be read from another region, or from where records lie.
TEST(FlashDamage, R11ALocatorOfATableThatDoesNotFitIsNotBelieved) {
  World world(13, TestOptions(1, kUnit, 6));
  ASSERT_TRUE(world.Start().ok());
  const std::vector<Kept> kept = world.FillRegion();
  ASSERT_EQ(kept.front().region(), 0u);
  world.Stop();
  constexpr std::uint32_t kUnits = kTestRegionBytes / kUnit;
  const std::uint64_t at = HeaderAt(1) - kUnit;
  const auto lie = [&](const auto& change) {
    std::vector<std::byte> unit = BytesAt(world, at);
    auto locator = DecodeLocator(unit);
    ASSERT_TRUE(locator.has_value());
    change(*locator);
    EncodeLocator(*locator, unit);
    PutAt(world, at, unit);
    ASSERT_TRUE(world.Start().ok());
    EXPECT_EQ(world->found.size(), kept.size());
    world->Close();
    EXPECT_TRUE(world->Logged("region 0 was open"));
    world.Ended();
  };
  const Geometry geometry{kUnit, kTestRegionBytes};
  lie([](Locator& locator) { ++locator.epoch; });
  lie([&](Locator& locator) { locator.table_unit = kUnits - geometry.TableUnits(locator.entries); });
  lie([](Locator& locator) { locator.table_unit = UINT32_MAX; });
  lie([](Locator& locator) { locator.entries = kUnits * kUnit / kEntryBytes; });
}

TEST(FlashDamage, ABatchThatIsNotRightEndsItsRegionAndWhatFollowsItIsSaid) {
  constexpr std::size_t kWhole = 2;
  for (const std::string_view wrong : {"nothing", "entries", "epoch", "place", "length"}) {
    SCOPED_TRACE(wrong);
    World world(14, TestOptions(1, kUnit, 6));
    ASSERT_TRUE(world.Start().ok());
    std::vector<Kept> kept;
    for (std::uint64_t n = 1; n <= 5; ++n) kept.push_back(world->Append({n}, {5'000})->front());
    ASSERT_EQ(kept.back().region(), 0u);
    KillNode(world);
    const auto head_at = [&](std::size_t i) {
      return HeaderAt(0) + (kept[i].unit() - 1) * std::uint64_t{kUnit};
    };
    std::vector<std::byte> unit = BytesAt(world, head_at(kWhole));
    BatchHeader head = *DecodeBatchHead(unit);
    if (wrong == "nothing") {
      // What an earlier use of the region left follows its end.
      --head.epoch;
      EncodeBatchHead(head, unit);
      PutAt(world, HeaderAt(0) + kept.back().unit() * std::uint64_t{kUnit} + kept.back().bytes, unit);
    } else if (wrong == "entries") {
      world.disk.Flip(kFile, head_at(kWhole) + kBatchFixedBytes, std::byte{1});
    } else if (wrong == "place") {
      PutAt(world, head_at(kWhole), BytesAt(world, head_at(kWhole - 1)));
    } else {
      if (wrong == "epoch") --head.epoch;
      if (wrong == "length") head.units = kTestRegionBytes / kUnit - 1 - head.unit;
      EncodeBatchHead(head, unit);
      PutAt(world, head_at(kWhole), unit);
    }
    const std::size_t expected = wrong == "nothing" ? kept.size() : kWhole;
    for (const bool again : {false, true}) {
      SCOPED_TRACE(again);
      ASSERT_TRUE(world.Start().ok());
      ASSERT_EQ(world->found.size(), expected);
      for (std::size_t i = 0; i < expected; ++i) {
        EXPECT_EQ(world->found[i].number, kept[i].number);
        EXPECT_TRUE(world->Fetch(world->found[i]).ok());
      }
      world->Close();
      EXPECT_EQ(world->Logged("region 0 goes on at unit "), wrong != "nothing" && !again);
      world.Ended();
    }
  }
}

// However long that batch is; but of a region in which nothing follows not all is read.
TEST(FlashDamage, WhatFollowsALongBatchIsFoundAndSaidWhereThatIsNotRight) {
  for (const bool right : {true, false}) {
    SCOPED_TRACE(right);
    World world(15, TestOptions(1, kUnit, 4, 12u << 20));
    ASSERT_TRUE(world.Start().ok());
    const Kept first = world->Append({1}, {2u << 20})->front();
    const Kept second = world->Append({2}, {5'000})->front();
    ASSERT_EQ(second.region(), first.region());
    KillNode(world);
    if (!right) world.disk.Flip(kFile, kSuperBytes + kUnit, std::byte{1});
    const std::uint64_t ready = kSuperBytes + world.options.region_bytes;
    std::uint64_t read = 0;
    world.disk.set_faults([&](const io::IoRequest& request, const std::string&) {
      if (request.kind == io::IoRequest::Kind::kRead && request.offset >= ready) read += request.size;
      return io::Fault{};
    });
    ASSERT_TRUE(world.Start().ok());
    EXPECT_EQ(world->found.size(), right ? 2u : 0u);
    world->Close();
    EXPECT_NE(world->Logged(Text("region 0 goes on at unit ", second.unit() - 1)), right);
    world.Ended();
    EXPECT_LT(read, 10u << 20);
  }
}

TEST(FlashDamage, ARegionWhoseTableAStartCannotWriteStillGivesItsEntries) {
  World world(16, TestOptions(1, kUnit, 6));
  ASSERT_TRUE(world.Start().ok());
  std::vector<Kept> kept;
  for (std::uint64_t n = 1; n <= 5; ++n) kept.push_back(world->Append({n}, {5'000})->front());
  ASSERT_EQ(kept.back().region(), 0u);
  KillNode(world);
  const std::uint64_t table = HeaderAt(0) + kept.back().unit() * std::uint64_t{kUnit} + kept.back().bytes;
  world.disk.set_faults([table](const io::IoRequest& request, const std::string&) {
    const bool fails = request.kind == io::IoRequest::Kind::kWrite && request.offset == table;
    return fails ? io::Fault{io::FaultKind::kIoError} : io::Fault{};
  });
  for (int starts = 0; starts < 2; ++starts) {
    SCOPED_TRACE(starts);
    ASSERT_TRUE(world.Start().ok());
    EXPECT_EQ(world->found.size(), kept.size());
    if (starts == 0) {
      world->Close();
      EXPECT_TRUE(world->Logged("the table of region 0 is not on it"));
      world.Ended();
    }
  }
  world->GiveUpOne();
  EXPECT_EQ(world->owner.asked.size(), kept.size());
  EXPECT_EQ(world->owner.losses, 0u);
  world.Stop();
}

TEST(FlashDamage, ATableThatCannotBeReadCostsWhatItNamedAndIsSaid) {
  World world(17, TestOptions(1, kUnit, 6));
  ASSERT_TRUE(world.Start().ok());
  const std::vector<Kept> kept = world.FillRegion();
  world.Stop();
  const Kept& last = kept[kept.size() - 2];
  const std::uint64_t table = HeaderAt(0) + last.unit() * std::uint64_t{kUnit} + last.bytes;
  world.disk.set_faults([table](const io::IoRequest& request, const std::string&) {
    const bool fails = request.kind == io::IoRequest::Kind::kRead && request.offset == table;
    return fails ? io::Fault{io::FaultKind::kIoError} : io::Fault{};
  });
  ASSERT_TRUE(world.Start().ok());
  ASSERT_EQ(world->found.size(), 1u);
  EXPECT_EQ(world->found[0].number, kept.back().number);
  world->GiveUpOne();
  EXPECT_EQ(world->tier->free_regions(), world->tier->regions() - 1);
  EXPECT_TRUE(world->Fetch(world->found[0]).ok());
  world->Close();
  EXPECT_TRUE(world->Logged("region 0: 1 of 1 pages of its table cannot be read; what they name is lost"));
  world.Ended();
}

// A path to the device that fails over, or a medium that needs one more look.
TEST(FlashDamage, P7AReadThatFailsOnceCostsNothingOfAnOpenRegion) {
  for (const int failures : {1, 2}) {
    SCOPED_TRACE(failures);
    World world(8, TestOptions(1, kUnit, 6));
    ASSERT_TRUE(world.Start().ok());
    std::vector<Kept> kept;
    for (std::uint64_t n = 1; n <= 5; ++n) kept.push_back(world->Append({n}, {5'000})->front());
    ASSERT_EQ(kept.back().region(), kept.front().region());
    KillNode(world);
    const std::uint64_t first_batch = HeaderAt(kept.front().region()) + kUnit;
    int left = failures;
    world.disk.set_faults([&](const io::IoRequest& request, const std::string&) {
      const bool fail =
          request.kind == io::IoRequest::Kind::kRead && request.offset == first_batch && left-- > 0;
      return fail ? io::Fault{io::FaultKind::kIoError} : io::Fault{};
    });
    ASSERT_TRUE(world.Start().ok());
    EXPECT_EQ(world->found.size(), failures == 1 ? kept.size() : 0);
    world->Close();
    EXPECT_EQ(world->Logged("region 0 cannot be read from unit 1 on"), failures == 2);
    world.Ended();
  }
}

// Superblock, headers, locators, tables and batches.
TEST(FlashDamage, P7NoReadThatFailsOnceAtAStartCostsAnything) {
  World world(8, TestOptions(1, kUnit, 6));
  ASSERT_TRUE(world.Start().ok());
  const std::vector<Kept> kept = world.FillRegion();
  world.loop->RunUntilIdle();  // the first region is closed
  KillNode(world);
  std::set<std::uint64_t> read;
  world.disk.set_faults([&](const io::IoRequest& request, const std::string&) {
    const bool fail = request.kind == io::IoRequest::Kind::kRead && read.insert(request.offset).second;
    return fail ? io::Fault{io::FaultKind::kIoError} : io::Fault{};
  });
  const Status started = world.Start();
  ASSERT_TRUE(started.ok()) << started.ToString();
  EXPECT_EQ(world->found.size(), kept.size());
  EXPECT_GT(world->tier->devices()[0].errors, 0u);
  world.Stop();
}

}  // namespace
}  // namespace cistern::flash
