// SPDX-License-Identifier: Apache-2.0
// The verified copy in 32-byte registers: AVX2 and VPCLMULQDQ without AVX-512.
#include <immintrin.h>

#include "record/copy_by_folds.h"
#include "record/copy_by_lanes.h"
#include "record/verified_copy_tables.h"

namespace cistern::record {
namespace {

struct HalfLine {
  using Register = __m256i;
  template <To, Into kInto>
  using Early = EachStep<kInto>;

  // One load: behind the empty asm the compiler does not know where the value came from, so it cannot load it
  // a second time instead of keeping it.
  [[gnu::always_inline]] static Register Load(const Bytes* from) {
    Register bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    asm("" : "+x"(bytes));
    return bytes;
  }
  template <To kTo>
  [[gnu::always_inline]] static void Store(Bytes* to, Register bytes) {
    if constexpr (kTo == To::kStream) _mm256_stream_si256(reinterpret_cast<__m256i*>(to), bytes);
    if constexpr (kTo == To::kCached) _mm256_store_si256(reinterpret_cast<__m256i*>(to), bytes);
  }
  [[gnu::always_inline]] static Register Factors(std::uint64_t first, std::uint64_t second) {
    const auto one = static_cast<long long>(first), two = static_cast<long long>(second);
    return _mm256_set_epi64x(two, one, two, one);
  }
  // Carries the remainder forward by what the factors stand for and adds the bytes that are there.
  [[gnu::always_inline]] static Register Fold(Register sum, Register factors, Register bytes) {
    return _mm256_xor_si256(_mm256_xor_si256(_mm256_clmulepi64_epi128(sum, factors, 0x00), bytes),
                            _mm256_clmulepi64_epi128(sum, factors, 0x11));
  }
  [[gnu::always_inline]] static Register Xor(Register a, Register b) { return _mm256_xor_si256(a, b); }
  // A register that begins with `crc`; the rest is zero.
  [[gnu::always_inline]] static Register First(std::uint32_t crc) {
    return _mm256_zextsi128_si256(_mm_cvtsi32_si128(static_cast<int>(crc)));
  }
};

}  // namespace

constinit const CopyKernels kVpclmulqdqKernels =
    PastCaches<Folds<HalfLine, Into::kPastL2>>("avx2_vpclmulqdq");
constinit const CopyKernels kIntelVpclmulqdqKernels =
    Lanes<Intel, FoldedLanes<HalfLine>, Folds<HalfLine, Into::kL2>>::Table("avx2_vpclmulqdq");

}  // namespace cistern::record
