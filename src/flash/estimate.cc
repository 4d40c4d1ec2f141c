// SPDX-License-Identifier: Apache-2.0
#include "flash/estimate.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace cistern::flash {
namespace {

// A device that nobody has read yet: 100 us and 1 GB/s.
constexpr double kFirstRate = 1000;
constexpr double kFirstBaseUs = 80;
constexpr std::uint32_t kSampleReads = 8;
constexpr double kRateShare = 0.2;         // of a new sample in the rate
constexpr double kFactorShare = 1.0 / 24;  // of a read in its cell
constexpr double kMomentShare = 1.0 / 8;
constexpr double kMostLog = 2.5;  // no factor beyond 12

}  // namespace

std::size_t Estimate::Level(std::uint32_t reads) {
  return std::min<std::size_t>(std::bit_width(std::max(reads, 1u)) - 1, kLevels - 1);
}

double Estimate::RateAt(std::size_t level) const {
  // The nearest level that was seen, shorter queues first: what it gave is what a device gives at least.
  for (const std::size_t writes : {std::size_t{writes_ > 0}, std::size_t{writes_ == 0}}) {
    for (std::size_t i = level + 1; i-- > 0;) {
      if (rates_[writes][i].bytes_per_us > 0) return rates_[writes][i].bytes_per_us;
    }
    for (std::size_t i = level + 1; i < kLevels; ++i) {
      if (rates_[writes][i].bytes_per_us > 0) return rates_[writes][i].bytes_per_us;
    }
  }
  return 0;
}

Estimate::Expected Estimate::Expect(std::uint64_t bytes) const {
  Expected expected;
  const std::size_t level = Level(reads_ + 1);
  const std::size_t size =
      std::min<std::size_t>(std::bit_width(std::max<std::uint64_t>(bytes, 512) >> 9) - 1, kSizes - 1);
  expected.cell = static_cast<std::uint16_t>(((writes_ > 0 ? kLevels : 0) + level) * kSizes + size);
  const double rate = RateAt(level);
  const double work = ahead_ + Work(bytes);
  expected.work_us = rate > 0 ? work / rate : kFirstBaseUs + work / kFirstRate;
  expected.us = expected.work_us * std::exp(factors_[expected.cell].log + moment_);
  return expected;
}

void Estimate::Pass(Instant now) {
  if (reads_ > 0) current().us += static_cast<double>(now.NsSince(at_)) / 1000;
  at_ = now;
}

Estimate::Expected Estimate::Came(std::uint64_t bytes, Instant now) {
  Pass(now);
  Expected expected = Expect(bytes);
  expected.at = now;
  ++reads_;
  ahead_ += Work(bytes);
  return expected;
}

void Estimate::Left(std::uint64_t bytes, Instant now) {
  Pass(now);
  --reads_;
  ahead_ = reads_ == 0 ? 0 : std::max(0.0, ahead_ - Work(bytes));
}

void Estimate::Ended(const Expected& expected, std::uint64_t bytes, Instant now, bool learn) {
  Pass(now);
  Rate& rate = current();
  rate.work += Work(bytes);
  if (++rate.reads >= kSampleReads && rate.us > 0) {
    const double sample = rate.work / rate.us;
    rate.bytes_per_us =
        rate.bytes_per_us == 0 ? sample : rate.bytes_per_us + kRateShare * (sample - rate.bytes_per_us);
    rate.work = rate.us = 0;
    rate.reads = 0;
  }
  Left(bytes, now);
  if (!learn) return;
  const double took = std::max(1.0, static_cast<double>(now.NsSince(expected.at)) / 1000);
  Factor& factor = factors_[expected.cell];
  const double off = std::clamp(std::log(took / expected.work_us), -kMostLog, kMostLog);
  const double share = std::max(kFactorShare, 1.0 / (++factor.seen));
  const double left = off - factor.log;
  factor.log += share * left;
  if (factor.seen > 4) {
    moment_ = std::clamp(moment_ + kMomentShare * (std::clamp(left, -1.0, 1.0) - moment_), -1.0, 1.0);
  }
}

void Estimate::WriteBegan(Instant now) {
  Pass(now);
  ++writes_;
}

void Estimate::WriteEnded(Instant now) {
  Pass(now);
  --writes_;
}

}  // namespace cistern::flash
