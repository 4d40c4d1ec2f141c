// SPDX-License-Identifier: Apache-2.0
#include "flash/estimate.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace cistern::flash {
namespace {

// What a read costs beside its bytes, in bytes: small reads are limited by their number.
constexpr double kReadWork = 16.0 * 1024;
constexpr double kNominal = 1000;          // bytes in a microsecond
constexpr double kFirstBaseUs = 80;        // of a device that nobody has read yet
constexpr double kFactorShare = 1.0 / 16;  // of a read in its cell
constexpr double kMomentShare = 1.0 / 8;
constexpr double kMost = 6;           // no logarithm beyond
constexpr double kFading = 1.0 / 32;  // of how busy it was, with each read that ends

double Work(std::uint64_t bytes) { return static_cast<double>(bytes) + kReadWork; }

std::uint32_t Octave(std::uint64_t value) { return static_cast<std::uint32_t>(std::bit_width(value) - 1); }

}  // namespace

std::uint32_t Estimate::QueueLevel(std::uint32_t reads) {
  if (reads <= 8) return std::max(reads, 1u) - 1;
  const std::uint32_t octave = Octave(reads);
  const std::uint32_t quarter = (reads >> (octave - 2)) & 3;
  return std::min(8 + (octave - 3) * 4 + quarter, kQueues - 1);
}

// The nearest queue length that was seen stands for one that was not, then the nearest busyness.
double Estimate::LogAt(Where at) const {
  const auto busy_levels = static_cast<int>(kBusy);
  const auto queue_levels = static_cast<int>(kQueues);
  for (int far = 0; far < busy_levels; ++far) {
    for (const int busy : {static_cast<int>(at.busy) - far, static_cast<int>(at.busy) + far}) {
      if (busy < 0 || busy >= busy_levels) continue;
      for (int off = 0; off < queue_levels; ++off) {
        for (const int queue : {static_cast<int>(at.queue) - off, static_cast<int>(at.queue) + off}) {
          if (queue < 0 || queue >= queue_levels) continue;
          const Factor& factor = factors_[Cell(
              {at.writes, static_cast<std::uint32_t>(busy), static_cast<std::uint32_t>(queue), at.size})];
          if (factor.seen > 0) return factor.log;
        }
      }
    }
  }
  return any_;
}

Estimate::Expected Estimate::Expect(std::uint64_t bytes) const {
  Expected expected;
  const Where at{
      writes_ > 0, std::min(Octave(static_cast<std::uint64_t>(std::max(lately_, reads_ + 1.0))), kBusy - 1),
      QueueLevel(reads_ + 1), std::min(Octave(std::max<std::uint64_t>(bytes, 4096) >> 12), kSizes - 1)};
  expected.cell = static_cast<std::uint16_t>(Cell(at));
  expected.work_us = (ahead_ + Work(bytes)) / kNominal;
  expected.us = seen_ ? expected.work_us * std::exp(LogAt(at) + moment_) : kFirstBaseUs + expected.work_us;
  return expected;
}

Estimate::Expected Estimate::Came(std::uint64_t bytes, Instant now) {
  Expected expected = Expect(bytes);
  expected.at = now;
  ++reads_;
  ahead_ += Work(bytes);
  lately_ = std::max(lately_, static_cast<double>(reads_));
  return expected;
}

void Estimate::Left(std::uint64_t bytes) {
  --reads_;
  ahead_ = reads_ == 0 ? 0 : std::max(0.0, ahead_ - Work(bytes));
}

void Estimate::Ended(const Expected& expected, std::uint64_t bytes, Instant now, bool learn) {
  lately_ = std::max(1.0, lately_ - kFading * (lately_ - reads_));
  Left(bytes);
  if (!learn) return;
  const double took = std::max(1.0, static_cast<double>(now.NsSince(expected.at)) / 1000);
  const double off = std::clamp(std::log(took / expected.work_us), -kMost, kMost);
  Factor& factor = factors_[expected.cell];
  const bool known = factor.seen > 4;
  const double left = off - factor.log;
  factor.log += static_cast<float>(std::max(kFactorShare, 1.0 / (++factor.seen)) * left);
  if (known)
    moment_ = std::clamp(moment_ + kMomentShare * (std::clamp(left, -1.0, 1.0) - moment_), -1.0, 1.0);
  any_ = seen_ ? any_ + kFactorShare * (off - any_) : off;
  seen_ = true;
}

}  // namespace cistern::flash
