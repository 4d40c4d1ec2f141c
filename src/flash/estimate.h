// SPDX-License-Identifier: Apache-2.0
// How long a read of a device will take, from what its reads took: pure, time comes in as values.
//
// Three things, each learnt from what the ones before leave unexplained. Work over rate: what is queued and
// the read itself, over the rate that the device showed with as many reads in its queue, learnt apart for
// when it writes and when not. A factor for reads of this size at this depth. A factor for the moment, which
// follows the last few reads: a device that has just become slower (its own housekeeping, another user) is
// slower for all.
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
    double work_us = 0;  // by work over rate alone
    double us = 0;       // the whole estimate
    std::uint16_t cell = 0;
  };

  // A read of so many bytes has come to the device's queue.
  Expected Came(std::uint64_t bytes, Instant now);
  // It ended; `learn` is false when it failed.
  void Ended(const Expected& expected, std::uint64_t bytes, Instant now, bool learn);
  // It was refused or dropped without having ended.
  void Left(std::uint64_t bytes, Instant now);
  void WriteBegan(Instant now);
  void WriteEnded(Instant now);

  // Of a read that would come now.
  double Us(std::uint64_t bytes) const { return Expect(bytes).us; }

 private:
  static constexpr std::size_t kLevels = 12;  // of queue length, by octave
  static constexpr std::size_t kSizes = 20;   // of reads, by octave from 512 bytes
  // What a read costs beside its bytes, in bytes: small reads are limited by their number.
  static constexpr double kReadWork = 16.0 * 1024;

  struct Rate {
    double bytes_per_us = 0;  // 0: not seen yet
    double work = 0, us = 0;  // since the last sample
    std::uint32_t reads = 0;
  };
  struct Factor {
    double log = 0;
    std::uint32_t seen = 0;
  };

  static double Work(std::uint64_t bytes) { return static_cast<double>(bytes) + kReadWork; }
  Expected Expect(std::uint64_t bytes) const;
  double RateAt(std::size_t level) const;
  Rate& current() { return rates_[writes_ > 0][Level(reads_)]; }
  static std::size_t Level(std::uint32_t reads);
  // Time passes with the queue as it is.
  void Pass(Instant now);

  std::uint32_t reads_ = 0;  // in the queue and at the device
  std::uint32_t writes_ = 0;
  double ahead_ = 0;  // work of the reads
  Instant at_;
  std::array<std::array<Rate, kLevels>, 2> rates_{};
  std::array<Factor, 2 * kLevels * kSizes> factors_{};
  double moment_ = 0;  // logarithm of the factor for the moment
};

}  // namespace cistern::flash
