// SPDX-License-Identifier: Apache-2.0
// The destinations of a process's copies: which of them were written so lately that they may lie in the
// caches still. Streaming stores throw a cached line out and go to memory; stores through the caches are the
// better way to where the caller reads, and lets be overwritten, again and again, and the worse one to what
// it has not touched for long.
//
// Any thread may ask; threads that ask at once may take one another's answers, which costs time and nothing
// else.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace cistern::record {

class Destinations final {
 public:
  // `bytes` are about to be copied to `to`. Whether that was a destination before, within the last kLately
  // bytes, and not merely one of the pieces that arrive there now.
  bool Again(const void* to, std::size_t bytes) {
    const std::uint64_t now = copied_.fetch_add(bytes, std::memory_order_relaxed) / kTick & kTimeMask;
    const std::uint64_t region = reinterpret_cast<std::uintptr_t>(to) / kRegionBytes & kRegionMask;
    std::atomic<std::uint64_t>& entry = entries_[region % kEntries];
    const std::uint64_t before = entry.load(std::memory_order_relaxed);
    bool again = false;
    if (before >> (kTimeBits + 1) == region) {
      const std::uint64_t since = (now - (before >> 1)) & kTimeMask;
      again = since < kRegionBytes / kTick ? (before & 1) != 0 : since <= kLately / kTick;
    }
    entry.store(region << (kTimeBits + 1) | now << 1 | static_cast<std::uint64_t>(again),
                std::memory_order_relaxed);
    return again;
  }

 private:
  static constexpr std::uint64_t kRegionBytes = 64u << 10, kEntries = 128;
  static constexpr std::uint64_t kLately = 4u
                                           << 20;  // between the caches of a core and those that cores share
  // An entry: the region, when it was last a destination in ticks of 4 KiB copied, what was answered then.
  static constexpr std::uint64_t kTick = 4096;
  static constexpr int kTimeBits = 23;
  static constexpr std::uint64_t kTimeMask = (1ull << kTimeBits) - 1;
  static constexpr std::uint64_t kRegionMask = (1ull << (63 - kTimeBits)) - 1;

  std::atomic<std::uint64_t> copied_{0};
  std::array<std::atomic<std::uint64_t>, kEntries> entries_{};
};

}  // namespace cistern::record
