// SPDX-License-Identifier: Apache-2.0
// A region is given up as its owner says: what it keeps moves, parents first, what it does not know is lost,
// and what went on the way is not written again.
#include "flash/device.h"
#include "flash/test_flash_tier.h"

namespace cistern::flash {
namespace {

// Region 0 is closed and holds all records that are asked after.
struct Filled : World {
  explicit Filled(std::uint64_t seed_in, FlashOptions options_in = TestOptions(1, 512, 8),
                  std::uint32_t body_bytes = 5'000)
      : World(seed_in, options_in) {
    EXPECT_TRUE(Start().ok());
    kept = FillRegion(body_bytes);
    loop->RunUntilIdle();
    kept.pop_back();
  }
  const FlashCounters& Counters() { return node->tier->counters(); }
  void Reclaim() {
    node->tier->Reclaim(true);
    loop->RunUntilIdle();
  }
  Task<void> Wait(Executor& executor, std::int64_t us) {
    (void)co_await SleepUntil(executor.Now().PlusUs(us));
  }
  // Where the block lies now; none: it is gone.
  std::optional<Kept> Find(std::uint64_t number) {
    for (const auto& [location, each] : node->owner.live) {
      if (each.number == number) return each;
    }
    return std::nullopt;
  }

  std::vector<Kept> kept;  // in the region
};

TEST(FlashReclaim, R9KeptRecordsMoveParentsFirstAndTheRestIsGone) {
  Filled world(1);
  world->owner.keep = [](const tier::TierEntry& entry, std::uint64_t, std::uint64_t) {
    return NumberOf(entry) % 3 != 0;
  };
  const std::uint32_t free = world->tier->free_regions();
  world.Reclaim();
  EXPECT_EQ(world.Counters().reclaimed.value(), 1u);
  EXPECT_EQ(world.Counters().released_regions.value(), 1u);
  EXPECT_EQ(world->owner.reclaimed, 1u);
  EXPECT_EQ(world->owner.losses, 0u);
  EXPECT_EQ(world->tier->free_regions(), free + 1);
  std::optional<Kept> last;
  for (const Kept& each : world.kept) {
    const auto now = world.Find(each.number);
    ASSERT_EQ(now.has_value(), each.number % 3 != 0) << each.number;
    if (!now) continue;
    EXPECT_NE(now->region(), each.region());
    EXPECT_GT(now->sequence, each.sequence);
    EXPECT_TRUE(world->Fetch(*now).ok());
    if (last) {
      EXPECT_GT(now->location, last->location);
    }
    last = now;
  }
  EXPECT_EQ(world->tier->oldest_sequence(), world->owner.live.begin()->second.sequence);
  world.Stop();
}

// Of a region with more to keep than is read and written at a time: the next reclaim asks after leaves first.
TEST(FlashReclaim, R9ManyKeptRecordsMoveParentsFirstToo) {
  Filled world(12, TestOptions(1, 4096, 8, 16u << 20), 100'000);
  world->owner.keep = [](const tier::TierEntry&, std::uint64_t, std::uint64_t) { return true; };
  world.Reclaim();
  ASSERT_EQ(world->owner.reclaimed, 1u);
  tier::Location last;
  for (const Kept& each : world.kept) {
    const auto now = world.Find(each.number);
    ASSERT_TRUE(now.has_value() && now->region() != each.region()) << each.number;
    EXPECT_TRUE(last.none() || now->location > last) << each.number;
    last = now->location;
  }
  world.Stop();
}

TEST(FlashReclaim, WriteAmplificationIsOfBytesWhateverTheSizeOfWhatMoved) {
  World world(13, TestOptions(1, 512, 8));
  ASSERT_TRUE(world.Start().ok());
  std::uint64_t fresh = 0;
  for (std::uint64_t n = 1, first = UINT64_MAX;; ++n) {
    const Kept kept = world->Append({n}, {n % 2 == 0 ? 2'000u : 40'000u})->front();
    fresh += kept.bytes;
    first = std::min<std::uint64_t>(first, kept.region());
    if (kept.region() != first) break;
  }
  world.loop->RunUntilIdle();
  world->owner.keep = [](const tier::TierEntry& entry, std::uint64_t, std::uint64_t) {
    return NumberOf(entry) % 2 == 0;
  };
  world->tier->Reclaim(true);
  world.loop->RunUntilIdle();
  const FlashCounters& counters = world->tier->counters();
  ASSERT_GT(counters.moved_bytes.value(), 0u);
  EXPECT_DOUBLE_EQ(counters.write_amplification(),
                   static_cast<double>(counters.device_written_bytes.value()) / static_cast<double>(fresh));
  world.Stop();
}

// With the power gone at any moment of a reclaim: by chance some of what is not durable is there all the
// same.
TEST(FlashReclaim, P7WhatWasDurableIsFoundAfterAPowerCutWhereverItMoves) {
  std::uint64_t released = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    Filled world(seed, TestOptions(2, 512, 8));
    for (std::uint64_t number = 100; number < 140; ++number)
      world.kept.push_back(world->Append({number}, {5'000})->front());
    world.loop->RunUntilIdle();
    ASSERT_TRUE(world.loop->BlockOn(world->tier->MakeDurable()).ok());
    world->owner.keep = [](const tier::TierEntry&, std::uint64_t, std::uint64_t) { return true; };
    world->tier->Reclaim(true);
    world.loop->BlockOn(world.Wait(world->executor(), static_cast<std::int64_t>(seed) * 200));
    released += world.Counters().released_regions.value();
    world.CutPower();
    world.Ended();
    ASSERT_TRUE(world.Start().ok());
    for (const Kept& each : world.kept) {
      const bool found = std::ranges::any_of(world->owner.live, [&](const auto& at) {
        return at.second.number == each.number && world->Fetch(at.second).ok();
      });
      EXPECT_TRUE(found) << "seed " << seed << " lost record " << each.number;
    }
    world.Stop();
  }
  EXPECT_GT(released, 10u);
}

// What is older than a tombstone, or has expired, stays so wherever it lies.
TEST(FlashReclaim, R10AMovedRecordKeepsWhenItWasBornAndWhenItExpires) {
  Filled world(11);
  world->owner.keep = [](const tier::TierEntry&, std::uint64_t, std::uint64_t) { return true; };
  world.Reclaim();
  std::map<std::uint64_t, std::uint64_t> born;
  for (const Kept& each : world.kept) {
    const auto now = world.Find(each.number);
    ASSERT_TRUE(now.has_value()) << each.number;
    ASSERT_GT(now->sequence, each.sequence) << "it has moved";
    born[each.number] = each.sequence;
    const Buffer buffer = world->pool.Take(each.bytes);
    const auto fetched =
        world.loop->BlockOn(world->tier->Fetch(now->location, buffer.bytes().first(each.bytes), nullptr));
    ASSERT_TRUE(fetched.has_value());
    EXPECT_EQ(fetched->stamp.born, each.sequence);
    EXPECT_EQ(fetched->stamp.expiry, ExpiryOf(each.number));
    EXPECT_EQ(fetched->stamp.conversation, each.number % 3);
  }
  world.Stop();
  world.loop = std::move(*io::SimulatedLoop::Make(world.clock, world.disk, 12));
  world.node = std::make_unique<TierOn>(*world.loop, world.options, 12);
  ASSERT_TRUE(world->Open(world.known).ok());
  std::vector<tier::TierEntry> entries;
  const auto found = [&](std::span<const tier::TierEntry> some) -> Task<void> {
    entries.insert(entries.end(), some.begin(), some.end());
    return world->Keep(some);
  };
  ASSERT_TRUE(world.loop->BlockOn(world->tier->Recover(found)).ok());
  std::size_t moved = 0;
  for (const tier::TierEntry& entry : entries) {
    const std::uint64_t number = NumberOf(entry);
    EXPECT_EQ(entry.expiry, ExpiryOf(number));
    EXPECT_EQ(entry.conversation, number % 3);
    EXPECT_EQ(entry.parent, KeyOf(number - 1));
    EXPECT_TRUE(entry.incarnation == 7 && entry.group == 1 && entry.parts == 1 && entry.body_bytes == 5'000);
    EXPECT_EQ(entry.born, born.contains(number) ? born[number] : entry.sequence);
    moved += born.contains(number);
  }
  EXPECT_EQ(moved, born.size());
  world.Stop();
}

TEST(FlashReclaim, TheOwnerIsToldHowMuchIsKeptAlready) {
  Filled world(2);
  std::vector<std::uint64_t> said;
  world->owner.keep = [&](const tier::TierEntry&, std::uint64_t kept_bytes, std::uint64_t room_bytes) {
    EXPECT_EQ(room_bytes, kTestRegionBytes);
    said.push_back(kept_bytes);
    return said.size() % 2 == 0;
  };
  world.Reclaim();
  ASSERT_EQ(said.size(), world.kept.size());
  for (std::size_t i = 0; i < said.size(); ++i) EXPECT_EQ(said[i], i / 2 * world.kept.front().bytes);
  world.Stop();
}

// R10: its tombstone waits for older numbers only.
TEST(FlashReclaim, R10ARecordThatWentBeforeItIsAppendedIsNotWrittenAgain) {
  Filled world(3);
  world->owner.keep = [](const tier::TierEntry&, std::uint64_t, std::uint64_t) { return true; };
  world.disk.set_faults([&](const io::IoRequest& request, const std::string&) {
    const bool record = request.kind == io::IoRequest::Kind::kRead && request.size == world.kept[0].bytes;
    return record ? io::Fault{io::FaultKind::kDelay, 1'000} : io::Fault{};
  });
  world->tier->Reclaim(true);
  while (world->tier->devices()[0].in_flight == 0 || world->owner.asked.size() < world.kept.size()) {
    world.loop->Turn();
  }
  const std::uint64_t appended = world.Counters().appended_records.value();
  world->Forget(world.kept[1]);
  world.loop->RunUntilIdle();
  EXPECT_EQ(world.Counters().appended_records.value() - appended, world.kept.size() - 1);
  EXPECT_FALSE(world.Find(world.kept[1].number).has_value());
  world.Stop();
}

TEST(FlashReclaim, ARecordThatWentWhileItMovedIsForgottenWhereItMovedTo) {
  Filled world(4);
  world->owner.keep = [](const tier::TierEntry&, std::uint64_t, std::uint64_t) { return true; };
  std::uint64_t stamped = 0;
  world->owner.stamped = [&](const tier::TierEntry&, std::uint64_t) { ++stamped; };
  world->tier->Reclaim(true);
  while (stamped < world.kept.size()) world.loop->Turn();
  world->Forget(world.kept[0]);
  world.loop->RunUntilIdle();
  std::uint64_t bytes = 0;
  for (const auto& [location, each] : world->owner.live) bytes += each.bytes;
  EXPECT_EQ(world->tier->live_bytes(), bytes);
  EXPECT_EQ(world.Counters().released_regions.value(), 1u);
  world.Stop();
}

TEST(FlashReclaim, AnUnreadableTableCostsTheRegionsRecords) {
  Filled world(5);
  world->owner.keep = [](const tier::TierEntry&, std::uint64_t, std::uint64_t) { return true; };
  int left = 2;  // it is tried once more
  world.disk.set_faults([&](const io::IoRequest& request, const std::string&) {
    const bool fail = request.kind == io::IoRequest::Kind::kRead && left-- > 0;
    return fail ? io::Fault{io::FaultKind::kIoError} : io::Fault{};
  });
  world.Reclaim();
  EXPECT_TRUE(world->owner.asked.empty());
  EXPECT_EQ(world->owner.losses, 1u);
  EXPECT_EQ(world->owner.reclaimed, 1u);
  for (const Kept& each : world.kept) EXPECT_FALSE(world.Find(each.number).has_value());
  world.Stop();
}

TEST(FlashReclaim, ACloseEndsAReclaimBetweenTwoRecordsAndARestartFindsThem) {
  Filled world(6);
  world->owner.hold = true;
  world->tier->Reclaim(true);
  world.loop->RunUntilIdle();
  ASSERT_EQ(world->owner.asked.size(), 1u);
  Task<void> closing = world->tier->Close();
  world.loop->RunUntilIdle();
  EXPECT_FALSE(closing.done());
  world->owner.hold = false;
  world->owner.go_on.Pulse();
  world.loop->BlockOn(std::move(closing));
  EXPECT_EQ(world->owner.asked.size(), 1u);
  EXPECT_EQ(world->owner.losses, 0u);
  const std::size_t live = world->owner.live.size();
  world.Ended();
  ASSERT_TRUE(world.Start().ok());
  EXPECT_EQ(world->found.size(), live + 1) << "what the owner let go is in the region still";
  world.Stop();
}

TEST(FlashReclaim, OneAtATimeAndAnotherOnceADeviceWentUnderIt) {
  Filled world(7, TestOptions(2, 512, 8));
  while (world->tier->free_regions() > 8) (void)world->Append({100}, {20'000});
  world.loop->RunUntilIdle();
  world->owner.hold = true;
  world->tier->Reclaim(true);
  world.loop->RunUntilIdle();
  world->tier->Reclaim(true);
  world.loop->RunUntilIdle();
  ASSERT_EQ(world->owner.asked.size(), 1u);
  const std::uint32_t region = AddressOf(world->owner.asked[0].location).region;
  ASSERT_TRUE(world->tier->TakeOut(region < 8 ? "/flash0" : "/flash1").ok());
  world->owner.hold = false;  // the first one still waits
  world->tier->Reclaim(true);
  world.loop->RunUntilIdle();
  EXPECT_EQ(world.Counters().reclaimed.value(), 2u);
  EXPECT_EQ(world->owner.reclaimed, 1u);
  world->owner.go_on.Pulse();
  world.loop->RunUntilIdle();
  EXPECT_EQ(world->owner.reclaimed, 1u);
  world.Stop();
}

TEST(FlashReclaim, ADeviceDoesNotComeBackUnderAReclaimOfWhatWasThere) {
  Filled world(10);
  world->owner.hold = true;
  world->tier->Reclaim(true);
  world.loop->RunUntilIdle();
  ASSERT_EQ(world->owner.asked.size(), 1u);
  ASSERT_TRUE(world->tier->TakeOut("/flash0").ok());
  EXPECT_EQ(world.loop->BlockOn(world->tier->BringBack("/flash0")).code(), Code::kBusy)
      << "what is new in the region would be given up with it";
  world->owner.hold = false;
  world->owner.go_on.Pulse();
  world.loop->RunUntilIdle();
  ASSERT_TRUE(world.loop->BlockOn(world->tier->BringBack("/flash0")).ok());
  const auto appended = world->Append({500}, {5'000});
  ASSERT_TRUE(appended.has_value());
  EXPECT_TRUE(world->Fetch(appended->front()).ok());
  world.Stop();
}

TEST(FlashReclaim, NoneBeginsBeforeRecoveryHasEnded) {
  Filled world(8);
  world.Stop();
  world.loop = std::move(*io::SimulatedLoop::Make(world.clock, world.disk, 8));
  world.node = std::make_unique<TierOn>(*world.loop, world.options, 9);
  ASSERT_TRUE(world->Open(world.known).ok());
  world.Reclaim();
  EXPECT_EQ(world.Counters().reclaimed.value(), 0u);
  ASSERT_TRUE(world->Recover().ok());
  world.Reclaim();
  EXPECT_EQ(world.Counters().reclaimed.value(), 1u);
  world.Stop();
}

TEST(FlashReclaim, RangesAndDescriptionsOfLocations) {
  const tier::LocationRange range = RangeOf(3, 5);
  EXPECT_FALSE(range.contains(LocationOf({2, 4000})));
  EXPECT_TRUE(range.contains(LocationOf({3, 0})));
  EXPECT_TRUE(range.contains(LocationOf({4, 4000})));
  EXPECT_FALSE(range.contains(LocationOf({5, 0})));
  EXPECT_FALSE(range.contains(tier::Location{}));
  Filled world(9);
  EXPECT_EQ(world->tier->Describe(LocationOf({17, 208})), "flash region 17, unit 208");
  EXPECT_EQ(world->tier->max_append_bytes(), kTestRegionBytes / 4);
  world.Stop();
}

TEST(FlashReclaim, WhatItWritesIsACostOfWhatIsNew) {
  Filled world(13);
  EXPECT_EQ(world->tier->write_costs().moved, 0);
  const double fresh = static_cast<double>(world.Counters().appended_bytes.value());
  world->owner.keep = [](const tier::TierEntry&, std::uint64_t, std::uint64_t) { return true; };
  world.Reclaim();
  const double moved = static_cast<double>(world.kept.size() * world.kept.front().bytes);
  EXPECT_DOUBLE_EQ(world->tier->write_costs().moved, moved / fresh);
  EXPECT_EQ(world.Counters().fetched_records.value(), 0u) << "nobody was served";
  EXPECT_EQ(world.Counters().fetched_bytes.value(), 0u);
  world.Stop();
}

TEST(FlashReclaim, WhatIsWrittenCostsNothingWhileThereIsRoom) {
  Filled world(1);
  EXPECT_EQ(world->tier->write_costs().turn_ms, 0);
  std::uint64_t next = 1'000'000;
  while (world.Counters().released_regions.value() < 20) {
    if (!world->Append({next++}, {5'000})) world->GiveUpOne();
  }
  while (world->Append({next++}, {5'000})) continue;
  world->loop.BlockOn(world->Moment());
  EXPECT_GT(world->tier->write_costs().turn_ms, 0) << "each write takes another one's room";
  const auto live = std::exchange(world->owner.live, {});
  for (const auto& [location, each] : live) world->tier->Forget(location, each.bytes);
  EXPECT_EQ(world->tier->write_costs().turn_ms, 0) << "regions are empty";
}

}  // namespace
}  // namespace cistern::flash
