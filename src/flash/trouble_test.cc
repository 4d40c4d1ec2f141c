// SPDX-License-Identifier: Apache-2.0
// A device that fails, hangs or lies goes out of service, it alone, with one message, and comes back.
#include "flash/device.h"
#include "flash/table.h"
#include "flash/test_flash_tier.h"

namespace cistern::flash {
namespace {

constexpr const char* kFirst = "/flash0/flash";

// Two devices, some records on each.
struct Two : World {
  explicit Two(std::uint64_t seed_in, FlashOptions options_in = TestOptions(2)) : World(seed_in, options_in) {
    EXPECT_TRUE(Start().ok());
    for (std::uint64_t n = 0; n < 8; ++n) {
      const Kept kept = node->Append({n}, {5'000})->front();
      (kept.region() < 8 ? on_first : on_second).push_back(kept);
    }
    EXPECT_FALSE(on_first.empty());
    EXPECT_FALSE(on_second.empty());
  }
  // The clock moves on, and the node ticks as often as it does when it runs.
  void TickFor(std::int64_t us) {
    for (constexpr std::int64_t kStepUs = 100'000; us > 0; us -= kStepUs) {
      clock.AdvanceUs(kStepUs);
      node->tier->Tick();
    }
  }
  bool InService(std::size_t device) { return node->tier->devices()[device].in_service; }
  // The second device goes on; the first is what `out` says.
  void ExpectFirstIsOut(std::string_view why) {
    EXPECT_FALSE(InService(0));
    EXPECT_TRUE(InService(1));
    ASSERT_EQ(node->owner.outs.size(), 1u);
    EXPECT_EQ(node->owner.outs[0], (std::pair<std::uint32_t, std::uint32_t>(0, 8)));
    EXPECT_EQ(node->tier->media_ids().size(), 1u);
    EXPECT_EQ(node->tier->EstimateUs(on_first[0].location, 4096), FlashTier::kNever);
    for (const Kept& kept : on_first) EXPECT_EQ(node->Fetch(kept).code(), Code::kIoError);
    for (const Kept& kept : on_second) EXPECT_TRUE(node->Fetch(kept).ok());
    for (std::uint64_t n = 100; n < 104; ++n) {
      const auto appended = node->Append({n}, {5'000});
      ASSERT_TRUE(appended.has_value()) << appended.error().ToString();
      EXPECT_GE(appended->front().region(), 8u);
    }
    EXPECT_NE(node->tier->devices()[0].why.find(why), std::string::npos) << node->tier->devices()[0].why;
  }
  void ExpectItComesBack() {
    const Status back = loop->BlockOn(node->tier->BringBack("/flash0"));
    ASSERT_TRUE(back.ok()) << back.ToString();
    EXPECT_TRUE(InService(0));
    bool there = false;
    for (std::uint64_t n = 200; n < 208; ++n) {
      const auto appended = node->Append({n}, {5'000});
      ASSERT_TRUE(appended.has_value()) << appended.error().ToString();
      there |= appended->front().region() < 8;
      EXPECT_TRUE(node->Fetch(appended->front()).ok());
    }
    EXPECT_TRUE(there);
    for (const Kept& kept : on_first) EXPECT_FALSE(node->Fetch(kept).ok()) << "what was lost is back";
    known = node->tier->media_ids();
    Stop();
    ASSERT_TRUE(Start().ok());
    for (const Kept& kept : node->found) EXPECT_TRUE(kept.number >= 100 || kept.region() >= 8);
    Stop();
  }

  std::vector<Kept> on_first, on_second;
};

TEST(FlashTrouble, OneErrorIsThatRecordsAlone) {
  Two world(1);
  bool once = true;
  world.disk.set_faults([&](const io::IoRequest& request, const std::string& path) {
    const bool fail =
        request.kind == io::IoRequest::Kind::kRead && path == kFirst && std::exchange(once, false);
    return fail ? io::Fault{io::FaultKind::kIoError} : io::Fault{};
  });
  EXPECT_EQ(world->Fetch(world.on_first[0]).code(), Code::kIoError);
  EXPECT_TRUE(world->Fetch(world.on_first[0]).ok());
  EXPECT_TRUE(world.InService(0));
  EXPECT_EQ(world->tier->devices()[0].errors, 1u);
  world.Stop();
}

// The same block twice in one region: only the place tells the two records apart.
TEST(FlashTrouble, R11BytesOfAnotherPlaceAreNotBelieved) {
  Two world(1);
  const auto twice = world->Append({70, 70}, {5'000});
  ASSERT_TRUE(twice.has_value()) << twice.error().ToString();
  const Kept &older = twice->front(), &newer = twice->back();
  ASSERT_EQ(older.region(), newer.region());
  ASSERT_EQ(older.bytes, newer.bytes);
  world.disk.set_faults([bytes = newer.bytes](const io::IoRequest& request, const std::string&) {
    return request.kind == io::IoRequest::Kind::kRead
               ? io::Fault{io::FaultKind::kElsewhere, request.offset - bytes}
               : io::Fault{};
  });
  EXPECT_EQ(world->Fetch(newer).code(), Code::kMiss);
  world.disk.set_faults({});
  EXPECT_TRUE(world->Fetch(newer).ok());
  EXPECT_TRUE(world->Fetch(older).ok());
  world.Stop();
}

TEST(FlashTrouble, ADeviceWhoseReadsFailGoesOutAlone) {
  Two world(2);
  world.disk.set_faults([](const io::IoRequest& request, const std::string& path) {
    return request.kind == io::IoRequest::Kind::kRead && path == kFirst ? io::Fault{io::FaultKind::kIoError}
                                                                        : io::Fault{};
  });
  for (std::uint32_t n = 0; n < kMaxErrorsInRow; ++n) {
    EXPECT_TRUE(world.InService(0));
    EXPECT_EQ(world->Fetch(world.on_first[0]).code(), Code::kIoError);
  }
  world.ExpectFirstIsOut("8 transfers in a row failed");
  world.disk.set_faults({});
  world.ExpectItComesBack();
}

// A full disk under a file that was preallocated, or a write error: no append is lost, the other device has
// it.
TEST(FlashTrouble, ADeviceWhoseWritesFailGoesOutAndAppendsGoElsewhere) {
  for (const io::FaultKind kind : {io::FaultKind::kIoError, io::FaultKind::kNoSpace}) {
    Two world(3);
    world.disk.set_faults([kind](const io::IoRequest& request, const std::string& path) {
      return request.kind == io::IoRequest::Kind::kWrite && path == kFirst ? io::Fault{kind} : io::Fault{};
    });
    for (std::uint64_t n = 50; n < 60; ++n) {
      const auto appended = world->Append({n}, {5'000});
      ASSERT_TRUE(appended.has_value()) << appended.error().ToString();
      EXPECT_TRUE(world->Fetch(appended->front()).ok());
    }
    world.ExpectFirstIsOut("could not be written");
    world.disk.set_faults({});
    world.ExpectItComesBack();
  }
}

TEST(FlashTrouble, ADeviceThatCannotSyncGoesOut) {
  Two world(4);
  world.disk.set_faults([](const io::IoRequest& request, const std::string& path) {
    return request.kind == io::IoRequest::Kind::kSync && path == kFirst ? io::Fault{io::FaultKind::kIoError}
                                                                        : io::Fault{};
  });
  for (std::uint64_t n = 50; n < 70 && world.InService(0); ++n) (void)world->Append({n}, {20'000});
  world.ExpectFirstIsOut("sync /flash0/flash");
  world.Stop();
}

// It would take and give back for as long as the node has it open, and be nowhere at the next start.
TEST(FlashTrouble, ADeviceWhoseFileIsRemovedGoesOutAndComesBackAsANewOne) {
  Two two(9);
  two.TickFor(200'000);
  EXPECT_TRUE(two.InService(0));
  ASSERT_TRUE(two.loop->Remove(kFirst).ok());
  two.TickFor(100'000);
  two.ExpectFirstIsOut("was removed by another program");
  two.ExpectItComesBack();
}

TEST(FlashTrouble, ADeviceThatHangsGoesOutAndNobodyElseWaitsForIt) {
  FlashOptions options = TestOptions(2);
  options.hang_us = 1'000'000;
  Two world(5, options);
  world.disk.set_faults([](const io::IoRequest&, const std::string& path) {
    return path == kFirst ? io::Fault{io::FaultKind::kHang} : io::Fault{};
  });
  Task<Status> hung = world->FetchTask(world.on_first[0]);
  std::vector<std::uint64_t> numbers(1, 50);
  std::vector<std::uint32_t> parts(1, 5'000);
  std::vector<Task<Result<std::vector<Kept>>>> appends;
  for (int i = 0; i < 4; ++i) appends.push_back(world->AppendTask(numbers, parts));
  world.loop->RunUntilIdle();
  EXPECT_FALSE(hung.done());
  world->tier->Tick();
  world.TickFor(900'000);
  EXPECT_TRUE(world.InService(0));
  world.TickFor(200'000);
  world.ExpectFirstIsOut("has hung");
  EXPECT_EQ(world.loop->BlockOn(world->tier->BringBack("/flash0")).code(), Code::kBusy);
  world.disk.set_faults({});
  world.disk.Unhang(kFirst);
  EXPECT_EQ(world.loop->BlockOn(std::move(hung)).code(), Code::kIoError);
  for (auto& append : appends) {
    const auto appended = world.loop->BlockOn(std::move(append));
    ASSERT_TRUE(appended.has_value()) << appended.error().ToString();
    EXPECT_GE(appended->front().region(), 8u);
  }
  world.ExpectItComesBack();
}

// Its number is what tombstones wait for, and no region that is given up would let them end.
TEST(FlashTrouble, AWriteThatHangsHasNoRegionsOfOthersGivenUp) {
  FlashOptions options = TestOptions(2);
  options.hang_us = 1'000'000;
  Two world(5, options);
  world.disk.set_faults([](const io::IoRequest& request, const std::string& path) {
    return request.kind == io::IoRequest::Kind::kWrite && path == kFirst ? io::Fault{io::FaultKind::kHang}
                                                                         : io::Fault{};
  });
  std::vector<std::uint32_t> parts(1, 5'000);
  std::vector<Task<Result<std::vector<Kept>>>> appends;
  for (std::uint64_t n = 50; n < 54; ++n)
    appends.push_back(world->AppendTask(std::vector<std::uint64_t>(1, n), parts));
  world.loop->RunUntilIdle();
  world->tier->Tick();
  world.TickFor(1'200'000);
  ASSERT_FALSE(world.InService(0));
  for (std::uint64_t n = 100; n < 140; ++n) ASSERT_TRUE(world->Append({n}, {5'000}).has_value());
  for (int i = 0; i < 3; ++i) {
    world->tier->Reclaim(true);
    world.loop->RunUntilIdle();
  }
  EXPECT_EQ(world->tier->counters().reclaimed.value(), 1u) << "the one that is older alone";
  world.disk.set_faults({});
  world.disk.Unhang(kFirst);
  for (auto& append : appends) EXPECT_TRUE(world.loop->BlockOn(std::move(append)).has_value());
  world->GiveUpOne();
  world.Stop();
}

// As of a process that was stopped, or a host that had no time for it: the device may have answered long ago.
TEST(FlashTrouble, ANodeThatStoodStillBlamesNoDevice) {
  FlashOptions options = TestOptions(2);
  options.hang_us = 5'000'000;
  Two world(11, options);
  world.disk.set_faults([](const io::IoRequest&, const std::string& path) {
    return path == kFirst ? io::Fault{io::FaultKind::kHang} : io::Fault{};
  });
  Task<Status> fetch = world->FetchTask(world.on_first[0]);
  world.loop->RunUntilIdle();
  world.TickFor(100'000);
  world.clock.AdvanceUs(3600ll * 1'000'000);
  world->tier->Tick();
  EXPECT_TRUE(world.InService(0));
  world.disk.set_faults({});
  world.disk.Unhang(kFirst);
  EXPECT_TRUE(world.loop->BlockOn(std::move(fetch)).ok());
  // A transfer that hangs on while the node runs again is the device's fault all the same.
  world.disk.set_faults([](const io::IoRequest&, const std::string& path) {
    return path == kFirst ? io::Fault{io::FaultKind::kHang} : io::Fault{};
  });
  Task<Status> hung = world->FetchTask(world.on_first[0]);
  world.loop->RunUntilIdle();
  world.clock.AdvanceUs(3600ll * 1'000'000);
  world.TickFor(5'100'000);
  world.ExpectFirstIsOut("has hung");
  world.disk.set_faults({});
  world.disk.Unhang(kFirst);
  EXPECT_EQ(world.loop->BlockOn(std::move(hung)).code(), Code::kIoError);
  world.ExpectItComesBack();
}

// It gives back other bytes than it was given, all of them read without an error.
TEST(FlashTrouble, ADeviceThatLiesGoesOut) {
  Two world(6);
  Random random(6);
  world.disk.set_faults([&](const io::IoRequest& request, const std::string& path) {
    const bool lie = request.kind == io::IoRequest::Kind::kRead && path == kFirst;
    return lie ? io::Fault{io::FaultKind::kFlip, random.Below(40'000)} : io::Fault{};
  });
  for (std::uint32_t n = 0; n < kMaxBadInRow; ++n) {
    EXPECT_TRUE(world.InService(0));
    EXPECT_EQ(world->Fetch(world.on_first[n % world.on_first.size()]).code(), Code::kMiss);
  }
  world.ExpectFirstIsOut("not what was written");
  world.disk.set_faults({});
  world.ExpectItComesBack();
}

TEST(FlashTrouble, AFailedReleaseTakesTheDeviceOut) {
  Two world(7);
  // Headers alone; what was let go before is gone in any case.
  world.disk.set_faults([&](const io::IoRequest& request, const std::string&) {
    const bool header = request.kind == io::IoRequest::Kind::kWrite && request.size == 512 &&
                        (request.offset - kSuperBytes) % kTestRegionBytes == 0;
    return header && !world->owner.asked.empty() ? io::Fault{io::FaultKind::kIoError} : io::Fault{};
  });
  for (std::uint64_t n = 50; world->tier->counters().reclaimed.value() == 0; ++n) {
    (void)world->Append({n}, {20'000});
    world.loop->RunUntilIdle();
    world->tier->Reclaim(true);
    world.loop->RunUntilIdle();
  }
  EXPECT_EQ(world->owner.reclaimed, 0u);
  EXPECT_EQ(world->owner.outs.size(), 1u);
  EXPECT_EQ(world->tier->media_ids().size(), 1u);
  world.Stop();
}

TEST(FlashTrouble, OneLineSaysWhichWhyAndTheWayBack) {
  Two world(8);
  EXPECT_EQ(world->tier->TakeOut("/nowhere").code(), Code::kMiss);
  EXPECT_EQ(world.loop->BlockOn(world->tier->BringBack("/flash0")).code(), Code::kInvalid);
  EXPECT_TRUE(world->tier->TakeOut("/flash0").ok());
  EXPECT_TRUE(world->tier->TakeOut("/flash0").ok());
  world.ExpectFirstIsOut("by hand");
  EXPECT_TRUE(world->tier->TakeOut("/flash1").ok());
  EXPECT_EQ(world->tier->RoomFor(4096), FlashTier::Room::kNoDevice);
  const auto appended = world->Append({300}, {5'000});
  ASSERT_FALSE(appended.has_value());
  EXPECT_EQ(appended.error().ToString(), "io_error: flash: no device is in service");
  world->Close();
  EXPECT_TRUE(
      world->Logged("flash device /flash0: is out of service: it was taken out by hand; what was on it is "
                    "lost, the rest goes on; `cistern device bring-back /flash0`"));
  world.Ended();
}

TEST(FlashTrouble, ADeviceThatIsTakenOutWhileItIsBroughtBackStaysOut) {
  // After each number of turns that bringing it back takes.
  bool back_first = false;
  for (int turns = 0; !back_first; ++turns) {
    SCOPED_TRACE(turns);
    Two world(12);
    ASSERT_TRUE(world->tier->TakeOut("/flash0").ok());
    Task<Status> back = world->tier->BringBack("/flash0");
    for (int i = 0; i < turns && !back.done(); ++i) world.loop->Turn();
    back_first = back.done();
    EXPECT_TRUE(world->tier->TakeOut("/flash0").ok());
    EXPECT_EQ(world.loop->BlockOn(std::move(back)).ok(), back_first);
    EXPECT_FALSE(world.InService(0));
    world.loop->RunUntilIdle();
    world.ExpectItComesBack();
    if (testing::Test::HasFailure()) return;
  }
}

// The loop's own limit is nobody's fault: what finds it reached waits.
TEST(FlashTrouble, ALoopAtItsLimitOfOperationsCostsNoDevice) {
  World world(10, TestOptions(1));
  io::LoopOptions few;
  few.max_io = 2;
  world.loop = std::move(*io::SimulatedLoop::Make(world.clock, world.disk, 3, few));
  world.node = std::make_unique<TierOn>(*world.loop, world.options, 4);
  ASSERT_TRUE(world->Open().ok());
  ASSERT_TRUE(world->Recover().ok());
  std::vector<Task<Result<std::vector<Kept>>>> appends;
  std::vector<std::uint32_t> parts(1, 3'000);
  for (std::uint64_t n = 0; n < 12; ++n) {
    appends.push_back(world->AppendTask(std::vector<std::uint64_t>(1, n), parts));
  }
  std::vector<Task<Status>> fetches;
  for (auto& append : appends) {
    const auto appended = world.loop->BlockOn(std::move(append));
    ASSERT_TRUE(appended.has_value()) << appended.error().ToString();
    fetches.push_back(world->FetchTask(appended->front()));
  }
  for (auto& fetch : fetches) EXPECT_TRUE(world.loop->BlockOn(std::move(fetch)).ok());
  EXPECT_TRUE(world->tier->devices()[0].in_service);
  EXPECT_EQ(world->tier->devices()[0].errors, 0u);
  world.Stop();
}

TEST(FlashTrouble, P7AStartIsWithoutADeviceWhoseSuperblockCannotBeReadOrWritten) {
  for (const bool written : {false, true}) {
    SCOPED_TRACE(written);
    Two world(16);
    world.known = world->tier->media_ids();
    if (written) world.known.erase(world.known.begin());  // the first is formatted
    world.Stop();
    world.disk.set_faults([written](const io::IoRequest& request, const std::string& path) {
      const bool fails = path == kFirst && request.offset < kSuperBytes &&
                         request.kind == (written ? io::IoRequest::Kind::kWrite : io::IoRequest::Kind::kRead);
      return fails ? io::Fault{io::FaultKind::kIoError} : io::Fault{};
    });
    const Status started = world.Start();
    ASSERT_TRUE(started.ok()) << started.ToString();
    EXPECT_FALSE(world.InService(0));
    const std::string why = world->tier->devices()[0].why;
    EXPECT_NE(why.find(written ? "it could not be formatted: " : "its superblock cannot be read: "),
              std::string::npos)
        << why;
    EXPECT_EQ(world->found.size(), world.on_second.size());
    EXPECT_EQ(world->tier->media_ids().size(), 1u);
    world.disk.set_faults({});
    EXPECT_TRUE(world.loop->BlockOn(world->tier->BringBack("/flash0")).ok());
    EXPECT_TRUE(world.InService(0));
    world.Stop();
  }
}

TEST(FlashTrouble, ANodeThatHasNeverHadFlashRefusesADeviceThatCannotBeRead) {
  Two world(17);
  world.Stop();
  world.known.clear();
  world.disk.set_faults([](const io::IoRequest& request, const std::string& path) {
    return request.kind == io::IoRequest::Kind::kRead && path == kFirst ? io::Fault{io::FaultKind::kIoError}
                                                                        : io::Fault{};
  });
  const Status started = world.Start();
  EXPECT_EQ(started.code(), Code::kIoError);
  EXPECT_NE(started.message().find("flash device /flash0"), std::string::npos) << started.ToString();
  world.node.reset();
}

// The node that a kill left has open regions, so a start reads, writes and syncs; so does one that formats
// the device, which its journal does not know. The device hangs at each of these in turn.
class StartOfADeviceThatHangs : public testing::TestWithParam<bool> {};

Task<void> TickUntil(TierOn& node, const bool& done) {
  while (!done) {
    co_await SleepUntil(node.loop.clock().Now().PlusUs(100'000));
    node.tier->Tick();
  }
}

Task<Status> StartTask(TierOn& node, std::vector<std::uint64_t> known) {
  tier::JournalView journal{5, std::move(known), {1, 40}};
  FlashParts parts{node.loop, *node.log, [&node] { return node.random.Next(); }};
  auto opened = co_await FlashTier::Open(std::move(parts), node.options, std::move(journal));
  if (!opened) co_return opened.error();
  node.tier = std::move(*opened);
  node.owner.tier = node.tier.get();
  node.tier->SetOwner(node.owner);
  bool recovered = false;
  Task<void> ticks = TickUntil(node, recovered);
  Found keep = [&node](std::span<const tier::TierEntry> found) { return node.Keep(found); };
  const Status status = co_await node.tier->Recover(std::move(keep));
  recovered = true;
  co_await ticks;
  co_return status;
}

TEST_P(StartOfADeviceThatHangs, R8IsWithoutItAndItComesBack) {
  bool over = false;  // the start asks it less often than that
  for (std::uint64_t at = 0; !over; ++at) {
    SCOPED_TRACE(at);
    Two world(13);
    world.known = world->tier->media_ids();
    if (GetParam()) world.known.erase(world.known.begin());
    const io::LateIo late = world.loop->Kill([](const void*, std::size_t) { return false; });
    world.Ended();
    world.loop = std::move(*io::SimulatedLoop::Make(world.clock, world.disk, 14));
    world.node = std::make_unique<TierOn>(*world.loop, world.options, 15);
    std::uint64_t asked = 0;
    world.disk.set_faults([&](const io::IoRequest&, const std::string& path) {
      return path == kFirst && asked++ >= at ? io::Fault{io::FaultKind::kHang} : io::Fault{};
    });
    Task<Status> start = StartTask(*world.node, world.known);
    world.loop->RunUntilIdle();
    over = asked <= at;
    const bool waits = !start.done();
    EXPECT_FALSE(waits) << "the start waits for it";
    world.disk.set_faults({});
    if (waits) world.disk.Unhang(kFirst);
    const Status started = world.loop->BlockOn(std::move(start));
    ASSERT_TRUE(started.ok()) << started.ToString();
    if (waits) return world.Stop();
    EXPECT_EQ(world.InService(0), over);
    EXPECT_TRUE(world.InService(1));
    for (const Kept& kept : world.on_second) {
      const auto same = [&](const Kept& found) { return found.number == kept.number; };
      EXPECT_TRUE(std::ranges::any_of(world->found, same)) << kept.number;
    }
    if (!over) {
      EXPECT_NE(world->tier->devices()[0].why.find("has hung"), std::string::npos)
          << world->tier->devices()[0].why;
      EXPECT_EQ(world->tier->media_ids().size(), 1u);
      EXPECT_EQ(world.loop->BlockOn(world->tier->BringBack("/flash0")).code(), Code::kBusy);
      world.disk.Unhang(kFirst);
      world.loop->RunUntilIdle();
      world->tier->Tick();
      EXPECT_TRUE(world.loop->BlockOn(world->tier->BringBack("/flash0")).ok());
      EXPECT_TRUE(world.InService(0));
    }
    world.Stop();
    if (testing::Test::HasFailure()) return;
  }
}
INSTANTIATE_TEST_SUITE_P(, StartOfADeviceThatHangs, testing::Bool(), [](const auto& formats) {
  return formats.param ? "AndIsFormatted" : "AndIsBelieved";
});

// After a start in which the device is healthy again: its old bytes are not believed, the journal forgot it.
TEST(FlashTrouble, ADeviceThatWasOutAndIsBackAfterARestartIsEmpty) {
  Two world(9);
  EXPECT_TRUE(world->tier->TakeOut("/flash0").ok());
  world.known = world->tier->media_ids();
  world.Stop();
  ASSERT_TRUE(world.Start().ok());
  for (const Kept& kept : world->found) EXPECT_GE(kept.region(), 8u);
  EXPECT_EQ(world->found.size(), world.on_second.size());
  world.Stop();
}

}  // namespace
}  // namespace cistern::flash
