// SPDX-License-Identifier: Apache-2.0
// The store with a tier below it, over the simulated disk: what left memory is still there and exact, what
// was dropped stays away whatever the media hold, and trouble below costs cache only.
#include <gtest/gtest.h>

#include <algorithm>

#include "arena/layout.h"
#include "flash/format.h"
#include "flash_store.h"
#include "store/cell_drops.h"
#include "store/source_store_fixture.h"

namespace cistern {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;
constexpr const char* kFirstDevice = "flash0/flash";

class FlashStoreTest : public store::SourceStoreTest {
 protected:
  void TearDown() override {
    if (t) t->disk.Unhang(kFirstDevice);  // the end of a node waits for what hangs
  }
  // Room for `resident` blocks in memory, and for `flash_bytes` in regions of 64 KiB on `devices` devices.
  static store::TestStoreOptions With(std::uint64_t resident, std::uint64_t flash_bytes = 4 * kMiB,
                                      std::size_t devices = 1, std::uint64_t region_bytes = 256u << 10,
                                      std::uint32_t read_depth = 64) {
    store::TestStoreOptions options;
    options.store.max_blocks = resident;
    options.store.max_lower_blocks = 4096;
    options.store.read_ahead_bytes = 0;
    flash::FlashOptions flash;
    flash.region_bytes = region_bytes;
    flash.read_depth = read_depth;
    for (std::size_t i = 0; i < devices; ++i) {
      flash.devices.push_back({Text("flash", i), flash_bytes / devices});
    }
    options.tier = OnFlash(flash);
    return options;
  }
  // Puts one below the other, each written down before the next.
  void PutChainSlowly(std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t n = first; n <= last; ++n) {
      ASSERT_EQ(Put(n, n == first ? std::nullopt : std::optional(n - 1)), store::State::kPublished) << n;
      t->Settle();
    }
  }
  // By way of a view, wherever it was; none: it could not be had.
  std::optional<std::vector<std::byte>> Get(std::uint64_t n) {
    const store::AcquireGrant grant = Acquire({n}, Me());
    if (grant.views[0].code != Code::kOk) return std::nullopt;
    auto body = t->Read(ns.slot, store::Key(n));
    EXPECT_TRUE(body.has_value()) << n;
    EXPECT_TRUE(t->store->Release(Me(), grant.lease).ok());
    return body;
  }
  void SlowDevice(std::uint64_t us) {
    t->disk.set_faults(
        [us](const io::IoRequest&, const std::string&) { return io::Fault{io::FaultKind::kDelay, us}; });
  }
  bool Gets(std::uint64_t n) { return Get(n) == store::Body(n, 4096); }
  // As a node does, whatever hangs.
  void TickOnceLater() {
    t->clock.AdvanceUs(100'000);
    t->Tick();
    t->loop->RunUntilIdle();
  }
  void TickUntilFirstDeviceIsOut() {
    for (int i = 0; i < 200 && FlashOf(*t).devices()[0].in_service; ++i) TickOnceLater();
    ASSERT_FALSE(FlashOf(*t).devices()[0].in_service);
  }
  Task<void> TickLaterOnceDropped(Executor&);
  Task<void> DropOnceQueued(Executor&, std::uint64_t n);
  Task<void> Sleep(Executor&, std::int64_t us) { (void)co_await SleepUntil(t->clock.Now().PlusUs(us)); }
  std::uint64_t Count(const Counter& counter) { return counter.value(); }
  const catalog::StoreCounters& Counters() { return t->store->counters(); }
};

TEST_F(FlashStoreTest, P1WhatLeftMemoryIsReadBackExactly) {
  Make(With(8));
  PutChainSlowly(0, 63);
  EXPECT_LE(Occupied().records, 8u);
  EXPECT_EQ(Match(0, 63), 64u);
  for (std::uint64_t n = 0; n < 64; ++n) EXPECT_TRUE(Gets(n)) << n;
  EXPECT_GE(Count(Counters().demoted), 56u);
  EXPECT_GE(Count(Counters().fetched), 56u);
  EXPECT_EQ(Count(Counters().cut_bad), 0u);
}

// One chunk of memory, full of a chain that is on its way to flash: nothing may go, the chunk cannot be
// emptied for another size, and all of it may go soon.
TEST_F(FlashStoreTest, P5AnotherSizeWaitsForWhatIsOnItsWayToFlash) {
  store::TestStoreOptions options = With(0, 256 * kMiB, 1, 8 * kMiB);
  options.headers = 1;
  Make(options);
  SlowDevice(100'000);
  std::uint64_t n = 1;
  for (; t->slots->counts().used_slots < t->slots->counts().slots || n == 1; ++n)
    ASSERT_EQ(Put(n, n == 1 ? std::nullopt : std::optional(n - 1), kMiB), store::State::kPublished);
  const store::PartOutcome other = WriteOne(Part(1000, {}, 4096));
  EXPECT_EQ(other.state, store::State::kPublished) << other.status.ToString();
  EXPECT_EQ(Count(Counters().writes_without_room), 0u);
}

// The same while each of several sizes wants the only chunk: each is served in its turn.
TEST_F(FlashStoreTest, P5SizesThatWantTheSameChunkAreServedByTheirDeadline) {
  store::TestStoreOptions options = With(0, 256 * kMiB, 1, 8 * kMiB);
  options.headers = 2;
  Make(options);
  SlowDevice(20'000);
  const std::size_t sizes[] = {4096, 16384, 65536, 262144, kMiB};
  for (std::uint64_t round = 0; round < 20; ++round) {
    std::vector<Task<std::vector<store::PartOutcome>>> writes;
    for (std::uint64_t i = 0; i < std::size(sizes); ++i) {
      writes.push_back(t->store->Write(Me(), ns.slot, {Part(round * 100 + i, {}, sizes[i])},
                                       t->clock.Now().PlusUs(10'000'000)));
    }
    for (std::uint64_t i = 0; i < std::size(sizes); ++i) {
      const store::PartOutcome outcome = t->Run(std::move(writes[i]))[0];
      EXPECT_TRUE(outcome.status.ok()) << round << ", " << sizes[i] << ": " << outcome.status.ToString();
    }
  }
}

// Of one chunk, which blocks of 1 MiB have taken from blocks 1 and 2: these are on flash.
class FullMemoryTest : public FlashStoreTest {
 protected:
  void SetUp() override {
    FlashStoreTest::SetUp();
    store::TestStoreOptions options = With(0, 256 * kMiB, 1, 8 * kMiB);
    options.headers = 1;
    Make(options);
    PutChainSlowly(1, 2);
    std::uint64_t n = 10;
    for (; n == 10 || Here(10); ++n) {
      ASSERT_EQ(Put(n, {}, kMiB), store::State::kPublished);
      t->Settle();
    }
    ASSERT_FALSE(Here(1) || Here(2));
    for (std::uint64_t i = 10; i < n; ++i) {
      if (Here(i)) held.push_back(i);
    }
  }
  std::vector<std::uint64_t> held;
};

TEST_F(FullMemoryTest, P5AFetchWithoutRoomIsBusyAndNoMiss) {
  // Leases on all that is there now, so that nothing of it may go.
  const store::AcquireGrant leased = Acquire(held, Me());
  ASSERT_NE(leased.lease, 0u);
  EXPECT_EQ(Acquire({1}, Me()).views[0].code, Code::kBusy);
  EXPECT_EQ(Count(Counters().writes_without_room), 0u) << "it is no put";
  ASSERT_TRUE(t->store->Release(Me(), leased.lease).ok());
  EXPECT_EQ(Acquire({1}, Me()).views[0].code, Code::kOk);
}

TEST_F(FullMemoryTest, P5WhatMemoryCannotHaveBesideTheRestOfAnAcquireIsBusyAtOnce) {
  std::vector<std::uint64_t> all;
  for (std::uint64_t n = 100; n < 100 + 2 * t->slots->counts().slots; ++n) {
    ASSERT_EQ(Put(n, {}, kMiB), store::State::kPublished);
    t->Settle();
    all.push_back(n);
  }
  const store::AcquireGrant grant = Acquire(all, Me());
  std::uint64_t ok = 0, busy = 0;
  for (const store::ViewGrant& view : grant.views) (view.code == Code::kOk ? ok : busy) += 1;
  EXPECT_EQ(ok, t->slots->counts().slots);
  EXPECT_TRUE(std::ranges::all_of(grant.views, [](const store::ViewGrant& view) {
    return view.code == Code::kOk || view.code == Code::kBusy;
  })) << "none waited for room until its deadline";
  EXPECT_EQ(Count(Counters().fetch_failed), 0u);
}

TEST_F(FullMemoryTest, P5WhoGetsNothingIsNotToldThatItIsTooMuch) {
  const catalog::Caller other = Me(2, 2);
  const std::size_t mine = held.size() * 3 / 4;
  ASSERT_NE(Acquire(std::vector(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(mine)), Me()).lease,
            0u);
  // The other one takes all that it may, after which what this one has is more than it may.
  for (std::size_t i = mine; i < held.size(); ++i) {
    const catalog::BlockName name{store::Key(held[i]), 0};
    if (!t->Run(t->store->Acquire(other, ns.slot, std::span(&name, 1), 1'000'000, Soon()))) break;
  }
  const catalog::BlockName here{store::Key(held.back()), 0};
  ASSERT_FALSE(t->Run(t->store->Acquire(Me(), ns.slot, std::span(&here, 1), 1'000'000, Soon())));
  EXPECT_EQ(Acquire({1}, Me()).views[0].code, Code::kBusy);
}

TEST_F(FlashStoreTest, R4WhatLiesOnFlashAloneIsPresent) {
  Make(With(4));
  PutChainSlowly(0, 15);
  ASSERT_FALSE(Here(0));
  EXPECT_EQ(Put(0, std::nullopt), store::State::kPresent);
  EXPECT_TRUE(Gets(0));
}

TEST_F(FlashStoreTest, P7ARebootFindsWhatWasWritten) {
  Make(With(8));
  PutChainSlowly(0, 63);
  t->Stop();
  t->ForgetMemory();
  t->Start();
  ASSERT_TRUE(t->recovered.ok()) << t->recovered.ToString();
  Attach(store::OneGroup());
  EXPECT_EQ(Match(0, 63), 64u);
  for (std::uint64_t n = 0; n < 64; ++n) EXPECT_TRUE(Gets(n)) << n;
}

TEST_F(FlashStoreTest, P7AKillLosesNeitherMemoryNorFlash) {
  Make(With(8));
  PutChainSlowly(0, 63);
  Restart();
  EXPECT_EQ(Match(0, 63), 64u);
  for (std::uint64_t n = 0; n < 64; ++n) EXPECT_TRUE(Gets(n)) << n;
}

TEST_F(FlashStoreTest, APowerCutLosesOnlyCache) {
  Make(With(8));
  PutChainSlowly(0, 31);
  t->LosePower();
  ASSERT_TRUE(t->recovered.ok()) << t->recovered.ToString();
  Attach(store::OneGroup());
  const std::uint32_t matched = Match(0, 31);
  for (std::uint64_t n = 0; n < 32; ++n) {
    const auto body = Get(n);
    if (body) {
      EXPECT_EQ(*body, store::Body(n, 4096)) << n;
    }
    if (n >= matched) {
      EXPECT_FALSE(body.has_value()) << n;
    }
  }
}

// Its parent has left memory, and is there all the time.
TEST_F(FlashStoreTest, ADropElsewhereEndsNothingThatIsHeldBelowWhatFlashHas) {
  Make(With(4));
  PutChainSlowly(1, 2);
  PutChainSlowly(11, 18);
  ASSERT_FALSE(Here(2));
  store::PartWrite part = Part(3, 2);
  part.held = true;
  const PutId put = part.put_id;
  ASSERT_EQ(WriteOne(std::move(part)).state, store::State::kPending);
  ASSERT_TRUE(Drop(18).has_value());
  ASSERT_TRUE(t->Run(t->store->Publish(Me(), ns.slot, std::span(&put, 1))).has_value());
  EXPECT_TRUE(Gets(3));
  EXPECT_EQ(Occupied().pending, 0u);
}

// The same of what another node gives, while what was dropped is collected and afterwards.
TEST_F(FlashStoreTest, ADropElsewhereEndsNothingThatASourceGivesBelowWhatFlashHas) {
  for (const bool collected : {true, false}) {
    Make(With(4));
    PutChainSlowly(1, 2);
    PutChainSlowly(11, 130);
    ASSERT_FALSE(Here(2));
    auto put = Begin(3, 2);
    ASSERT_TRUE(put.has_value());
    store::SourceFacts facts = Land(*put, 3);
    const BlockKey other = store::Key(11);
    auto dropping = t->store->Drop(ns.slot, std::span(&other, 1));
    if (collected) {
      ASSERT_TRUE(t->Run(std::move(dropping)).has_value());
    } else {
      ASSERT_FALSE(dropping.done());
    }
    const Status finished = Finish(std::move(*put), std::move(facts));
    EXPECT_TRUE(finished.ok()) << finished.ToString();
    if (!collected) {
      EXPECT_TRUE(t->Run(std::move(dropping)).has_value());
    }
    EXPECT_TRUE(Gets(3));
    EXPECT_EQ(Occupied().pending, 0u);
  }
}

// Its parent came to flash again after the drop: what is held descends from the one that was dropped, or may.
TEST_F(FlashStoreTest, R10WhatIsHeldBelowWhatWasDroppedStaysAwayThoughItsParentCameAgain) {
  for (const bool put_first : {false, true}) {
    Make(With(4));
    PutChainSlowly(1, put_first ? 1 : 2);
    PutChainSlowly(11, 18);
    store::PartWrite part = Part(3, 2);
    part.held = true;
    const PutId put = part.put_id;
    ASSERT_EQ(WriteOne(std::move(part)).state, store::State::kPending);
    ASSERT_TRUE(Drop(1).has_value());
    PutChainSlowly(1, 2);
    PutChainSlowly(21, 28);
    ASSERT_FALSE(Here(2));
    (void)t->Run(t->store->Publish(Me(), ns.slot, std::span(&put, 1)));
    EXPECT_FALSE(Get(3).has_value());
    EXPECT_EQ(Occupied().pending, 0u);
  }
}

TEST_F(FlashStoreTest, R10WhatASourceGivesBelowWhatWasDroppedStaysAwayThoughItsParentCameAgain) {
  for (const bool put_first : {false, true}) {
    Make(With(4));
    PutChainSlowly(1, put_first ? 1 : 2);
    PutChainSlowly(11, 18);
    auto put = Begin(3, 2);
    ASSERT_TRUE(put.has_value());
    store::SourceFacts facts = Land(*put, 3);
    ASSERT_TRUE(Drop(1).has_value());
    PutChainSlowly(1, 2);
    PutChainSlowly(21, 28);
    ASSERT_FALSE(Here(2));
    EXPECT_EQ(Finish(std::move(*put), std::move(facts)).code(), Code::kMiss);
    EXPECT_FALSE(Get(3).has_value());
    EXPECT_EQ(Occupied().pending, 0u);
  }
}

// Its parent was there when it was put, and was lost with its device before it would have been dropped.
TEST_F(FlashStoreTest, R10WhatIsHeldStaysAwayThoughItsParentWasLostBeforeTheDrop) {
  store::TestStoreOptions options = With(4);
  options.store.lower.promote = Promotion::kAll;
  Make(options);
  PutChainSlowly(1, 2);
  PutChainSlowly(11, 18);
  ASSERT_TRUE(Gets(1));
  ASSERT_TRUE(Here(1) && !Here(2));
  store::PartWrite part = Part(3, 2);
  part.held = true;
  const PutId put = part.put_id;
  ASSERT_EQ(WriteOne(std::move(part)).state, store::State::kPending);
  t->disk.set_faults([](const io::IoRequest& request, const std::string& path) {
    return request.kind == io::IoRequest::Kind::kWrite && path == kFirstDevice
               ? io::Fault{io::FaultKind::kHang}
               : io::Fault{};
  });
  ASSERT_EQ(Put(21, std::nullopt), store::State::kPublished);
  TickUntilFirstDeviceIsOut();
  for (int i = 0; i < 10; ++i) TickOnceLater();
  ASSERT_EQ(Match(1, 2), 1u);
  ASSERT_EQ(Occupied().pending, 1u);
  ASSERT_TRUE(Drop(1).has_value());
  ASSERT_EQ(Occupied().pending, 1u);
  ASSERT_EQ(Put(1, std::nullopt), store::State::kPublished);
  ASSERT_EQ(Put(2, 1), store::State::kPublished);
  (void)t->Run(t->store->Publish(Me(), ns.slot, std::span(&put, 1)));
  EXPECT_FALSE(Here(3));
  EXPECT_EQ(Occupied().pending, 0u);
}

TEST_F(FlashStoreTest, R10WhatWasDroppedStaysAwayThoughTheMediaHaveIt) {
  Make(With(4));
  PutChainSlowly(0, 31);
  EXPECT_EQ(*Drop(10), 22u);
  EXPECT_EQ(Match(0, 31), 10u);
  EXPECT_GE(Occupied().tombstones, 1u) << "something older lies on flash";
  for (int reboot = 0; reboot < 3; ++reboot) {
    t->Stop();
    if (reboot > 0) t->ForgetMemory();
    t->Start();
    ASSERT_TRUE(t->recovered.ok()) << t->recovered.ToString();
    Attach(store::OneGroup());
    EXPECT_EQ(Match(0, 31), 10u) << reboot;
    for (std::uint64_t n = 10; n < 32; ++n) EXPECT_FALSE(Get(n).has_value()) << n;
  }
  // Nor with a parent that came again.
  ASSERT_EQ(Put(10, 9), store::State::kPublished);
  t->Settle();
  t->Stop();
  t->ForgetMemory();
  t->Start();
  Attach(store::OneGroup());
  EXPECT_EQ(Match(0, 31), 11u);
}

// The media still hold the block that another conversation had written before it was dropped.
TEST_F(FlashStoreTest, R10ABlockThatCameAgainIsOfWhoBroughtItAlsoAfterAReboot) {
  constexpr std::uint64_t kAnn = 11, kBob = 22;
  Make(With(8));
  const auto write = [&](std::uint64_t conversation) {
    store::PartWrite part = Part(1, std::nullopt);
    part.conversation = conversation;
    ASSERT_TRUE(WriteOne(std::move(part)).status.ok());
    t->Settle();
  };
  write(kAnn);
  ASSERT_TRUE(Drop(1).has_value());
  write(kBob);
  t->Stop();
  t->ForgetMemory();
  t->Start();
  ASSERT_TRUE(t->recovered.ok()) << t->recovered.ToString();
  Attach(store::OneGroup());
  ASSERT_EQ(Match(1, 1), 1u);
  EXPECT_TRUE(t->Run(t->store->EndConversation(ns.slot, kBob)).has_value());
  EXPECT_EQ(Match(1, 1), 0u);
}

TEST_F(FlashStoreTest, R10ATombstoneGoesWithTheLastRegionThatIsOlder) {
  Make(With(4, 2 * kMiB));
  PutChainSlowly(0, 7);
  ASSERT_TRUE(Drop(0).has_value());
  ASSERT_EQ(Occupied().tombstones, 1u);
  for (std::uint64_t n = 100; n < 500 && Occupied().tombstones > 0; ++n) {
    ASSERT_EQ(Put(n, std::nullopt), store::State::kPublished);
    t->Settle();
  }
  EXPECT_EQ(Occupied().tombstones, 0u);
  Restart();
  EXPECT_FALSE(Get(0).has_value());
}

TEST_F(FlashStoreTest, R9ReclaimKeepsWhatIsUsedAndWhatOthersDescendFrom) {
  Make(With(4, 2 * kMiB));
  PutChainSlowly(0, 7);
  for (std::uint64_t n = 100; n < 700; ++n) {
    ASSERT_EQ(Put(n, std::nullopt), store::State::kPublished) << n;
    t->Settle();
    if (n % 8 == 0) {
      ASSERT_TRUE(Gets(7)) << n;
      t->Settle();
    }
  }
  EXPECT_GT(Count(FlashOf(*t).counters().reclaimed), 5u);
  EXPECT_GT(Count(Counters().moved_below), 0u);
  EXPECT_EQ(Match(0, 7), 8u);
  for (std::uint64_t n = 0; n < 8; ++n) EXPECT_TRUE(Gets(n)) << n;
  // What a match promises can be had.
  for (std::uint64_t n = 100; n < 700; ++n) {
    if (Match(n, n) == 1) {
      EXPECT_TRUE(Gets(n)) << n;
    }
  }
}

// A step cannot tell of a block so far down whether it is among what is being collected.
TEST_F(FlashStoreTest, R9ReclaimKeepsADeepChainWhileOthersAreCollected) {
  constexpr std::uint64_t kChain = 260, kMortal = 10'000, kMortals = 600;
  Make(With(8, 16 * kMiB));
  for (std::uint64_t n = 0; n < kChain; ++n) {
    ASSERT_EQ(Put(n, n == 0 ? std::nullopt : std::optional(n - 1)), store::State::kPublished);
    ASSERT_EQ(Put(1000 + n, std::nullopt), store::State::kPublished);
    t->Settle();
  }
  store::PartWrite mortal = Part(kMortal, std::nullopt);
  mortal.ttl_s = 3600;
  ASSERT_TRUE(WriteOne(mortal).status.ok());
  for (std::uint64_t n = kMortal + 1; n <= kMortal + kMortals; ++n) {
    ASSERT_EQ(Put(n, kMortal), store::State::kPublished);
    t->Settle();
  }
  while (Count(Counters().moved_below) < catalog::kStandingLooks + 8) {
    FlashOf(*t).Reclaim(true);
    t->Settle();
  }
  ASSERT_EQ(Match(0, kChain - 1), kChain);
  ASSERT_TRUE(Gets(kMortal));
  SlowDevice(5'000);
  FlashOf(*t).Reclaim(true);
  t->Run(Sleep(t->loop->executor(), 30'000));
  t->clock.AdvanceUs(3'600'000'000);
  ASSERT_TRUE(t->Run(t->TickOnce(t->loop->executor()))) << "some is left to be collected";
  t->loop->RunUntilIdle();
  t->disk.set_faults({});
  t->Settle();
  EXPECT_FALSE(Get(kMortal + 1).has_value());
  EXPECT_EQ(Match(0, kChain - 1), kChain);
  for (std::uint64_t n = 0; n < kChain; ++n) EXPECT_TRUE(Gets(n)) << n;
}

TEST_F(FlashStoreTest, OneReadServesManyWaiters) {
  Make(With(4));
  PutChainSlowly(0, 15);
  const std::uint64_t before = Count(Counters().fetched);
  const catalog::BlockName name{store::Key(0), 0};
  std::vector<Task<Result<store::AcquireGrant>>> asked;
  for (int i = 0; i < 5; ++i) {
    asked.push_back(t->store->Acquire(Me(), ns.slot, std::span(&name, 1), 1'000'000, Soon()));
  }
  for (auto& one : asked) {
    auto grant = t->Run(std::move(one));
    ASSERT_TRUE(grant.has_value());
    EXPECT_EQ(grant->views[0].code, Code::kOk);
  }
  EXPECT_EQ(Count(Counters().fetched), before + 1);
}

TEST_F(FlashStoreTest, P3WhatWouldComeTooLateIsRefusedAtOnce) {
  Make(With(4));
  PutChainSlowly(0, 15);
  const catalog::BlockName name{store::Key(0), 0};
  auto grant = t->Run(t->store->Acquire(Me(), ns.slot, std::span(&name, 1), 1'000'000, Soon(), 0));
  ASSERT_TRUE(grant.has_value());
  EXPECT_EQ(grant->views[0].code, Code::kTooLate);
  EXPECT_GT(grant->views[0].ready_in_us, 0);
  EXPECT_TRUE(Gets(0));
}

// Of an engine of three ranks, each of which asks for its share of both groups.
TEST_F(FlashStoreTest, ABlockThatWouldComeTooLateIsOneMissWhateverSharesAreAskedFor) {
  NamespaceSpec spec = store::OneGroup();
  spec.groups = {{.name = "a"}, {.name = "b"}};
  Make(With(8, 64 * kMiB, 1, kMiB), spec);
  for (std::uint64_t n = 0; n < 16; ++n) {
    std::vector<store::PartWrite> parts = {Part(n, std::nullopt, 200'000), Part(n, std::nullopt, 200'000)};
    parts[1].group = 1;
    for (const store::PartOutcome& outcome : Write(std::move(parts), Me()))
      ASSERT_EQ(outcome.state, store::State::kPublished) << n;
    t->Settle();
  }
  ASSERT_FALSE(Here(0, 0) || Here(0, 1) || Here(1, 0) || Here(1, 1));
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    std::vector<catalog::BlockName> names;
    for (const std::uint64_t n : {0, 1}) {
      for (const std::uint16_t group : {0, 1}) names.push_back({store::Key(n), group, {rank, 1}});
    }
    const auto grant = t->Run(t->store->Acquire(Me(), ns.slot, names, 1'000'000, Soon(), 0));
    ASSERT_TRUE(grant.has_value());
    for (const store::ViewGrant& view : grant->views) EXPECT_EQ(view.code, Code::kTooLate);
  }
  EXPECT_EQ(Count(Counters().fetch_refused), 12u);
  EXPECT_EQ(Count(Counters().miss_too_late), 2u);
}

TEST_F(FlashStoreTest, AMatchSaysWhatIsInTheLowerTierAndReadsAhead) {
  store::TestStoreOptions options = With(4);
  options.store.read_ahead_bytes = 3 * 4096;
  Make(options);
  PutChainSlowly(0, 15);
  ASSERT_FALSE(Here(0));
  std::vector<BlockKey> chain;
  for (std::uint64_t n = 0; n < 16; ++n) chain.push_back(store::Key(n));
  const auto runs = t->Run(t->store->MatchRest(ns.slot, 0, chain));
  ASSERT_TRUE(runs.has_value());
  ASSERT_FALSE(runs->empty());
  EXPECT_EQ(runs->front().where, Where::kFlash);
  EXPECT_GT(runs->front().ready_in_us, 0);
  t->Settle();
  EXPECT_EQ(Count(Counters().read_ahead), 3u);
  EXPECT_TRUE(Here(0));
  EXPECT_TRUE(Here(2));
}

TEST_F(FlashStoreTest, WhatIsReadAheadCountsOnceHoweverOftenItIsMatchedMeanwhile) {
  store::TestStoreOptions options = With(4);
  options.store.read_ahead_bytes = 3 * 4096;
  Make(options);
  PutChainSlowly(0, 15);
  SlowDevice(20'000);
  const std::uint64_t fetched = Count(Counters().fetched);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(Match(0, 15), 16u);
  ASSERT_EQ(Count(Counters().fetched), fetched) << "they are on their way";
  t->disk.set_faults({});
  t->Settle();
  EXPECT_EQ(Count(Counters().fetched), fetched + 3);
  EXPECT_EQ(Count(Counters().read_ahead), 3u);
}

TEST_F(FlashStoreTest, P1BitsThatRottedOnTheMediaAreAMiss) {
  Make(With(4));
  PutChainSlowly(0, 15);
  // Every byte of the first records, one after the other: some of it is in block 3.
  const std::string path = "flash0/flash";
  const std::uint64_t bytes = t->disk.Bytes(path).size();
  const std::vector<std::byte> wanted = store::Body(3, 4096);
  std::optional<std::uint64_t> at;
  for (std::uint64_t offset = 0; offset + 4096 <= bytes && !at; offset += 4096) {
    if (std::memcmp(t->disk.Bytes(path).data() + offset, wanted.data(), 4096) == 0) at = offset;
  }
  ASSERT_TRUE(at.has_value());
  t->disk.Flip(path, *at + 1234, std::byte{4});
  EXPECT_FALSE(Get(3).has_value());
  EXPECT_EQ(Match(0, 15), 3u) << "and what descends from it is gone";
  EXPECT_TRUE(Gets(2));
  EXPECT_EQ(Put(3, 2), store::State::kPublished);
  EXPECT_TRUE(Gets(3));
}

TEST_F(FlashStoreTest, ADeviceTakenOutTakesOnlyItsBlocksAlong) {
  Make(With(4, 4 * kMiB, 2));
  for (std::uint64_t n = 0; n < 64; ++n) {
    ASSERT_EQ(Put(n, std::nullopt), store::State::kPublished);
    t->Settle();
  }
  ASSERT_TRUE(FlashOf(*t).TakeOut("flash0").ok());
  t->Settle();
  std::uint64_t left = 0;
  for (std::uint64_t n = 0; n < 64; ++n) {
    const auto body = Get(n);
    left += body.has_value();
    if (body) {
      EXPECT_EQ(*body, store::Body(n, 4096)) << n;
    }
    EXPECT_EQ(Match(n, n), body ? 1u : 0u) << n;
  }
  EXPECT_GT(left, 10u);
  EXPECT_LT(left, 60u);
  ASSERT_TRUE(t->Run(FlashOf(*t).BringBack("flash0")).ok());
  t->Settle();
  ASSERT_EQ(Put(100, std::nullopt), store::State::kPublished);
  t->Settle();
  EXPECT_TRUE(Gets(100));
  // What was on it before is not believed at the next start.
  Restart();
  for (std::uint64_t n = 0; n < 64; ++n) {
    const auto body = Get(n);
    if (body) {
      EXPECT_EQ(*body, store::Body(n, 4096)) << n;
    }
  }
}

// Its blocks are in the node's books until the node has come by each of them.
TEST_F(FlashStoreTest, AMatchEndsBeforeWhatADeviceThatIsOutHas) {
  Make(With(4));
  for (std::uint64_t n = 100; n < 600; ++n) ASSERT_EQ(Put(n, std::nullopt), store::State::kPublished);
  PutChainSlowly(0, 15);
  ASSERT_TRUE(FlashOf(*t).TakeOut("flash0").ok());
  ASSERT_EQ(Match(600, 600), 0u);  // the loop has begun to come by
  ASSERT_TRUE(t->store->LookAt(ns.slot, store::Key(0)).has_value());
  ASSERT_EQ(t->store->LookAt(ns.slot, store::Key(0))->here, Where::kFlash);
  EXPECT_EQ(Match(0, 15), 0u);
  t->Settle();
}

TEST_F(FlashStoreTest, R4WhatADeviceThatIsOutHasIsNotPresentToAPut) {
  Make(With(4));
  for (std::uint64_t n = 100; n < 600; ++n) ASSERT_EQ(Put(n, std::nullopt), store::State::kPublished);
  PutChainSlowly(0, 15);
  PutChainSlowly(20, 30);
  for (std::uint64_t n = 700; n < 710; ++n) PutChainSlowly(n, n);
  ASSERT_TRUE(FlashOf(*t).TakeOut("flash0").ok());
  ASSERT_EQ(Match(600, 600), 0u);
  ASSERT_EQ(t->store->LookAt(ns.slot, store::Key(0))->here, Where::kFlash);
  ASSERT_EQ(t->store->LookAt(ns.slot, store::Key(20))->here, Where::kFlash);
  EXPECT_FALSE(t->store->source_puts().Here(ns.slot, store::Key(20), 0)) << "members may be asked for it";
  for (std::uint64_t n = 0; n < 3; ++n)
    EXPECT_EQ(Put(n, n == 0 ? std::nullopt : std::optional(n - 1)), store::State::kPublished) << n;
  auto given = Begin(20, std::nullopt);
  ASSERT_TRUE(given.has_value() && given->wanted());
  store::SourceFacts facts = Land(*given, 20);
  EXPECT_TRUE(Finish(std::move(*given), std::move(facts)).ok());
  EXPECT_EQ(WriteOne(Part(41, 3)).state, store::State::kPending) << "its parent cannot be read";
  t->Settle();
  EXPECT_TRUE(Gets(0) && Gets(1) && Gets(2) && Gets(20));
}

TEST_F(FlashStoreTest, P5WhatADeviceThatIsOutHasKeepsNothingInMemory) {
  Make(With(4));
  for (std::uint64_t n = 100; n < 600; ++n) ASSERT_EQ(Put(n, std::nullopt), store::State::kPublished);
  for (std::uint64_t n = 0; n < 4; ++n) {
    PutChainSlowly(n, n);
    ASSERT_EQ(Put(10 + n, n), store::State::kPublished);
    t->Settle();
  }
  for (std::uint64_t n = 0; n < 4; ++n) ASSERT_TRUE(Gets(n));
  ASSERT_TRUE(Here(0) && Here(1) && Here(2) && Here(3)) << "each has a block below it, on flash alone";
  ASSERT_TRUE(FlashOf(*t).TakeOut("flash0").ok());
  ASSERT_EQ(Match(600, 600), 0u);
  ASSERT_EQ(t->store->LookAt(ns.slot, store::Key(10))->here, Where::kFlash);
  ASSERT_EQ(t->store->LookAt(ns.slot, store::Key(13))->here, Where::kFlash);
  EXPECT_EQ(Put(700, std::nullopt), store::State::kPublished);
  t->Settle();
  EXPECT_TRUE(Gets(700));
  EXPECT_EQ(Match(10, 10), 0u);
}

TEST_F(FlashStoreTest, WhatADeviceFailsToReadIsLostAndFailedNoSeal) {
  Make(With(4));
  PutChainSlowly(0, 15);
  t->disk.set_faults([](const io::IoRequest& request, const std::string&) {
    return request.kind == io::IoRequest::Kind::kRead ? io::Fault{io::FaultKind::kIoError} : io::Fault{};
  });
  EXPECT_FALSE(Get(10).has_value());
  t->disk.set_faults({});
  EXPECT_EQ(Match(0, 15), 10u);
  EXPECT_EQ(Count(Counters().lost_below), 1u);
  EXPECT_EQ(Count(Counters().cut_bad), 0u);
}

TEST_F(FlashStoreTest, WhatWaitsToBeReadWhenItsDeviceGoesOutFailedNoSeal) {
  Make(With(4, 4 * kMiB, 1, 256u << 10, 1));
  for (std::uint64_t n = 100; n < 600; ++n) ASSERT_EQ(Put(n, std::nullopt), store::State::kPublished);
  PutChainSlowly(0, 15);
  SlowDevice(20'000);
  std::vector<Task<Result<store::AcquireGrant>>> asked;
  const catalog::BlockName names[] = {{store::Key(3), 0}, {store::Key(4), 0}, {store::Key(5), 0}};
  for (const catalog::BlockName& name : names)
    asked.push_back(t->store->Acquire(Me(), ns.slot, std::span(&name, 1), 1'000'000, Soon()));
  t->Run(Sleep(t->loop->executor(), 10'000));
  ASSERT_TRUE(FlashOf(*t).TakeOut("flash0").ok());
  for (auto& each : asked) {
    const auto grant = t->Run(std::move(each));
    ASSERT_TRUE(grant.has_value());
    EXPECT_NE(grant->views[0].code, Code::kOk);
  }
  t->disk.set_faults({});
  t->Settle();
  EXPECT_EQ(Count(Counters().cut_bad), 0u);
  EXPECT_EQ(Match(0, 15), 0u);
  EXPECT_GT(Count(Counters().lost_below), 0u);
}

TEST_F(FlashStoreTest, APutNeverWaitsForADevice) {
  Make(With(8));
  PutChainSlowly(0, 7);
  t->disk.set_faults([](const io::IoRequest& request, const std::string& path) -> io::Fault {
    const bool write =
        request.kind == io::IoRequest::Kind::kWrite && path.find("flash0/flash") != std::string::npos;
    return write ? io::Fault{io::FaultKind::kDelay, 60'000'000} : io::Fault{};
  });
  const Instant before = t->clock.Now();
  for (std::uint64_t n = 100; n < 164; ++n) ASSERT_EQ(Put(n, std::nullopt), store::State::kPublished) << n;
  EXPECT_LT(t->clock.Now().UsSince(before), 60'000'000);
  EXPECT_GT(Count(Counters().evicted_unwritten), 0u);
  t->disk.set_faults({});
}

TEST_F(FlashStoreTest, ANamespaceSaysWhatGoesToFlashAndItHoldsAfterARestart) {
  Make(With(64));
  PutChainSlowly(0, 7);
  const NamespaceSpec says_nothing = store::OneGroup("another");
  NamespaceSpec used_twice = says_nothing;
  used_twice.flash_write = WriteRule{WritePolicy::kSelective, 2};
  Attach(used_twice);
  PutChainSlowly(0, 7);
  Restart();  // nobody has attached again when what memory holds is looked at
  t->Settle();
  t->Stop();
  t->ForgetMemory();
  t->Start();
  ASSERT_TRUE(t->recovered.ok()) << t->recovered.ToString();
  Attach(store::OneGroup());
  EXPECT_EQ(Match(0, 7), 8u) << "the node writes through";
  Attach(says_nothing);
  EXPECT_EQ(Match(0, 7), 0u) << "and this namespace only what was used twice";
  PutChainSlowly(0, 7);
  used_twice.flash_write = WriteRule{WritePolicy::kThrough};
  Attach(used_twice);
  Restart();
  t->Settle();
  t->Stop();
  t->ForgetMemory();
  t->Start();
  Attach(says_nothing);
  EXPECT_EQ(Match(0, 7), 8u) << "the last word holds";
}

TEST_F(FlashStoreTest, WhatIsAskedForOnceTakesNoRoomFromWhatIsUsed) {
  store::TestStoreOptions options = With(8);
  options.store.lower.promote = Promotion::kSecondHit;
  Make(options);
  PutChainSlowly(0, 31);
  const auto in_memory = [this](std::uint64_t first, std::uint64_t last) {
    int here = 0;
    for (std::uint64_t n = first; n <= last; ++n) here += Here(n) ? 1 : 0;
    return here;
  };
  ASSERT_EQ(in_memory(24, 31), 8);
  const auto scan = [this] {
    for (std::uint64_t n = 0; n < 16; ++n) {
      EXPECT_TRUE(Gets(n)) << n;
      const BlockKey key = store::Key(n);
      t->Run(t->store->Touch(ns.slot, std::span(&key, 1)));
      t->Settle();
    }
  };
  scan();
  EXPECT_EQ(in_memory(24, 31), 7) << "one slot is enough for all that pass";
  EXPECT_GE(Count(Counters().passing), 16u);
  scan();
  EXPECT_EQ(in_memory(24, 31), 0) << "asked for again it stays";
  EXPECT_EQ(in_memory(8, 15), 8);
}

// The media may hold what nobody here knows any more.
TEST_F(FlashStoreTest, R10ADropOfWhatTheTreeHasLostHoldsToo) {
  Make(With(4));
  PutChainSlowly(0, 15);
  ASSERT_FALSE(Here(3));
  bool once = true;
  t->disk.set_faults([&](const io::IoRequest& request, const std::string& path) -> io::Fault {
    const bool hit =
        request.kind == io::IoRequest::Kind::kRead && path.find("flash0/flash") != std::string::npos;
    return hit && std::exchange(once, false) ? io::Fault{io::FaultKind::kIoError} : io::Fault{};
  });
  EXPECT_FALSE(Get(3).has_value());
  t->disk.set_faults({});
  t->Settle();
  ASSERT_TRUE(Drop(5).has_value());
  Restart();
  EXPECT_FALSE(Get(5).has_value());
  EXPECT_TRUE(Gets(4)) << "the device erred once";
}

// In the middle of what follows.
Task<void> FlashStoreTest::TickLaterOnceDropped(Executor&) {
  while (t->store->CheckNamespace(ns.slot, ns.incarnation).ok()) {
    t->clock.AdvanceUs(1);
    co_await Yield();
  }
  EXPECT_GT(Occupied().records, 41u) << "it is being collected, from the other end";
  t->clock.AdvanceUs(21'000'000);
  t->store->Tick();
}

TEST_F(FlashStoreTest, WhatExpiresWhileItsNamespaceIsDroppedIsForgottenOnFlashAsWell) {
  Make(With(2000, 64 * kMiB));
  PutChain(0, 39);
  store::PartWrite mortal = Part(40, 39);
  mortal.ttl_s = 20;
  ASSERT_TRUE(WriteOne(mortal).status.ok());
  for (std::uint64_t n = 41; n < 2000; ++n) ASSERT_EQ(Put(n, n - 1), store::State::kPublished);
  while (Count(Counters().written_down) < 2000) t->Advance(1000);
  ASSERT_GT(FlashOf(*t).live_bytes(), 0u);
  auto dropped = t->store->DropNamespace(ns.slot);
  t->Run(TickLaterOnceDropped(t->loop->executor()));
  ASSERT_TRUE(t->Run(std::move(dropped)).has_value());
  t->Settle();
  EXPECT_EQ(Occupied().records, 0u);
  EXPECT_EQ(FlashOf(*t).live_bytes(), 0u);
}

TEST_F(FlashStoreTest, R10OrphansOfADroppedBlockStayAway) {
  store::TestStoreOptions options = With(64);
  options.store.lower.admit = Admission::kSecondHit;
  Make(options, store::WindowOnly());
  PutChain(0, 7);
  std::vector<BlockKey> keys;
  for (std::uint64_t n = 3; n <= 7; ++n) keys.push_back(store::Key(n));
  t->Run(t->store->Touch(ns.slot, keys));
  t->Settle();
  ASSERT_TRUE(Drop(2).has_value());
  ASSERT_FALSE(Get(5).has_value());
  Restart(store::WindowOnly());
  for (std::uint64_t n = 3; n <= 7; ++n) EXPECT_FALSE(Get(n).has_value()) << n;
}

// The cleaner has queued some, and none of these is on its way yet.
Task<void> FlashStoreTest::DropOnceQueued(Executor&, std::uint64_t n) {
  co_await Yield();
  t->store->Tick();
  const BlockKey key = store::Key(n);
  const auto dropped = co_await t->store->Drop(ns.slot, std::span(&key, 1));
  EXPECT_TRUE(dropped.has_value());
}

// Where no parent has to be there, a descendant that reached the media behind its tombstone would be found.
TEST_F(FlashStoreTest, R10WhatIsBeingCollectedIsNotWritten) {
  constexpr std::uint64_t kChildren = 900;
  store::TestStoreOptions options = With(4096, 64 * kMiB);
  options.store.lower.write.policy = WritePolicy::kBack;
  options.store.lower.admit = Admission::kAll;
  Make(options, store::OneWindow(1));
  ASSERT_EQ(Put(0, std::nullopt), store::State::kPublished);
  for (std::uint64_t n = 1; n <= kChildren; ++n) ASSERT_EQ(Put(n, 0), store::State::kPublished);
  t->Run(DropOnceQueued(t->loop->executor(), 0));
  t->Settle();
  EXPECT_EQ(Occupied().records, 0u);
  EXPECT_EQ(Occupied().tombstones, 0u);
  Attach(store::OneGroup());  // with which the journal says so
  t->Stop();
  t->ForgetMemory();
  t->Start();
  ASSERT_TRUE(t->recovered.ok()) << t->recovered.ToString();
  Attach(store::OneWindow(1));
  std::uint64_t back = 0;
  for (std::uint64_t n = 1; n <= kChildren; ++n) back += Get(n).has_value() ? 1 : 0;
  EXPECT_EQ(back, 0u);
}

TEST_F(FlashStoreTest, P7ADeviceThatGoesOutDuringAStartCostsItsBlocksOnly) {
  Make(With(4));
  for (std::uint64_t n = 0; n < 40; ++n) {
    ASSERT_EQ(Put(n, std::nullopt), store::State::kPublished);
    t->Settle();
  }
  t->disk.set_faults([](const io::IoRequest& request, const std::string& path) -> io::Fault {
    const bool hit =
        request.kind == io::IoRequest::Kind::kSync && path.find("flash0/flash") != std::string::npos;
    return hit ? io::Fault{io::FaultKind::kIoError} : io::Fault{};
  });
  t->Kill();
  t->disk.set_faults({});
  ASSERT_TRUE(t->recovered.ok()) << t->recovered.ToString();
  Attach(store::OneGroup());
  ASSERT_EQ(Put(100, std::nullopt), store::State::kPublished);
}

TEST_F(FlashStoreTest, WhatFallsBehindOnFlashCanStillBeFetched) {
  Make(With(4), store::FullAndWindow());
  const auto both = [&](std::uint64_t n, std::optional<std::uint64_t> parent) {
    store::PartWrite full = Part(n, parent), local = Part(n, parent);
    local.group = 1;
    WriteOne(full);
    WriteOne(local);
    t->Settle();
  };
  for (std::uint64_t n = 0; n < 8; ++n) both(n, n == 0 ? std::nullopt : std::optional(n - 1));
  ASSERT_FALSE(Here(4, 1));
  both(100, 5);
  const catalog::BlockName name{store::Key(4), 1};
  auto grant = t->Run(t->store->Acquire(Me(), ns.slot, std::span(&name, 1), 1'000'000, Soon()));
  ASSERT_TRUE(grant.has_value());
  EXPECT_EQ(grant->views[0].code, Code::kOk);
}

TEST_F(FlashStoreTest, R10WhatExpiredStaysAwayThoughTheClockGoesBack) {
  Make(With(4));
  store::PartWrite part = Part(0, {});
  part.ttl_s = 10;
  WriteOne(part);
  t->Settle();
  t->clock.StepWall(100);
  t->Settle();
  EXPECT_FALSE(Get(0).has_value());
  t->Stop();
  t->ForgetMemory();
  t->clock.StepWall(-100);
  t->Start();
  Attach(store::OneGroup());
  EXPECT_FALSE(Get(0).has_value());
}

// It expired below memory, and a reader met it there.
TEST_F(FlashStoreTest, R10WhatExpiredBelowMemoryStaysAwayWithWhatDescendsFromIt) {
  Make(With(4));
  store::PartWrite part = Part(0, {});
  part.ttl_s = 10;
  WriteOne(part);
  ASSERT_EQ(Put(1, 0), store::State::kPublished);
  t->Settle();
  PutChainSlowly(11, 18);
  ASSERT_FALSE(Here(0) || Here(1));
  ASSERT_EQ(Match(0, 1), 2u);
  t->Advance(11'000'000);
  t->Settle();
  EXPECT_EQ(Match(0, 1), 0u);
  EXPECT_FALSE(Get(1).has_value());
  t->Settle();
  t->Stop();
  t->ForgetMemory();
  t->clock.StepWall(-3600);
  t->Start();
  Attach(store::OneGroup());
  EXPECT_FALSE(Get(0).has_value());
  EXPECT_FALSE(Get(1).has_value());
}

TEST_F(FlashStoreTest, R10WhatAReaderMetExpiredBelowMemoryStaysAway) {
  Make(With(4));
  store::PartWrite part = Part(0, {});
  part.ttl_s = 10;
  WriteOne(part);
  t->Settle();
  PutChainSlowly(11, 18);
  ASSERT_FALSE(Here(0));
  t->Advance(11'000'000);
  t->Settle();
  EXPECT_FALSE(Get(0).has_value());
  t->Settle();
  t->Stop();
  t->ForgetMemory();
  t->clock.StepWall(-3600);
  t->Start();
  Attach(store::OneGroup());
  EXPECT_FALSE(Get(0).has_value());
}

// The tick that follows tells it, not the one a minute later.
TEST_F(FlashStoreTest, R10WhatExpiredStaysAwayThoughTheJournalFailedOnceThen) {
  Make(With(4));
  store::PartWrite part = Part(0, {});
  part.ttl_s = 10;
  WriteOne(part);
  t->Settle();
  int left = 2;  // of both copies
  t->disk.set_faults([&](const io::IoRequest& request, const std::string& path) {
    const bool journal =
        request.kind == io::IoRequest::Kind::kWrite && path.find("journal") != std::string::npos;
    return journal && left-- > 0 ? io::Fault{io::FaultKind::kIoError} : io::Fault{};
  });
  t->clock.StepWall(20);
  t->Settle();
  ASSERT_LE(left, 0);
  EXPECT_FALSE(Get(0).has_value());
  for (int i = 0; i < 5; ++i) {
    t->clock.AdvanceUs(1'000'000);
    t->Settle();
  }
  t->Stop();
  t->ForgetMemory();
  t->clock.StepWall(-60);
  t->Start();
  Attach(store::OneGroup());
  EXPECT_FALSE(Get(0).has_value());
}

TEST_F(FlashStoreTest, R10WhatExpiredUnderAClockThatWentBackStaysAwayAfterAReboot) {
  Make(With(4));
  store::PartWrite part = Part(0, {});
  part.ttl_s = 2;
  WriteOne(part);
  t->Settle();
  t->clock.StepWall(-3600);
  for (int i = 0; i < 20; ++i) {
    t->clock.AdvanceUs(1'000'000);
    t->Settle();
  }
  EXPECT_FALSE(Get(0).has_value());
  t->Stop();
  t->ForgetMemory();
  t->Start();
  Attach(store::OneGroup());
  EXPECT_FALSE(Get(0).has_value());
}

TEST_F(FlashStoreTest, TheScrubberFindsWhatRotted) {
  store::TestStoreOptions options = With(4);
  options.store.scrub_bytes_per_s = 1 * kMiB;
  Make(options);
  PutChainSlowly(0, 15);
  const std::vector<std::byte> wanted = store::Body(5, 4096);
  const std::string path = "flash0/flash";
  for (std::uint64_t offset = 0; offset + 4096 <= t->disk.Bytes(path).size(); offset += 4096) {
    if (std::memcmp(t->disk.Bytes(path).data() + offset, wanted.data(), 4096) == 0) {
      t->disk.Flip(path, offset, std::byte{1});
      break;
    }
  }
  for (int i = 0; i < 100 && Match(0, 15) > 5; ++i) {
    t->clock.AdvanceUs(100'000);
    t->Settle();
  }
  EXPECT_EQ(Match(0, 15), 5u);
}

TEST_F(FlashStoreTest, TheScrubberGoesRoundAtWhateverRate) {
  store::TestStoreOptions options = With(4);
  Make(options);
  PutChainSlowly(0, 15);
  for (const std::uint64_t rate : {std::uint64_t{100'000'000'000'000}, UINT64_MAX}) {
    options.store.scrub_bytes_per_s = rate;
    t->store->SetOptions(options.store);
    const std::uint64_t rounds = Count(Counters().scrub_rounds);
    for (int i = 0; i < 8; ++i) TickOnceLater();
    EXPECT_GT(Count(Counters().scrub_rounds), rounds + 4) << rate;
  }
}

TEST_F(FlashStoreTest, ADeviceThatHangsHoldsUpNoScrubbingOfOthers) {
  store::TestStoreOptions options = With(4, 4 * kMiB, 2);
  Make(options);
  for (std::uint64_t n = 0; n < 32; ++n) {
    ASSERT_EQ(Put(n, std::nullopt), store::State::kPublished);
    t->Settle();
  }
  t->disk.set_faults([](const io::IoRequest& request, const std::string& path) {
    return request.kind == io::IoRequest::Kind::kRead && path == kFirstDevice
               ? io::Fault{io::FaultKind::kHang}
               : io::Fault{};
  });
  options.store.scrub_bytes_per_s = 1 * kMiB;
  t->store->SetOptions(options.store);
  TickUntilFirstDeviceIsOut();
  const std::uint64_t rounds = Count(Counters().scrub_rounds);
  for (int i = 0; i < 20; ++i) TickOnceLater();
  EXPECT_GT(Count(Counters().scrub_rounds), rounds);
}

TEST_F(FlashStoreTest, ADeviceThatHangsHoldsUpNoTurnsOfOthers) {
  Make(With(8, 4 * kMiB, 2));
  std::uint64_t n = 0;
  for (; n < 32; ++n) {
    ASSERT_EQ(Put(n, std::nullopt), store::State::kPublished);
    t->Settle();
  }
  std::optional<std::uint64_t> on_first, on_second;
  bool first = false;
  t->disk.set_faults([&](const io::IoRequest& request, const std::string& path) {
    if (request.kind == io::IoRequest::Kind::kRead) first = path == kFirstDevice;
    return io::Fault{};
  });
  for (std::uint64_t at = 0; !on_first || !on_second; ++at) {
    ASSERT_FALSE(Here(at));
    ASSERT_TRUE(Gets(at));
    (first ? on_first : on_second) = at;
  }
  for (; n < 64; ++n) {
    ASSERT_EQ(Put(n, std::nullopt), store::State::kPublished);
    t->Settle();
  }
  ASSERT_FALSE(Here(*on_first) || Here(*on_second));
  for (const std::uint64_t block : {*on_first, *on_second}) {
    const BlockKey key = store::Key(block);
    t->store->NotePrompt(ns.slot, {.keys = {key},
                                   .first_new = 1,
                                   .matched = 1,
                                   .hints = {.next_turn_ms = block == *on_first ? 60'000u : 61'000u}});
    t->Run(t->store->Touch(ns.slot, std::span(&key, 1)));
  }
  ASSERT_EQ(Occupied().awaited_turns, 2u);
  t->disk.set_faults([](const io::IoRequest& request, const std::string& path) {
    return request.kind == io::IoRequest::Kind::kRead && path == kFirstDevice
               ? io::Fault{io::FaultKind::kHang}
               : io::Fault{};
  });
  for (int i = 0; i < 520; ++i) TickOnceLater();
  TickUntilFirstDeviceIsOut();
  for (int i = 0; i < 10; ++i) TickOnceLater();
  EXPECT_EQ(Count(Counters().fetched_ahead), 1u);
  EXPECT_TRUE(Here(*on_second));
  for (int i = 0; i < 200; ++i) TickOnceLater();
  EXPECT_EQ(Occupied().awaited_turns, 0u);
}

TEST_F(FlashStoreTest, R10ADeviceThatHangsHoldsUpNoMarksOfOthers) {
  Make(With(8, 4 * kMiB, 2));
  ASSERT_EQ(Put(0, std::nullopt), store::State::kPublished);
  t->Settle();
  const auto told = [this] {
    const auto superblock = flash::DecodeSuperblock(t->disk.Bytes("flash1/flash"));
    return superblock ? superblock->journal_mark : tier::JournalMark{};
  };
  ASSERT_EQ(told(), t->journal->mark());
  t->disk.set_faults([](const io::IoRequest& request, const std::string& path) {
    return request.kind == io::IoRequest::Kind::kWrite && path == kFirstDevice
               ? io::Fault{io::FaultKind::kHang}
               : io::Fault{};
  });
  const BlockKey key = store::Key(0);
  ASSERT_TRUE(t->Run(t->store->Drop(ns.slot, std::span(&key, 1))).has_value());
  TickUntilFirstDeviceIsOut();
  for (int i = 0; i < 5; ++i) TickOnceLater();
  EXPECT_EQ(told(), t->journal->mark());
}

TEST_F(FlashStoreTest, R10AMarkThatADeviceFailedToWriteIsWrittenAgain) {
  Make(With(8));
  ASSERT_EQ(Put(0, std::nullopt), store::State::kPublished);
  t->Settle();
  const auto told = [this] {
    const auto superblock = flash::DecodeSuperblock(t->disk.Bytes(kFirstDevice));
    return superblock ? superblock->journal_mark : tier::JournalMark{};
  };
  ASSERT_EQ(told(), t->journal->mark());
  t->disk.set_faults([](const io::IoRequest& request, const std::string& path) {
    const bool superblock = request.offset == 0 && path == kFirstDevice;
    return superblock ? io::Fault{io::FaultKind::kIoError} : io::Fault{};
  });
  const BlockKey key = store::Key(0);
  ASSERT_TRUE(t->Run(t->store->Drop(ns.slot, std::span(&key, 1))).has_value());
  for (int i = 0; i < 3; ++i) TickOnceLater();
  ASSERT_GT(t->disk.injected(io::FaultKind::kIoError), 0u);
  ASSERT_TRUE(FlashOf(*t).devices()[0].in_service);
  t->disk.set_faults({});
  for (int i = 0; i < 3; ++i) TickOnceLater();
  EXPECT_EQ(told(), t->journal->mark());
}

// The sizes of what is being collected are in its list, so another list waits for its slot.
TEST_F(FlashStoreTest, WhatADroppedNamespaceHadIsForgottenWholeWhoeverWantsItsSlot) {
  const auto numbered = [](std::uint32_t number) {
    NamespaceSpec spec = store::OneGroup();
    spec.name.clear();
    spec.fields = {{"number", std::to_string(number)}};
    return spec;
  };
  Make(With(2048, 32 * kMiB));
  ns = *t->Run(t->store->Attach(numbered(0), Me(2, 2)));
  PutChain(1, 1500);
  t->Settle();
  t->store->OwnerEnded(Me(2).owner);
  std::uint8_t owner = 3;
  for (std::uint32_t number = 1; Occupied().namespaces < arena::kMaxNamespaces; ++number) {
    if (!t->Run(t->store->Attach(numbered(number), Me(owner, owner)))) ++owner;
  }
  ASSERT_GT(FlashOf(*t).live_bytes(), 0u);
  Task<std::uint64_t> dropping = t->store->cell_drops().BeginNamespace(ns.slot);
  const Result<store::Attached> attached = t->Run(t->store->Attach(numbered(5000), Me(200, 200)));
  ASSERT_TRUE(attached.has_value()) << attached.error().ToString();
  EXPECT_EQ(attached->slot, ns.slot);
  EXPECT_EQ(t->Run(std::move(dropping)), 1500u);
  EXPECT_EQ(FlashOf(*t).live_bytes(), 0u);
}

// Flash has room for more than the forest has blocks, as where the host has little memory beside it.
TEST_F(FlashStoreTest, EachBlockMayHaveARecordInEachOfItsGroups) {
  constexpr std::uint64_t kBlocks = 5000;
  store::TestStoreOptions options = With(0, 128 * kMiB, 1, kMiB);
  options.store.max_lower_blocks = 64;
  NamespaceSpec spec = store::OneGroup();
  spec.groups = {{.name = "a"}, {.name = "b"}};
  Make(options, spec);
  for (std::uint64_t n = 0; n < kBlocks; ++n) {
    bodies_.clear();
    std::vector<store::PartWrite> parts = {Part(n, std::nullopt), Part(n, std::nullopt)};
    parts[1].group = 1;
    for (const store::PartOutcome& outcome : Write(std::move(parts), Me())) {
      ASSERT_EQ(outcome.state, store::State::kPublished) << n << ": " << outcome.status.ToString();
    }
    if (n % 100 == 99) t->Settle();
  }
  EXPECT_EQ(Occupied().blocks, kBlocks);
  Restart(spec);
  EXPECT_EQ(Occupied().blocks, kBlocks);
  EXPECT_TRUE(Gets(0) && Gets(kBlocks - 1));
}

TEST_F(FlashStoreTest, WhereTheForestFillsFlashGivesUpWhatIsOldest) {
  constexpr std::uint64_t kBlocks = 16'000;  // a quarter more than the forest has
  store::TestStoreOptions options = With(0, 256 * kMiB, 1, kMiB);
  options.store.max_lower_blocks = 64;
  Make(options);
  for (std::uint64_t n = 0; n < kBlocks; ++n) {
    bodies_.clear();
    ASSERT_EQ(Put(n, std::nullopt), store::State::kPublished) << n;
    if (n % 100 == 99) t->Settle();
  }
  EXPECT_LT(Occupied().blocks, kBlocks);
  EXPECT_TRUE(Gets(kBlocks - 1));
}

}  // namespace
}  // namespace cistern
