// SPDX-License-Identifier: Apache-2.0
// A line of 64 bytes in one register, for the kernels with AVX-512 and VPCLMULQDQ. Internal linkage and
// included by those files alone, as copy_by_words.h.
#pragma once

#include <immintrin.h>

#include <type_traits>

#include "record/copy_by_folds.h"

namespace cistern::record {
namespace {

struct Line {
  using Register = __m512i;
  template <To kTo, Into kInto>
  using Early = std::conditional_t<kTo == To::kCached, EachPage<kInto>, EachStep<kInto>>;

  // One load: behind the empty asm the compiler does not know where the value came from, so it cannot load it
  // a second time instead of keeping it.
  [[gnu::always_inline]] static Register Load(const Bytes* from) {
    Register bytes = _mm512_loadu_si512(from);
    asm("" : "+v"(bytes));
    return bytes;
  }
  template <To kTo>
  [[gnu::always_inline]] static void Store(Bytes* to, Register bytes) {
    if constexpr (kTo == To::kStream) _mm512_stream_si512(reinterpret_cast<__m512i*>(to), bytes);
    if constexpr (kTo == To::kCached) _mm512_store_si512(to, bytes);
  }
  [[gnu::always_inline]] static Register Factors(std::uint64_t first, std::uint64_t second) {
    const auto one = static_cast<long long>(first), two = static_cast<long long>(second);
    return _mm512_set_epi64(two, one, two, one, two, one, two, one);
  }
  // Carries the remainder forward by what the factors stand for and adds the bytes that are there.
  [[gnu::always_inline]] static Register Fold(Register sum, Register factors, Register bytes) {
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(sum, factors, 0x00),
                                     _mm512_clmulepi64_epi128(sum, factors, 0x11), bytes, 0x96);
  }
  [[gnu::always_inline]] static Register Xor(Register a, Register b) { return _mm512_xor_si512(a, b); }
  // A register that begins with `crc`; the rest is zero.
  [[gnu::always_inline]] static Register First(std::uint32_t crc) {
    return _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc)));
  }
};

}  // namespace
}  // namespace cistern::record
