// SPDX-License-Identifier: Apache-2.0
// Whether a peer is asked at all: after three failures in a row, or one deadline that it let pass, it is not
// for a second, then two, up to 30; then one question tries.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace cistern::mesh {

class Breaker final {
 public:
  static constexpr int kFailures = 3;
  static constexpr std::int64_t kLeastUs = 1'000'000, kMostUs = 30'000'000;

  // Whether it may be asked now; the first one after a pause is the probe, until its outcome is told or a
  // pause has passed once more.
  bool Allows(Instant now) const { return !open_ || now >= until_; }
  void Asked(Instant now) {
    if (!Allows(now) || !open_) return;
    probing_ = true;
    until_ = now.PlusUs(pause_us_);
  }
  void Succeeded() {
    open_ = probing_ = false;
    failures_ = 0;
    pause_us_ = kLeastUs;
  }
  void Failed(Instant now, bool deadline_passed) {
    // What else was under way when it opened fails as well, and says nothing new.
    if (open_ && !probing_) return;
    if (++failures_ < kFailures && !deadline_passed && !open_) return;
    if (open_) pause_us_ = std::min(2 * pause_us_, kMostUs);
    open_ = true;
    probing_ = false;
    until_ = now.PlusUs(pause_us_);
  }
  bool open() const { return open_; }

 private:
  int failures_ = 0;  // in a row
  bool open_ = false, probing_ = false;
  Instant until_;
  std::int64_t pause_us_ = kLeastUs;
};

}  // namespace cistern::mesh
