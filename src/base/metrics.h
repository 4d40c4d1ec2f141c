// SPDX-License-Identifier: Apache-2.0
// Numbers about the running store. Each has one writer, the thread that owns it, and costs it a plain
// addition, unless it says otherwise; any thread may read, and sees each number whole, though not all of them
// at one instant.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace cistern {

// Only grows.
class Counter {
 public:
  void Add(std::uint64_t n = 1) { value_.store(value() + n, std::memory_order_relaxed); }
  std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// Only grows, and several threads add to it.
class SharedCounter {
 public:
  void Add(std::uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// How often which values came: exact below 32, above in buckets of at most 1/32 of the value, up to 2^40
// (18 minutes in nanoseconds), above which they count as that.
class Histogram {
 public:
  static constexpr int kSubBits = 5;
  static constexpr std::uint64_t kSub = std::uint64_t{1} << kSubBits;
  static constexpr int kMaxBits = 40;
  static constexpr std::size_t kBuckets = (kMaxBits - kSubBits + 1) * kSub;

  void Record(std::uint64_t value);
  // Adds another's values; by this one's writer.
  void Merge(const Histogram& other);

  std::uint64_t count() const { return count_.load(std::memory_order_relaxed); }
  std::uint64_t sum() const { return sum_.load(std::memory_order_relaxed); }
  std::uint64_t max() const { return max_.load(std::memory_order_relaxed); }
  double mean() const { return count() == 0 ? 0 : static_cast<double>(sum()) / static_cast<double>(count()); }
  // The value that `fraction` (0 to 1) of all values do not exceed, as the upper end of its bucket and never
  // above max(); 0 when empty.
  std::uint64_t Percentile(double fraction) const;

  // For an exporter: how many values bucket `i` holds, and the greatest value that it takes.
  std::uint64_t bucket(std::size_t i) const { return buckets_[i].load(std::memory_order_relaxed); }
  static std::uint64_t BucketLast(std::size_t i);

 private:
  static std::size_t BucketOf(std::uint64_t value);
  std::array<std::atomic<std::uint64_t>, kBuckets> buckets_{};
  std::atomic<std::uint64_t> count_{0};
  std::atomic<std::uint64_t> sum_{0};
  std::atomic<std::uint64_t> max_{0};
};

}  // namespace cistern
