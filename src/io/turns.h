// SPDX-License-Identifier: Apache-2.0
// Whose turn it is to run what belongs to a loop: the loop's own, from the begin of a turn to its end or
// until it waits, or that of a visitor, another thread of the process, in between.
#pragma once

#include <time.h>

#include <atomic>
#include <cstdint>

#include "base/spin.h"

namespace cistern::io {

class Turns final {
 public:
  // The loop's side. One visitor that asks is let in first and waited for; one that asks and then does not
  // come, because it lost its processor, is not, and after one it is the loop's turn whoever asks.
  void Begin() {
    for (int looks = 0; visitors_.load(std::memory_order_relaxed) != 0 && !Taken() && looks < kLooks; ++looks)
      CpuRelax();
    if (Take()) return;
    wanted_.store(true, std::memory_order_relaxed);
    PoliteSpin spin(64);
    for (int yields = 0; !Take();) {
      // A visitor of lower priority than this thread may need its processor for longer than it yields it.
      if (spin.Turn() && ++yields > kYields) Pause();
    }
    wanted_.store(false, std::memory_order_relaxed);
  }
  void End() { taken_.store(false, std::memory_order_release); }
  // Whether the loop waits for the visitor that is in; the turn after that one is the loop's.
  bool loop_waits() const { return wanted_.load(std::memory_order_relaxed); }

  // A visitor's side: true: it is in, until End. False where the loop is in a turn longer than a few
  // microseconds.
  bool Enter() {
    visitors_.fetch_add(1, std::memory_order_relaxed);
    bool in = TakeAsVisitor();
    for (int looks = 0; !in && looks < kVisitorLooks; ++looks) {
      CpuRelax();
      in = TakeAsVisitor();
    }
    visitors_.fetch_sub(1, std::memory_order_relaxed);
    return in;
  }

 private:
  static constexpr int kLooks = 64;
  static constexpr int kVisitorLooks = 4 * kLooks;
  static constexpr int kYields = 100;

  bool Taken() const { return taken_.load(std::memory_order_relaxed); }
  bool Take() { return !Taken() && !taken_.exchange(true, std::memory_order_acquire); }
  bool TakeAsVisitor() { return !loop_waits() && Take(); }
  static void Pause() {
    const timespec a_moment{0, 50'000};
    ::nanosleep(&a_moment, nullptr);
  }

  alignas(64) std::atomic<bool> taken_{false};
  std::atomic<bool> wanted_{false};                     // the loop waits for the visitor that is in
  alignas(64) std::atomic<std::uint32_t> visitors_{0};  // that ask
};

}  // namespace cistern::io
