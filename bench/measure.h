// SPDX-License-Identifier: Apache-2.0
// Times, medians and percentiles of a measurement, and memory to measure with.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "bench.h"

namespace cistern {

class Stopwatch {
 public:
  std::int64_t Ns() const { return clock_.Now().NsSince(start_); }

 private:
  SystemClock clock_;
  Instant start_ = clock_.Now();
};

// A value that occurred. Of a copy, which is reordered; 0 when empty.
inline double Quantile(std::vector<double> values, double fraction) {
  if (values.empty()) return 0;
  auto at = static_cast<std::size_t>(fraction * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}
// Of an even count the mean of the two in the middle.
inline double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return values.size() % 2 == 1 ? *middle : (*std::max_element(values.begin(), middle) + *middle) / 2;
}

// What one side of a comparison took: a time a call, and a rate a round.
struct Samples {
  std::vector<double> call_us;
  std::vector<double> rounds;
};

inline void Shuffle(std::span<std::uint32_t> order, Random& random) {
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
}

// Page-aligned, touched, advised to be of huge pages as an engine's pool is.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes);
  std::byte* data() const { return bytes_.get(); }
  std::size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* bytes) const;
  };
  std::unique_ptr<std::byte, Free> bytes_;
  std::size_t size_;
};

// The row of two series measured in the same rounds; ratios of rates (more is better). `theirs` may be empty.
BenchRow RateRow(const std::string& name, const std::string& limit, const Samples& ours,
                 const Samples& theirs);
// The row of times of calls (less is better), against the limit's of the same run; `theirs` may be empty.
BenchRow TimeRow(const std::string& name, const std::string& limit, const Samples& ours,
                 const Samples& theirs);

}  // namespace cistern
