// SPDX-License-Identifier: Apache-2.0
// How long a read of a device will take, from what its reads took: pure, time comes in as values.
//
// A read is expected to take the work that is queued, its own included, times what a unit of work took lately
// for reads of that size that found as many before them, with the device as busy as it was in the last
// moments and writing or not. On top of that comes a factor for the moment, which follows the last few reads:
// a device that has just become slower (its own housekeeping, another user) is slower for all.
#pragma once

#include <array>
#include <cstdint>

#include "base/clock.h"

namespace cistern::flash {

class Estimate {
 public:
  // As a cell: a read that has been told of.
  static constexpr std::uint16_t kEnded = 0xffff;

  // What was expected of a read when it came.
  struct Expected {
    Instant at;
    double work_us = 0;  // at the nominal speed
    double us = 0;       // the estimate
    std::uint16_t cell = 0;
  };

  // A read of so many bytes has come to the device's queue.
  Expected Came(std::uint64_t bytes, Instant now);
  // It ended; `learn` is false when it failed.
  void Ended(const Expected& expected, std::uint64_t bytes, Instant now, bool learn);
  // It was refused or dropped without having ended.
  void Left(std::uint64_t bytes);
  void WriteBegan() { ++writes_; }
  void WriteEnded() { --writes_; }

  // Of a read that would come now.
  double Us(std::uint64_t bytes) const { return Expect(bytes).us; }

 private:
  static constexpr std::uint32_t kQueues = 40;  // levels of queue length: 1 to 8, then a quarter octave each
  static constexpr std::uint32_t kBusy = 8;     // levels of the most reads lately, by octave
  static constexpr std::uint32_t kSizes = 12;   // of reads, by octave from 4 KiB
  struct Factor {
    float log = 0;
    std::uint32_t seen = 0;
  };
  struct Where {
    std::uint32_t writes, busy, queue, size;
  };

  static std::uint32_t QueueLevel(std::uint32_t reads);
  static std::size_t Cell(const Where& at) {
    return ((at.writes * kBusy + at.busy) * kSizes + at.size) * kQueues + at.queue;
  }
  double LogAt(Where at) const;
  Expected Expect(std::uint64_t bytes) const;

  std::uint32_t reads_ = 0;  // in the queue and at the device
  std::uint32_t writes_ = 0;
  double ahead_ = 0;   // work of the reads
  double lately_ = 1;  // the most reads, fading
  std::array<Factor, 2 * kBusy * kSizes * kQueues> factors_{};
  double moment_ = 0;  // logarithm of the factor for the moment
  double any_ = 0;     // of all reads, for what was never seen
  bool seen_ = false;
};

}  // namespace cistern::flash
