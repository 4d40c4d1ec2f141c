// SPDX-License-Identifier: Apache-2.0
// The verified copy in 64-byte registers for processors that load and store a whole one each cycle. A segment
// is copied as four lanes at once: four places of the source are on their way from memory, each with the
// processor's own prefetcher behind it, from the first line on.
#include "record/avx512_line.h"
#include "record/copy_by_folds.h"
#include "record/verified_copy_tables.h"

namespace cistern::record {
namespace {

// Zen 5 copies a longer body as fast in one lane, once that has come up to speed, and goes through its caches
// to what was a destination lately.
struct Zen5 {
  static constexpr Into kInto = Into::kPastL2;
  static constexpr bool kInBodies = false;
  static constexpr To kBodyAgain = To::kCached;
};
// Sapphire Rapids is faster by lanes wherever a segment stands, and in a longer body by streaming stores
// whatever the destination.
struct Intel {
  static constexpr Into kInto = Into::kL1;
  static constexpr bool kInBodies = true;
  static constexpr To kBodyAgain = To::kStream;
};

constexpr std::size_t kSegment = 64u << 10, kLanes = 4, kLane = kSegment / kLanes;
constexpr std::size_t kLaneStep = 2 * kLine, kLaneAhead = 2048;

// Lines `from` to `to` of each lane; `ask`: those kLaneAhead further on are asked for.
template <class Cpu, To kTo, bool ask>
[[gnu::always_inline]] inline void CopyLanes(Bytes* to, const Bytes* from, std::size_t begin, std::size_t end,
                                             __m512i (&sums)[kLanes][2]) {
  const __m512i by_step = Line::Factors(FoldFirst(kLaneStep), FoldSecond(kLaneStep));
  for (std::size_t at = begin; at < end; at += kLaneStep) {
#pragma GCC unroll 4
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
#pragma GCC unroll 2
      for (std::size_t i = 0; i < 2; ++i) {
        const std::size_t place = lane * kLane + at + i * kLine;
        if constexpr (ask) AskFor<Cpu::kInto>(from + place + kLaneAhead);
        const __m512i bytes = Line::Load(from + place);
        Line::Store<kTo>(to + place, bytes);
        sums[lane][i] = Line::Fold(sums[lane][i], by_step, bytes);
      }
    }
  }
}

// A whole segment; `to` lies on a line.
template <class Cpu, To kTo>
__attribute__((no_sanitize("thread"))) std::uint32_t ByLanes(Bytes* to, const Bytes* from,
                                                             std::uint32_t crc) {
  __m512i sums[kLanes][2];
#pragma GCC unroll 4
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
#pragma GCC unroll 2
    for (std::size_t i = 0; i < 2; ++i) {
      const std::size_t place = lane * kLane + i * kLine;
      AskFor<Cpu::kInto>(from + place + kLaneStep);
      sums[lane][i] = Line::Load(from + place);
      Line::Store<kTo>(to + place, sums[lane][i]);
    }
  }
  sums[0][0] = Line::Xor(sums[0][0], Line::First(crc));
  CopyLanes<Cpu, kTo, true>(to, from, kLaneStep, kLane - kLaneAhead, sums);
  CopyLanes<Cpu, kTo, false>(to, from, kLane - kLaneAhead, kLane, sums);
  // A lane's register has the remainder of the lane and of all before it, as if these were its last line.
  const __m512i by_line = Line::Factors(FoldFirst(kLine), FoldSecond(kLine));
  const __m512i by_lane = Line::Factors(FoldFirst(kLane), FoldSecond(kLane));
  __m512i sum = Line::Fold(sums[0][0], by_line, sums[0][1]);
#pragma GCC unroll 3
  for (std::size_t lane = 1; lane < kLanes; ++lane) {
    sum = Line::Fold(sum, by_lane, Line::Fold(sums[lane][0], by_line, sums[lane][1]));
  }
  return SumOfLast<Line>(sum);
}

template <class Cpu, To kTo>
std::uint32_t Run(void* dst, const void* src, std::size_t n, std::uint32_t crc, std::size_t behind) {
  const bool lanes =
      n == kSegment && (Cpu::kInBodies || behind == 0) && reinterpret_cast<std::uintptr_t>(dst) % kLine == 0;
  if (!lanes) return RunFolds<Line, Cpu::kInto, kTo>(dst, src, n, crc, behind);
  return ~ByLanes<Cpu, kTo>(static_cast<Bytes*>(dst), static_cast<const Bytes*>(src), ~crc);
}

// What was a destination lately may be read next, and a lone segment has room in the caches.
template <class Cpu>
std::uint32_t RunAgain(void* dst, const void* src, std::size_t n, std::uint32_t crc, std::size_t behind) {
  return behind == 0 ? Run<Cpu, To::kCached>(dst, src, n, crc, behind)
                     : Run<Cpu, Cpu::kBodyAgain>(dst, src, n, crc, behind);
}

template <class Cpu>
void Ask(const void* src, std::size_t n) {
  if (Cpu::kInBodies ? n < kSegment : n != kSegment) return AskFirst(src, n);
  for (std::size_t line = 0; line < 8; ++line) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      __builtin_prefetch(static_cast<const Bytes*>(src) + lane * kLane + line * kLine);
    }
  }
}

template <class Cpu>
constexpr CopyKernels kTable = {
    "avx512_lanes", Run<Cpu, To::kStream>,     Run<Cpu, To::kCached>, RunAgain<Cpu>,
    Ask<Cpu>,       SumFolds<Line, Cpu::kInto>};

}  // namespace

const CopyKernels kAvx512LanesKernels = kTable<Zen5>;
const CopyKernels kIntelAvx512LanesKernels = kTable<Intel>;

}  // namespace cistern::record
