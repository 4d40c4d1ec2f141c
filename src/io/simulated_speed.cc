// SPDX-License-Identifier: Apache-2.0
#include "io/simulated_speed.h"

#include <algorithm>
#include <span>
#include <vector>

#include "base/assert.h"

namespace cistern::io {
namespace {

constexpr std::size_t kDraws = 128;

double MicrosOf(Instant at) { return static_cast<double>(at.ns) / 1e3; }

}  // namespace

SimulatedSpeed::SimulatedSpeed(std::uint64_t seed, const SpeedProfile& profile)
    : profile_(profile), random_(seed) {
  CISTERN_ASSERT(profile.channels >= 1 && profile.channels <= kMaxChannels && profile.bytes_per_us > 0);
}

double SimulatedSpeed::Take(bool read, double bytes, double now_us, Random& draw) {
  double find_us = profile_.find_us * (1 + profile_.spread * (2 * draw.Unit() - 1));
  if (read && now_us <= writing_until_us_ && draw.Chance(profile_.wait_chance)) find_us += profile_.wait_us;
  const auto channels = std::span(channel_free_us_).first(profile_.channels);
  double& channel = *std::ranges::min_element(channels);
  const double cross_us = bytes / profile_.bytes_per_us * slower_;
  bus_free_us_ = std::max(bus_free_us_, now_us) + cross_us;
  channel = std::max(channel, now_us) + find_us * slower_;
  const double ends = std::max(channel + cross_us, bus_free_us_);
  if (!read) writing_until_us_ = std::max(writing_until_us_, ends + kAfterWriteUs);
  return ends - now_us;
}

Instant SimulatedSpeed::Ends(const IoRequest& request, Instant now) {
  if (request.kind == IoRequest::Kind::kSync) return now.PlusUs(static_cast<std::int64_t>(profile_.find_us));
  const bool read = request.kind == IoRequest::Kind::kRead;
  return now.PlusNs(static_cast<std::int64_t>(1e3 * Take(read, request.size, MicrosOf(now), random_)));
}

// Where half of the cases lie closest together, an estimate between the two ends of that half is as near to
// the one as to the other: a(1 + error) = b(1 - error).
SimulatedSpeed::Known SimulatedSpeed::ReadNow(std::uint32_t bytes, Instant now) const {
  Random draws(7);
  std::vector<double> took(kDraws);
  for (double& us : took) us = SimulatedSpeed(*this).Take(true, bytes, MicrosOf(now), draws);
  std::ranges::sort(took);
  Known best{.us = took[0], .error = 1};
  for (std::size_t i = 0; i + kDraws / 2 < kDraws; ++i) {
    const double a = took[i], b = took[i + kDraws / 2];
    const double error = (b - a) / (b + a);
    if (error < best.error) best = {a * (1 + error), error};
  }
  return best;
}

}  // namespace cistern::io
