// SPDX-License-Identifier: Apache-2.0
// An append finds room or says that there is none, on the device that has least to do; one that fails is
// tried elsewhere, and none counts behind one that failed, or before the header of its region is durable.
#include "flash/append.h"

#include <set>

#include "flash/test_flash_tier.h"

namespace cistern::flash {
namespace {

using Room = tier::Tier::Room;

// Of records, and not of a header or a table.
bool IsOfABatch(const io::IoRequest& request) {
  return request.kind == io::IoRequest::Kind::kWrite && request.size > 4'096;
}

// Where it lies, of two devices with as many regions.
std::uint32_t DeviceOf(const World& world, const Kept& kept) {
  return kept.region() / (world.node->tier->regions() / 2);
}

TEST(FlashAppend, RoomIsSaidWhereAnAppendOfOneRecordFindsIt) {
  World world(1, TestOptions(2, 512, 4));
  ASSERT_TRUE(world.Start().ok());
  Random random(1);
  std::uint64_t number = 0;
  const auto fill = [&] {
    for (int refused = 0, all = 0; refused < 20; ++all) {
      ASSERT_LT(all, 1'000);
      const auto bytes = static_cast<std::uint32_t>(random.Between(100, random.Chance(0.5) ? 3'000 : 40'000));
      const Room room = world->tier->RoomFor(Block(world->pool, 0, {bytes}).record_bytes(512));
      const auto appended = world->Append({++number}, {bytes});
      ASSERT_EQ(room, appended.has_value() ? Room::kYes : Room::kNoRoom) << bytes;
      refused += appended ? 0 : 1;
    }
  };
  for (int rounds = 0; rounds < 6; ++rounds) {
    fill();
    world->GiveUpOne();
    world.loop->RunUntilIdle();
    if (rounds != 3) continue;
    ASSERT_TRUE(world->tier->TakeOut("/flash0").ok());
  }
  ASSERT_TRUE(world->tier->TakeOut("/flash1").ok());
  EXPECT_EQ(world->tier->RoomFor(1'024), Room::kNoDevice);
  EXPECT_EQ(world->Append({++number}, {100}).error().code(), Code::kIoError);
  world.Stop();
}

// Else what is kept of a region would be lost with it.
TEST(FlashAppend, WhatMovesFindsRoomWhereWhatIsNewFindsNone) {
  World world(2, TestOptions(1, 512, 5));
  ASSERT_TRUE(world.Start().ok());
  std::uint64_t number = 0, refused = 0;
  const auto fill = [&] {
    while (world->Append({++number}, {3'000}).has_value()) ASSERT_LT(number, 10'000u);
  };
  world->owner.keep = [](const tier::TierEntry& entry, std::uint64_t, std::uint64_t) {
    return NumberOf(entry) % 4 != 0;
  };
  world->owner.moved = [&](const Kept&) {
    if (world->tier->free_regions() > 0) return;
    EXPECT_EQ(world->tier->RoomFor(3'584), Room::kNoRoom);
    ++refused;
  };
  for (int rounds = 0; rounds < 30; ++rounds) {
    fill();
    world->GiveUpOne();
  }
  EXPECT_GT(refused, 0u);
  EXPECT_GT(world->tier->counters().moved_bytes.value(), 0u);
  EXPECT_EQ(world->owner.losses, 0u);
  for (const auto& [location, kept] : world->owner.live) EXPECT_TRUE(world->Fetch(kept).ok());
  world.Stop();
}

TEST(FlashAppend, TheLastFreeRegionOfTheFewestThatThereMayBeIsKeptForWhatMoves) {
  World world(10, TestOptions(1, 512, 4));
  ASSERT_TRUE(world.Start().ok());
  for (std::uint64_t n = 0; world->Append({n}, {20'000}).has_value();) ASSERT_LT(++n, 100u);
  EXPECT_EQ(world->tier->free_regions(), 1u);
  world.Stop();
}

TEST(FlashAppend, WhatMovesIsNotRefusedByTheBudgetThatIsSpent) {
  FlashOptions options = TestOptions(1, 512, 8);
  options.budget_bytes_a_day = 24 * 100'000;
  World world(3, options);
  ASSERT_TRUE(world.Start().ok());
  for (std::uint64_t n = 0; world->Append({n}, {5'000}).has_value();) ASSERT_LT(++n, 100u);
  ASSERT_EQ(world->tier->RoomFor(5'632), Room::kNoBudget);
  world.loop->RunUntilIdle();
  world->owner.keep = [](const tier::TierEntry&, std::uint64_t, std::uint64_t) { return true; };
  world->GiveUpOne();
  EXPECT_GT(world->tier->counters().moved_bytes.value(), 0u);
  EXPECT_EQ(world->owner.losses, 0u);
  world.Stop();
}

TEST(FlashAppend, BatchOfNoneOrOfTooManyAndOneOfATierThatClosedAreRefused) {
  World world(4, TestOptions(1, 512, 8, 1u << 20));
  ASSERT_TRUE(world.Start().ok());
  const auto append = [&](std::size_t records) {
    const std::vector<tier::AppendRequest> batch(records);
    const auto appended = world.loop->BlockOn(world->tier->Append(batch));
    return appended ? Code::kOk : appended.error().code();
  };
  EXPECT_EQ(append(0), Code::kInvalid);
  EXPECT_EQ(append(tier::kMaxBatchRecords + 1), Code::kInvalid);
  EXPECT_TRUE(world->Append(std::vector<std::uint64_t>(tier::kMaxBatchRecords, 1), {100}).has_value());
  world.loop->BlockOn(world->tier->Close());
  EXPECT_EQ(world->Append({1}, {5'000}).error().code(), Code::kGone);
  world.Ended();
}

// Beside it there are its region's header, a table of one entry and the locator.
TEST(FlashAppend, TheLargestBatchFillsARegionAndOneOfAUnitMoreIsRefused) {
  World world(11);
  ASSERT_TRUE(world.Start().ok());
  const std::uint64_t room = kTestRegionBytes - 3 * 512;
  std::uint32_t body = 512;
  const auto batch = [&] { return 512 + Block(world->pool, 0, {body}).record_bytes(512); };
  while (batch() < room) body += 512;
  ASSERT_EQ(batch(), room);
  for (std::uint64_t n = 1; n <= 2; ++n) {
    const auto appended = world->Append({n}, {body});
    ASSERT_TRUE(appended.has_value()) << appended.error().ToString();
  }
  world.loop->RunUntilIdle();
  EXPECT_EQ(world->tier->counters().device_written_bytes.value(), 2 * room + 512) << "with the first's table";
  body += 512;
  EXPECT_EQ(world->Append({3}, {body}).error().ToString(),
            Text("invalid: flash batch: takes ", room + 512, " bytes and a region has room for ", room,
                 "; write fewer records at a time, or larger regions"));
  world.Stop();
  ASSERT_TRUE(world.Start().ok());
  EXPECT_EQ(world->found.size(), 2u);
  for (const Kept& kept : world->found) EXPECT_TRUE(world->Fetch(kept).ok());
  world.Stop();
}

TEST(FlashAppend, AWriteThatFailsIsTriedOnTheOtherDevice) {
  World world(5, TestOptions(2, 512, 8, 1u << 20));
  ASSERT_TRUE(world.Start().ok());
  for (std::uint64_t n = 0; n < 2; ++n) ASSERT_TRUE(world->Append({n}, {5'000}).has_value());
  std::set<std::uint32_t> failed_on;
  for (std::uint64_t n = 2; n < 8; ++n) {
    if (n == 5) (void)world->Append({50}, {5'000});  // it is the other one's turn
    world.loop->RunUntilIdle();
    std::string failed;
    world.disk.set_faults([&](const io::IoRequest& request, const std::string& path) {
      if (!IsOfABatch(request) || !failed.empty()) return io::Fault{};
      failed = path;
      return io::Fault{io::FaultKind::kIoError};
    });
    const auto appended = world->Append({n}, {5'000});
    world.disk.set_faults({});
    ASSERT_TRUE(appended.has_value()) << appended.error().ToString();
    const std::uint32_t device = failed == "/flash0/flash" ? 0 : 1;
    EXPECT_NE(DeviceOf(world, appended->front()), device);
    failed_on.insert(device);
  }
  EXPECT_EQ(failed_on.size(), 2u);
  EXPECT_EQ(world->tier->counters().io_errors.value(), 6u);
  EXPECT_TRUE(world->InService(0) && world->InService(1));
  // Where both fail it is an error, and not that there is no room.
  world.loop->RunUntilIdle();
  int fails = 2;
  world.disk.set_faults([&](const io::IoRequest& request, const std::string&) {
    return IsOfABatch(request) && fails-- > 0 ? io::Fault{io::FaultKind::kIoError} : io::Fault{};
  });
  const Status neither = world->Append({9}, {5'000}).error();
  EXPECT_EQ(neither.code(), Code::kIoError);
  EXPECT_NE(neither.message().find("write /flash"), std::string_view::npos) << neither.ToString();
  EXPECT_EQ(world->tier->counters().refused_no_region.value(), 0u);
  world.disk.set_faults({});
  world.Stop();
}

// Which of the devices' turn it is then follows from what else is appended; the other one has more to do.
TEST(FlashAppend, AWriteThatFailsIsTriedOnTheOtherDeviceWhateverIsUnderWayBesideIt) {
  for (std::uint64_t beside = 0; beside < 4; ++beside) {
    SCOPED_TRACE(beside);
    World world(12, TestOptions(2, 512, 8, 1u << 20));
    ASSERT_TRUE(world.Start().ok());
    for (std::uint64_t n = 0; n < 2; ++n) ASSERT_TRUE(world->Append({n}, {5'000}).has_value());
    world.loop->RunUntilIdle();
    world.disk.set_faults([](const io::IoRequest& request, const std::string& path) {
      if (!IsOfABatch(request)) return io::Fault{};
      return path == "/flash0/flash" ? io::Fault{io::FaultKind::kIoError}
                                     : io::Fault{io::FaultKind::kDelay, 100'000};
    });
    std::vector<Task<Result<std::vector<Kept>>>> appends;
    for (std::uint64_t n = 0; n <= beside; ++n) appends.push_back(world->AppendTask({10 + n}, {5'000}));
    for (auto& append : appends) {
      const auto appended = world.loop->BlockOn(std::move(append));
      ASSERT_TRUE(appended.has_value()) << appended.error().ToString();
      EXPECT_EQ(DeviceOf(world, appended->front()), 1u);
    }
    EXPECT_GT(world.disk.injected(io::FaultKind::kIoError), 0u);
    EXPECT_TRUE(world->InService(0));
    world.disk.set_faults({});
    world.Stop();
  }
}

// It was written, behind one that hangs.
TEST(FlashAppend, ABatchGoesToTheOtherDeviceAsSoonAsItsOwnIsOut) {
  World world(14, TestOptions(2));
  ASSERT_TRUE(world.Start().ok());
  int writes = 0;
  world.disk.set_faults([&](const io::IoRequest& request, const std::string& path) {
    const bool hangs = IsOfABatch(request) && path == "/flash0/flash" && writes++ == 0;
    return hangs ? io::Fault{io::FaultKind::kHang} : io::Fault{};
  });
  std::vector<Task<Result<std::vector<Kept>>>> appends;
  for (std::uint64_t n = 0; n < 4; ++n) appends.push_back(world->AppendTask({n}, {5'000}));
  const auto waiting = [&] {
    return std::ranges::count_if(appends, [](auto& each) { return !each.done(); });
  };
  world.loop->RunUntilIdle();
  EXPECT_EQ(writes, 2);
  EXPECT_EQ(waiting(), 2);
  EXPECT_TRUE(world->tier->TakeOut("/flash0").ok());
  world.loop->RunUntilIdle();
  EXPECT_EQ(waiting(), 1) << "the one that hangs";
  world.disk.set_faults({});
  world.disk.Unhang("/flash0/flash");
  for (auto& append : appends) {
    const auto appended = world.loop->BlockOn(std::move(append));
    ASSERT_TRUE(appended.has_value()) << appended.error().ToString();
    EXPECT_TRUE(world->Fetch(appended->front()).ok() == (DeviceOf(world, appended->front()) == 1));
  }
  world.Stop();
}

TEST(FlashAppend, AWriteThatFailsWhileTheTierClosesIsTriedNoMore) {
  World world(13, TestOptions(2));
  ASSERT_TRUE(world.Start().ok());
  std::string hangs;
  world.disk.set_faults([&](const io::IoRequest& request, const std::string& path) {
    if (!IsOfABatch(request)) return io::Fault{};
    hangs = path;
    return io::Fault{io::FaultKind::kHang};
  });
  auto append = world->AppendTask({1}, {5'000});
  world.loop->RunUntilIdle();
  auto close = world->tier->Close();
  world.loop->RunUntilIdle();
  EXPECT_FALSE(append.done() || close.done());
  world.disk.set_faults({});
  ASSERT_TRUE(world->tier->TakeOut(hangs.substr(0, hangs.rfind('/'))).ok());
  world.disk.Unhang(hangs);
  world.loop->RunUntilIdle();
  ASSERT_TRUE(append.done() && close.done());
  EXPECT_EQ(append.Take().error().code(), Code::kIoError);
  world.Ended();
}

// Recovery finds no batch behind one that is not whole: it would be lost with the next restart.
TEST(FlashAppend, P7ABatchBehindOneThatFailedIsAcknowledgedElsewhereOrNot) {
  World world(6, TestOptions(1, 512, 8, 1u << 20));
  ASSERT_TRUE(world.Start().ok());
  const Kept before = world->Append({1}, {5'000})->front();
  world.loop->RunUntilIdle();
  int writes = 0;
  world.disk.set_faults([&](const io::IoRequest& request, const std::string&) {
    if (!IsOfABatch(request)) return io::Fault{};
    ++writes;
    if (writes == 2) return io::Fault{io::FaultKind::kIoError};
    // The one before it ends after it, and so do some of those behind it.
    if (writes == 1) return io::Fault{io::FaultKind::kDelay, 5'000};
    return writes == 4 ? io::Fault{io::FaultKind::kDelay, 10'000} : io::Fault{};
  });
  std::vector<Task<Result<std::vector<Kept>>>> appends;
  for (std::uint64_t n = 2; n < 6; ++n) appends.push_back(world->AppendTask({n}, {5'000}));
  std::vector<Kept> kept = {before};
  for (auto& append : appends) {
    const auto appended = world.loop->BlockOn(std::move(append));
    ASSERT_TRUE(appended.has_value()) << appended.error().ToString();
    kept.push_back(appended->front());
  }
  EXPECT_EQ(kept[1].region(), before.region());
  for (std::size_t i = 2; i < kept.size(); ++i) EXPECT_NE(kept[i].region(), before.region()) << i;
  world.disk.set_faults({});
  for (const bool killed : {true, false}) {
    if (killed) {
      io::LateIo late = world.loop->Kill([](const void*, std::size_t) { return false; });
      world.Ended();
      late.LandAll();
    } else {
      world.Stop();
    }
    ASSERT_TRUE(world.Start().ok());
    EXPECT_EQ(world->found.size(), kept.size()) << killed;
    for (const Kept& each : world->found) EXPECT_TRUE(world->Fetch(each).ok()) << each.number;
  }
  world.Stop();
}

// One of the region that follows is on its way before it is needed, so that nobody waits for that.
TEST(FlashAppend, P7NothingIsAcknowledgedBeforeTheHeaderOfItsRegionIsDurable) {
  World world(7);
  ASSERT_TRUE(world.Start().ok());
  const auto hang_syncs = [&] {
    world.disk.set_faults([](const io::IoRequest& request, const std::string&) {
      return request.kind == io::IoRequest::Kind::kSync ? io::Fault{io::FaultKind::kHang} : io::Fault{};
    });
  };
  const auto unhang = [&] {
    world.disk.set_faults({});
    world.disk.Unhang("/flash0/flash");
    world.loop->RunUntilIdle();
  };
  hang_syncs();
  auto append = world->AppendTask({1}, {5'000});
  world.loop->RunUntilIdle();
  EXPECT_FALSE(append.done());
  unhang();
  ASSERT_TRUE(append.done());
  const auto first = append.Take();
  ASSERT_TRUE(first.has_value()) << first.error().ToString();
  hang_syncs();
  for (std::uint64_t n = 2, region = first->front().region(); region == first->front().region(); ++n) {
    auto next = world->AppendTask({n}, {5'000});
    world.loop->RunUntilIdle();
    ASSERT_TRUE(next.done()) << n;
    region = next.Take()->front().region();
  }
  unhang();
  const std::uint32_t free = world->tier->free_regions();
  world.Stop();
  ASSERT_TRUE(world.Start().ok());
  EXPECT_EQ(world->tier->free_regions(), free) << "what was ready in vain is free";
  world.Stop();
}

TEST(FlashAppend, NobodyWaitsForADeviceThatHasMoreToDo) {
  World world(8, TestOptions(2, 512, 8, 1u << 20));
  ASSERT_TRUE(world.Start().ok());
  for (std::uint64_t n = 0; n < 2; ++n) ASSERT_TRUE(world->Append({n}, {5'000}).has_value());
  world.loop->RunUntilIdle();
  std::string hangs;
  world.disk.set_faults([&](const io::IoRequest& request, const std::string& path) {
    if (!IsOfABatch(request) || !hangs.empty()) return io::Fault{};
    hangs = path;
    return io::Fault{io::FaultKind::kHang};
  });
  auto waits = world->AppendTask({2}, {5'000});
  for (std::uint64_t n = 3; n < 13; ++n) {
    const auto appended = world->Append({n}, {5'000});
    ASSERT_TRUE(appended.has_value()) << appended.error().ToString();
    EXPECT_EQ(DeviceOf(world, appended->front()), hangs == "/flash0/flash" ? 1u : 0u);
  }
  EXPECT_FALSE(waits.done());
  world.disk.set_faults({});
  world.disk.Unhang(hangs);
  world.loop->RunUntilIdle();
  EXPECT_TRUE(waits.Take().has_value());
  world.Stop();
}

TEST(FlashAppend, ATableSaysWhatItsRecordsAre) {
  World world(9, TestOptions(1, 512, 8));
  ASSERT_TRUE(world.Start().ok());
  std::uint64_t number = 0;
  const Counter& written = world->tier->counters().device_written_bytes;
  for (std::uint32_t region = 0; region == 0;) {
    const std::uint64_t before = written.value();
    const Kept kept = world->Append({++number}, {3'000, 100, 1'000})->front();
    region = kept.region();
    EXPECT_TRUE(region > 0 || written.value() - before == 512 + kept.bytes) << "with the batch's head";
  }
  world.loop->RunUntilIdle();
  world->GiveUpOne();
  ASSERT_EQ(world->owner.asked.size(), number - 1);
  for (const tier::TierEntry& entry : world->owner.asked) {
    EXPECT_EQ(entry.parts, 3u);
    EXPECT_EQ(entry.body_bytes, 4'100u);
    EXPECT_EQ(entry.parent, NumberOf(entry) > 0 ? KeyOf(NumberOf(entry) - 1) : BlockKey());
  }
  world.Stop();
}

}  // namespace
}  // namespace cistern::flash
