// SPDX-License-Identifier: Apache-2.0
// A way for bytes: one transfer after another, each at the full bandwidth, with a latency that does not
// occupy it.
#pragma once

#include <algorithm>

namespace cistern::fleet {

class Link final {
 public:
  Link() = default;
  Link(double bytes_per_s, double latency_s) : bytes_per_s_(bytes_per_s), latency_s_(latency_s) {}

  // A transfer that may begin at `at_s`: when it ends, behind those reserved before.
  double Reserve(double at_s, double bytes) {
    free_s_ = std::max(free_s_, at_s) + bytes / bytes_per_s_;
    bytes_ += bytes;
    return free_s_ + latency_s_;
  }
  double QueuedSeconds(double at_s) const { return std::max(0.0, free_s_ - at_s); }
  double bytes_per_s() const { return bytes_per_s_; }
  double latency_s() const { return latency_s_; }
  double bytes() const { return bytes_; }  // moved or reserved so far
  void Clear() { free_s_ = 0; }            // what was on its way is lost

 private:
  double bytes_per_s_ = 1;
  double latency_s_ = 0;
  double free_s_ = 0;
  double bytes_ = 0;
};

}  // namespace cistern::fleet
