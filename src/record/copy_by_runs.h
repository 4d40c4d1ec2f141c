// SPDX-License-Identifier: Apache-2.0
// What the kernels share that sum by the CRC32C instruction. It begins a word each cycle and ends it two
// (Arm) or three (x86) later, so a tile is copied as three runs at once. The lines of the next tile are asked
// for in their order meanwhile: three places at once hide the source from the processor's own prefetcher.
// Internal linkage and included by those files alone, as copy_by_words.h.
//
// `Cpu` has, besides what copy_by_words.h asks for, CopyLine<kTo>(to, from, crc) and Multiply(a, b): the low
// 64 bits of the carry-less product.
#pragma once

#include <cstddef>
#include <cstdint>

#include "record/copy_by_words.h"
#include "record/crc32c_fold.h"

namespace cistern::record {
namespace {

constexpr std::size_t kRuns = 3;
constexpr std::size_t kRun = 10 * kLine;
constexpr std::size_t kTile = kRuns * kRun;

// n is a multiple of a tile; `to` lies on a line. The runs begin at zero, so no tile waits for the last one's
// sum, which joins them at the end.
template <class Cpu, Into kInto, To kTo>
__attribute__((no_sanitize("thread"))) std::uint32_t ByTiles(Bytes* to, const Bytes* from, std::size_t n,
                                                             std::uint32_t crc) {
  for (std::size_t tile = 0; tile < n; tile += kTile) {
    const Bytes* const next = from + kTile;
    std::uint32_t first = 0, second = 0, third = 0;
    for (std::size_t i = 0; i < kRun; i += kLine) {
#pragma GCC unroll 3
      for (std::size_t line = 0; line < kRuns; ++line) {
        AskFor<kInto>(next + kRuns * i + line * kLine);
        AskForRoom<kInto, kTo>(Ahead<kTo>(to, line * kRun + i));
      }
      first = Cpu::template CopyLine<kTo>(Ahead<kTo>(to, i), from + i, first);
      second = Cpu::template CopyLine<kTo>(Ahead<kTo>(to, kRun + i), from + kRun + i, second);
      third = Cpu::template CopyLine<kTo>(Ahead<kTo>(to, 2 * kRun + i), from + 2 * kRun + i, third);
    }
    constexpr std::uint64_t kByOne = CarryFactor(kRun), kByTwo = CarryFactor(2 * kRun),
                            kByThree = CarryFactor(3 * kRun);
    const std::uint64_t carried =
        Cpu::Multiply(crc, kByThree) ^ Cpu::Multiply(first, kByTwo) ^ Cpu::Multiply(second, kByOne);
    crc = Cpu::Word(0, carried) ^ third;
    to = Ahead<kTo>(to, kTile);
    from = next;
  }
  return crc;
}

// A way of copying.
template <class Cpu, Into kInto>
struct Tiles {
  template <To kTo>
  static std::uint32_t Run(void* dst, const void* src, std::size_t n, std::uint32_t crc, std::size_t) {
    return WithEdges<Cpu, kTo>(dst, src, n, crc, kTile, kTile, ByTiles<Cpu, kInto, kTo>);
  }
};

}  // namespace
}  // namespace cistern::record
