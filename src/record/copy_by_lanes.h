// SPDX-License-Identifier: Apache-2.0
// A whole segment as four lanes at once. What a lone segment costs is coming up to speed: by lanes four
// places of the source are on their way from memory, each with the processor's own prefetcher behind it, from
// the first line on. Internal linkage and included by the kernels' files alone, as copy_by_words.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "record/copy_by_folds.h"
#include "record/copy_by_runs.h"
#include "record/copy_by_words.h"
#include "record/crc32c_fold.h"
#include "record/verified_copy_tables.h"

namespace cistern::record {
namespace {

constexpr std::size_t kSegment = 64u << 10, kLanes = 4, kLane = kSegment / kLanes;

// How a processor's lanes go: where the source's lines are asked for, and how many bytes ahead; whether the
// segments of a longer body go by lanes too, and how those are stored to where was copied lately.
//
// Zen 5 copies a longer body as fast in one lane, once that has come up to speed, and goes through its caches
// to what was a destination lately.
struct Zen5 {
  static constexpr Into kInto = Into::kPastL2;
  static constexpr std::size_t kAhead = 2048;
  static constexpr bool kInBodies = false;
  static constexpr To kBodyAgain = To::kCached;
};
// Intel's, from Sapphire Rapids on, are faster by lanes wherever a segment stands, and in a longer body by
// streaming stores whatever the destination.
struct Intel {
  static constexpr Into kInto = Into::kL2;
  static constexpr std::size_t kAhead = 512;
  static constexpr bool kInBodies = true;
  static constexpr To kBodyAgain = To::kStream;
};

// Lanes in registers that are folded, two of them each: a lane's first has the remainder of the lane's lines,
// and a register of zeros is that of none.
template <class Wide>
class FoldedLanes final {
  using Register = typename Wide::Register;
  static constexpr std::size_t kWidth = sizeof(Register);

 public:
  static constexpr std::size_t kStep = 2 * kWidth;

  // A line, `at` bytes behind where the lane's step begins.
  template <To kTo>
  [[gnu::always_inline]] void Copy(std::size_t lane, std::size_t at, Bytes* to, const Bytes* from) {
    const Register by_step = Wide::Factors(FoldFirst(kStep), FoldSecond(kStep));
#pragma GCC unroll 2
    for (std::size_t i = 0; i < kLine; i += kWidth) {
      const Register bytes = Wide::Load(from + i);
      Wide::template Store<kTo>(to + i, bytes);
      Register& sum = sums_[lane][(at + i) / kWidth];
      sum = Wide::Fold(sum, by_step, bytes);
    }
  }
  // Of the segment, continued from `crc`. A lane's register stands for the lane and all before it, as if
  // these were its last bytes.
  [[gnu::always_inline]] std::uint32_t Sum(std::uint32_t crc) const {
    constexpr std::size_t kBefore = kSegment - kWidth;
    const Register by_one = Wide::Factors(FoldFirst(kWidth), FoldSecond(kWidth));
    const Register by_lane = Wide::Factors(FoldFirst(kLane), FoldSecond(kLane));
    const Register by_all = Wide::Factors(FoldFirst(kBefore), FoldSecond(kBefore));
    Register sum = Wide::Fold(sums_[0][0], by_one, sums_[0][1]);
#pragma GCC unroll 3
    for (std::size_t lane = 1; lane < kLanes; ++lane) {
      sum = Wide::Fold(sum, by_lane, Wide::Fold(sums_[lane][0], by_one, sums_[lane][1]));
    }
    return SumOfLast<Wide>(Wide::Fold(Wide::First(crc), by_all, sum));
  }

 private:
  Register sums_[kLanes][2] = {};
};

// Lanes that the CRC32C instruction sums: with four of them it begins a word each cycle.
template <class Cpu>
class CountedLanes final {
 public:
  static constexpr std::size_t kStep = kLine;

  template <To kTo>
  [[gnu::always_inline]] void Copy(std::size_t lane, std::size_t, Bytes* to, const Bytes* from) {
    sums_[lane] = Cpu::template CopyLine<kTo>(to, from, sums_[lane]);
  }
  [[gnu::always_inline]] std::uint32_t Sum(std::uint32_t crc) const {
    constexpr std::uint64_t kByOne = CarryFactor(kLane), kByTwo = CarryFactor(2 * kLane),
                            kByThree = CarryFactor(3 * kLane), kByFour = CarryFactor(4 * kLane);
    const std::uint64_t carried = Cpu::Multiply(crc, kByFour) ^ Cpu::Multiply(sums_[0], kByThree) ^
                                  Cpu::Multiply(sums_[1], kByTwo) ^ Cpu::Multiply(sums_[2], kByOne);
    return Cpu::Word(0, carried) ^ sums_[3];
  }

 private:
  std::uint32_t sums_[kLanes] = {};
};

// A way (copy_by_words.h): segments by lanes that `Sums` sums, and what is none by `Other`.
template <class Cpu, class Sums, class Other>
struct Lanes {
  template <To kTo>
  static std::uint32_t Run(void* dst, const void* src, std::size_t n, std::uint32_t crc, std::size_t behind) {
    const bool lanes = n == kSegment && (Cpu::kInBodies || behind == 0) &&
                       reinterpret_cast<std::uintptr_t>(dst) % kLine == 0;
    if (!lanes) return Other::template Run<kTo>(dst, src, n, crc, behind);
    return ~Segment<kTo>(static_cast<Bytes*>(dst), static_cast<const Bytes*>(src), ~crc);
  }
  // What was a destination lately may be read next, and a lone segment has room in the caches.
  static std::uint32_t RunAgain(void* dst, const void* src, std::size_t n, std::uint32_t crc,
                                std::size_t behind) {
    return behind == 0 ? Run<To::kCached>(dst, src, n, crc, behind)
                       : Run<Cpu::kBodyAgain>(dst, src, n, crc, behind);
  }
  static void Ask(const void* src, std::size_t n) {
    if (Cpu::kInBodies ? n < kSegment : n != kSegment) return AskFirst(src, n);
    for (std::size_t line = 0; line < 8; ++line) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        __builtin_prefetch(static_cast<const Bytes*>(src) + lane * kLane + line * kLine);
      }
    }
  }
  static constexpr CopyKernels Table(const char* name) {
    return {name, Run<To::kStream>, Run<To::kCached>, RunAgain, Ask, SumBy<Other>};
  }

 private:
  // `to` lies on a line.
  template <To kTo>
  __attribute__((no_sanitize("thread"))) static std::uint32_t Segment(Bytes* to, const Bytes* from,
                                                                      std::uint32_t crc) {
    Sums sums;
    Copy<kTo, Sums::kStep>(to, from, 0, Sums::kStep, sums);
    Copy<kTo, Cpu::kAhead>(to, from, Sums::kStep, kLane - Cpu::kAhead, sums);
    Copy<kTo, 0>(to, from, kLane - Cpu::kAhead, kLane, sums);
    return sums.Sum(crc);
  }
  // Bytes `begin` to `end` of each lane; the lines kAhead further on are asked for, none where that is 0.
  template <To kTo, std::size_t kAhead>
  [[gnu::always_inline]] static void Copy(Bytes* to, const Bytes* from, std::size_t begin, std::size_t end,
                                          Sums& sums) {
    for (std::size_t at = begin; at < end; at += Sums::kStep) {
#pragma GCC unroll 4
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
#pragma GCC unroll 2
        for (std::size_t i = 0; i < Sums::kStep; i += kLine) {
          const std::size_t place = lane * kLane + at + i;
          if constexpr (kAhead > 0) AskFor<Cpu::kInto>(from + place + kAhead);
          AskForRoom<Cpu::kInto, kTo>(to + place);
          sums.template Copy<kTo>(lane, i, to + place, from + place);
        }
      }
    }
  }
};

}  // namespace
}  // namespace cistern::record
