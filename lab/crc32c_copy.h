// SPDX-License-Identifier: Apache-2.0
// Kernels that copy whole 64 KiB segments and give each one's CRC32C, loading each byte once: shapes to
// choose from.
#pragma once

#include <immintrin.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace lab {

inline constexpr std::size_t kSegmentBytes = 64 * 1024;

enum class Store { kCached, kStream };
enum class Hint { kNone, kT0, kT1, kNta };

// x^n modulo the CRC32C polynomial, bit-reflected.
constexpr std::uint32_t PowerOfX(std::uint64_t n) {
  // Square and multiply: bit 31 is x^0.
  auto times = [](std::uint32_t a, std::uint32_t b) {
    std::uint32_t product = 0;
    for (int i = 31; i >= 0; --i) {
      if ((b >> i) & 1) product ^= a;
      a = (a >> 1) ^ ((a & 1) != 0 ? 0x82F63B78u : 0u);
    }
    return product;
  };
  std::uint32_t result = 0x80000000u;
  std::uint32_t base = 0x40000000u;
  for (; n != 0; n >>= 1) {
    if ((n & 1) != 0) result = times(result, base);
    base = times(base, base);
  }
  return result;
}

// What carries a 128-bit remainder forward over `bytes`: the low half's factor, then the high half's.
struct Fold {
  std::uint64_t low;
  std::uint64_t high;
};
constexpr Fold FoldBy(std::uint64_t bytes) {
  return {static_cast<std::uint64_t>(PowerOfX(bytes * 8 + 32)) << 1,
          static_cast<std::uint64_t>(PowerOfX(bytes * 8 - 32)) << 1};
}

inline std::uint32_t Crc32cWords(std::uint32_t crc, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  std::uint64_t value = crc;
  for (; bytes >= 8; bytes -= 8, at += 8) {
    std::uint64_t word;
    std::memcpy(&word, at, 8);
    value = _mm_crc32_u64(value, word);
  }
  return static_cast<std::uint32_t>(value);
}

template <Hint kHint>
inline void Prefetch(const char* at) {
  if constexpr (kHint == Hint::kT0) _mm_prefetch(at, _MM_HINT_T0);
  if constexpr (kHint == Hint::kT1) _mm_prefetch(at, _MM_HINT_T1);
  if constexpr (kHint == Hint::kNta) _mm_prefetch(at, _MM_HINT_NTA);
}

// One width of register: 16 (PCLMULQDQ), 32 and 64 bytes (VPCLMULQDQ).
template <int kWidth>
struct Lane;

template <>
struct Lane<64> {
  using Reg = __m512i;
  static Reg Load(const char* p) { return _mm512_loadu_si512(p); }
  template <Store kStore>
  static void Put(char* p, Reg v) {
    if constexpr (kStore == Store::kStream)
      _mm512_stream_si512(reinterpret_cast<__m512i*>(p), v);
    else
      _mm512_storeu_si512(p, v);
  }
  static Reg Factor(Fold f) {
    return _mm512_broadcast_i32x4(
        _mm_set_epi64x(static_cast<long long>(f.high), static_cast<long long>(f.low)));
  }
  static Reg Carry(Reg x, Reg k, Reg d) {
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x, k, 0x00),
                                     _mm512_clmulepi64_epi128(x, k, 0x11), d, 0x96);
  }
  static Reg Xor(Reg a, Reg b) { return _mm512_xor_si512(a, b); }
  static Reg FirstOf(std::uint32_t v) {
    return _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(v)));
  }
};

template <>
struct Lane<32> {
  using Reg = __m256i;
  static Reg Load(const char* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  template <Store kStore>
  static void Put(char* p, Reg v) {
    if constexpr (kStore == Store::kStream)
      _mm256_stream_si256(reinterpret_cast<__m256i*>(p), v);
    else
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
  }
  static Reg Factor(Fold f) {
    return _mm256_broadcastsi128_si256(
        _mm_set_epi64x(static_cast<long long>(f.high), static_cast<long long>(f.low)));
  }
  static Reg Carry(Reg x, Reg k, Reg d) {
    return _mm256_xor_si256(
        _mm256_xor_si256(_mm256_clmulepi64_epi128(x, k, 0x00), _mm256_clmulepi64_epi128(x, k, 0x11)), d);
  }
  static Reg Xor(Reg a, Reg b) { return _mm256_xor_si256(a, b); }
  static Reg FirstOf(std::uint32_t v) {
    return _mm256_zextsi128_si256(_mm_cvtsi32_si128(static_cast<int>(v)));
  }
};

template <>
struct Lane<16> {
  using Reg = __m128i;
  static Reg Load(const char* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
  template <Store kStore>
  static void Put(char* p, Reg v) {
    if constexpr (kStore == Store::kStream)
      _mm_stream_si128(reinterpret_cast<__m128i*>(p), v);
    else
      _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v);
  }
  static Reg Factor(Fold f) {
    return _mm_set_epi64x(static_cast<long long>(f.high), static_cast<long long>(f.low));
  }
  static Reg Carry(Reg x, Reg k, Reg d) {
    return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), _mm_clmulepi64_si128(x, k, 0x11)),
                         d);
  }
  static Reg Xor(Reg a, Reg b) { return _mm_xor_si128(a, b); }
  static Reg FirstOf(std::uint32_t v) { return _mm_cvtsi32_si128(static_cast<int>(v)); }
};

// A segment in kStreams parallel runs of kAccs registers each; kAhead bytes of software prefetch in each run.
template <int kWidth, int kStreams, int kAccs, Store kStore, int kAhead, Hint kHint>
std::uint32_t CopySegment(const char* from, char* to, bool last) {
  using L = Lane<kWidth>;
  constexpr std::size_t kRun = kSegmentBytes / kStreams;
  constexpr std::size_t kStep = static_cast<std::size_t>(kWidth) * kAccs;
  const auto step = L::Factor(FoldBy(kStep));
  typename L::Reg acc[kStreams][kAccs];
#pragma GCC unroll 8
  for (int s = 0; s < kStreams; ++s) {
#pragma GCC unroll 8
    for (int a = 0; a < kAccs; ++a) {
      const std::size_t at = static_cast<std::size_t>(s) * kRun + static_cast<std::size_t>(a) * kWidth;
      acc[s][a] = L::Load(from + at);
      L::template Put<kStore>(to + at, acc[s][a]);
    }
  }
  acc[0][0] = L::Xor(acc[0][0], L::FirstOf(0xffffffffu));
  auto run = [&]<Hint kHere>(std::size_t begin, std::size_t end) __attribute__((always_inline)) {
    for (std::size_t i = begin; i < end; i += kStep) {
#pragma GCC unroll 8
      for (int s = 0; s < kStreams; ++s) {
        const std::size_t base = static_cast<std::size_t>(s) * kRun + i;
#pragma GCC unroll 8
        for (std::size_t line = 0; line < kStep; line += 64) Prefetch<kHere>(from + base + kAhead + line);
#pragma GCC unroll 8
        for (int a = 0; a < kAccs; ++a) {
          const std::size_t at = base + static_cast<std::size_t>(a) * kWidth;
          const auto data = L::Load(from + at);
          L::template Put<kStore>(to + at, data);
          acc[s][a] = L::Carry(acc[s][a], step, data);
        }
      }
    }
  };
  const std::size_t hinted = kHint != Hint::kNone && (last || kStreams > 1) ? kRun - kAhead : kRun;
  run.template operator()<kHint>(kStep, hinted);
  run.template operator()<Hint::kNone>(hinted, kRun);
  // Every 16 bytes of the accumulators, carried to the segment's last 16 bytes.
  alignas(64) char lanes[kStreams][kStep];
  std::memcpy(lanes, acc, sizeof(lanes));
  static constexpr auto kAway = [] {
    std::array<std::array<Fold, kStep / 16>, kStreams> away{};
    for (std::size_t s = 0; s < kStreams; ++s)
      for (std::size_t l = 0; l < kStep / 16; ++l) {
        const std::size_t bytes = (kStreams - 1 - s) * kRun + kStep - 16 - l * 16;
        if (bytes != 0) away[s][l] = FoldBy(bytes);
      }
    return away;
  }();
  __m128i sum = _mm_setzero_si128();
  for (std::size_t s = 0; s < kStreams; ++s)
    for (std::size_t l = 0; l < kStep / 16; ++l) {
      const __m128i v = _mm_load_si128(reinterpret_cast<const __m128i*>(lanes[s] + l * 16));
      const bool end = s == kStreams - 1 && l == kStep / 16 - 1;
      sum = end ? _mm_xor_si128(sum, v) : Lane<16>::Carry(v, Lane<16>::Factor(kAway[s][l]), sum);
    }
  std::uint64_t crc = _mm_crc32_u64(0, static_cast<std::uint64_t>(_mm_cvtsi128_si64(sum)));
  crc = _mm_crc32_u64(crc, static_cast<std::uint64_t>(_mm_extract_epi64(sum, 1)));
  return ~static_cast<std::uint32_t>(crc);
}

// Through a 4 KiB tile in L1: three interleaved runs of the crc32 instruction read the tile, not the source.
template <Store kStore, int kAhead, Hint kHint>
std::uint32_t CopySegmentByTiles(const char* from, char* to, bool last) {
  constexpr std::size_t kTile = 4096;
  constexpr std::size_t kThird = 1360;  // 3 x 1,360 + 16
  static constexpr std::uint64_t kByOne = static_cast<std::uint64_t>(PowerOfX(8 * kThird - 33));
  static constexpr std::uint64_t kByTwo = static_cast<std::uint64_t>(PowerOfX(8 * 2 * kThird - 33));
  alignas(64) char tile[kTile];
  std::uint64_t crc = 0xffffffffu;
  for (std::size_t t = 0; t < kSegmentBytes; t += kTile) {
    const bool ahead = !last || t + kTile + kAhead <= kSegmentBytes;
    for (std::size_t i = 0; i < kTile; i += 128) {
      if (kHint != Hint::kNone && ahead) {
        Prefetch<kHint>(from + t + i + kAhead);
        Prefetch<kHint>(from + t + i + kAhead + 64);
      }
#pragma GCC unroll 4
      for (std::size_t v = 0; v < 128; v += 32)
        Lane<32>::Put<Store::kCached>(tile + i + v, Lane<32>::Load(from + t + i + v));
    }
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (std::size_t i = 0; i < kThird; i += 8) {
      std::uint64_t a, b, c;
      std::memcpy(&a, tile + i, 8);
      std::memcpy(&b, tile + kThird + i, 8);
      std::memcpy(&c, tile + 2 * kThird + i, 8);
      crc = _mm_crc32_u64(crc, a);
      second = _mm_crc32_u64(second, b);
      third = _mm_crc32_u64(third, c);
    }
    auto shift = [](std::uint64_t value, std::uint64_t factor) {
      const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<long long>(value)),
                                                   _mm_cvtsi64_si128(static_cast<long long>(factor)), 0);
      return _mm_crc32_u64(0, static_cast<std::uint64_t>(_mm_cvtsi128_si64(product)));
    };
    crc = shift(crc, kByTwo) ^ shift(second, kByOne) ^ third;
    crc = Crc32cWords(static_cast<std::uint32_t>(crc), tile + 3 * kThird, kTile - 3 * kThird);
    for (std::size_t i = 0; i < kTile; i += 32) Lane<32>::Put<kStore>(to + t + i, Lane<32>::Load(tile + i));
  }
  return ~static_cast<std::uint32_t>(crc);
}

// Only the crc32 instruction and 8-byte stores: three runs of a segment, each word loaded once into a
// register.
template <Store kStore>
std::uint32_t CopySegmentByWords(const char* from, char* to, bool) {
  constexpr std::size_t kRun = 341 * 64;  // 3 x 21,824 + 64
  static constexpr std::uint64_t kByOne = static_cast<std::uint64_t>(PowerOfX(8 * kRun - 33));
  static constexpr std::uint64_t kByTwo = static_cast<std::uint64_t>(PowerOfX(8 * 2 * kRun - 33));
  auto move = [&](std::size_t at, std::uint64_t crc) __attribute__((always_inline)) {
    std::uint64_t word;
    std::memcpy(&word, from + at, 8);
    if constexpr (kStore == Store::kStream)
      _mm_stream_si64(reinterpret_cast<long long*>(to + at), static_cast<long long>(word));
    else
      std::memcpy(to + at, &word, 8);
    return _mm_crc32_u64(crc, word);
  };
  std::uint64_t crc = 0xffffffffu;
  std::uint64_t second = 0;
  std::uint64_t third = 0;
  for (std::size_t i = 0; i < kRun; i += 64) {
#pragma GCC unroll 8
    for (std::size_t w = 0; w < 64; w += 8) crc = move(i + w, crc);
#pragma GCC unroll 8
    for (std::size_t w = 0; w < 64; w += 8) second = move(kRun + i + w, second);
#pragma GCC unroll 8
    for (std::size_t w = 0; w < 64; w += 8) third = move(2 * kRun + i + w, third);
  }
  auto shift = [](std::uint64_t value, std::uint64_t factor) {
    const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<long long>(value)),
                                                 _mm_cvtsi64_si128(static_cast<long long>(factor)), 0);
    return _mm_crc32_u64(0, static_cast<std::uint64_t>(_mm_cvtsi128_si64(product)));
  };
  crc = shift(crc, kByTwo) ^ shift(second, kByOne) ^ third;
  for (std::size_t i = 3 * kRun; i < kSegmentBytes; i += 8) crc = move(i, crc);
  return ~static_cast<std::uint32_t>(crc);
}

}  // namespace lab
