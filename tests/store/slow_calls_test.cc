// SPDX-License-Identifier: Apache-2.0
// Where calls of the store say that their time goes.
#include <gtest/gtest.h>

#include "base/call_stations.h"
#include "flash_store.h"
#include "store/block_store_fixture.h"

namespace cistern {
namespace {

constexpr std::int64_t kSlowUs = 300'000;  // of a device

class StationsTest : public store::BlockStoreTest {
 protected:
  void MakeOnFlash(std::uint32_t headers, std::uint64_t max_blocks) {
    store::TestStoreOptions options{.headers = headers};
    options.store.max_blocks = max_blocks;
    options.store.max_lower_blocks = 4096;
    options.store.read_ahead_bytes = 0;
    flash::FlashOptions flash;
    flash.region_bytes = 8u << 20;
    flash.devices = {{"flash0", 128u << 20}};
    options.tier = OnFlash(flash);
    Make(options);
  }
  // A chain of which the first blocks have left memory.
  void PutAndSettle(std::uint64_t last) {
    for (std::uint64_t n = 0; n <= last; ++n) {
      ASSERT_EQ(Put(n, n == 0 ? std::nullopt : std::optional(n - 1)), store::State::kPublished) << n;
      t->Settle();
    }
  }
  void SlowDevice() {
    t->disk.set_faults(
        [](const io::IoRequest&, const std::string&) { return io::Fault{io::FaultKind::kDelay, kSlowUs}; });
  }
  CallStations NewCall() { return CallStations(t->clock, t->clock.Now()); }
  std::int64_t Us(const CallStations& stations, Station station) { return stations.at(station).ns / 1000; }
  // All that it says is time that went by, once.
  void CheckAddsUp(CallStations& stations) {
    std::int64_t said = 0;
    for (std::size_t i = 0; i < kStations.size(); ++i) said += stations.at(static_cast<Station>(i)).ns;
    EXPECT_LE(said, t->clock.Now().NsSince(stations.began()));
  }
};

TEST_F(StationsTest, AnAcquireFromFlashWaitedForFlashAndSoDidItsFetch) {
  MakeOnFlash(2, 2);
  PutAndSettle(7);
  ASSERT_FALSE(Here(0));
  SlowDevice();
  CallStations stations = NewCall();
  const catalog::BlockName name{store::Key(0), 0};
  const auto grant = t->Run(
      t->store->Acquire(Me(), ns.slot, std::span(&name, 1), 1'000'000, Soon(), kNoWorthLimit, &stations));
  ASSERT_EQ(grant->views[0].code, Code::kOk);
  EXPECT_GE(Us(stations, Station::kFlash), kSlowUs);
  EXPECT_EQ(stations.longest(), Station::kFlash);
  CheckAddsUp(stations);
  // Whoever waits for it, the fetch is one that took long.
  ASSERT_EQ(t->slow_calls.count(CallKind::kFetch), 1u);
  EXPECT_EQ(t->slow_calls.count(Station::kFlash), 1u);
  EXPECT_EQ(t->slow_calls.last()[0].namespace_fingerprint, t->store->FingerprintAt(ns.slot));
}

TEST_F(StationsTest, AnAcquireThatIsTooLateHasWaitedForFlashAsWell) {
  MakeOnFlash(2, 2);
  PutAndSettle(7);
  SlowDevice();
  CallStations stations = NewCall();
  const catalog::BlockName name{store::Key(0), 0};
  const auto grant =
      t->Run(t->store->Acquire(Me(), ns.slot, std::span(&name, 1), 1'000'000, Soon(), 50'000, &stations));
  ASSERT_EQ(grant->views[0].code, Code::kTooLate);
  EXPECT_GE(Us(stations, Station::kFlash), 50'000);
  CheckAddsUp(stations);
}

TEST_F(StationsTest, AWriteWaitedForRoomThatIsOnItsWayToFlash) {
  MakeOnFlash(1, 0);
  SlowDevice();
  std::uint64_t n = 1;
  for (; t->slots->counts().used_slots < t->slots->counts().slots || n == 1; ++n)
    ASSERT_EQ(Put(n, n == 1 ? std::nullopt : std::optional(n - 1), 1u << 20), store::State::kPublished);
  CallStations stations = NewCall();
  const auto outcomes = t->Run(
      t->store->Write(Me(), ns.slot, {Part(1000, {}, 4096)}, t->clock.Now().PlusUs(10'000'000), &stations));
  ASSERT_EQ(outcomes[0].state, store::State::kPublished);
  EXPECT_GT(Us(stations, Station::kRoom), 0);
  EXPECT_EQ(stations.longest(), Station::kRoom);
  CheckAddsUp(stations);
}

TEST_F(StationsTest, AWriteWaitedForItsMover) {
  store::TestStoreOptions options;
  options.store.core_copy_bytes = 0;
  Make(options);
  t->movers->paused = true;
  CallStations stations = NewCall();
  auto writing = t->store->Write(Me(), ns.slot, {Part(1, {}, 70'000)}, Soon(), &stations);
  t->loop->RunUntilIdle();
  ASSERT_FALSE(writing.done());
  t->clock.AdvanceUs(kSlowUs);
  t->movers->paused = false;
  t->movers->MoveOne(0);
  ASSERT_EQ(t->Run(std::move(writing))[0].state, store::State::kPublished);
  EXPECT_EQ(Us(stations, Station::kMover), kSlowUs);
  CheckAddsUp(stations);
}

TEST_F(StationsTest, ADropWaitedForItsJournal) {
  MakeOnFlash(2, 0);
  PutChain(0, 3);
  t->Settle();
  SlowDevice();
  CallStations stations = NewCall();
  const BlockKey key = store::Key(1);
  ASSERT_TRUE(t->Run(t->store->Drop(ns.slot, std::span(&key, 1), &stations)).has_value());
  EXPECT_GE(Us(stations, Station::kJournal), kSlowUs);
  EXPECT_EQ(stations.longest(), Station::kJournal);
  CheckAddsUp(stations);
}

TEST_F(StationsTest, WhatTakesNoTimeSaysNone) {
  Make();
  CallStations stations = NewCall();
  ASSERT_EQ(t->Run(t->store->Write(Me(), ns.slot, {Part(1, {})}, Soon(), &stations))[0].state,
            store::State::kPublished);
  stations.TakeRest(t->clock.Now());
  for (std::size_t i = 0; i < kStations.size(); ++i) EXPECT_EQ(stations.at(static_cast<Station>(i)).ns, 0);
  EXPECT_TRUE(t->slow_calls.last().empty());
}

}  // namespace
}  // namespace cistern
