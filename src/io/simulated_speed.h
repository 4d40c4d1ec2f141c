// SPDX-License-Identifier: Apache-2.0
// The time that a simulated device takes: a few channels that find what was asked for, beside each other, and
// one bus that all bytes cross in the order of asking. Everything random comes from the seed.
//
//   SimulatedSpeed speed(1, kFastFlash);
//   disk.set_time([&](const IoRequest& request, const std::string&, Instant now) { return speed.Ends(request,
//   now); });
#pragma once

#include <array>
#include <cstdint>

#include "base/clock.h"
#include "base/random.h"
#include "io/loop.h"

namespace cistern::io {

struct SpeedProfile {
  double find_us = 80;         // of a channel, for one operation
  double spread = 0.1;         // of find_us, either way, evenly
  double bytes_per_us = 3000;  // of the bus
  std::uint32_t channels = 8;  // 1 to SimulatedSpeed::kMaxChannels
  // A read that comes while a write is at the device, or was within kAfterWriteUs, waits by chance for what
  // the flash does for it.
  double wait_chance = 0;
  double wait_us = 0;
};
inline constexpr SpeedProfile kSlowDisk{.find_us = 8'000, .spread = 0.3, .bytes_per_us = 150, .channels = 1};
inline constexpr SpeedProfile kFastFlash{.find_us = 80, .spread = 0.2, .bytes_per_us = 3'000};
inline constexpr SpeedProfile kFlashBehindWrites{
    .find_us = 80, .spread = 0.2, .bytes_per_us = 3'000, .wait_chance = 0.3, .wait_us = 2'000};

class SimulatedSpeed {
 public:
  static constexpr std::uint32_t kMaxChannels = 32;
  static constexpr double kAfterWriteUs = 200;

  SimulatedSpeed(std::uint64_t seed, const SpeedProfile& profile);

  // When an operation that comes now ends.
  Instant Ends(const IoRequest& request, Instant now);
  // All of it takes so many times as long from now on.
  void set_slower(double times) { slower_ = times; }

  // What is known of a read that would come now by somebody who knows the device, what it has to do and all
  // that chance has decided so far: the time at which the smallest error is had in half of all cases.
  struct Known {
    double us = 0;
    double error = 0;  // relative to what it takes, of half the cases at most
  };
  Known ReadNow(std::uint32_t bytes, Instant now) const;

 private:
  // Microseconds from `now`; `draw` decides.
  double Take(bool read, double bytes, double now_us, Random& draw);

  SpeedProfile profile_;
  Random random_;
  double slower_ = 1;
  std::array<double, kMaxChannels> channel_free_us_{};
  double bus_free_us_ = 0;
  double writing_until_us_ = -1;
};

}  // namespace cistern::io
