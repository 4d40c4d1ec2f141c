// SPDX-License-Identifier: Apache-2.0
// Records are read back as they were appended, on every body of the loop; regions go round.
#include "flash/flash_tier.h"

#include <stdlib.h>

#include <filesystem>
#include <set>

#include "base/test_directory.h"
#include "flash/test_flash_tier.h"

namespace cistern::flash {
namespace {

class FlashTierTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "io_uring") {
      const Status works = io::ProbeUring();
      if (!works.ok()) GTEST_SKIP() << works.ToString();
    }
  }
  void TearDown() override {
    node_.reset();
    loop_.reset();
  }
  void Start(FlashOptions options) {
    if (node_ != nullptr) {
      node_->Close();
      sequence_ = node_->sequence;
    }
    node_.reset();
    loop_.reset();
    if (GetParam() == "simulated") {
      loop_ = std::move(*io::SimulatedLoop::Make(simulated_clock_, disk_, ++lives_));
    } else {
      io::LoopOptions body;
      body.kind = GetParam() == "epoll" ? io::LoopKind::kEpoll : io::LoopKind::kUring;
      loop_ = std::move(*io::MakeLoop(system_clock_, body));
      for (FlashDeviceOptions& device : options.devices) {
        device.path = directory_.path() + device.path;
        std::filesystem::create_directories(device.path);
      }
    }
    if (before_open_) before_open_(*loop_);
    node_ = std::make_unique<TierOn>(*loop_, options, ++lives_);
    node_->sequence = sequence_;
    Status status = node_->Open(known_);
    ASSERT_TRUE(status.ok()) << status.ToString();
    known_ = node_->tier->media_ids();
    status = node_->Recover();
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  // The unit that the file system here can do, at least the one asked for.
  std::uint32_t UnitFor(std::uint32_t unit) {
    if (GetParam() == "simulated") return unit;
    io::LoopOptions body;
    body.kind = io::LoopKind::kEpoll;
    auto loop = std::move(*io::MakeLoop(system_clock_, body));
    auto file = loop->Open(directory_.path() + "/probe", io::OpenMode::kCreate);
    const auto limits = file->Direct();
    return limits ? std::max({unit, limits->memory_align, limits->offset_align}) : unit;
  }

  SystemClock system_clock_;
  SimulatedClock simulated_clock_;
  io::SimulatedDisk disk_{1};
  const TestDirectory directory_{TestDirectory::On::kDisk};
  std::function<void(io::Loop&)> before_open_;
  std::unique_ptr<io::Loop> loop_;
  std::unique_ptr<TierOn> node_;
  std::vector<std::uint64_t> known_;
  std::uint64_t sequence_ = 100;
  std::uint64_t lives_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Bodies, FlashTierTest, testing::Values("io_uring", "epoll", "simulated"),
                         [](const auto& which) { return which.param; });

TEST_P(FlashTierTest, WhatWasAppendedIsFetchedBitExactOfEverySizeUnitAndNumberOfDevices) {
  for (const std::uint32_t asked : {512u, 4096u}) {
    const std::uint32_t unit = UnitFor(asked);
    for (const std::size_t devices : {1u, 3u}) {
      FlashOptions options = TestOptions(devices, unit, 6, 4u << 20);
      for (FlashDeviceOptions& device : options.devices) device.path += Text("-", asked, "-", devices);
      known_.clear();
      Start(options);
      std::vector<Kept> kept;
      std::uint64_t number = 0;
      const std::vector<std::vector<std::uint32_t>> shapes = {
          {1}, {511}, {512}, {4096}, {65536}, {65537}, {100'000, 3, 65536, 70'000}, {1u << 20}};
      for (const auto& shape : shapes) {
        for (const std::size_t batch : {1u, 2u}) {
          std::vector<std::uint64_t> numbers;
          for (std::size_t i = 0; i < batch; ++i) numbers.push_back(number++);
          const auto appended = node_->Append(numbers, shape);
          ASSERT_TRUE(appended.has_value()) << appended.error().ToString();
          kept.insert(kept.end(), appended->begin(), appended->end());
        }
      }
      std::uint64_t bytes = 0;
      for (const Kept& each : kept) {
        EXPECT_EQ(node_->Fetch(each).ToString(), "ok");
        bytes += each.bytes;
      }
      EXPECT_EQ(node_->tier->live_bytes(), bytes);
      // After a clean stop all of it is found.
      Start(options);
      EXPECT_EQ(node_->found.size(), kept.size());
      EXPECT_EQ(node_->tier->live_bytes(), bytes);
      for (const Kept& each : node_->found) EXPECT_EQ(node_->Fetch(each).ToString(), "ok");
    }
  }
}

// Beside the locks of the node's own directories: of its memory and of its journal.
TEST_P(FlashTierTest, R8ANodeOfAsManyDevicesAsThereMayBeHoldsTheLockOfEach) {
  std::string name = (std::filesystem::temp_directory_path() / "flash-locks-XXXXXX").string();
  const Fd lock(::mkstemp(name.data()));
  std::filesystem::remove(name);
  before_open_ = [&](io::Loop& loop) {
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(loop.HoldLock(lock.get()).ok());
  };
  ASSERT_NO_FATAL_FAILURE(Start(TestOptions(kMaxFlashDevices, UnitFor(512), 4)));
  for (std::size_t i = 0; i < kMaxFlashDevices; ++i) EXPECT_TRUE(node_->InService(i)) << i;
}

TEST_P(FlashTierTest, ManyAppendsAndFetchesAtATimeKeepTheirBytesApart) {
  const std::uint32_t unit = UnitFor(512);
  Start(TestOptions(2, unit, 12, 1u << 20));
  std::vector<Task<Result<std::vector<Kept>>>> appends;
  for (std::uint64_t i = 0; i < 60; ++i) {
    appends.push_back(
        node_->AppendTask({3 * i, 3 * i + 1, 3 * i + 2}, {30'000 + static_cast<std::uint32_t>(i)}));
  }
  std::vector<Kept> kept;
  std::set<std::pair<std::uint32_t, std::uint32_t>> places;
  for (auto& append : appends) {
    const auto appended = loop_->BlockOn(std::move(append));
    ASSERT_TRUE(appended.has_value()) << appended.error().ToString();
    for (const Kept& each : *appended) {
      kept.push_back(each);
      EXPECT_TRUE(places.insert({each.region(), each.unit()}).second);
    }
  }
  std::vector<Task<Status>> fetches;
  for (const Kept& each : kept) fetches.push_back(node_->FetchTask(each));
  for (auto& fetch : fetches) EXPECT_EQ(loop_->BlockOn(std::move(fetch)).ToString(), "ok");
  node_->Close();
}

// Fill, give up the oldest, fill again: three times round.
TEST_P(FlashTierTest, RegionsGoRoundAndHoldWhatTheyWereGivenLast) {
  const std::uint32_t unit = UnitFor(512);
  Start(TestOptions(1, unit, 5, 256u << 10));
  const FlashCounters& counters = node_->tier->counters();
  std::map<std::uint32_t, std::vector<Kept>> by_region;
  std::vector<Kept> gone;
  node_->owner.went = [&](const Kept& kept) { gone.push_back(kept); };
  std::uint64_t number = 0;
  while (counters.released_regions.value() < 15) {
    gone.clear();
    node_->owner.asked.clear();
    node_->ReclaimUntil(false, [&] {
      return node_->tier->free_regions() >= 2 &&
             counters.released_regions.value() == counters.reclaimed.value();
    });
    // From the end of each table to its beginning.
    std::size_t at = 0;
    while (at < node_->owner.asked.size()) {
      const std::uint32_t region = AddressOf(node_->owner.asked[at].location).region;
      std::vector<Kept> all = std::exchange(by_region[region], {});
      ASSERT_LE(at + all.size(), node_->owner.asked.size());
      ASSERT_FALSE(all.empty());
      for (; !all.empty(); all.pop_back(), ++at) {
        EXPECT_EQ(node_->owner.asked[at].location, all.back().location);
        EXPECT_EQ(node_->owner.asked[at].sequence, all.back().sequence);
        EXPECT_EQ(NumberOf(node_->owner.asked[at]), all.back().number);
      }
    }
    EXPECT_EQ(gone.size(), node_->owner.asked.size());
    for (const Kept& each : gone) EXPECT_EQ(node_->Fetch(each).code(), Code::kMiss);
    const auto appended = node_->Append({number, number + 1}, {20'000});
    number += 2;
    ASSERT_TRUE(appended.has_value()) << appended.error().ToString();
    for (const Kept& each : *appended) by_region[each.region()].push_back(each);
    std::uint64_t least = UINT64_MAX;
    for (const auto& [region, all] : by_region) {
      for (const Kept& each : all) least = std::min(least, each.sequence);
    }
    EXPECT_EQ(node_->tier->oldest_sequence(), least);
  }
  for (const auto& [region, all] : by_region) {
    for (const Kept& each : all) EXPECT_EQ(node_->Fetch(each).ToString(), "ok");
  }
  node_->Close();
}

TEST(FlashTier, AFullTierSaysSoAndTakesMoreOnceARegionWasReleased) {
  World world(1, TestOptions(1, 512, 4));
  ASSERT_TRUE(world.Start().ok());
  std::vector<Kept> kept;
  for (std::uint64_t n = 0;; ++n) {
    const auto appended = world->Append({n}, {20'000});
    if (!appended) {
      EXPECT_EQ(appended.error().ToString(), "busy: flash: none of 4 regions is free");
      break;
    }
    kept.push_back(appended->front());
    ASSERT_LT(n, 100u);
  }
  EXPECT_EQ(world->tier->RoomFor(20'992), FlashTier::Room::kNoRoom);
  EXPECT_EQ(world->tier->counters().refused_no_region.value(), 1u);
  world->GiveUpOne();
  EXPECT_EQ(world->tier->RoomFor(20'992), FlashTier::Room::kYes);
  EXPECT_TRUE(world->Append({1000}, {20'000}).has_value());
  world.loop->RunUntilIdle();
  const std::map<tier::Location, Kept> left = world->owner.live;
  EXPECT_GE(left.size(), 2u);
  EXPECT_LT(left.size(), kept.size());
  for (const auto& [location, each] : left) EXPECT_TRUE(world->Fetch(each).ok());
  world.Stop();
}

TEST(FlashTier, ABatchLargerThanARegionIsRefusedWithTheLimit) {
  World world(1);
  ASSERT_TRUE(world.Start().ok());
  const auto appended = world->Append({1, 2, 3, 4}, {20'000});
  ASSERT_FALSE(appended.has_value());
  EXPECT_EQ(appended.error().code(), Code::kInvalid);
  EXPECT_NE(appended.error().message().find("a region has room for"), std::string_view::npos);
  EXPECT_TRUE(world->Append({1, 2}, {20'000}).has_value());
  world.Stop();
}

TEST(FlashTier, AReleaseWaitsForWhoReadsTheRegion) {
  World world(3, TestOptions(1, 512, 4));
  ASSERT_TRUE(world.Start().ok());
  const Kept kept = world->Append({1}, {20'000})->front();
  std::uint32_t last = kept.region();
  for (std::uint64_t n = 2; last == kept.region(); ++n) last = world->Append({n}, {20'000})->front().region();
  world.loop->RunUntilIdle();
  world.disk.set_faults([&](const io::IoRequest& request, const std::string&) {
    const bool record = request.kind == io::IoRequest::Kind::kRead && request.size == kept.bytes;
    return record ? io::Fault{io::FaultKind::kDelay, 50'000} : io::Fault{};
  });
  Task<Status> reading = world->FetchTask(kept);
  world->tier->Reclaim(true);
  while (!reading.done()) {
    EXPECT_EQ(world->tier->counters().released_regions.value(), 0u);
    world.loop->Turn();
  }
  EXPECT_TRUE(reading.Take().ok());
  EXPECT_FALSE(world->owner.asked.empty());
  EXPECT_FALSE(world->owner.live.contains(kept.location)) << "the region was only waited for";
  world.loop->RunUntilIdle();
  EXPECT_EQ(world->tier->counters().released_regions.value(), 1u);
  EXPECT_EQ(world->Fetch(kept).code(), Code::kMiss);
  world.Stop();
}

TEST(FlashTier, TheEnduranceBudgetRefusesAndCountsAndFillsWithTime) {
  FlashOptions options = TestOptions(1, 512, 8, 256u << 10);
  options.budget_bytes_a_day = 24 * 100'000;  // 100,000 an hour, and at the start
  World world(1, options);
  ASSERT_TRUE(world.Start().ok());
  for (std::uint64_t n = 0; n < 4; ++n) ASSERT_TRUE(world->Append({n}, {20'000}).has_value());
  EXPECT_EQ(world->tier->RoomFor(20'992), FlashTier::Room::kNoBudget);
  const auto refused = world->Append({9}, {20'000});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), Code::kBusy);
  EXPECT_GT(world->tier->counters().refused_by_budget.value(), 20'000u);
  world.clock.AdvanceUs(3600ll * 1'000'000);
  EXPECT_EQ(world->tier->RoomFor(20'992), FlashTier::Room::kYes);
  EXPECT_TRUE(world->Append({9}, {20'000}).has_value());
  world.Stop();
}

// Either read may fail, and a location may be of nothing.
TEST(FlashTier, APartOfARecordIsReadBesideItsTrailer) {
  World world(21, TestOptions(1, 512, 4, 2u << 20));
  ASSERT_TRUE(world.Start().ok());
  const auto appended = world->Append({5}, {300'000});
  ASSERT_TRUE(appended.has_value()) << appended.error().ToString();
  const Kept kept = appended->front();
  BufferPool pool;
  const Buffer buffer = pool.Take(4096 + 65'536);
  const auto trailer = buffer.bytes().first(4096), body = buffer.bytes().subspan(4096, 65'536);
  const auto fetch = [&](const tier::Location& location) {
    return world.loop->BlockOn(world->tier->FetchSome(location, kept.bytes, trailer, 131'072, body));
  };
  const auto fetched = fetch(kept.location);
  ASSERT_TRUE(fetched.has_value()) << fetched.error().ToString();
  EXPECT_TRUE(fetched->seal.HasKey(KeyOf(5)));
  EXPECT_EQ(fetched->stamp.sequence, kept.sequence);
  const Block whole(pool, 5, {300'000});
  EXPECT_TRUE(std::ranges::equal(body, whole.body.bytes().subspan(131'072, 65'536)));
  for (const std::size_t size : {trailer.size(), body.size()}) {
    world.disk.set_faults([&](const io::IoRequest& request, const std::string&) {
      const bool fails = request.kind == io::IoRequest::Kind::kRead && request.size == size;
      return fails ? io::Fault{io::FaultKind::kIoError} : io::Fault{};
    });
    const auto failed = fetch(kept.location);
    ASSERT_FALSE(failed.has_value()) << size;
    EXPECT_EQ(failed.error().code(), Code::kIoError);
    world.disk.set_faults({});
  }
  const std::uint32_t units = kept.unit() + static_cast<std::uint32_t>(kept.bytes / 512);
  for (const FlashAddress nothing : {FlashAddress{4, 1}, FlashAddress{3, 1}, FlashAddress{kept.region(), 0},
                                     FlashAddress{kept.region(), units}, FlashAddress{kept.region(), 4095}}) {
    SCOPED_TRACE(world->tier->Describe(LocationOf(nothing)));
    EXPECT_EQ(fetch(LocationOf(nothing)).error().code(), Code::kMiss);
  }
  EXPECT_TRUE(world->Fetch(kept).ok());
  world.Stop();
}

}  // namespace
}  // namespace cistern::flash
