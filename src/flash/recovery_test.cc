// SPDX-License-Identifier: Apache-2.0
// What a start finds: after a kill all that was acknowledged, after a power cut whatever is left of it, and
// never anything that was given up, or that is not what was written.
#include <deque>
#include <set>

#include "flash/test_flash_tier.h"

namespace cistern::flash {
namespace {

std::uint64_t Seeds(std::uint64_t many) {
  const char* asked = std::getenv("CISTERN_TEST_SEEDS");
  return asked != nullptr ? std::max<std::uint64_t>(1, std::strtoull(asked, nullptr, 10) * many / 10) : many;
}

// A node that lives as the store above it does: appends, fetches, forgets, gives regions up; several at a
// time.
class Life {
 public:
  // What was appended in any life, by sequence: acknowledged or not.
  struct Memory {
    std::map<std::uint64_t, std::uint64_t> numbers;  // by sequence
    std::map<std::uint64_t, Kept> acknowledged;      // and not given up
    std::set<std::uint64_t> gone;                    // given up, durably
    std::uint64_t next_number = 1;
  };

  Life(World& world, Memory& memory, std::uint64_t seed)
      : world_(world), memory_(memory), random_(seed), group_(world.loop->executor()) {
    TestOwner& owner = world->owner;
    owner.keep = [this](const tier::TierEntry&, std::uint64_t kept, std::uint64_t room) {
      return kept < room / 2 && random_.Chance(0.3);
    };
    owner.stamped = [this](const tier::TierEntry& entry, std::uint64_t sequence) {
      memory_.numbers[sequence] = NumberOf(entry);
    };
    owner.went = [this](const Kept& kept) {
      memory_.acknowledged.erase(kept.sequence);
      leaving_[kept.region()].insert(kept.sequence);
    };
    owner.moved = [this](const Kept& kept) { memory_.acknowledged[kept.sequence] = kept; };
    owner.freed = [this] {
      // Where its table could not be read and nothing lived in it, nobody was asked.
      if (!world_->owner.room) return;
      memory_.gone.merge(leaving_[*world_->owner.room]);
      leaving_[*world_->owner.room].clear();
    };
  }
  ~Life() {
    group_.Drop();
    TestOwner& owner = world_->owner;
    owner.keep = {};
    owner.stamped = {};
    owner.went = owner.moved = {};
    owner.freed = {};
  }
  Executor& executor() const { return world_.loop->executor(); }

  void Run(std::uint64_t steps) {
    for (std::uint64_t i = 0; i < steps; ++i) {
      if (group_.size() < 6) {
        const std::uint64_t kind = random_.Below(10);
        if (kind < 6) {
          group_.Spawn(Append(1 + random_.Below(7), 1 + static_cast<std::uint32_t>(random_.Below(4'000))));
        } else {
          group_.Spawn(Fetch());
        }
        world_->tier->Reclaim(random_.Chance(0.1));
      }
      for (std::uint64_t n = random_.Below(12); n > 0 && group_.size() > 0; --n) world_.loop->Turn();
    }
  }
  void Finish() {
    world_.loop->BlockOn(group_.Close());
    world_.loop->RunUntilIdle();
  }

 private:
  Task<void> Append(std::size_t count, std::uint32_t bytes) {
    std::vector<std::uint64_t> numbers;
    for (std::size_t i = 0; i < count; ++i) {
      memory_.numbers[world_->sequence + 1 + i] = memory_.next_number;
      numbers.push_back(memory_.next_number++);
    }
    std::vector<std::uint32_t> parts(1, bytes);
    auto appended = co_await world_->AppendTask(std::move(numbers), std::move(parts));
    if (!appended) {
      EXPECT_EQ(appended.error().code(), Code::kBusy) << appended.error().ToString();
      co_return;
    }
    for (const Kept& kept : *appended) {
      // It may have been given up in this very moment.
      if (world_->owner.live.contains(kept.location)) memory_.acknowledged[kept.sequence] = kept;
    }
  }
  Task<void> Fetch() {
    if (memory_.acknowledged.empty()) co_return;
    auto at = memory_.acknowledged.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(random_.Below(memory_.acknowledged.size())));
    const Kept kept = at->second;
    const Status status = co_await world_->FetchTask(kept);
    // It may have been given up meanwhile, and power may have been lost under it in an earlier life.
    EXPECT_TRUE(status.ok() || status.code() == Code::kMiss) << status.ToString();
  }

  World& world_;
  Memory& memory_;
  Random random_;
  std::map<std::uint32_t, std::set<std::uint64_t>> leaving_;  // sequences in a region that is given up
  TaskGroup group_;
};

// Whatever was found is what was appended, whole or a miss, and nothing that was given up.
void CheckFound(World& world, Life::Memory& memory, bool all_whole) {
  std::set<std::uint64_t> sequences;
  std::map<std::uint64_t, Kept> there;
  for (const Kept& kept : world->found) {
    EXPECT_TRUE(sequences.insert(kept.sequence).second) << "found twice";
    ASSERT_TRUE(memory.numbers.contains(kept.sequence));
    EXPECT_EQ(memory.numbers[kept.sequence], kept.number);
    EXPECT_FALSE(memory.gone.contains(kept.sequence)) << "what was given up is back";
    EXPECT_GE(kept.sequence, world->tier->oldest_sequence());
    const Status status = world->Fetch(kept);
    EXPECT_TRUE(status.ok() || status.code() == Code::kMiss) << status.ToString();
    const bool must = all_whole && memory.acknowledged.contains(kept.sequence);
    EXPECT_TRUE(status.ok() || !must) << status.ToString();
    if (status.ok()) {
      there[kept.sequence] = kept;
    } else {
      world->Forget(kept);
    }
  }
  // A device that does not lie is not taken for one that does: power lost under records is no lie.
  for (const FlashDeviceState& device : world->tier->devices()) EXPECT_EQ(device.bad_records, 0u);
  if (all_whole) {
    for (const auto& [sequence, kept] : memory.acknowledged) {
      EXPECT_TRUE(sequences.contains(sequence)) << "acknowledged and not found: " << sequence;
    }
  }
  // From here on what was found whole is what there is.
  memory.acknowledged = std::move(there);
}

TEST(FlashRecovery, AfterAKillAllThatWasAcknowledgedIsFoundAndNothingThatWasGivenUp) {
  for (std::uint64_t seed = 1; seed <= Seeds(60); ++seed) {
    SCOPED_TRACE(seed);
    World world(seed, TestOptions(1 + seed % 3, 512, 6));
    Life::Memory memory;
    Random random(seed);
    // A write may go on in pieces, and the kill come between them, in the middle of a batch's head, while
    // later ones have ended.
    world.disk.set_faults([chance = random.Fork()](const io::IoRequest& request, const std::string&) mutable {
      const bool is_short =
          request.kind == io::IoRequest::Kind::kWrite && request.size > 512 && chance.Chance(0.3);
      return is_short ? io::Fault{io::FaultKind::kShort, 512} : io::Fault{};
    });
    for (int life = 0; life < 4; ++life) {
      ASSERT_TRUE(world.Start().ok());
      CheckFound(world, memory, true);
      io::LateIo late;
      {
        Life living(world, memory, random.Next());
        living.Run(1 + random.Below(150));
        late = world.loop->Kill([](const void*, std::size_t) { return false; });
      }
      world.Ended();
      late.LandSome(random);
      late.LandAll();
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(FlashRecovery, AfterAPowerCutWhatIsFoundIsBitExactOrAMissAndNothingThatWasGivenUp) {
  std::uint64_t found = 0;
  for (std::uint64_t seed = 1; seed <= Seeds(100); ++seed) {
    SCOPED_TRACE(seed);
    World world(seed, TestOptions(1 + seed % 2, 512, 6));
    Life::Memory memory;
    Random random(seed);
    for (int life = 0; life < 4; ++life) {
      const Status started = world.Start();
      ASSERT_TRUE(started.ok()) << started.ToString();
      found += world->found.size();
      CheckFound(world, memory, false);
      {
        Life living(world, memory, random.Next());
        living.Run(1 + random.Below(150));
        world.CutPower();
      }
      world.Ended();
      if (testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(found, 1000u);
}

// Power may go at any time: what a node that runs closes, and what a start does, has a locator last.
TEST(FlashRecovery, ALocatorIsOfATableAndOfRecordsThatAreDurable) {
  World world(3, TestOptions(1, 512, 6));
  std::uint64_t locators = 0;
  world.disk.set_faults([&](const io::IoRequest& request, const std::string& path) {
    const std::uint64_t end = request.offset + request.size;
    if (request.kind != io::IoRequest::Kind::kWrite || request.size != 512 ||
        (end - kSuperBytes) % kTestRegionBytes != 0)
      return io::Fault{};
    ++locators;
    const std::uint64_t region = end - kTestRegionBytes;
    EXPECT_TRUE(std::ranges::equal(world.disk.Bytes(path).subspan(region, kTestRegionBytes),
                                   world.disk.Durable(path).subspan(region, kTestRegionBytes)));
    return io::Fault{};
  });
  ASSERT_TRUE(world.Start().ok());
  std::uint64_t number = 0;
  while (locators == 0) ASSERT_TRUE(world->Append({number++}, {5'000}).has_value());
  ASSERT_TRUE(world->Append({number++}, {5'000}).has_value());
  world.loop->Kill([](const void*, std::size_t) { return false; }).LandAll();
  world.Ended();
  const std::uint64_t before = locators;
  ASSERT_TRUE(world.Start().ok());
  EXPECT_GT(locators, before) << "of the region that was open";
  EXPECT_EQ(world->found.size(), number);
  world.disk.set_faults({});
  world.Stop();
}

// Recovery itself may be cut off, at any point.
TEST(FlashRecovery, AStartThatIsCutOffIsFollowedByOneThatFindsTheSame) {
  for (std::uint64_t seed = 1; seed <= Seeds(40); ++seed) {
    SCOPED_TRACE(seed);
    World world(seed, TestOptions(1, 512, 6));
    Life::Memory memory;
    Random random(seed);
    ASSERT_TRUE(world.Start().ok());
    {
      Life living(world, memory, random.Next());
      living.Run(80);
      world.loop->Kill([](const void*, std::size_t) { return false; }).LandAll();
    }
    world.Ended();
    for (int tries = 0; tries < 3; ++tries) {
      world.loop = std::move(
          *io::SimulatedLoop::Make(world.clock, world.disk, seed + static_cast<std::uint64_t>(tries)));
      world.node = std::make_unique<TierOn>(*world.loop, world.options, random.Next());
      ASSERT_TRUE(world->Open(world.known).ok());
      {
        Task<Status> recovering =
            world->tier->Recover([&](std::span<const tier::TierEntry> e) { return world->Keep(e); });
        for (std::uint64_t n = random.Below(150); n > 0 && !recovering.done(); --n) world.loop->Turn();
        world.loop->Kill([](const void*, std::size_t) { return false; }).LandAll();
      }
      world.node.reset();
      world.loop.reset();
    }
    ASSERT_TRUE(world.Start().ok());
    CheckFound(world, memory, true);
    world.Stop();
  }
}

// Entries of a region are those that a start finds in it, also when its table could not be written.
TEST(FlashRecovery, ARegionWhoseTableIsNotOnTheMediaStillGivesItsEntries) {
  World world(2, TestOptions(1, 512, 6));
  ASSERT_TRUE(world.Start().ok());
  std::vector<Kept> kept;
  const std::uint64_t table_from = kSuperBytes + kTestRegionBytes - 8192;
  world.disk.set_faults([&](const io::IoRequest& request, const std::string&) {
    const bool table = request.kind == io::IoRequest::Kind::kWrite && request.offset >= table_from &&
                       request.offset < kSuperBytes + kTestRegionBytes;
    return table ? io::Fault{io::FaultKind::kIoError} : io::Fault{};
  });
  for (std::uint64_t n = 0; n < 12; ++n) kept.push_back(world->Append({n}, {5'000})->front());
  world.loop->RunUntilIdle();
  // As if its appends had just ended: the owner knows none of them yet, and the region stays.
  world->owner.live.clear();
  world->tier->Reclaim(true);
  world.loop->RunUntilIdle();
  EXPECT_GT(world.disk.injected(io::FaultKind::kIoError), 0u);
  EXPECT_EQ(world->tier->counters().reclaimed.value(), 1u);
  EXPECT_EQ(world->tier->counters().released_regions.value(), 0u);
  EXPECT_EQ(world->owner.losses, 1u);
  std::vector<tier::Location> expected, asked;
  for (const Kept& each : kept) {
    if (each.region() == 0) expected.push_back(each.location);
  }
  for (const tier::TierEntry& entry : world->owner.asked) asked.push_back(entry.location);
  std::ranges::reverse(asked);
  EXPECT_EQ(asked, expected);
  world.Stop();
  world.disk.set_faults({});
  ASSERT_TRUE(world.Start().ok());
  EXPECT_EQ(world->found.size(), kept.size());
  world.Stop();
}

// R11: bytes of another epoch, or of another region, are no record here however whole they are.
TEST(FlashRecovery, AStampOfAnotherEpochOrPlaceIsRefused) {
  World world(4, TestOptions(1, 512, 6));
  ASSERT_TRUE(world.Start().ok());
  const Kept first = world->Append({1}, {20'000})->front();
  Kept second;
  do second = world->Append({2}, {20'000})->front();
  while (second.region() == first.region());
  const std::string path = "/flash0/flash";
  const auto at = [&](const Kept& kept) {
    return kSuperBytes + kept.region() * kTestRegionBytes + kept.unit() * 512ull;
  };
  const auto bytes = world.disk.Bytes(path);
  const std::vector<std::byte> record(bytes.begin() + static_cast<std::ptrdiff_t>(at(first)),
                                      bytes.begin() + static_cast<std::ptrdiff_t>(at(first) + first.bytes));
  world.Stop();
  ASSERT_TRUE(world.Start().ok());
  const auto put = [&](const Kept& to) {
    io::File file = std::move(*world.loop->Open(path, io::OpenMode::kReadWrite));
    ASSERT_TRUE(world.loop->BlockOn(file.WriteAll(record, at(to))).ok());
  };
  put(second);  // the same bytes, whole, in another region
  EXPECT_EQ(world->Ask(second).code(), Code::kMiss);
  // The region is given up and written again: then its first record is put back where it was.
  for (std::uint64_t before = UINT64_MAX; before != world->owner.reclaimed;) {
    before = world->owner.reclaimed;
    world->tier->Reclaim(true);
    world.loop->RunUntilIdle();
  }
  EXPECT_EQ(world->tier->free_regions(), world->tier->regions());
  Kept again;
  std::uint64_t number = 10;
  do again = world->Append({number++}, {20'000})->front();
  while (again.location != first.location && number < 100);
  ASSERT_EQ(again.location, first.location);
  ASSERT_TRUE(world->Fetch(again).ok());
  put(again);
  EXPECT_EQ(world->Ask(again).code(), Code::kMiss);
  world.Stop();
}

// Bits rot anywhere: what is then found and fetched is what was written, or it is a miss.
TEST(FlashRecovery, AFlippedBitAnywhereNeverGivesAWrongRecord) {
  std::uint64_t whole = 0, missed = 0;
  for (std::uint64_t seed = 1; seed <= Seeds(150); ++seed) {
    SCOPED_TRACE(seed);
    World world(seed, TestOptions(1, 512, 6));
    Life::Memory memory;
    Random random(seed);
    ASSERT_TRUE(world.Start().ok());
    {
      Life living(world, memory, random.Next());
      living.Run(60);
      living.Finish();
    }
    if (random.Chance(0.5)) {
      world.Stop();
    } else {
      world.loop->Kill([](const void*, std::size_t) { return false; }).LandAll();
      world.Ended();
    }
    const std::uint64_t size = world.disk.Bytes("/flash0/flash").size();
    for (int flips = 0; flips < 20; ++flips) {
      // Headers and tables more often than chance would.
      std::uint64_t at = kSuperBytes + random.Below(6) * kTestRegionBytes;
      if (random.Chance(0.3))
        at += random.Below(512);
      else if (random.Chance(0.3))
        at += kTestRegionBytes - 1 - random.Below(4096);
      else
        at = kSuperBytes + random.Below(size - kSuperBytes);
      world.disk.Flip("/flash0/flash", at, static_cast<std::byte>(1u << random.Below(8)));
    }
    ASSERT_TRUE(world.Start().ok());
    for (const Kept& kept : world->found) {
      EXPECT_EQ(memory.numbers[kept.sequence], kept.number);
      EXPECT_FALSE(memory.gone.contains(kept.sequence));
      (world->Fetch(kept).ok() ? whole : missed) += 1;
    }
    world.Stop();
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(whole, 0u);
  EXPECT_GT(missed, 0u);
}

TEST(FlashRecovery, ADeviceThatTheJournalDoesNotKnowIsFormattedAnew) {
  World world(5);
  ASSERT_TRUE(world.Start().ok());
  ASSERT_TRUE(world->Append({1, 2}, {3000}).has_value());
  world.Stop();
  const std::vector<std::uint64_t> before = world.known;
  world.known = {before[0] + 1};
  ASSERT_TRUE(world.Start().ok());
  EXPECT_TRUE(world->found.empty());
  EXPECT_NE(world.known, before);
  EXPECT_EQ(world->tier->free_regions(), world->tier->regions());
  world.Stop();
}

}  // namespace
}  // namespace cistern::flash
