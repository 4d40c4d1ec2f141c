// SPDX-License-Identifier: Apache-2.0
// How long a read of a device will take, from what its reads took: pure, time comes in as values.
//
// A read is expected to take a time that grows evenly with the bytes that are queued, its own included: one
// line for as many reads as it finds there, with the device as busy as it was in the last moments, and
// writing or not. A line follows the middle of what reads took, not their mean: where some of them wait for
// something that nobody can foresee, the others are still foreseen.
//
// On top of that comes a factor for the moment. It follows the last reads, and goes at once to where several
// in a row were: a device that has just become slower (its own housekeeping, another user) is slower for all.
//
// What a line learned of a slow device while the factor was still that of a quick one would count twice when
// the factor follows. So no read is expected to take longer than kMostOfLately times what reads took lately,
// of as many bytes or each byte.
//
// An estimate that refuses every read would stay what it is, since only reads teach. So of a device that has
// been at rest for kRestUs no more is expected than of one that nobody has read: that read tells.
#pragma once

#include <array>
#include <cstdint>

#include "base/clock.h"

namespace cistern::flash {

class Estimate {
 public:
  // As a line: a read that has been told of.
  static constexpr std::uint16_t kEnded = 0xffff;
  static constexpr std::int64_t kRestUs = 1'000'000;
  static constexpr double kMostOfLately = 2;

  // What was expected of a read when it came.
  struct Expected {
    Instant at;
    double work = 0;  // queued, its own included
    double us = 0;    // the estimate
    std::uint16_t line = 0;
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
  double Us(std::uint64_t bytes, Instant now) const { return Expect(bytes, now).us; }

 private:
  static constexpr std::uint32_t kQueues = 16;  // levels of queue length: half an octave each
  static constexpr std::uint32_t kBusy = 8;     // levels of the most reads lately, by octave
  // base_us + work * work_us, fitted to what reads took by the least relative error; what was long ago counts
  // less and less.
  struct Line {
    float base_us = 0, work_us = 0;
    double one = 0, work = 0, square = 0;  // sums of 1, work, work^2, each by took^2
    double took_one = 0, took_work = 0;    // of 1 and work by took
    std::uint32_t seen = 0;

    double At(double work_in) const { return base_us + work_us * work_in; }
    void Add(double work_in, double us, double weight);
    void Fit();
  };

  static std::uint32_t QueueLevel(std::uint32_t reads);
  static std::uint16_t Number(bool writes, std::uint32_t busy, std::uint32_t queue) {
    return static_cast<std::uint16_t>(((writes ? 1 : 0) * kBusy + busy) * kQueues + queue);
  }
  // The nearest queue length that was seen stands for one that was not, then the nearest busyness, then the
  // device with or without writes. Null: nothing was seen.
  const Line* Nearest(std::uint16_t number) const;
  Expected Expect(std::uint64_t bytes, Instant now) const;
  void FollowMoment(double off);

  std::uint32_t reads_ = 0;  // in the queue and at the device
  std::uint32_t writes_ = 0;
  double ahead_ = 0;                        // work of the reads
  double lately_ = 1;                       // the most reads, fading
  double longest_us_ = 0, slowest_us_ = 0;  // what reads took at most, fading: one of them, and its work
  std::array<Line, 2 * kBusy * kQueues> lines_{};
  bool seen_ = false;
  Instant last_;  // end of a read

  static constexpr std::uint32_t kInARow = 8;
  double moment_ = 0;  // logarithm of the factor
  double factor_ = 1;
  std::array<double, kInARow> far_{};  // logarithms of those in a row that took far more, or far less
  std::uint32_t in_a_row_ = 0;
};

}  // namespace cistern::flash
