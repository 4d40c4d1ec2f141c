// SPDX-License-Identifier: Apache-2.0
// The verified copy without AVX-512: each page in three runs of eight-byte words through the crc32
// instruction, which takes a word a cycle and answers three cycles later. PCLMULQDQ in 16-byte registers
// reaches half of that (measured on Zen 4); it only joins the three remainders here. The plain copy is AVX2.
// When pages are asked for, and why: verified_copy_avx512.cc.
#include <immintrin.h>

#include "record/crc32c_fold.h"
#include "record/verified_copy_tables.h"

namespace cistern {
namespace {

using Bytes = unsigned char;

enum class To { kStream, kCached, kNowhere };

constexpr std::size_t kLine = 64;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kRun = 21 * kLine;  // three runs of whole lines, and one line is left of the page
constexpr std::size_t kLinesAhead = 4;

template <To kTo>
constexpr std::size_t kAskAt = kTo == To::kCached ? 1024 : 1536;

// There is nothing to step over where nothing is stored.
template <To kTo>
[[gnu::always_inline]] inline Bytes* Ahead(Bytes* to, std::size_t n) {
  if constexpr (kTo == To::kNowhere) return to;
  return to + n;
}

[[gnu::always_inline]] inline void AskForPage(const Bytes* page) {
  for (std::size_t i = 0; i < kLinesAhead; ++i) _mm_prefetch(page + i * kLine, _MM_HINT_NTA);
}

// One word loaded once, stored and summed. Behind the empty asm the compiler does not know where the value
// came from, so it cannot load it a second time instead of keeping it.
template <To kTo>
[[gnu::always_inline]] inline std::uint64_t Word(Bytes* to, const Bytes* from, std::uint64_t sum) {
  std::uint64_t word;
  __builtin_memcpy(&word, from, 8);
  asm("" : "+r"(word));
  if constexpr (kTo == To::kStream) {
    _mm_stream_si64(reinterpret_cast<long long*>(to), static_cast<long long>(word));
  }
  if constexpr (kTo == To::kCached) __builtin_memcpy(to, &word, 8);
  return _mm_crc32_u64(sum, word);
}

// The bare register `sum` carried forward over as many zero bytes as `factor` stands for.
[[gnu::always_inline]] inline std::uint64_t Carry(std::uint64_t sum, std::uint64_t factor) {
  const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<long long>(sum)),
                                               _mm_cvtsi64_si128(static_cast<long long>(factor)), 0x00);
  return _mm_crc32_u64(0, static_cast<std::uint64_t>(_mm_cvtsi128_si64(product)));
}

// One page; `to` is aligned to a word when it is streamed to.
template <To kTo>
[[gnu::always_inline]] inline std::uint64_t Page(Bytes* to, const Bytes* from, std::uint64_t sum) {
  constexpr std::uint64_t kOverOne = CarryOver(kRun), kOverTwo = CarryOver(2 * kRun);
  std::uint64_t second = 0, third = 0;
  const auto runs = [&](std::size_t begin, std::size_t end) __attribute__((always_inline)) {
    for (std::size_t at = begin; at < end; at += kLine) {
#pragma GCC unroll 8
      for (std::size_t word = at; word < at + kLine; word += 8) {
        sum = Word<kTo>(Ahead<kTo>(to, word), from + word, sum);
        second = Word<kTo>(Ahead<kTo>(to, kRun + word), from + kRun + word, second);
        third = Word<kTo>(Ahead<kTo>(to, 2 * kRun + word), from + 2 * kRun + word, third);
      }
    }
  };
  constexpr std::size_t kAsk = kAskAt<kTo> / 3 / kLine * kLine;
  runs(0, kAsk);
  AskForPage(from + kPage);
  runs(kAsk, kRun);
  sum = Carry(sum, kOverTwo) ^ Carry(second, kOverOne) ^ third;
  for (std::size_t word = 3 * kRun; word < kPage; word += 8)
    sum = Word<kTo>(Ahead<kTo>(to, word), from + word, sum);
  return sum;
}

template <To kTo>
__attribute__((no_sanitize("thread"))) std::uint32_t Run(void* dst, const void* src, std::size_t n,
                                                         std::uint32_t crc) {
  auto* to = static_cast<Bytes*>(dst);
  const auto* from = static_cast<const Bytes*>(src);
  std::uint32_t narrow = ~crc;
  const auto byte = [&]() __attribute__((always_inline)) {
    Bytes value = *from++;
    asm("" : "+r"(value));
    narrow = _mm_crc32_u8(narrow, value);
    if constexpr (kTo != To::kNowhere) *to++ = value;
    --n;
  };
  if constexpr (kTo == To::kStream) {
    while (n > 0 && reinterpret_cast<std::uintptr_t>(to) % 8 != 0) byte();
  }
  std::uint64_t sum = narrow;
  const auto words = [&](std::size_t bytes) __attribute__((always_inline)) {
    for (std::size_t at = 0; at < bytes; at += 8) sum = Word<kTo>(Ahead<kTo>(to, at), from + at, sum);
    to = Ahead<kTo>(to, bytes);
    from += bytes;
    n -= bytes;
  };
  if (n >= kPage + kLine) {
    // Pages begin with lines of the destination.
    words((0 - reinterpret_cast<std::uintptr_t>(to)) % kLine / 8 * 8);
    for (; n >= kPage; n -= kPage, from += kPage) {
      sum = Page<kTo>(to, from, sum);
      to = Ahead<kTo>(to, kPage);
    }
  }
  words(n / 8 * 8);
  narrow = static_cast<std::uint32_t>(sum);
  while (n > 0) byte();
  return ~narrow;
}

// Streamed words pay when they fill line after line; what is hardly a page stays in the caches.
std::uint32_t Stream(void* dst, const void* src, std::size_t n, std::uint32_t crc) {
  return n > kPage + kLine ? Run<To::kStream>(dst, src, n, crc) : Run<To::kCached>(dst, src, n, crc);
}

std::uint32_t Sum(const void* src, std::size_t n, std::uint32_t crc) {
  return Run<To::kNowhere>(nullptr, src, n, crc);
}

__attribute__((no_sanitize("thread"))) void PlainCopy(void* dst, const void* src, std::size_t n) {
  constexpr std::size_t kStep = 32;
  auto* to = static_cast<Bytes*>(dst);
  const auto* from = static_cast<const Bytes*>(src);
  const std::size_t to_line = (0 - reinterpret_cast<std::uintptr_t>(to)) % kLine;
  const std::size_t head = to_line < n ? to_line : n;
  if (head > 0) __builtin_memcpy(to, from, head);
  std::size_t at = head;
  for (; n - at >= kPage; at += kPage) {
    AskForPage(from + at + kPage);
    for (std::size_t i = at; i < at + kPage; i += kStep) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i),
                          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
    }
  }
  if (n > at) __builtin_memcpy(to + at, from + at, n - at);
}

}  // namespace

const CopyKernels kAvx2Kernels = {"avx2", Stream, Run<To::kCached>, Sum, PlainCopy};

}  // namespace cistern
