// SPDX-License-Identifier: Apache-2.0
#include "flash/estimate.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace cistern::flash {
namespace {

// What a read costs beside its bytes, in bytes: small reads are limited by their number.
constexpr double kReadWork = 16.0 * 1024;
constexpr double kFirstBaseUs = 80;  // of a device that nobody has read yet
constexpr double kFirstWorkUs = 1e-3;
constexpr double kKept = 1 - 1.0 / 48;  // of a line's sums, at each read
constexpr double kHeld = 0.02;          // how much a line holds on to what reads of one size do not tell
constexpr double kNear = 0.05;          // logarithm; what lies nearer all weighs the same
constexpr double kMomentShare = 1.0 / 8;
constexpr double kStep = 0.2;         // logarithm; what lies farther off all draws the moment as much
constexpr double kFar = 0.5;          // logarithm of what no load explains
constexpr double kMost = 6;           // no logarithm beyond
constexpr double kFading = 1.0 / 32;  // of how busy it was, with each read that ends

double Work(std::uint64_t bytes) { return static_cast<double>(bytes) + kReadWork; }

std::uint32_t Octave(std::uint64_t value) { return static_cast<std::uint32_t>(std::bit_width(value) - 1); }

}  // namespace

std::uint32_t Estimate::QueueLevel(std::uint32_t reads) {
  if (reads <= 2) return std::max(reads, 1u) - 1;
  const std::uint32_t octave = Octave(reads);
  return std::min(2 * octave + ((reads >> (octave - 1)) & 1) - 1, kQueues - 1);
}

void Estimate::Line::Add(double work_in, double us, double weight) {
  for (double* sum : {&one, &work, &square, &took_one, &took_work}) *sum *= kKept;
  const double by_us = weight / us;
  one += by_us / us;
  work += work_in * by_us / us;
  square += work_in * work_in * by_us / us;
  took_one += by_us;
  took_work += work_in * by_us;
}

void Estimate::Line::Fit() {
  const double hold_base = kHeld * one, hold_work = kHeld * square;
  const double a = one + hold_base, b = work, d = square + hold_work;
  const double x = took_one + hold_base * base_us, y = took_work + hold_work * work_us;
  const double determinant = a * d - b * b;  // above zero, since something is held
  double base = (x * d - y * b) / determinant;
  double each = (y * a - x * b) / determinant;
  if (base < 0) base = 0, each = y / d;
  if (each < 0) each = 0, base = x / a;
  base_us = static_cast<float>(base);
  work_us = static_cast<float>(each);
}

const Estimate::Line* Estimate::Nearest(std::uint16_t number) const {
  if (lines_[number].seen > 0) return &lines_[number];
  if (!seen_) return nullptr;
  const auto queue = static_cast<int>(number % kQueues), busy = static_cast<int>(number / kQueues % kBusy);
  const bool writes = number / kQueues / kBusy > 0;
  for (const bool side : {writes, !writes}) {
    for (int far = 0; far < static_cast<int>(kBusy); ++far) {
      for (const int at_busy : {busy - far, busy + far}) {
        if (at_busy < 0 || at_busy >= static_cast<int>(kBusy)) continue;
        for (int off = 0; off < static_cast<int>(kQueues); ++off) {
          for (const int at : {queue - off, queue + off}) {
            if (at < 0 || at >= static_cast<int>(kQueues)) continue;
            const Line& line =
                lines_[Number(side, static_cast<std::uint32_t>(at_busy), static_cast<std::uint32_t>(at))];
            if (line.seen > 0) return &line;
          }
        }
      }
    }
  }
  return nullptr;
}

Estimate::Expected Estimate::Expect(std::uint64_t bytes, Instant now) const {
  Expected expected;
  const auto lately = static_cast<std::uint64_t>(std::max(lately_, reads_ + 1.0));
  expected.line = Number(writes_ > 0, std::min(Octave(lately), kBusy - 1), QueueLevel(reads_ + 1));
  expected.work = ahead_ + Work(bytes);
  const double first_us = kFirstBaseUs + kFirstWorkUs * expected.work;
  const Line* line = Nearest(expected.line);
  const double most_us = kMostOfLately * std::max(longest_us_, slowest_us_ * expected.work);
  expected.us =
      line == nullptr ? first_us : std::clamp(line->At(expected.work) * factor_, 1.0, std::max(1.0, most_us));
  if (reads_ == 0 && now.UsSince(last_) > kRestUs) expected.us = std::min(expected.us, first_us);
  return expected;
}

Estimate::Expected Estimate::Came(std::uint64_t bytes, Instant now) {
  Expected expected = Expect(bytes, now);
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
  last_ = now;
  if (!learn) return;
  const double took = std::max(1.0, static_cast<double>(now.NsSince(expected.at)) / 1000);
  longest_us_ = std::max(took, longest_us_ * kKept);
  slowest_us_ = std::max(took / expected.work, slowest_us_ * kKept);
  Line& line = lines_[expected.line];
  const double us = took / factor_;
  if (line.seen == 0) {
    // Its neighbour's, or what a device is like of which nothing is known, through this point. What one read
    // took longer it may have waited for anything: that makes every read later, and no byte slower.
    const Line* like = Nearest(expected.line);
    const double base = like == nullptr ? kFirstBaseUs : like->base_us;
    const double each = like == nullptr ? kFirstWorkUs : like->work_us;
    const double likely = std::max(1.0, base + each * expected.work);
    const double times = std::min(1.0, us / likely);
    line.base_us = static_cast<float>(base * times + std::max(0.0, us - likely));
    line.work_us = static_cast<float>(each * times);
  }
  const double off = std::clamp(std::log(us / std::max(1.0, line.At(expected.work))), -kMost, kMost);
  if (line.seen > 4) FollowMoment(off);
  ++line.seen;
  seen_ = true;
  // Weights by one over the distance give the middle instead of the mean.
  line.Add(expected.work, us, 1 / std::max(kNear, std::abs(off)));
  line.Fit();
}

void Estimate::FollowMoment(double off) {
  double step = kMomentShare * std::clamp(off, -kStep, kStep);
  if (std::abs(off) <= kFar) {
    in_a_row_ = 0;
  } else {
    if (in_a_row_ > 0 && (far_[0] > 0) != (off > 0)) in_a_row_ = 0;
    far_[in_a_row_++] = off;
    if (in_a_row_ == kInARow) {
      std::ranges::sort(far_);
      step = (far_[kInARow / 2 - 1] + far_[kInARow / 2]) / 2;
      in_a_row_ = 0;
    }
  }
  moment_ = std::clamp(moment_ + step, -kMost, kMost);
  factor_ = std::exp(moment_);
}

}  // namespace cistern::flash
