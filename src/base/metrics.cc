// SPDX-License-Identifier: Apache-2.0
#include "base/metrics.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace cistern {
namespace {

void Increase(std::atomic<std::uint64_t>& word, std::uint64_t n) {
  word.store(word.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}

}  // namespace

std::size_t Histogram::BucketOf(std::uint64_t value) {
  value = std::min(value, (std::uint64_t{1} << kMaxBits) - 1);
  if (value < kSub) return value;
  int shift = std::bit_width(value) - 1 - kSubBits;
  return static_cast<std::size_t>(shift + 1) * kSub + ((value >> shift) - kSub);
}

std::uint64_t Histogram::BucketLast(std::size_t i) {
  if (i < kSub) return i;
  int shift = static_cast<int>(i / kSub) - 1;
  return ((i % kSub + kSub + 1) << shift) - 1;
}

void Histogram::Record(std::uint64_t value) {
  Increase(buckets_[BucketOf(value)], 1);
  Increase(count_, 1);
  Increase(sum_, value);
  if (value > max()) max_.store(value, std::memory_order_relaxed);
}

void Histogram::Merge(const Histogram& other) {
  for (std::size_t i = 0; i < kBuckets; ++i) Increase(buckets_[i], other.bucket(i));
  Increase(count_, other.count());
  Increase(sum_, other.sum());
  max_.store(std::max(max(), other.max()), std::memory_order_relaxed);
}

std::uint64_t Histogram::Percentile(double fraction) const {
  // Counted anew: count_ may be ahead of the buckets while the writer writes.
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < kBuckets; ++i) total += bucket(i);
  if (total == 0) return 0;
  double wanted = std::ceil(std::clamp(fraction, 0.0, 1.0) * static_cast<double>(total));
  std::uint64_t rank = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(wanted));
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < kBuckets; ++i) {
    seen += bucket(i);
    if (seen >= rank) return std::min(BucketLast(i), max());
  }
  return max();
}

}  // namespace cistern
