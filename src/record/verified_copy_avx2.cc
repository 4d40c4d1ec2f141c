// SPDX-License-Identifier: Apache-2.0
// The verified copy without AVX-512: 128 bytes at a time are loaded in 32-byte registers, stored, and folded
// by halves into eight accumulators with PCLMULQDQ. The multiplier is the limit on AMD (14.8 GB/s on Zen 4).
// Three runs of the crc32 instruction reach twice that from L1 and half of it from memory, because three
// places in one page hide the stream from the prefetcher. When pages are asked for, and why:
// copy_by_words.h.
#include <immintrin.h>

#include "record/copy_by_words.h"
#include "record/crc32c_fold.h"
#include "record/verified_copy_tables.h"

namespace cistern::record {
namespace {

constexpr std::size_t kHalf = 16;
constexpr std::size_t kAccumulators = 8;
constexpr std::size_t kStep = kAccumulators * kHalf;

// One load: behind the empty asm the compiler does not know where the value came from, so it cannot load it
// a second time instead of keeping it.
[[gnu::always_inline]] inline __m256i LoadOnce(const Bytes* from) {
  __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  asm("" : "+x"(bytes));
  return bytes;
}

template <To kTo>
[[gnu::always_inline]] inline void Store(Bytes* to, __m256i bytes) {
  if constexpr (kTo == To::kStream) _mm256_stream_si256(reinterpret_cast<__m256i*>(to), bytes);
  if constexpr (kTo == To::kCached) _mm256_store_si256(reinterpret_cast<__m256i*>(to), bytes);
}

[[gnu::always_inline]] inline __m128i Low(__m256i bytes) { return _mm256_castsi256_si128(bytes); }
[[gnu::always_inline]] inline __m128i High(__m256i bytes) { return _mm256_extracti128_si256(bytes, 1); }

[[gnu::always_inline]] inline __m128i Factors(std::uint64_t first, std::uint64_t second) {
  return _mm_set_epi64x(static_cast<long long>(second), static_cast<long long>(first));
}

// Carries the remainder forward by what the factors stand for and adds the bytes that are there.
[[gnu::always_inline]] inline __m128i Fold(__m128i sum, __m128i factors, __m128i bytes) {
  return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(sum, factors, 0x00), bytes),
                       _mm_clmulepi64_si128(sum, factors, 0x11));
}

// n is a multiple of a step and not zero; `to` lies on a line.
template <To kTo, bool kSum>
__attribute__((no_sanitize("thread"))) std::uint32_t BySteps(Bytes* to, const Bytes* from, std::size_t n,
                                                             std::uint32_t crc) {
  const __m128i by_step = Factors(FoldFirst(kStep), FoldSecond(kStep));
  const __m128i by_half = Factors(FoldFirst(kHalf), FoldSecond(kHalf));
  __m128i sums[kAccumulators];
#pragma GCC unroll 4
  for (std::size_t i = 0; i < kAccumulators; i += 2) {
    const __m256i bytes = LoadOnce(from + i * kHalf);
    Store<kTo>(Ahead<kTo>(to, i * kHalf), bytes);
    sums[i] = Low(bytes);
    sums[i + 1] = High(bytes);
  }
  sums[0] = _mm_xor_si128(sums[0], _mm_cvtsi32_si128(static_cast<int>(crc)));
  std::size_t at = kStep;

  // Where the page begins whose successor is asked for next, seen from the source.
  std::ptrdiff_t page = -static_cast<std::ptrdiff_t>(reinterpret_cast<std::uintptr_t>(from) % kPage);
  while (at < n) {
    const std::ptrdiff_t ask = page + static_cast<std::ptrdiff_t>(kAskAt<kTo>);
    if (static_cast<std::ptrdiff_t>(at) >= ask) {
      page += kPage;
      for (std::size_t i = 0; i < kLinesAhead; ++i) _mm_prefetch(from + page + i * kLine, _MM_HINT_NTA);
      continue;
    }
    const std::size_t until = static_cast<std::size_t>(ask) < n ? static_cast<std::size_t>(ask) : n;
    for (; at < until; at += kStep) {
#pragma GCC unroll 4
      for (std::size_t i = 0; i < kAccumulators; i += 2) {
        const __m256i bytes = LoadOnce(from + at + i * kHalf);
        Store<kTo>(Ahead<kTo>(to, at + i * kHalf), bytes);
        if constexpr (kSum) {
          sums[i] = Fold(sums[i], by_step, Low(bytes));
          sums[i + 1] = Fold(sums[i + 1], by_step, High(bytes));
        }
      }
    }
  }
  if constexpr (!kSum) return 0;
  __m128i sum = sums[0];
#pragma GCC unroll 8
  for (std::size_t i = 1; i < kAccumulators; ++i) sum = Fold(sum, by_half, sums[i]);
  // What is left is 16 bytes that have the same remainder as everything before.
  alignas(kHalf) Bytes last[kHalf];
  _mm_store_si128(reinterpret_cast<__m128i*>(last), sum);
  return ByWords<To::kNowhere, true>(nullptr, last, kHalf, 0);
}

template <To kTo, bool kSum>
std::uint32_t Run(void* dst, const void* src, std::size_t n, std::uint32_t crc) {
  auto* to = static_cast<Bytes*>(dst);
  const auto* from = static_cast<const Bytes*>(src);
  crc = ~crc;
  if (n >= kStep + kLine) {
    const std::size_t head = (0 - reinterpret_cast<std::uintptr_t>(to)) % kLine;
    crc = ByWords<kTo, kSum>(to, from, head, crc);
    const std::size_t steps = (n - head) / kStep * kStep;
    crc = BySteps<kTo, kSum>(Ahead<kTo>(to, head), from + head, steps, crc);
    to = Ahead<kTo>(to, head + steps);
    from += head + steps;
    n -= head + steps;
  }
  return ~ByWords<kTo, kSum>(to, from, n, crc);
}

std::uint32_t Sum(const void* src, std::size_t n, std::uint32_t crc) {
  return Run<To::kNowhere, true>(nullptr, src, n, crc);
}

void PlainCopy(void* dst, const void* src, std::size_t n) { Run<To::kStream, false>(dst, src, n, 0); }

}  // namespace

const CopyKernels kAvx2Kernels = {"avx2", Run<To::kStream, true>, Run<To::kCached, true>, Sum, PlainCopy};

}  // namespace cistern::record
