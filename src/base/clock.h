// SPDX-License-Identifier: Apache-2.0
// Time as values. Instants are monotonic and mean nothing outside the host's uptime; wall time is only for
// expiry and may step back. Whoever needs the time is handed a Clock, so a simulated run replays exactly.
// Durations are plain int64 with their unit last in the name.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <limits>

namespace cistern {

struct Instant {
  std::int64_t ns = 0;

  static constexpr Instant Never() { return {std::numeric_limits<std::int64_t>::max()}; }
  constexpr bool IsNever() const { return ns == Never().ns; }

  // Saturates at Never; a negative duration goes back.
  constexpr Instant PlusNs(std::int64_t duration_ns) const {
    if (IsNever() || (duration_ns > 0 && ns > Never().ns - duration_ns)) return Never();
    return {ns + duration_ns};
  }
  constexpr Instant PlusUs(std::int64_t duration_us) const {
    if (duration_us > Never().ns / 1000) return Never();
    return PlusNs(std::max(duration_us, -(Never().ns / 1000)) * 1000);
  }
  // How long after `earlier` this is; negative if it is before.
  constexpr std::int64_t NsSince(Instant earlier) const { return ns - earlier.ns; }
  constexpr std::int64_t UsSince(Instant earlier) const { return NsSince(earlier) / 1000; }

  friend constexpr auto operator<=>(Instant, Instant) = default;
};

// Unix seconds; 0 stands for "none" wherever an expiry is optional.
struct WallTime {
  std::uint32_t seconds = 0;
  friend constexpr auto operator<=>(WallTime, WallTime) = default;
};

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Instant Now() const = 0;
  virtual WallTime Wall() const = 0;
};

// The host's CLOCK_MONOTONIC and CLOCK_REALTIME.
class SystemClock final : public Clock {
 public:
  Instant Now() const override;
  WallTime Wall() const override;
};

// The host's boot clock: the same in all of its processes, and it goes on while the host sleeps. For what
// another host counts on: a lease there ends whether this host sleeps or not.
class BootClock final : public Clock {
 public:
  Instant Now() const override;
  WallTime Wall() const override { return SystemClock().Wall(); }
};

// Stands still until told. Starts at instant 1 ms, so that zero is always in the past.
class SimulatedClock final : public Clock {
 public:
  explicit SimulatedClock(WallTime start = {1'700'000'000}) : wall_start_s_(start.seconds) {}

  Instant Now() const override { return now_; }
  WallTime Wall() const override {
    return {static_cast<std::uint32_t>(wall_start_s_ + now_.ns / 1'000'000'000)};
  }

  void AdvanceNs(std::int64_t duration_ns) { now_ = now_.PlusNs(duration_ns); }
  void AdvanceUs(std::int64_t duration_us) { now_ = now_.PlusUs(duration_us); }
  // Does nothing when `instant` is already past.
  void AdvanceTo(Instant instant) {
    if (now_ < instant) now_ = instant;
  }
  // Wall time alone jumps, back with a negative step, as an administrator or NTP may do.
  void StepWall(std::int64_t step_s) { wall_start_s_ += step_s; }

 private:
  Instant now_{1'000'000};
  std::int64_t wall_start_s_;
};

}  // namespace cistern
