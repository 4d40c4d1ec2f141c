// SPDX-License-Identifier: Apache-2.0
#include "base/slow_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/metric_registry.h"

namespace cistern {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t kMs = 1'000;  // microseconds

struct Seen {
  std::vector<std::string> lines;
  SimulatedClock clock;
  std::unique_ptr<Logger> log =
      Logger::ToSink(LogLevel::kInfo, [this](LogLevel, std::string_view line) { lines.emplace_back(line); });
  SlowCalls calls{clock, *log};

  // One that waits for room, then for flash, and is answered.
  SlowCall Call(std::int64_t room_us, std::int64_t flash_us, std::int64_t core_us) {
    CallStations stations(clock, clock.Now());
    {
      const AtStation at(&stations, Station::kRoom);
      clock.AdvanceUs(room_us);
    }
    clock.AdvanceUs(core_us);
    {
      const AtStation at(&stations, Station::kFlash);
      clock.AdvanceUs(flash_us);
    }
    return {.kind = CallKind::kAcquire, .stations = stations, .ended = clock.Now(), .count = 3};
  }
};

TEST(SlowCalls, WhatNobodySaidIsTheCoresAndStaysAreAddedUp) {
  Seen seen;
  SlowCall call = seen.Call(5 * kMs, 70 * kMs, 25 * kMs);
  const Instant again = seen.clock.Now();
  seen.clock.AdvanceUs(50 * kMs);
  call.stations.Add(Station::kRoom, again, seen.clock.Now());
  call.stations.Add(Station::kPeer, again, again);  // it did not wait there
  call.ended = seen.clock.Now();
  call.stations.TakeRest(call.ended);
  EXPECT_EQ(call.stations.at(Station::kRoom).ns, 55 * kMs * 1000);
  EXPECT_EQ(call.stations.at(Station::kFlash).ns, 70 * kMs * 1000);
  EXPECT_EQ(call.stations.at(Station::kCore).ns, 25 * kMs * 1000);
  EXPECT_EQ(call.stations.at(Station::kPeer).ns, 0);
  EXPECT_EQ(call.stations.at(Station::kRoom).first, call.stations.began());
  EXPECT_EQ(call.stations.at(Station::kRoom).last, call.ended);
  EXPECT_EQ(call.stations.longest(), Station::kFlash);
  EXPECT_EQ(StationsText(call), "flash 70.0ms, room 55.0ms, core 25.0ms");
}

TEST(SlowCalls, OneIsSlowAboveTheBoundAndNoneWhereItIsZero) {
  Seen seen;
  seen.calls.SetBound(100 * kMs);
  EXPECT_FALSE(seen.calls.Slow(100 * kMs * 1000));
  EXPECT_TRUE(seen.calls.Slow(100 * kMs * 1000 + 1));
  seen.calls.SetBound(0);
  EXPECT_FALSE(seen.calls.Slow(INT64_MAX));
}

TEST(SlowCalls, OneIsLoggedWithWhereItsTimeWentAndCountedByIt) {
  Seen seen;
  SlowCall call = seen.Call(10 * kMs, 300 * kMs, 0);
  call.session = 7;
  call.process = 1234;
  call.namespace_fingerprint = 0xabc;
  call.code = Code::kTooLate;
  std::vector<std::int64_t> heard;
  seen.calls.ListenTo([&](const SlowCall& one) { heard.push_back(one.took_ns()); });
  seen.calls.Note(call);
  seen.calls.Note(seen.Call(200 * kMs, 1 * kMs, 0));
  EXPECT_EQ(seen.calls.count(CallKind::kAcquire), 2u);
  EXPECT_EQ(seen.calls.count(Station::kFlash), 1u);
  EXPECT_EQ(seen.calls.count(Station::kRoom), 1u);
  EXPECT_THAT(heard, ElementsAre(310 * kMs * 1000, 201 * kMs * 1000));
  seen.log.reset();
  EXPECT_THAT(seen.lines,
              ElementsAre("slow: acquire of 3 blocks for session 7 of process 1234 took 310ms: flash 300ms, "
                          "room 10.0ms, namespace 0000000000000abc, too_late",
                          "slow: acquire of 3 blocks took 201ms: room 200ms, flash 1.0ms"));
}

TEST(SlowCalls, AStormOfThemSaysAFewLinesAndHowManyItLeftOut) {
  Seen seen;
  for (int i = 0; i < 1000; ++i) seen.calls.Note(seen.Call(0, 200 * kMs, 0));
  EXPECT_EQ(seen.calls.count(CallKind::kAcquire), 1000u);
  EXPECT_EQ(seen.calls.last().size(), SlowCalls::kKept);
  seen.log.reset();
  EXPECT_LT(seen.lines.size(), 40u);
}

TEST(SlowCalls, StatusHasTheLastOfThemTheLatestFirst) {
  Seen seen;
  MetricRegistry registry;
  SlowCalls::AddMetrics(registry, &seen.calls);
  for (std::int64_t i = 1; i <= 20; ++i) seen.calls.Note(seen.Call(0, i * 100 * kMs, 0));
  seen.clock.AdvanceUs(9 * kMs);
  Executor executor(seen.clock);
  Task<MetricSnapshot> reading = ReadMetrics(executor, registry);
  while (!reading.done()) executor.RunReady(1);
  const std::vector<MetricRow> rows = reading.Take().tables.at(0);
  ASSERT_EQ(rows.size(), SlowCalls::kKept);
  EXPECT_EQ(std::get<std::string>(rows[0][0]), "acquire");
  EXPECT_EQ(std::get<std::uint64_t>(rows[0][1]), 9u * kMs);
  EXPECT_EQ(std::get<std::uint64_t>(rows[0][2]), 2'000u * kMs);
  EXPECT_EQ(std::get<std::uint64_t>(rows[15][2]), 500u * kMs);
}

}  // namespace
}  // namespace cistern
