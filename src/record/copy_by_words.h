// SPDX-License-Identifier: Apache-2.0
// What the copy kernels of all processors share: where bytes go, and the edges that no whole line covers.
// Everything has internal linkage: each kernel's file compiles a copy for its own instructions, and the
// linker has none to give to anybody else (see verified_copy_tables.h). Included by those files alone.
//
// `Cpu` has the processor's CRC32C instruction: Word(crc, word) and Byte(crc, byte) on the bare register. A
// way of copying has Run<kTo>, a CopyKernels::Copy.
#pragma once

#include <cstddef>
#include <cstdint>

#include "record/verified_copy_tables.h"

namespace cistern::record {
namespace {

using Bytes = unsigned char;

enum class To { kStream, kCached, kNowhere };

constexpr std::size_t kLine = 64;

// Where the lines that a copy asks for early are put. AMD's processors do as well past L2 (NTA) as anywhere,
// and keep what else lies there; Intel's copy at half the speed then, since only the few buffers between L1
// and memory are left to hold what is on its way. The values are __builtin_prefetch's.
enum class Into { kPastL2 = 0, kL2 = 2, kL1 = 3 };

template <Into kInto>
[[gnu::always_inline]] inline void AskFor(const Bytes* line) {
  __builtin_prefetch(line, 0, static_cast<int>(kInto));
}

// A store to a line that L1 has not waits for it, and the next store behind it. Intel's processors ask for no
// more than that one, so a copy through the caches asks for the lines that it will store to; AMD's do as well
// without.
template <Into kInto, To kTo>
[[gnu::always_inline]] inline void AskForRoom(Bytes* to) {
  constexpr std::size_t kAhead = 512;
  if constexpr (kInto != Into::kPastL2 && kTo == To::kCached) __builtin_prefetch(to + kAhead, 1);
}

// There is nothing to step over where nothing is stored.
template <To kTo>
[[gnu::always_inline]] inline Bytes* Ahead(Bytes* to, std::size_t n) {
  if constexpr (kTo == To::kNowhere) return to;
  return to + n;
}

// The first KiB: what comes behind it is asked for by the copy itself.
inline void AskFirst(const void* src, std::size_t) {
  for (std::size_t line = 0; line < 16; ++line) {
    __builtin_prefetch(static_cast<const Bytes*>(src) + line * kLine);
  }
}

// A copy to nowhere.
template <class Way>
std::uint32_t SumBy(const void* src, std::size_t n, std::uint32_t crc) {
  return Way::template Run<To::kNowhere>(nullptr, src, n, crc, 0);
}

// The kernels of a way that stores past the caches wherever it may.
template <class Way>
constexpr CopyKernels PastCaches(const char* name) {
  return {name,
          Way::template Run<To::kStream>,
          Way::template Run<To::kCached>,
          Way::template Run<To::kStream>,
          AskFirst,
          SumBy<Way>};
}

// Words and bytes: for what is shorter than a step, and for the edges. `crc` is the bare register. The source
// may change meanwhile: that is the contract, no race. Behind the empty asm the compiler does not know where
// a value came from, so it cannot load it a second time instead of keeping it.
template <class Cpu, To kTo>
__attribute__((no_sanitize("thread"))) std::uint32_t ByWords(Bytes* to, const Bytes* from, std::size_t n,
                                                             std::uint32_t crc) {
  for (; n >= 8; n -= 8, from += 8) {
    std::uint64_t word;
    __builtin_memcpy(&word, from, 8);
    asm("" : "+r"(word));
    crc = Cpu::Word(crc, word);
    if constexpr (kTo != To::kNowhere) {
      __builtin_memcpy(to, &word, 8);
      to += 8;
    }
  }
  for (; n > 0; --n, ++from) {
    Bytes byte = *from;
    asm("" : "+r"(byte));
    crc = Cpu::Byte(crc, byte);
    if constexpr (kTo != To::kNowhere) *to++ = byte;
  }
  return crc;
}

// The head up to the destination's first line, then as many whole units by `bulk(to, from, n, crc)` as there
// are of `unit` bytes, then the rest. What has not `least` bytes has no bulk.
template <class Cpu, To kTo, class Bulk>
[[gnu::always_inline]] inline std::uint32_t WithEdges(void* dst, const void* src, std::size_t n,
                                                      std::uint32_t crc, std::size_t unit, std::size_t least,
                                                      Bulk bulk) {
  auto* to = static_cast<Bytes*>(dst);
  const auto* from = static_cast<const Bytes*>(src);
  crc = ~crc;
  if (n >= least + kLine) {
    const std::size_t head = (0 - reinterpret_cast<std::uintptr_t>(to)) % kLine;
    crc = ByWords<Cpu, kTo>(to, from, head, crc);
    const std::size_t units = (n - head) / unit * unit;
    crc = bulk(Ahead<kTo>(to, head), from + head, units, crc);
    to = Ahead<kTo>(to, head + units);
    from += head + units;
    n -= head + units;
  }
  return ~ByWords<Cpu, kTo>(to, from, n, crc);
}

}  // namespace
}  // namespace cistern::record
