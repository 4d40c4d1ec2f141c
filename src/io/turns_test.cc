// SPDX-License-Identifier: Apache-2.0
// Visitors that come again and again do not keep the loop out (docs/decisions/0010-leases-without-a-hop.md).
#include "io/turns.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace cistern::io {
namespace {

TEST(Turns, AfterTheVisitorThatTheLoopWaitsForItIsTheLoopsTurn) {
  constexpr std::uint64_t kTurns = 100;
  Turns turns;
  std::atomic<std::uint64_t> asked = 0, had = 0;
  std::thread loop([&] {
    for (std::uint64_t turn = 1; turn <= kTurns; ++turn) {
      while (asked.load() < turn) std::this_thread::yield();
      turns.Begin();
      had.store(turn);
      turns.End();
    }
  });
  for (std::uint64_t turn = 1; turn <= kTurns; ++turn) {
    while (!turns.Enter()) std::this_thread::yield();
    asked.store(turn);
    while (!turns.loop_waits()) std::this_thread::yield();
    ASSERT_EQ(had.load(), turn - 1) << "a visitor is in";
    turns.End();
    while (!turns.Enter()) std::this_thread::yield();
    ASSERT_EQ(had.load(), turn) << "a visitor was let in before the loop";
    turns.End();
  }
  loop.join();
}

TEST(Turns, TheLoopHasItsTurnsThoughVisitorsAskAllTheTime) {
  constexpr int kVisitors = 3;
  constexpr std::uint64_t kTurns = 100;
  Turns turns;
  std::atomic<bool> over = false;
  std::uint64_t in = 0;  // guarded by the turns
  std::vector<std::thread> visitors;
  for (int i = 0; i < kVisitors; ++i) {
    visitors.emplace_back([&] {
      while (!over.load()) {
        if (!turns.Enter()) continue;
        ++in;
        turns.End();
      }
    });
  }
  std::uint64_t before = 0;
  for (std::uint64_t turn = 0; turn < kTurns; ++turn) {
    turns.Begin();
    EXPECT_GE(in, before);
    before = in;
    turns.End();
  }
  over = true;
  for (std::thread& visitor : visitors) visitor.join();
}

}  // namespace
}  // namespace cistern::io
