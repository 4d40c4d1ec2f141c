// SPDX-License-Identifier: Apache-2.0
// The verified copy without VPCLMULQDQ: loads and stores of 32 bytes, summed by the crc32 instruction.
#include <immintrin.h>

#include "record/copy_by_lanes.h"
#include "record/copy_by_runs.h"
#include "record/crc32_x86.h"
#include "record/verified_copy_tables.h"

namespace cistern::record {
namespace {

struct Avx2 : Crc32X86 {
  template <To kTo>
  [[gnu::always_inline]] static std::uint32_t CopyLine(Bytes* to, const Bytes* from, std::uint32_t crc) {
#pragma GCC unroll 2
    for (std::size_t i = 0; i < kLine; i += 32) {
      const __m256i bytes = LoadOnce(from + i);
      auto* const half = reinterpret_cast<__m256i*>(Ahead<kTo>(to, i));
      if constexpr (kTo == To::kStream) _mm256_stream_si256(half, bytes);
      if constexpr (kTo == To::kCached) _mm256_store_si256(half, bytes);
      crc = Sum(crc, _mm256_castsi256_si128(bytes));
      crc = Sum(crc, _mm256_extracti128_si256(bytes, 1));
    }
    return crc;
  }
  [[gnu::always_inline]] static std::uint64_t Multiply(std::uint64_t a, std::uint64_t b) {
    return static_cast<std::uint64_t>(_mm_cvtsi128_si64(_mm_clmulepi64_si128(
        _mm_cvtsi64_si128(static_cast<long long>(a)), _mm_cvtsi64_si128(static_cast<long long>(b)), 0)));
  }

 private:
  // One load: behind the empty asm the compiler does not know where the value came from, so it cannot load it
  // a second time instead of keeping it.
  [[gnu::always_inline]] static __m256i LoadOnce(const Bytes* from) {
    __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    asm("" : "+x"(bytes));
    return bytes;
  }
  [[gnu::always_inline]] static std::uint32_t Sum(std::uint32_t crc, __m128i bytes) {
    crc = Word(crc, static_cast<std::uint64_t>(_mm_cvtsi128_si64(bytes)));
    return Word(crc, static_cast<std::uint64_t>(_mm_extract_epi64(bytes, 1)));
  }
};

}  // namespace

constinit const CopyKernels kAvx2Kernels = PastCaches<Tiles<Avx2, Into::kPastL2>>("avx2");
constinit const CopyKernels kIntelAvx2Kernels =
    Lanes<Intel, CountedLanes<Avx2>, Tiles<Avx2, Into::kL1>>::Table("avx2");

}  // namespace cistern::record
