// SPDX-License-Identifier: Apache-2.0
// The verified copy in 64-byte registers: four lines at a time are loaded, stored and folded into four
// accumulators by VPCLMULQDQ. Folding hides behind the memory; what limits is how early the next page is
// asked for. The processor's own prefetcher runs along a page and stops at its end, so the first lines of
// the next page are requested by hand.
#include <immintrin.h>

#include "record/copy_by_words.h"
#include "record/crc32c_fold.h"
#include "record/verified_copy_tables.h"

namespace cistern::record {
namespace {

constexpr std::size_t kStep = 4 * kLine;

// One load: behind the empty asm the compiler does not know where the value came from, so it cannot load it
// a second time instead of keeping it.
[[gnu::always_inline]] inline __m512i LoadLine(const Bytes* from) {
  __m512i line = _mm512_loadu_si512(from);
  asm("" : "+v"(line));
  return line;
}

template <To kTo>
[[gnu::always_inline]] inline void StoreLine(Bytes* to, __m512i line) {
  if constexpr (kTo == To::kStream) _mm512_stream_si512(reinterpret_cast<__m512i*>(to), line);
  if constexpr (kTo == To::kCached) _mm512_store_si512(to, line);
}

[[gnu::always_inline]] inline __m512i Factors(std::uint64_t first, std::uint64_t second) {
  const auto one = static_cast<long long>(first), two = static_cast<long long>(second);
  return _mm512_set_epi64(two, one, two, one, two, one, two, one);
}

// Carries the remainder forward by what the factors stand for and adds the line that is there.
[[gnu::always_inline]] inline __m512i Fold(__m512i sum, __m512i factors, __m512i line) {
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(sum, factors, 0x00),
                                   _mm512_clmulepi64_epi128(sum, factors, 0x11), line, 0x96);
}

// n is a multiple of a line and at least a step; `to` lies on a line.
template <To kTo, bool kSum>
__attribute__((no_sanitize("thread"))) std::uint32_t ByLines(Bytes* to, const Bytes* from, std::size_t n,
                                                             std::uint32_t crc) {
  const __m512i by_step = Factors(FoldFirst(kStep), FoldSecond(kStep));
  const __m512i by_line = Factors(FoldFirst(kLine), FoldSecond(kLine));
  __m512i sums[4];
#pragma GCC unroll 4
  for (std::size_t i = 0; i < 4; ++i) {
    sums[i] = LoadLine(from + i * kLine);
    StoreLine<kTo>(Ahead<kTo>(to, i * kLine), sums[i]);
  }
  sums[0] = _mm512_xor_si512(sums[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc))));
  std::size_t at = kStep;

  const std::size_t steps_end = n / kStep * kStep;
  // Where the page begins whose successor is asked for next, seen from the source.
  std::ptrdiff_t page = -static_cast<std::ptrdiff_t>(reinterpret_cast<std::uintptr_t>(from) % kPage);
  while (at < steps_end) {
    const std::ptrdiff_t ask = page + static_cast<std::ptrdiff_t>(kAskAt<kTo>);
    if (static_cast<std::ptrdiff_t>(at) >= ask) {
      page += kPage;
      for (std::size_t i = 0; i < kLinesAhead; ++i) _mm_prefetch(from + page + i * kLine, _MM_HINT_NTA);
      continue;
    }
    const auto limit = static_cast<std::size_t>(ask);
    const std::size_t until = limit < steps_end ? limit : steps_end;
    for (; at < until; at += kStep) {
#pragma GCC unroll 4
      for (std::size_t i = 0; i < 4; ++i) {
        const __m512i line = LoadLine(from + at + i * kLine);
        StoreLine<kTo>(Ahead<kTo>(to, at + i * kLine), line);
        if constexpr (kSum) sums[i] = Fold(sums[i], by_step, line);
      }
    }
  }
  __m512i sum = Fold(sums[0], by_line, sums[1]);
  sum = Fold(sum, by_line, sums[2]);
  sum = Fold(sum, by_line, sums[3]);
  for (; at < n; at += kLine) {
    const __m512i line = LoadLine(from + at);
    StoreLine<kTo>(Ahead<kTo>(to, at), line);
    sum = Fold(sum, by_line, line);
  }
  // What is left is a line that has the same remainder as everything before.
  alignas(kLine) Bytes last[kLine];
  _mm512_store_si512(last, sum);
  return kSum ? ByWords<To::kNowhere, true>(nullptr, last, kLine, 0) : 0;
}

template <To kTo, bool kSum>
std::uint32_t Run(void* dst, const void* src, std::size_t n, std::uint32_t crc) {
  auto* to = static_cast<Bytes*>(dst);
  const auto* from = static_cast<const Bytes*>(src);
  crc = ~crc;
  if (n >= kStep + kLine) {
    const std::size_t head = (0 - reinterpret_cast<std::uintptr_t>(to)) % kLine;
    crc = ByWords<kTo, kSum>(to, from, head, crc);
    const std::size_t lines = (n - head) / kLine * kLine;
    crc = ByLines<kTo, kSum>(Ahead<kTo>(to, head), from + head, lines, crc);
    to = Ahead<kTo>(to, head + lines);
    from += head + lines;
    n -= head + lines;
  }
  return ~ByWords<kTo, kSum>(to, from, n, crc);
}

std::uint32_t Sum(const void* src, std::size_t n, std::uint32_t crc) {
  return Run<To::kNowhere, true>(nullptr, src, n, crc);
}

void PlainCopy(void* dst, const void* src, std::size_t n) { Run<To::kStream, false>(dst, src, n, 0); }

}  // namespace

const CopyKernels kAvx512Kernels = {"avx512", Run<To::kStream, true>, Run<To::kCached, true>, Sum, PlainCopy};

}  // namespace cistern::record
