// SPDX-License-Identifier: Apache-2.0
// What the copy kernels of AVX2 and AVX-512 share: where bytes go, and the edges that no whole line covers.
// Everything has internal linkage: each kernel's file compiles a copy for its own instructions, and the
// linker has none to give to anybody else (see verified_copy_tables.h). Included by those two files alone.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace cistern::record {
namespace {

using Bytes = unsigned char;

enum class To { kStream, kCached, kNowhere };

constexpr std::size_t kLine = 64;
constexpr std::size_t kPage = 4096;
// Four lines start the prefetcher. The page may lie behind the source's end, which a prefetch may: that is
// 256 bytes in vain, and a body is read in segments as fast as in one piece.
constexpr std::size_t kLinesAhead = 4;

// How far into a page the next one is asked for. At its start the lines would compete with those that the
// copy waits for; too late and it waits again.
template <To kTo>
constexpr std::size_t kAskAt = kTo == To::kCached ? 1024 : 1536;

// There is nothing to step over where nothing is stored.
template <To kTo>
[[gnu::always_inline]] inline Bytes* Ahead(Bytes* to, std::size_t n) {
  if constexpr (kTo == To::kNowhere) return to;
  return to + n;
}

// Words and bytes: for what is shorter than a step, and for the edges. `crc` is the bare register. The source
// may change meanwhile: that is the contract, no race. Behind the empty asm the compiler does not know where
// a value came from, so it cannot load it a second time instead of keeping it.
template <To kTo, bool kSum>
__attribute__((no_sanitize("thread"))) std::uint32_t ByWords(Bytes* to, const Bytes* from, std::size_t n,
                                                             std::uint32_t crc) {
  std::uint64_t sum = crc;
  for (; n >= 8; n -= 8, from += 8) {
    std::uint64_t word;
    __builtin_memcpy(&word, from, 8);
    asm("" : "+r"(word));
    if constexpr (kSum) sum = _mm_crc32_u64(sum, word);
    if constexpr (kTo != To::kNowhere) {
      __builtin_memcpy(to, &word, 8);
      to += 8;
    }
  }
  crc = static_cast<std::uint32_t>(sum);
  for (; n > 0; --n, ++from) {
    Bytes byte = *from;
    asm("" : "+r"(byte));
    if constexpr (kSum) crc = _mm_crc32_u8(crc, byte);
    if constexpr (kTo != To::kNowhere) *to++ = byte;
  }
  return crc;
}

}  // namespace
}  // namespace cistern::record
